//! Resources that a plan grants jobs on workers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::StoreShare;
use crate::ids::{JobId, WorkerId};
use crate::pipeline::{CacheEncoding, CacheTier};

/// A job whose allocation on a worker does not exceed this number of cores gets no leases there, as long as the job has more
/// cores on another worker.
pub const MIN_CORES: f64 = 0.01;

/// The allocations of all workers. A worker without an entry has no limits.
pub type PlanAllocations = BTreeMap<WorkerId, WorkerAllocations>;

/// The allocations of one worker.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerAllocations {
    /// Threads of the worker's CPU pool to use; 0 for all threads.
    pub cores: u32,
    /// The allocation of each job. A job that has more than [`MIN_CORES`] on some workers gets leases on those workers
    /// only, as long as one of them is alive. The job keeps [`MIN_CORES`] on every other worker that still holds its
    /// leases.
    pub jobs: Vec<JobAllocation>,
    /// The worker's part of the budget of each throttled store.
    pub stores: Vec<StoreShare>,
}

/// Resources that the planner grants one job on one worker. The worker applies a new allocation immediately, while groups
/// are in flight. Rows and their order do not depend on allocations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobAllocation {
    /// The job.
    pub job: JobId,
    /// The job's weight in the worker's CPU pool. Jobs with runnable work share the threads in proportion to their weights.
    /// 0 means the weight of a job that owns all threads.
    pub cores: f64,
    /// Maximum number of CPU pool threads that the job may use, on average over a tenth of a second. May be fractional; 0
    /// means no limit.
    pub max_cores: f64,
    /// Maximum number of concurrent executions of each operator, by operator name. 0 or a missing operator means no limit.
    /// A `parallelism` in the pipeline takes precedence.
    pub operator_limits: Vec<(String, u32)>,
    /// Maximum number of blocks that the job reads from the store concurrently; 0 means
    /// [`JobAllocation::DEFAULT_READ_CONCURRENCY`] per group.
    pub read_concurrency: u32,
    /// Maximum size in bytes of the groups that the worker computes ahead of consumers. One group is always allowed. 0 means
    /// no limit other than the worker's memory budget.
    pub prefetch_bytes: u64,
    /// The rows of the job that the worker caches if the pipeline has no `cache` operator; `None` caches no rows.
    pub cache: Option<CacheDecision>,
}

/// A cache point that the coordinator has chosen for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheDecision {
    /// The number of operators before the cache point, excluding `batch`, `repeat` and `cache`.
    #[serde(rename = "after")]
    pub operators_before: u32,
    /// The tier that stores the rows.
    pub tier: CacheTier,
    /// The encoding of the cached rows.
    pub encoding: CacheEncoding,
}

/// Capacity and usage of one cache tier of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierCapacity {
    /// The tier. All workers share one store tier.
    pub tier: CacheTier,
    /// Maximum number of bytes that the tier stores.
    pub capacity_bytes: u64,
    /// The number of bytes that the tier stores.
    pub used_bytes: u64,
}

impl JobAllocation {
    /// Number of blocks that one group reads concurrently if neither the plan nor the job sets a number.
    pub const DEFAULT_READ_CONCURRENCY: u32 = 16;

    /// An allocation without limits.
    pub fn unlimited(job: JobId) -> Self {
        Self {
            job,
            cores: 0.0,
            max_cores: 0.0,
            operator_limits: Vec::new(),
            read_concurrency: 0,
            prefetch_bytes: 0,
            cache: None,
        }
    }
}
