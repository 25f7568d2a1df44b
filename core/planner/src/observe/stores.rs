//! The bandwidth of a store, from all jobs that read it.

use crate::model::JobModel;

/// What the jobs of one store observed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ObservedStore {
    /// The sum of the limits that waiting jobs observed, in bytes per second. Each job sees only its own share of the store.
    waiting: f64,
    has_waiting_jobs: bool,
    /// Bytes per second that other jobs read.
    others: f64,
    /// The largest limit that any job ever observed.
    largest: f64,
}

impl ObservedStore {
    pub(super) fn add(&mut self, model: &JobModel, waits: bool) {
        let cap = model.bandwidth.cap();
        self.largest = self.largest.max(cap.unwrap_or(0.0));
        match cap.filter(|_| waits) {
            Some(cap) => (self.waiting, self.has_waiting_jobs) = (self.waiting + cap, true),
            None => self.others += model.rows_per_s * model.store_bytes,
        }
    }

    /// Bytes per second that the store delivers to all jobs together; 0 if no job observed a limit.
    pub(super) fn limit(&self) -> f64 {
        if self.has_waiting_jobs {
            self.waiting + self.others
        } else if self.largest > 0.0 {
            self.largest.max(self.others)
        } else {
            0.0
        }
    }
}
