//! The blocks of a dataset in storage order.

use std::ops::Range;

use crate::manifest::{Manifest, Shard};
use crate::random::mix64;

/// The location and the first row of each block of a dataset.
#[derive(Debug)]
pub struct BlockTable {
    /// The (shard, block) indexes of each block, in storage order.
    pub(super) blocks: Vec<(u32, u32)>,
    /// The index of each block's first row in storage order; the last entry is the number of rows.
    pub(super) starts: Vec<u64>,
    /// The index of the first block of each run, in storage order. Most runs have one block.
    pub(super) runs: Vec<u32>,
    /// The row id of the first row.
    pub(super) first_id: u64,
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
        let mut runs = Vec::new();
        let mut rows = 0;
        // The shards of one dataset are adjacent in the manifest.
        for (shard, entry) in manifest.shards.iter().enumerate().filter(|(_, entry)| is_in(entry)) {
            let runs_of_shard = entry.index.runs();
            runs.extend(runs_of_shard.map(|run| (blocks.len() + run.start) as u32));
            for (block, description) in entry.index.blocks.iter().enumerate() {
                rows += u64::from(description.rows);
                blocks.push((shard as u32, block as u32));
                starts.push(rows);
            }
        }
        Self { blocks, starts, runs, first_id }
    }

    /// Creates the table of adjacent blocks. `blocks` contains the shard and the number of rows of each block. A
    /// [`RowRef`] refers to a block by its index in the table.
    pub(crate) fn of_blocks(blocks: impl Iterator<Item = (u32, u32)>, first_id: u64) -> Self {
        let mut table = Self { blocks: Vec::new(), starts: vec![0], runs: Vec::new(), first_id };
        let mut rows = 0;
        for (index, (shard, block_rows)) in (0..).zip(blocks) {
            rows += u64::from(block_rows);
            table.blocks.push((shard, index));
            table.starts.push(rows);
            table.runs.push(index);
        }
        table
    }

    /// The number of rows of the dataset.
    pub fn rows(&self) -> u64 {
        *self.starts.last().expect("the constructor inserts a first entry")
    }

    pub(super) fn block_rows(&self, block: usize) -> u64 {
        self.starts[block + 1] - self.starts[block]
    }

    /// The number of rows of a run.
    pub(super) fn run_rows(&self, run: usize) -> u64 {
        let blocks = self.run(run);
        self.starts[blocks.end as usize] - self.starts[blocks.start as usize]
    }

    /// The blocks of a run.
    pub(super) fn run(&self, run: usize) -> Range<u32> {
        self.runs[run]..self.runs.get(run + 1).copied().unwrap_or(self.blocks.len() as u32)
    }
}

/// The key of the permutations of a pass.
pub(super) fn pass_key(seed: u64, pass: u32) -> u64 {
    mix64(mix64(seed) ^ u64::from(pass))
}
