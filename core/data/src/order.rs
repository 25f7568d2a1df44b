//! An epoch's row order: blocks permuted by the seed, rows permuted within windows of the resulting sequence.
//! Computable at any place; memory grows with the number of blocks, not of rows.

use std::ops::Range;

use crate::manifest::{Manifest, Shard};
use crate::permutation::Permutation;
use crate::random::mix64;

/// A row to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowRef {
    /// The row's place in the dataset in storage order.
    pub row_id: u64,
    /// Pass over the data, counted over all epochs: the `pass` of [`crate::random::RowRandom`].
    pub pass: u32,
    /// Place of its shard in the manifest.
    pub shard: u32,
    /// Place of its block in the shard.
    pub block: u32,
    /// Place of the row in the block.
    pub row: u32,
}

/// Where each block of a dataset lies.
#[derive(Debug)]
pub struct BlockTable {
    /// (shard, block) in storage order.
    places: Vec<(u32, u32)>,
    /// Place of each block's first row among all, and the number of rows at the end.
    starts: Vec<u64>,
    /// Row id of the first row.
    first_id: u64,
}

impl BlockTable {
    /// The table of a dataset.
    pub fn new(manifest: &Manifest) -> Self {
        Self::of(manifest, |_| true)
    }

    /// The table of one dataset of a mix. Row ids are those in the whole.
    pub fn of_part(manifest: &Manifest, part: u32) -> Self {
        Self::of(manifest, |shard| shard.object.part == part)
    }

    fn of(manifest: &Manifest, is_in: impl Fn(&Shard) -> bool) -> Self {
        let before = manifest.shards.iter().take_while(|shard| !is_in(shard));
        let first_id = before.map(|shard| shard.index.rows()).sum();
        let mut places = Vec::new();
        let mut starts = vec![0];
        let mut rows = 0;
        // The shards of a part follow each other.
        for (shard, entry) in manifest.shards.iter().enumerate().filter(|(_, entry)| is_in(entry)) {
            for (block, description) in entry.index.blocks.iter().enumerate() {
                rows += u64::from(description.rows);
                places.push((shard as u32, block as u32));
                starts.push(rows);
            }
        }
        Self { places, starts, first_id }
    }

    /// Rows of the dataset.
    pub fn rows(&self) -> u64 {
        *self.starts.last().expect("starts holds at least the 0 it is built with")
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
    /// Blocks in this pass's order; empty where storage order is kept.
    blocks: Vec<u32>,
    /// Place in the pass of each block's first row, in the pass's order; empty where storage order is kept.
    starts: Vec<u64>,
}

impl PassOrder {
    /// The order of pass `pass` (counted over all epochs). `window` 0 keeps storage order.
    pub fn new(table: &BlockTable, seed: u64, pass: u32, window: u64) -> Self {
        if window == 0 {
            return Self { pass, seed, window, blocks: Vec::new(), starts: Vec::new() };
        }
        let count = table.places.len() as u64;
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

    /// The rows at these places of the pass, in order.
    pub fn rows(&self, table: &BlockTable, places: Range<u64>) -> Vec<RowRef> {
        let mut out = Vec::with_capacity((places.end - places.start) as usize);
        let mut window = WindowPermutation::default();
        for place in places {
            out.push(self.row_at(table, place, &mut window));
        }
        out
    }

    fn row_at(&self, table: &BlockTable, place: u64, window: &mut WindowPermutation) -> RowRef {
        if self.window == 0 {
            let block = table.starts.partition_point(|&start| start <= place) - 1;
            return self.row_of(table, block, place - table.starts[block]);
        }
        let mixed = window.at(self, table.rows(), place);
        let slot = self.starts.partition_point(|&start| start <= mixed) - 1;
        self.row_of(table, self.blocks[slot] as usize, mixed - self.starts[slot])
    }

    fn row_of(&self, table: &BlockTable, block: usize, row: u64) -> RowRef {
        let (shard, block_in_shard) = table.places[block];
        RowRef {
            row_id: table.first_id + table.starts[block] + row,
            pass: self.pass,
            shard,
            block: block_in_shard,
            row: row as u32,
        }
    }
}

/// The permutation of the window that was used last: neighbouring places share it.
#[derive(Default)]
struct WindowPermutation {
    current: Option<(u64, Permutation)>,
}

impl WindowPermutation {
    fn at(&mut self, pass: &PassOrder, rows: u64, place: u64) -> u64 {
        let number = place / pass.window;
        let start = number * pass.window;
        if self.current.as_ref().is_none_or(|(current, _)| *current != number) {
            let len = pass.window.min(rows - start);
            let key = mix64(pass_key(pass.seed, pass.pass) ^ mix64(number + 1));
            self.current = Some((number, Permutation::new(len, key)));
        }
        let (_, permutation) = self.current.as_ref().expect("set above");
        start + permutation.apply(place - start)
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
            places: (0..block_rows.len() as u32).map(|block| (0, block)).collect(),
            starts,
            first_id: 0,
        }
    }

    proptest! {
        #[test]
        fn every_row_comes_once_whatever_the_window(
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
        fn any_range_equals_that_part_of_the_whole(
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
    fn window_zero_keeps_storage_order_and_passes_differ_otherwise() {
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
