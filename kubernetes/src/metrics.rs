//! Metrics of the calls that change the number of workers in Kubernetes.

use feedline_common::metric_table::{self, MetricDescription};
use metrics::{Unit, counter};

const SCALE_CALLS_TOTAL: &str = "feedline_coordinator_scale_calls_total";

/// Every metric of this crate.
pub const METRICS: &[MetricDescription] = &[metric_table::counter(
    SCALE_CALLS_TOTAL,
    Unit::Count,
    "Calls to the API server of Kubernetes that change the number of workers, by `result`: changed, conflict, rejected, unavailable, timeout; only with --scaler kubernetes",
)];

/// Result of a call that changes the number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleCallResult {
    Changed,
    Conflict,
    Rejected,
    Unavailable,
    Timeout,
}

impl ScaleCallResult {
    const ALL: [Self; 5] = [Self::Changed, Self::Conflict, Self::Rejected, Self::Unavailable, Self::Timeout];

    fn label(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Conflict => "conflict",
            Self::Rejected => "rejected",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
        }
    }

    /// Counts a call with this result.
    pub(crate) fn count(self) {
        counter!(SCALE_CALLS_TOTAL, "result" => self.label()).increment(1);
    }
}

/// Exports the counters of all results with the value 0, so that their first increase is visible.
pub(crate) fn register() {
    for result in ScaleCallResult::ALL {
        counter!(SCALE_CALLS_TOTAL, "result" => result.label()).increment(0);
    }
}
