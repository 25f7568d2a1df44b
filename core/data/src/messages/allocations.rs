//! What the planner grants jobs on workers.

use serde::{Deserialize, Serialize};

use crate::ids::JobId;
use crate::pipeline::{CacheEncoding, CacheTier};

/// A share of no more than this is no part in a worker: the job gets what others leave.
pub const LEAST_CORES: f64 = 0.01;

/// Share of a worker's memory that caches may take.
pub const CACHE_MEMORY_SHARE: f64 = 1.0 / 3.0;

/// What was decided for one worker.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerAllocations {
    /// Threads of its CPU pool to use; 0: as many as it has.
    pub cores: u32,
    /// What each job may use of it. Jobs that are listed with more than [`LEAST_CORES`] on some workers get leases there
    /// only, as long as one of these is there; for what they still have elsewhere they get [`LEAST_CORES`].
    pub allotments: Vec<JobAllocation>,
}

/// What one job may use of one worker. The worker obeys it at once, whatever runs; rows and their order do not depend
/// on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobAllocation {
    /// The job.
    pub job: JobId,
    /// Its share of the worker's CPU pool: jobs that have work are served in proportion to it, so it is a weight and
    /// no upper limit. 0: as if it had all threads.
    pub cores: f64,
    /// Threads of the CPU pool that it may use at most on average over a tenth of a second, not always whole; 0: no limit.
    pub most_cores: f64,
    /// Concurrent executions of operators, by name; 0 and operators that are not named: no limit. An operator that is
    /// pinned in the pipeline keeps its own number.
    pub operator_limits: Vec<(String, u32)>,
    /// Blocks that are read from the store at the same time; 0: the worker's default.
    pub read_concurrency: u32,
    /// Bytes of groups that are computed ahead of consumers, one group at least; 0: the job's share of the memory.
    pub prefetch_bytes: u64,
    /// What is kept of the job's rows, where its pipeline names no `cache`; `None` keeps nothing.
    pub keep: Option<CacheDecision>,
}

/// A cut at which rows are kept because the plan says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheDecision {
    /// Operators before the cut, of those that run: not `batch`, `repeat` and `cache`.
    pub after: u32,
    /// Where.
    pub tier: CacheTier,
    /// In which form.
    pub form: CacheEncoding,
}

/// What a tier of a worker's caches has room for, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierCapacity {
    /// The tier; one in the store is that of all workers together.
    pub tier: CacheTier,
    /// Bytes that it may take.
    pub room_bytes: u64,
    /// Bytes that it holds.
    pub held_bytes: u64,
}

impl JobAllocation {
    /// No limits.
    pub fn unlimited(job: JobId) -> Self {
        Self {
            job,
            cores: 0.0,
            most_cores: 0.0,
            operator_limits: Vec::new(),
            read_concurrency: 0,
            prefetch_bytes: 0,
            keep: None,
        }
    }
}
