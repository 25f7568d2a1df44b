//! Allocations of jobs on workers, cache tiers and memory accounts.

use feedline_data::memory::{MemoryAccount, MemoryUsage};
use feedline_data::messages::{CacheDecision, JobAllocation, TierCapacity};
use feedline_data::pipeline::{CacheEncoding, CacheTier};

use super::{WireError, enumeration, message, tuple};

enumeration!(CacheTier, { Memory, Disk, Store });
enumeration!(CacheEncoding, { AsIs, Indexed, Pixels });
enumeration!(MemoryAccount, {
    Batches, ReservedBatches, EncodedRows, Images, Decoders, Blocks, Caches, Functions, SharedMemory, Graphs,
    Samplers,
});

message!(CacheDecision, "cache", { operators_before, tier, encoding });
message!(MemoryUsage, "memory", { account, used_bytes });
message!(TierCapacity, "caches", { tier, capacity_bytes, used_bytes });
tuple!((String, u32) => OperatorLimit { operator, limit });
message!(
    JobAllocation,
    "allocation",
    { job, cores, max_cores, operator_limits, read_concurrency, prefetch_bytes, cache },
    check: without_invalid_weights
);

/// Replaces a weight that is not a positive number with 0, which means that there is no limit.
fn without_invalid_weights(allocation: JobAllocation) -> Result<JobAllocation, WireError> {
    let positive = |weight: f64| if weight.is_finite() && weight > 0.0 { weight } else { 0.0 };
    Ok(JobAllocation {
        cores: positive(allocation.cores),
        max_cores: positive(allocation.max_cores),
        ..allocation
    })
}
