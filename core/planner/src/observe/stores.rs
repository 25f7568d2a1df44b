//! Estimates the bandwidth of a store from the jobs that read it.

use crate::model::JobModel;

/// Bandwidth observations of all jobs that read one store.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ObservedStore {
    /// The sum of the limits observed by the jobs that wait for the store. Each job observes only its own share of the
    /// bandwidth.
    waiting_limit_bytes_per_s: f64,
    has_waiting_jobs: bool,
    /// The total read rate of the jobs that do not wait for the store or have not observed a limit.
    other_bytes_per_s: f64,
    /// The largest limit that any individual job has observed.
    max_limit_bytes_per_s: f64,
}

impl ObservedStore {
    pub(super) fn add(&mut self, model: &JobModel, is_waiting: bool) {
        let cap = model.bandwidth.cap();
        self.max_limit_bytes_per_s = self.max_limit_bytes_per_s.max(cap.unwrap_or(0.0));
        match cap.filter(|_| is_waiting) {
            Some(cap) => {
                (self.waiting_limit_bytes_per_s, self.has_waiting_jobs) =
                    (self.waiting_limit_bytes_per_s + cap, true)
            }
            None => self.other_bytes_per_s += model.rows_per_s * model.store_bytes_per_row,
        }
    }

    /// Returns the total bandwidth of the store for all jobs, in bytes per second; 0 if no job has observed a limit.
    pub(super) fn bytes_per_s_limit(&self) -> f64 {
        if self.has_waiting_jobs {
            self.waiting_limit_bytes_per_s + self.other_bytes_per_s
        } else if self.max_limit_bytes_per_s > 0.0 {
            self.max_limit_bytes_per_s.max(self.other_bytes_per_s)
        } else {
            0.0
        }
    }
}
