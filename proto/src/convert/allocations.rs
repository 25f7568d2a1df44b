//! Allocations: what a plan grants a job on a worker.

use feedline_data::messages::{CacheDecision, JobAllocation, TierCapacity};
use feedline_data::pipeline::{CacheEncoding, CacheTier};

use super::{WireError, enumeration, message, tuple};

enumeration!(CacheTier, { Memory, Disk, Store });
enumeration!(CacheEncoding, { AsIs, Indexed, Pixels });

message!(CacheDecision, "keep", { after, tier, form });
message!(TierCapacity, "caches", { tier, room_bytes, held_bytes });
tuple!((String, u32) => OperatorLimit { operator, limit });
message!(
    JobAllocation,
    "allocation",
    { job, cores, most_cores, operator_limits, read_concurrency, prefetch_bytes, keep },
    check: without_invalid_weights
);

/// Replaces a weight that is not a positive number with 0, which means that there is no limit.
fn without_invalid_weights(allocation: JobAllocation) -> Result<JobAllocation, WireError> {
    let positive = |weight: f64| if weight.is_finite() && weight > 0.0 { weight } else { 0.0 };
    Ok(JobAllocation {
        cores: positive(allocation.cores),
        most_cores: positive(allocation.most_cores),
        ..allocation
    })
}
