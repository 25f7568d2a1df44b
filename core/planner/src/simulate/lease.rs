//! A split that a simulated worker holds, and its progress.

use feedline_data::layout::SplitRef;
use feedline_data::messages::Lease;

/// A leased split. Offsets count from the first row of the split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct HeldSplit {
    pub(super) split: SplitRef,
    /// The index of the job in the scenario.
    pub(super) job: u32,
    /// The number of rows of the split.
    pub(super) len: u32,
    /// Rows before this offset are not computed here.
    pub(super) from: u32,
    /// Rows before this offset are computed.
    pub(super) done: f64,
    /// Rows before this offset were fetched, or are not needed.
    pub(super) fetched: u32,
}

impl HeldSplit {
    /// A lease without computed rows.
    pub(super) fn new(lease: &Lease, job: u32, len: u32) -> Self {
        Self {
            split: lease.split,
            job,
            len,
            from: lease.start_offset,
            done: f64::from(lease.start_offset),
            fetched: lease.start_offset,
        }
    }

    /// The sort key of a worker's plan, the most urgent split first.
    pub(super) fn key(&self) -> (SplitRef, u32) {
        (self.split, self.job)
    }

    pub(super) fn is_computed(&self) -> bool {
        self.done >= f64::from(self.len)
    }

    /// The number of computed rows that were not fetched.
    pub(super) fn unfetched_rows(&self) -> f64 {
        (self.done - f64::from(self.fetched)).max(0.0)
    }

    /// Computes up to `rows` rows. Returns the number of computed rows.
    pub(super) fn compute(&mut self, rows: f64) -> f64 {
        let left = f64::from(self.len) - self.done;
        // Rounding must not leave a fraction of a row.
        if rows >= left - 1e-6 {
            self.done = f64::from(self.len);
            return left;
        }
        self.done += rows;
        rows
    }

    /// Returns all computed whole rows from an offset on, as the offset after them; `None` if the row at that offset
    /// is missing.
    pub(super) fn fetch(&mut self, from: u32) -> Option<u32> {
        let end = self.done as u32;
        if from < self.from || end <= from {
            return None;
        }
        self.fetched = self.fetched.max(end);
        Some(end)
    }
}
