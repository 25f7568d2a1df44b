//! The row order of one pass. Blocks are permuted with a seed, and rows are then permuted within windows of the resulting
//! sequence. The blocks of a run stay in storage order, because they are decompressed in this order. The rows at any offset
//! can be computed. Memory use grows with the number of blocks, and of splits for compressed datasets, not with the number of rows.

mod block_table;
mod portions;

use std::ops::Range;

pub use self::block_table::BlockTable;
use self::block_table::pass_key;
pub(crate) use self::portions::{DealtRuns, Portion, Portions, SplitLane};
use self::portions::{Pieces, Window};
use crate::permutation::Permutation;
use crate::random::mix64;

/// The location of a row to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowRef {
    /// The row's index in the dataset's storage order.
    pub row_id: u64,
    /// The pass over the data, counted over all epochs: the `pass` of [`crate::random::RowRandom`].
    pub pass: u32,
    /// The index of the row's shard in the manifest.
    pub shard: u32,
    /// The index of the row's block in the shard.
    pub block: u32,
    /// The index of the row in the block.
    pub row: u32,
}

/// The order of one pass over a dataset.
#[derive(Debug)]
pub struct PassOrder {
    pass: u32,
    seed: u64,
    window: u64,
    /// Block indexes in the order of this pass, or lane by lane; empty for storage order.
    blocks: Vec<u32>,
    /// The offset of the first row of each of `blocks`; empty for storage order.
    starts: Vec<u64>,
    /// The windows of a compressed dataset; empty for other datasets.
    pieces: Pieces,
}

impl PassOrder {
    /// Creates the order of pass `pass`, counted over all epochs. With `window` 0 the rows keep storage order.
    pub fn new(table: &BlockTable, seed: u64, pass: u32, window: u64) -> Self {
        if window == 0 {
            return Self { pass, seed, window, ..Self::of_runs(table, std::iter::empty()) };
        }
        let count = table.runs.len() as u64;
        let permutation = Permutation::new(count, pass_key(seed, pass));
        let runs = (0..count).map(|index| permutation.apply(index) as u32);
        Self { pass, seed, window, ..Self::of_runs(table, runs) }
    }

    /// Creates the order of a pass over a compressed dataset. `window` is not 0.
    pub(crate) fn of_portions(
        table: &BlockTable,
        seed: u64,
        pass: u32,
        window: u64,
        runs: &DealtRuns,
        portions: Portions,
    ) -> Self {
        let (runs, lane_rows) = runs.order(seed, pass);
        let pieces = Pieces::new(portions, &lane_rows, window);
        Self { pass, seed, window, pieces, ..Self::of_runs(table, runs.into_iter()) }
    }

    fn of_runs(table: &BlockTable, runs: impl Iterator<Item = u32>) -> Self {
        let mut blocks = Vec::with_capacity(table.blocks.len());
        let mut starts = Vec::with_capacity(table.blocks.len());
        let mut rows = 0;
        for block in runs.flat_map(|run| table.run(run as usize)) {
            blocks.push(block);
            starts.push(rows);
            rows += table.block_rows(block as usize);
        }
        Self { pass: 0, seed: 0, window: 0, blocks, starts, pieces: Pieces::default() }
    }

    /// Returns the rows at a range of offsets in the pass, in order.
    pub fn rows(&self, table: &BlockTable, offsets: Range<u64>) -> Vec<RowRef> {
        let mut window = WindowPermutation::default();
        offsets.map(|offset| self.row_at(table, offset, &mut window)).collect()
    }

    /// Returns the number of rows at the start of each shard that are among the first `count` rows of the pass, in the order of the
    /// shards. With a shuffle, only whole blocks count. Takes O(blocks) time.
    pub fn leading_rows(&self, table: &BlockTable, count: u64) -> Vec<(u32, u64)> {
        let mut delivered: Vec<u64> = (0..table.blocks.len())
            .map(|block| count.saturating_sub(table.starts[block]).min(table.block_rows(block)))
            .collect();
        if self.window > 0 {
            for (block, start) in self.blocks.iter().zip(&self.starts) {
                let rows = table.block_rows(*block as usize);
                // The rows of a block may be anywhere in its windows.
                let end = (start + rows).next_multiple_of(self.window).min(table.rows());
                delivered[*block as usize] = if end <= count { rows } else { 0 };
            }
        }
        let mut shards: Vec<(u32, u64)> = Vec::new();
        let mut is_open = true;
        for (block, (shard, _)) in table.blocks.iter().enumerate() {
            if shards.last().is_none_or(|(last, _)| last != shard) {
                shards.push((*shard, 0));
                is_open = true;
            }
            if let Some((_, rows)) = shards.last_mut().filter(|_| is_open) {
                *rows += delivered[block];
                is_open = delivered[block] == table.block_rows(block);
            }
        }
        shards
    }

    fn row_at(&self, table: &BlockTable, offset: u64, window: &mut WindowPermutation) -> RowRef {
        if self.window == 0 {
            let block = table.starts.partition_point(|&start| start <= offset) - 1;
            return self.row_in_block(table, block, offset - table.starts[block]);
        }
        let shuffled = window.apply(self, table.rows(), offset);
        let index = self.starts.partition_point(|&start| start <= shuffled) - 1;
        self.row_in_block(table, self.blocks[index] as usize, shuffled - self.starts[index])
    }

    /// Returns the window that contains an offset, and its number, which determines its permutation.
    fn window_at(&self, rows: u64, offset: u64) -> (Window, u64) {
        if !self.pieces.is_empty() {
            let window = self.pieces.window(offset);
            let number = window.offsets.start;
            return (window, number);
        }
        let number = offset / self.window;
        let start = number * self.window;
        (Window { offsets: start..start.saturating_add(self.window).min(rows), position: start }, number)
    }

    fn row_in_block(&self, table: &BlockTable, block: usize, row: u64) -> RowRef {
        let (shard, block_in_shard) = table.blocks[block];
        RowRef {
            row_id: table.first_id + table.starts[block] + row,
            pass: self.pass,
            shard,
            block: block_in_shard,
            row: row as u32,
        }
    }
}

/// The permutation of the most recently used window: adjacent offsets share one window.
#[derive(Default)]
struct WindowPermutation {
    current: Option<(Window, Permutation)>,
}

impl WindowPermutation {
    /// Returns the offset in the rows of `pass.blocks`.
    fn apply(&mut self, pass: &PassOrder, rows: u64, offset: u64) -> u64 {
        if self.current.as_ref().is_none_or(|(window, _)| !window.offsets.contains(&offset)) {
            let (window, number) = pass.window_at(rows, offset);
            let key = mix64(pass_key(pass.seed, pass.pass) ^ mix64(number + 1));
            let permutation = Permutation::new(window.offsets.end - window.offsets.start, key);
            self.current = Some((window, permutation));
        }
        let (window, permutation) = self.current.as_ref().expect("the branch above sets the permutation");
        window.position + permutation.apply(offset - window.offsets.start)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Each block is a run.
    fn table(block_rows: &[u32]) -> BlockTable {
        table_of_runs(block_rows, (0..block_rows.len() as u32).collect())
    }

    fn table_of_runs(block_rows: &[u32], runs: Vec<u32>) -> BlockTable {
        let mut starts = vec![0];
        for &rows in block_rows {
            starts.push(starts.last().expect("not empty") + u64::from(rows));
        }
        BlockTable {
            blocks: (0..block_rows.len() as u32).map(|block| (0, block)).collect(),
            starts,
            runs,
            first_id: 0,
        }
    }

    proptest! {
        #[test]
        fn a_pass_contains_every_row_once_for_any_window(
            blocks in prop::collection::vec(1u32..50, 1..30), seed: u64, pass in 0u32..5, window in 0u64..200,
        ) {
            let table = table(&blocks);
            let order = PassOrder::new(&table, seed, pass, window);
            let rows = order.rows(&table, 0..table.rows());
            let ids: BTreeSet<u64> = rows.iter().map(|row| row.row_id).collect();
            prop_assert_eq!(ids.len() as u64, table.rows());
            for row in &rows {
                prop_assert_eq!(table.starts[row.block as usize] + u64::from(row.row), row.row_id);
            }
        }

        #[test]
        fn the_leading_rows_of_a_shard_are_all_in_the_prefix(
            blocks in prop::collection::vec(1u32..50, 1..30), seed: u64, window in 0u64..200, count: u64,
        ) {
            let mut table = table(&blocks);
            // Three blocks are a shard.
            for (block, place) in table.blocks.iter_mut().enumerate() {
                place.0 = block as u32 / 3;
            }
            let count = count % (table.rows() + 1);
            let order = PassOrder::new(&table, seed, 0, window);
            let prefix: BTreeSet<u64> = order.rows(&table, 0..count).iter().map(|row| row.row_id).collect();
            for (shard, rows) in order.leading_rows(&table, count) {
                let start = table.starts[shard as usize * 3];
                prop_assert!((start..start + rows).all(|row| prefix.contains(&row)));
                let end = table.starts[(shard as usize * 3 + 3).min(blocks.len())];
                if window == 0 {
                    prop_assert_eq!(rows, (start..end).take_while(|row| prefix.contains(row)).count() as u64);
                }
                prop_assert!(count < table.rows() || rows == end - start);
            }
        }

        #[test]
        fn the_blocks_of_a_run_stay_in_order(
            blocks in prop::collection::vec(1u32..50, 1..30), seed: u64, pass in 0u32..5, starts: u32,
        ) {
            let is_start = |block: &u32| *block == 0 || starts >> (block % 32) & 1 == 1;
            let runs: Vec<u32> = (0..blocks.len() as u32).filter(is_start).collect();
            let table = table_of_runs(&blocks, runs.clone());
            let order = PassOrder::new(&table, seed, pass, 1);
            for pair in order.blocks.windows(2) {
                prop_assert!(pair[1] == pair[0] + 1 || runs.contains(&pair[1]));
            }
            let ids: BTreeSet<u64> = order.rows(&table, 0..table.rows()).iter().map(|row| row.row_id).collect();
            prop_assert_eq!(ids.len() as u64, table.rows());
        }

        #[test]
        fn rows_of_a_range_equal_the_same_range_of_the_whole_pass(
            blocks in prop::collection::vec(1u32..50, 1..30), seed: u64, window in 0u64..200, cut: u64,
        ) {
            let table = table(&blocks);
            let order = PassOrder::new(&table, seed, 1, window);
            let whole = order.rows(&table, 0..table.rows());
            let cut = cut % table.rows();
            prop_assert_eq!(&order.rows(&table, cut..table.rows())[..], &whole[cut as usize..]);
        }
    }

    #[test]
    fn window_zero_keeps_storage_order_and_other_windows_differ_by_pass() {
        let table = table(&[3, 4, 5, 6, 7, 8]);
        let ids = |pass, window| -> Vec<u64> {
            let order = PassOrder::new(&table, 9, pass, window);
            order.rows(&table, 0..table.rows()).iter().map(|row| row.row_id).collect()
        };
        assert_eq!(ids(0, 0), (0..33).collect::<Vec<_>>());
        assert_ne!(ids(0, 8), ids(1, 8));
        assert_ne!(ids(0, 8), ids(0, 9));
        assert_eq!(ids(0, 8), ids(0, 8));
    }
}
