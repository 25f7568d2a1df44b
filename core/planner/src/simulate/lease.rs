//! A split that a simulated worker leases, with its progress.

use feedline_data::layout::SplitRef;
use feedline_data::messages::Lease;

/// A leased split. Offsets are relative to the first row of the split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SimulatedLease {
    pub(super) split: SplitRef,
    /// The index of the job in the scenario.
    pub(super) job: u32,
    /// The number of rows of the split.
    pub(super) row_count: u32,
    /// The number of these rows that have arrived in the source.
    pub(super) arrived: u32,
    /// The offset of the first row to compute.
    pub(super) start: u32,
    /// The offset after the last computed row.
    pub(super) computed_end: f64,
    /// The offset after the last fetched row, or `start` if no rows were fetched.
    pub(super) fetched_end: u32,
}

impl SimulatedLease {
    /// Creates a leased split without computed rows.
    pub(super) fn new(lease: &Lease, job: u32, len: u32) -> Self {
        Self {
            split: lease.split,
            job,
            row_count: len,
            arrived: len,
            start: lease.start_offset,
            computed_end: f64::from(lease.start_offset),
            fetched_end: lease.start_offset,
        }
    }

    /// Returns the sort key of leases: the most urgent split is first.
    pub(super) fn sort_key(&self) -> (SplitRef, u32) {
        (self.split, self.job)
    }

    pub(super) fn is_computed(&self) -> bool {
        self.computed_end >= f64::from(self.row_count)
    }

    /// Whether rows have arrived that are not computed.
    pub(super) fn has_work(&self) -> bool {
        self.computed_end < f64::from(self.arrived)
    }

    /// Returns the number of computed rows that have not been fetched.
    pub(super) fn unfetched_rows(&self) -> f64 {
        (self.computed_end - f64::from(self.fetched_end)).max(0.0)
    }

    /// Computes up to `rows` rows. Returns the number of computed rows.
    pub(super) fn compute(&mut self, rows: f64) -> f64 {
        let left = f64::from(self.arrived) - self.computed_end;
        // Rounding must not leave a fraction of a row.
        if rows >= left - 1e-6 {
            self.computed_end = f64::from(self.arrived);
            return left;
        }
        self.computed_end += rows;
        rows
    }

    /// Fetches all computed rows, starting at offset `from`. Returns the offset after the last fetched row, or `None`
    /// if the first row is not computed.
    pub(super) fn fetch(&mut self, from: u32) -> Option<u32> {
        let end = self.computed_end as u32;
        if from < self.start || end <= from {
            return None;
        }
        self.fetched_end = self.fetched_end.max(end);
        Some(end)
    }
}
