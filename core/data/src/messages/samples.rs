//! The latest reports from workers and consumers: the input of the planner.

use std::sync::Arc;

use super::{ConsumerStats, ProcessCpu, StoreReport, TierCapacity, WorkerJobStats};
use crate::graph::description::GraphHash;
use crate::ids::{JobId, SessionId, WorkerId};
use crate::manifest::DatasetSummary;
use crate::memory::MemoryUsage;
use crate::pipeline::Pipeline;
use crate::tenants::Quota;

/// The latest reports. Counters start at 0 when the reporting process starts. The planner computes rates from two samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    /// The live workers, by id.
    pub workers: Vec<WorkerReportSample>,
    /// The latest session of each consumer of an unfinished job.
    pub consumers: Vec<ConsumerReportSample>,
    /// The running jobs.
    pub jobs: Vec<JobProperties>,
    /// The number of jobs whose datasets are being indexed.
    pub preparing_jobs: u32,
}

/// The properties of a job that the planner needs.
#[derive(Debug, Clone, PartialEq)]
pub struct JobProperties {
    /// The job.
    pub job: JobId,
    /// The tenant of the job.
    pub tenant: String,
    /// The name of the job.
    pub name: String,
    /// The pipeline of the job.
    pub pipeline: Pipeline,
    /// The dataset of the job.
    pub dataset: DatasetSummary,
    /// The number of remaining passes over the dataset. The remaining part of the current pass counts as a fraction.
    pub passes_left: f64,
    /// The job's weight when workers are scarce. The weights of a tenant's jobs are scaled so that their mean is the
    /// tenant's priority.
    pub weight: f64,
    /// The quota of the job's tenant.
    pub quota: Quota,
    /// The number of rows of a growing source that the job has not delivered. `None` for other sources.
    pub lag_rows: Option<u64>,
    /// The rows that have arrived in the topics of an unbounded job. `None` for other jobs.
    pub topic: Option<TopicSample>,
}

/// The rows of an unbounded job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicSample {
    /// The number of rows that have arrived since the job started.
    pub arrived_rows: u64,
    /// The number of these rows that are not delivered.
    pub backlog_rows: u64,
    /// The number of rows of a full step. Consumers wait for records while the backlog is smaller.
    pub step_rows: u64,
}

/// The latest report of one worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerReportSample {
    /// The worker.
    pub worker: WorkerId,
    /// Address at which consumers fetch.
    pub address: String,
    /// The pool of the worker; empty without a pool.
    pub pool: String,
    /// The CPU model of the worker.
    pub machine: String,
    /// The network bandwidth in bytes per second in each direction; 0 if unknown.
    pub nic_bytes_per_s: u64,
    /// The number of threads in the CPU pool.
    pub cores: u32,
    /// The memory budget in bytes.
    pub memory_bytes: u64,
    /// The cache tiers of the worker.
    pub caches: Vec<TierCapacity>,
    /// The bytes of the memory budget that each account uses.
    pub memory: Vec<MemoryUsage>,
    /// Whether too little of the memory budget is free to start another split.
    pub memory_full: bool,
    /// Whether the worker is draining before it leaves the cluster.
    pub draining: bool,
    /// Nanoseconds from the worker's start to the report.
    pub elapsed_ns: u64,
    /// The CPU time of the worker's process.
    pub cpu: ProcessCpu,
    /// The statistics of each job.
    pub jobs: Vec<Arc<WorkerJobStats>>,
    /// The requests to each object store.
    pub stores: Vec<StoreReport>,
    /// The graphs that the worker holds or loads.
    pub graphs: Vec<GraphHash>,
}

/// The latest report of one consumer session.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerReportSample {
    /// The job.
    pub job: JobId,
    /// The index of the consumer, from 0.
    pub consumer: u32,
    /// The session. A new session restarts the counters at 0.
    pub session: SessionId,
    /// The rows and bytes received in the session.
    pub stats: ConsumerStats,
}
