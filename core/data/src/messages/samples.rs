//! The latest reports of workers and consumers, from which the planner plans.

use std::sync::Arc;

use super::{ConsumerStats, ProcessCpu, TierCapacity, WorkerJobStats};
use crate::ids::{JobId, SessionId, WorkerId};
use crate::manifest::DatasetSummary;
use crate::pipeline::Pipeline;
use crate::tenants::Quota;

/// The latest reports: counters since each reporter's start. A window is the difference of two samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    /// Workers that report, by id.
    pub workers: Vec<WorkerReportSample>,
    /// The last sessions of the consumers of jobs that have not ended.
    pub consumers: Vec<ConsumerReportSample>,
    /// Jobs whose rows flow.
    pub jobs: Vec<JobFacts>,
}

/// What a job is, for those who plan.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFacts {
    /// The job.
    pub job: JobId,
    /// Whose it is.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Its pipeline.
    pub pipeline: Pipeline,
    /// Its dataset.
    pub dataset: DatasetSummary,
    /// Passes over the dataset that are still to come, the rest of the present one among them.
    pub passes_left: f64,
    /// Its claim where workers are short: those of a tenant's jobs are as their weights, and on average its priority.
    pub weight: f64,
    /// What the jobs of its tenant may take together.
    pub quota: Quota,
}

/// What one worker reported last.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerReportSample {
    /// The worker.
    pub worker: WorkerId,
    /// Address at which consumers fetch.
    pub address: String,
    /// What its cores are.
    pub machine: String,
    /// Bandwidth of its network in bytes per second and direction; 0 where it is not known.
    pub nic_bytes_per_s: u64,
    /// Threads of its CPU pool.
    pub cores: u32,
    /// Its memory budget in bytes.
    pub memory_bytes: u64,
    /// The tiers of its caches.
    pub caches: Vec<TierCapacity>,
    /// Whether its memory leaves no room for further splits.
    pub memory_full: bool,
    /// Whether it wants to leave.
    pub draining: bool,
    /// Nanoseconds from its start to its report.
    pub elapsed_ns: u64,
    /// CPU time of its process.
    pub cpu: ProcessCpu,
    /// What it did for each job.
    pub jobs: Vec<Arc<WorkerJobStats>>,
}

/// What one session of a consumer reported last.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerReportSample {
    /// The job.
    pub job: JobId,
    /// Which consumer, from 0.
    pub consumer: u32,
    /// Its connection: a newer one counts from 0 again.
    pub session: SessionId,
    /// What it has received.
    pub stats: ConsumerStats,
}
