//! A snapshot of the cluster for users: rates and bottlenecks of jobs, resource use of workers, and decisions of the
//! planner.

mod bottleneck;
mod own;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use bottleneck::{Bottleneck, BottleneckKind, ResourceBound};

use crate::ids::{JobId, Millis, WorkerId};
use crate::memory::MemoryUsage;
use crate::messages::{JobState, JobStatus};
use crate::pipeline::{CacheEncoding, CacheTier};

/// A snapshot of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterView {
    /// The time of the snapshot in milliseconds on the coordinator's clock; 0 before the first snapshot.
    pub now_ms: Millis,
    /// The jobs by id.
    pub jobs: Vec<JobView>,
    /// The live workers by id.
    pub workers: Vec<WorkerView>,
    /// The number of workers of each type that all jobs need.
    pub wanted: Vec<WantedWorkers>,
    /// The caches.
    pub caches: Vec<CacheView>,
    /// The planner's decisions and their reasons, one sentence each.
    pub reasons: Vec<String>,
    /// The last action of the autoscaler, in one sentence; `None` without an autoscaler.
    pub scaling: Option<String>,
    /// The decisions of the autoscaler, in the order of its pools; empty without an autoscaler.
    #[serde(default)]
    pub pools: Vec<PoolDecision>,
}

/// The decision on the number of workers of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDecision {
    /// The pool; empty for workers without a pool.
    pub pool: String,
    /// The number of running and starting workers, excluding draining workers.
    pub present: u32,
    /// The wanted number of these workers.
    pub wanted: u32,
    /// Whether the demand is known. While it is unknown, `wanted` equals `present`.
    pub is_known: bool,
}

/// A job. Rates are averages over the last few seconds; 0 unless the job is running.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    /// The job.
    pub job: JobId,
    /// The tenant of the job.
    #[serde(default)]
    pub tenant: String,
    /// The name of the job.
    pub name: String,
    /// The state of the job.
    pub state: JobState,
    /// The number of consumers of the job.
    pub consumers: u32,
    /// The number of workers that work on the job.
    pub workers: u32,
    /// The number of delivered rows.
    pub rows: u64,
    /// Delivered rows per second.
    pub rows_per_s: f64,
    /// Rows per second that the consumers could process, but in an unbounded job at most the rate that bounds its lag. `None` if
    /// neither is known.
    pub demand_rows_per_s: Option<f64>,
    /// The delivered rate divided by the demand, at most 1. Without a demand, the delivered rate divided by the rate that
    /// the cluster could deliver to this job alone.
    pub fed_fraction: Option<f64>,
    /// The fraction of time that the consumers waited for batches; `None` without measurements, and while an unbounded job waits
    /// for records.
    pub stall_share: Option<f64>,
    /// The cores that the plan allocates to the job, over all workers.
    pub cores: f64,
    /// The bottleneck of the job with the allocated cores.
    pub bottleneck: Option<Bottleneck>,
    /// The throttled store that limits the job, in one sentence; `None` if no store does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_limit: Option<String>,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerView {
    /// The worker.
    pub worker: WorkerId,
    /// The address at which consumers fetch.
    pub address: String,
    /// The type of the worker.
    pub worker_type: String,
    /// The number of threads in the CPU pool.
    pub cores: u32,
    /// CPU seconds per second spent on jobs, including transport.
    pub used_cores: f64,
    /// The memory budget in bytes.
    pub memory_bytes: u64,
    /// Bytes of finished rows in memory.
    #[serde(rename = "held_bytes")]
    pub finished_bytes: u64,
    /// The bytes of the memory budget that each account uses.
    #[serde(default)]
    pub memory: Vec<MemoryUsage>,
    /// Peak resident set size of the process in bytes; `None` before the first job.
    pub peak_rss_bytes: Option<u64>,
    /// Whether the worker is draining before it leaves the cluster.
    pub draining: bool,
    /// Whether too little of the memory budget is free to start another split.
    pub memory_full: bool,
    /// The resources used for each job.
    #[serde(rename = "parts")]
    pub job_usage: Vec<WorkerJobUsage>,
}

/// The resources of a worker that one job uses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkerJobUsage {
    /// The job.
    pub job: JobId,
    /// CPU seconds per second spent on the job, including transport.
    pub used_cores: f64,
    /// Bytes of the job's finished rows in memory.
    #[serde(rename = "held_bytes")]
    pub finished_bytes: u64,
}

/// Cached rows at one cache point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheView {
    /// The operator before the cache point.
    pub operator: String,
    /// The cache tier.
    pub tier: CacheTier,
    /// The encoding of the rows.
    pub encoding: CacheEncoding,
    /// The size of the cached rows in bytes.
    pub bytes: f64,
    /// The recent hit rate; `None` without recent lookups.
    #[serde(rename = "found_share")]
    pub hit_rate: Option<f64>,
    /// The jobs that read the cached rows.
    pub jobs: Vec<JobId>,
}

/// The number of workers of one type that all jobs need to run as fast as consumers and stores allow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedWorkers {
    /// The type of the workers.
    pub worker_type: String,
    /// The number of live workers.
    #[serde(rename = "present")]
    pub live: u32,
    /// The number of workers that all jobs need.
    pub wanted: u32,
}

impl ClusterView {
    /// Replaces the jobs with those in `statuses`. Running jobs keep their measured rates, and other jobs have no rates.
    pub fn with_states(mut self, statuses: &[JobStatus]) -> Self {
        let measured = std::mem::take(&mut self.jobs);
        let mut measured: BTreeMap<JobId, JobView> = measured.into_iter().map(|job| (job.job, job)).collect();
        let job = |status: &JobStatus| {
            let running = measured.remove(&status.job).filter(|_| !status.state.is_ended());
            JobView {
                state: status.state.clone(),
                consumers: status.consumers,
                rows: status.delivered.rows,
                ..running.unwrap_or_else(|| JobView::new(status.job, &status.tenant, &status.name))
            }
        };
        self.jobs = statuses.iter().map(job).collect();
        self
    }
}

impl JobView {
    /// A job without measurements.
    pub fn new(job: JobId, tenant: &str, name: &str) -> Self {
        Self {
            job,
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            state: JobState::Running,
            consumers: 0,
            workers: 0,
            rows: 0,
            rows_per_s: 0.0,
            demand_rows_per_s: None,
            fed_fraction: None,
            stall_share: None,
            cores: 0.0,
            bottleneck: None,
            store_limit: None,
        }
    }
}
