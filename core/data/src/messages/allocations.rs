//! What a plan grants jobs on workers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, WorkerId};
use crate::pipeline::{CacheEncoding, CacheTier};

/// A job whose allocation has at most this many cores gets no leases on the worker while it has more elsewhere.
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
}

/// What the planner grants one job on one worker. The worker applies a new allocation at once, while groups are in
/// flight. Rows and their order do not depend on allocations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobAllocation {
    /// The job.
    pub job: JobId,
    /// The job's weight in the worker's CPU pool. Jobs with work run in proportion to their weights. 0 means the weight of
    /// a job that has all threads.
    pub cores: f64,
    /// The largest number of threads of the CPU pool that the job may use, on average over a tenth of a second. The number
    /// may be fractional; 0 for no limit.
    pub max_cores: f64,
    /// The largest number of concurrent executions of each operator, by the operator's name. 0 and a missing operator mean
    /// no limit. An operator that the pipeline pins with `parallelism` keeps the pinned number.
    pub operator_limits: Vec<(String, u32)>,
    /// Blocks that the job may read from the store at the same time; 0 for
    /// [`JobAllocation::DEFAULT_READ_CONCURRENCY`] in each group.
    pub read_concurrency: u32,
    /// Bytes of groups that the worker may compute ahead of consumers, but at least one group; 0 for no limit other than
    /// the worker's memory budget.
    pub prefetch_bytes: u64,
    /// Which rows of the job the worker caches if its pipeline has no `cache` operator; `None` caches no rows.
    pub cache: Option<CacheDecision>,
}

/// A cache point that the plan chose for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheDecision {
    /// The number of operators before the cache point, without `batch`, `repeat` and `cache`.
    pub after: u32,
    /// The tier that stores the rows.
    pub tier: CacheTier,
    /// The encoding of the cached rows.
    pub encoding: CacheEncoding,
}

/// The capacity of one cache tier of a worker, and how much of it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierCapacity {
    /// The tier. All workers share one store tier.
    pub tier: CacheTier,
    /// The largest number of bytes that the tier may hold.
    pub room_bytes: u64,
    /// Bytes that the tier holds.
    pub held_bytes: u64,
}

impl JobAllocation {
    /// Blocks that one group reads at the same time if neither the plan nor the job sets a number.
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
