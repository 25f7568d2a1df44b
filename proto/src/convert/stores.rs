//! Requests to object stores, and the budgets of workers.

use feedline_data::ids::JobId;
use feedline_data::messages::{StoreJobReport, StoreReport, StoreShare};

use super::{WireError, message, tuple};

message!(
    StoreReport,
    "store",
    {
        key, name, accepted, rejected, bytes, latency_ns, base_latency_ns, paused_ns, elapsed_ns, requests_per_s, jobs,
    },
    check: without_invalid_limit
);
message!(StoreJobReport, "job", { job, requests, waiting });
message!(
    StoreShare,
    "share",
    { key, requests_per_s, in_flight, bytes_in_flight, jobs },
    check: without_invalid_rates
);
tuple!((JobId, f64) => StoreJobWeight { job, weight });

/// Returns 0, which means that there is no limit, for a number that is not positive.
fn positive(rate: f64) -> f64 {
    if rate.is_finite() && rate > 0.0 { rate } else { 0.0 }
}

fn without_invalid_limit(report: StoreReport) -> Result<StoreReport, WireError> {
    Ok(StoreReport { requests_per_s: positive(report.requests_per_s), ..report })
}

fn without_invalid_rates(share: StoreShare) -> Result<StoreShare, WireError> {
    let jobs = share.jobs.iter().map(|(job, weight)| (*job, positive(*weight))).collect();
    Ok(StoreShare { requests_per_s: positive(share.requests_per_s), jobs, ..share })
}
