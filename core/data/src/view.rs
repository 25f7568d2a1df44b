//! The cluster at one moment as users see it: jobs with what they get and what bounds them, workers with what they use, and
//! what the planner says.

mod bottleneck;
mod own;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use bottleneck::{Bottleneck, BottleneckKind, ResourceBound};

use crate::ids::{JobId, Millis, WorkerId};
use crate::messages::{JobState, JobStatus};
use crate::pipeline::{CacheEncoding, CacheTier};

/// The cluster at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterView {
    /// The moment, in milliseconds of the coordinator's clock; 0 before the first look.
    pub now_ms: Millis,
    /// Jobs by id.
    pub jobs: Vec<JobView>,
    /// Workers that report, by id.
    pub workers: Vec<WorkerView>,
    /// Workers that would feed all jobs, by type.
    pub wanted: Vec<WantedWorkers>,
    /// What is kept.
    pub caches: Vec<CacheView>,
    /// What the planner decided and why, in sentences.
    pub reasons: Vec<String>,
    /// What was last done about the number of workers, in one sentence; `None` where nobody scales.
    pub scaling: Option<String>,
}

/// A job. Rates are those of the last seconds, and 0 while no rows flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    /// The job.
    pub job: JobId,
    /// Whose it is.
    #[serde(default)]
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// How it stands.
    pub state: JobState,
    /// Consumers that it was opened for.
    pub consumers: u32,
    /// Workers that work on it.
    pub workers: u32,
    /// Rows delivered so far.
    pub rows: u64,
    /// Rows per second that its consumers got.
    pub rows_per_s: f64,
    /// Rows per second that its consumers could take; `None` where they take whatever comes.
    pub demand_rows_per_s: Option<f64>,
    /// The rate over the demand, at most 1; without a demand, over what the cluster could make for this job alone.
    pub fed_fraction: Option<f64>,
    /// Share of their time that its consumers waited.
    pub stall_share: Option<f64>,
    /// Cores that the plan grants it, over all workers.
    pub cores: f64,
    /// What bounds it with these cores.
    pub bottleneck: Option<Bottleneck>,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerView {
    /// The worker.
    pub worker: WorkerId,
    /// Where consumers reach it.
    pub address: String,
    /// Its type.
    pub worker_type: String,
    /// Threads of its CPU pool.
    pub cores: u32,
    /// CPU seconds per second that it spends on jobs, transport among it.
    pub used_cores: f64,
    /// Its memory budget in bytes.
    pub memory_bytes: u64,
    /// Bytes of rows that it holds.
    pub held_bytes: u64,
    /// Most memory that its process has held, in bytes; `None` before its first job.
    pub peak_rss_bytes: Option<u64>,
    /// Whether it wants to leave.
    pub draining: bool,
    /// Whether its memory leaves no room for further splits.
    pub memory_full: bool,
    /// What it does for each job that it works on.
    pub parts: Vec<WorkerPart>,
}

/// What a worker does for a job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkerPart {
    /// The job.
    pub job: JobId,
    /// CPU seconds per second that it spends on it, transport among it.
    pub used_cores: f64,
    /// Bytes of its rows that it holds.
    pub held_bytes: u64,
}

/// Something that is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheView {
    /// The operator whose output it is.
    pub operator: String,
    /// Where.
    pub tier: CacheTier,
    /// In which form.
    pub form: CacheEncoding,
    /// Size of all of it in bytes.
    pub bytes: f64,
    /// Share of the rows asked for that were found of late; `None` where none was asked for.
    pub found_share: Option<f64>,
    /// Jobs that read it.
    pub jobs: Vec<JobId>,
}

/// Workers of one type that would feed all jobs as far as consumers and store allow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedWorkers {
    /// The type.
    pub worker_type: String,
    /// Workers at hand.
    pub present: u32,
    /// Workers wanted.
    pub wanted: u32,
}

impl ClusterView {
    /// The same with every job that is known, as it stands: those that were not seen to run have no rates.
    pub fn with_states(mut self, statuses: &[JobStatus]) -> Self {
        let seen = std::mem::take(&mut self.jobs);
        let mut seen: BTreeMap<JobId, JobView> = seen.into_iter().map(|job| (job.job, job)).collect();
        let job = |status: &JobStatus| {
            let running = seen.remove(&status.job).filter(|_| !status.state.is_ended());
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
    /// A job of which nothing was seen yet.
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
        }
    }
}
