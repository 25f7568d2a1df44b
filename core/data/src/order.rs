//! The row order of one pass. Blocks are permuted with a seed, and rows are then permuted within windows of the resulting
//! sequence. The rows at any offset can be computed. Memory use grows with the number of blocks, not with the number of
//! rows.

use std::ops::Range;

use crate::manifest::{Manifest, Shard};
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

/// The location and the first row of each block of a dataset.
#[derive(Debug)]
pub struct BlockTable {
    /// The (shard, block) indexes of each block, in storage order.
    blocks: Vec<(u32, u32)>,
    /// The index of each block's first row in storage order; the last entry is the number of rows.
    starts: Vec<u64>,
    /// The row id of the first row.
    first_id: u64,
}

impl BlockTable {
    /// The table of all shards of a manifest.
    pub fn new(manifest: &Manifest) -> Self {
        Self::for_shards(manifest, |_| true)
    }

    /// Creates the table of one dataset of a mix. Row ids are unique across all datasets of the mix.
    pub fn for_part(manifest: &Manifest, part: u32) -> Self {
        Self::for_shards(manifest, |shard| shard.object.part == part)
    }

    fn for_shards(manifest: &Manifest, is_in: impl Fn(&Shard) -> bool) -> Self {
        let before = manifest.shards.iter().take_while(|shard| !is_in(shard));
        let first_id = before.map(|shard| shard.index.rows()).sum();
        let mut blocks = Vec::new();
        let mut starts = vec![0];
        let mut rows = 0;
        // The shards of one dataset are adjacent in the manifest.
        for (shard, entry) in manifest.shards.iter().enumerate().filter(|(_, entry)| is_in(entry)) {
            for (block, description) in entry.index.blocks.iter().enumerate() {
                rows += u64::from(description.rows);
                blocks.push((shard as u32, block as u32));
                starts.push(rows);
            }
        }
        Self { blocks, starts, first_id }
    }

    /// The number of rows of the dataset.
    pub fn rows(&self) -> u64 {
        *self.starts.last().expect("the constructor inserts a first entry")
    }

    fn block_rows(&self, block: usize) -> u64 {
        self.starts[block + 1] - self.starts[block]
    }
}

/// The order of one pass over a dataset.
#[derive(Debug)]
pub struct PassOrder {
    pass: u32,
    seed: u64,
    window: u64,
    /// Block indexes in the order of this pass; empty for storage order.
    blocks: Vec<u32>,
    /// The offset in the pass of each block's first row, in the order of this pass; empty for storage order.
    starts: Vec<u64>,
}

impl PassOrder {
    /// Creates the order of pass `pass`, counted over all epochs. With `window` 0 the rows keep storage order.
    pub fn new(table: &BlockTable, seed: u64, pass: u32, window: u64) -> Self {
        if window == 0 {
            return Self { pass, seed, window, blocks: Vec::new(), starts: Vec::new() };
        }
        let count = table.blocks.len() as u64;
        let permutation = Permutation::new(count, pass_key(seed, pass));
        let mut blocks = Vec::with_capacity(count as usize);
        let mut starts = Vec::with_capacity(count as usize);
        let mut rows = 0;
        for index in 0..count {
            let block = permutation.apply(index) as usize;
            blocks.push(block as u32);
            starts.push(rows);
            rows += table.block_rows(block);
        }
        Self { pass, seed, window, blocks, starts }
    }

    /// Returns the rows at a range of offsets in the pass, in order.
    pub fn rows(&self, table: &BlockTable, offsets: Range<u64>) -> Vec<RowRef> {
        let mut window = WindowPermutation::default();
        offsets.map(|offset| self.row_at(table, offset, &mut window)).collect()
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
    current: Option<(u64, Permutation)>,
}

impl WindowPermutation {
    fn apply(&mut self, pass: &PassOrder, rows: u64, offset: u64) -> u64 {
        let number = offset / pass.window;
        let start = number * pass.window;
        if self.current.as_ref().is_none_or(|(current, _)| *current != number) {
            let len = pass.window.min(rows - start);
            let key = mix64(pass_key(pass.seed, pass.pass) ^ mix64(number + 1));
            self.current = Some((number, Permutation::new(len, key)));
        }
        let (_, permutation) = self.current.as_ref().expect("the branch above sets the permutation");
        start + permutation.apply(offset - start)
    }
}

fn pass_key(seed: u64, pass: u32) -> u64 {
    mix64(mix64(seed) ^ u64::from(pass))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn table(block_rows: &[u32]) -> BlockTable {
        let mut starts = vec![0];
        for &rows in block_rows {
            starts.push(starts.last().expect("not empty") + u64::from(rows));
        }
        BlockTable {
            blocks: (0..block_rows.len() as u32).map(|block| (0, block)).collect(),
            starts,
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
