//! Computes blocks of rows on all cores, in order.

use std::ops::Range;
use std::thread;

use anyhow::Result;

/// Calls `make` for each block of at most `block_rows` rows on all cores, and passes the results to `push` in order. `chunk_blocks`
/// blocks are in memory at a time.
pub(super) fn for_each_block<T: Send>(
    rows: u64,
    block_rows: u64,
    chunk_blocks: usize,
    make: impl Fn(Range<u64>) -> T + Sync,
    mut push: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut next = 0;
    while next < rows {
        let mut blocks = Vec::new();
        while next < rows && blocks.len() < chunk_blocks {
            let end = rows.min(next + block_rows);
            blocks.push(next..end);
            next = end;
        }
        for part in in_parallel(&blocks, threads, &make) {
            push(part)?;
        }
    }
    Ok(())
}

fn in_parallel<T: Send>(
    blocks: &[Range<u64>],
    threads: usize,
    make: &(impl Fn(Range<u64>) -> T + Sync),
) -> Vec<T> {
    let share = blocks.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let start = |part: &'_ [Range<u64>]| {
            let part = part.to_vec();
            scope.spawn(move || part.into_iter().map(make).collect::<Vec<T>>())
        };
        let running: Vec<_> = blocks.chunks(share).map(start).collect();
        running
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_in_order() {
        for (rows, block, chunk) in [(0, 3, 2), (1, 3, 2), (100, 7, 4), (100, 1, 1000)] {
            let mut all = Vec::new();
            for_each_block(
                rows,
                block,
                chunk,
                |block| block.collect::<Vec<u64>>(),
                |block| {
                    assert!(block.len() <= 7);
                    all.extend(block);
                    Ok(())
                },
            )
            .unwrap();
            assert_eq!(all, (0..rows).collect::<Vec<u64>>());
        }
    }
}
