//! The placement of the rows of a feature on the workers of a job.
//!
//! The rows are divided into slices of consecutive rows. Rendezvous hashing assigns each slice to a worker, so a worker that joins
//! takes slices from all others, and those of a worker that leaves are divided among all others. No other slice moves.

use std::collections::BTreeMap;
use std::ops::Range;

use super::description::GraphHash;
use crate::ids::WorkerId;
use crate::random::mix64;

/// The number of slices of a feature. Short features have fewer.
const SLICES: u32 = 1024;

/// The workers that hold the slices of a feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeaturePlacement {
    rows: u32,
    /// The number of rows of each slice but the last one.
    slice_rows: u32,
    /// The worker of each slice.
    owners: Vec<WorkerId>,
}

impl FeaturePlacement {
    /// Assigns the slices of a feature with this number of rows to workers. Their order does not matter. Without workers, no slice
    /// has an owner.
    pub fn new(feature: GraphHash, rows: u32, workers: &[WorkerId]) -> Self {
        let slice_rows = rows.div_ceil(SLICES).max(1);
        let slices = rows.div_ceil(slice_rows);
        let owners = (0..slices).filter_map(|slice| owner_of_slice(feature, slice, workers)).collect();
        Self { rows, slice_rows, owners }
    }

    /// The number of slices.
    pub fn slices(&self) -> u32 {
        self.rows.div_ceil(self.slice_rows)
    }

    /// The slice of a row.
    pub fn slice_of(&self, row: u32) -> u32 {
        row / self.slice_rows
    }

    /// The rows of a slice.
    pub fn rows_of(&self, slice: u32) -> Range<u32> {
        let start = slice.saturating_mul(self.slice_rows).min(self.rows);
        start..start.saturating_add(self.slice_rows).min(self.rows)
    }

    /// The worker that holds a slice. `None` if there are no workers, or the slice does not exist.
    pub fn owner_of(&self, slice: u32) -> Option<WorkerId> {
        self.owners.get(slice as usize).copied()
    }

    /// The number of rows that a worker holds.
    pub fn rows_on(&self, worker: WorkerId) -> u64 {
        let owned = (0..).zip(&self.owners).filter(|(_, owner)| **owner == worker);
        owned.map(|(slice, _)| self.rows_of(slice).len() as u64).sum()
    }

    /// Divides the indexes of rows by the workers that hold the rows. `rows` are in ascending order. Rows without an owner belong to
    /// no worker.
    pub fn divide(&self, rows: &[u32]) -> BTreeMap<WorkerId, Vec<usize>> {
        let mut divided: BTreeMap<WorkerId, Vec<usize>> = BTreeMap::new();
        let mut start = 0;
        for part in rows.chunk_by(|left, right| self.slice_of(*left) == self.slice_of(*right)) {
            let indexes = start..start + part.len();
            start = indexes.end;
            if let Some(owner) = part.first().and_then(|row| self.owner_of(self.slice_of(*row))) {
                divided.entry(owner).or_default().extend(indexes);
            }
        }
        divided
    }
}

/// The worker with the highest weight. The id decides between equal weights.
fn owner_of_slice(feature: GraphHash, slice: u32, workers: &[WorkerId]) -> Option<WorkerId> {
    let key = mix64(feature.0 as u64 ^ mix64((feature.0 >> 64) as u64 ^ mix64(u64::from(slice) + 1)));
    workers.iter().copied().max_by_key(|worker| (mix64(key ^ mix64(worker.0)), *worker))
}

#[cfg(test)]
mod tests;
