//! Decides when a slow read is sent a second time: hedged requests (Dean and Barroso, The Tail at Scale, 2013).
//!
//! A read is slow if it takes longer than nearly all recent reads of a similar size. A budget limits the second requests to a
//! fraction of all requests, so that they cannot overload a store that is slow for all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::latency::{LatencyCounts, size_class};

/// The fraction of the requests that may be sent a second time.
const HEDGED_FRACTION: f64 = 0.01;
/// Second requests that the budget may collect while none are needed.
const MAX_BUDGET: f64 = 8.0;
/// The fraction of recent reads that a slow read exceeds.
const SLOW_QUANTILE: f64 = 0.995;
/// A slow read takes at least this multiple of the median. A shorter wait would not pay for a second request.
const SLOW_FACTOR: f64 = 2.0;
/// Reads of a size class that must be known before a read of the class is slow.
const MIN_READS: u32 = 1000;
/// The counts of a size class are halved at this number of reads, so that old reads are forgotten.
const MAX_READS: u32 = 8192;
/// Time without second requests after the store has rejected a request.
const AFTER_REJECTION: Duration = Duration::from_secs(10);

/// The latencies of recent reads of a worker from one store, and the budget for second requests.
#[derive(Debug, Default)]
pub struct Hedging {
    /// By [`size_class`].
    classes: BTreeMap<u32, LatencyCounts>,
    budget: f64,
    rejected_at: Option<Duration>,
}

impl Hedging {
    /// A request has succeeded or failed.
    pub fn on_answer(&mut self) {
        self.budget = (self.budget + HEDGED_FRACTION).min(MAX_BUDGET);
    }

    /// A read of this number of bytes took `latency`, or at least this time if the second request was faster.
    pub fn on_read(&mut self, bytes: u64, latency: Duration) {
        let counts = self.classes.entry(size_class(bytes)).or_default();
        counts.add(latency);
        if counts.total() >= MAX_READS {
            counts.halve();
        }
    }

    /// The store rejected a request because of its load.
    pub fn on_rejection(&mut self, now: Duration) {
        self.rejected_at = Some(now);
    }

    /// The time after which a read of this number of bytes is slow; `None` while too few reads are known.
    pub fn slow_after(&self, bytes: u64) -> Option<Duration> {
        let counts = self.classes.get(&size_class(bytes)).filter(|counts| counts.total() >= MIN_READS)?;
        Some(counts.quantile(SLOW_QUANTILE).max(counts.quantile(0.5).mul_f64(SLOW_FACTOR)))
    }

    /// Takes a second request from the budget. Returns whether it may be sent.
    pub fn try_take(&mut self, now: Duration) -> bool {
        let is_recovering = self.rejected_at.is_some_and(|at| now.saturating_sub(at) < AFTER_REJECTION);
        if is_recovering || self.budget < 1.0 {
            return false;
        }
        self.budget -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests;
