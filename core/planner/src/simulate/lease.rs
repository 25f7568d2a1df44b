//! A split that a simulated worker holds, and how far it is.

use feedline_data::layout::SplitRef;
use feedline_data::messages::Lease;

/// A split and its rows. Offsets count from the split's first row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct HeldSplit {
    pub(super) split: SplitRef,
    /// Place of its job in the scenario.
    pub(super) job: u32,
    /// Rows of the split.
    pub(super) len: u32,
    /// Rows before this one are not computed here.
    pub(super) from: u32,
    /// Rows before this one are computed.
    pub(super) done: f64,
    /// Rows before this one were fetched, or were not wanted.
    pub(super) fetched: u32,
}

impl HeldSplit {
    /// A lease on which nothing is done.
    pub(super) fn new(lease: &Lease, job: u32, len: u32) -> Self {
        Self {
            split: lease.split,
            job,
            len,
            from: lease.from,
            done: f64::from(lease.from),
            fetched: lease.from,
        }
    }

    /// The order of a worker's plan: most urgent first.
    pub(super) fn key(&self) -> (SplitRef, u32) {
        (self.split, self.job)
    }

    pub(super) fn is_computed(&self) -> bool {
        self.done >= f64::from(self.len)
    }

    /// Rows that are computed and were not fetched.
    pub(super) fn waiting(&self) -> f64 {
        (self.done - f64::from(self.fetched)).max(0.0)
    }

    /// Computes up to so many rows; how many.
    pub(super) fn compute(&mut self, rows: f64) -> f64 {
        let left = f64::from(self.len) - self.done;
        // Rounding must leave no part of a row behind.
        if rows >= left - 1e-6 {
            self.done = f64::from(self.len);
            return left;
        }
        self.done += rows;
        rows
    }

    /// Gives all whole rows from an offset on to whoever asks; the offset after them. `None` where it does not have the
    /// row at that offset.
    pub(super) fn fetch(&mut self, from: u32) -> Option<u32> {
        let end = self.done as u32;
        if from < self.from || end <= from {
            return None;
        }
        self.fetched = self.fetched.max(end);
        Some(end)
    }
}
