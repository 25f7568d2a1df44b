//! The inputs and outputs of the state machine.

use std::sync::Arc;

use feedline_data::checkpoint::StepId;
use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobStatus, PlanAllocations,
    ServiceError, WorkerPlan, WorkerReport,
};
use feedline_data::mix::MixChange;

use crate::records::Record;

/// Identifies a request that waits for a reply. The driver assigns the ids.
pub type RequestId = u64;

/// The saved indexes that a preparation uses.
#[derive(Debug, Clone, Default)]
pub struct SavedIndexes {
    /// The latest index of the source. Only shards that changed since then are indexed again.
    pub latest: Option<Arc<Manifest>>,
    /// The index that the start position of the job refers to, if it is not the latest. It names the shards that changed.
    pub of_start: Option<Arc<Manifest>>,
}

impl From<Option<Arc<Manifest>>> for SavedIndexes {
    fn from(latest: Option<Arc<Manifest>>) -> Self {
        Self { latest, of_start: None }
    }
}

/// An index to save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexToSave {
    /// The job that waits for [`Input::IndexSaved`].
    pub job: JobId,
    /// The key of the source.
    pub key: String,
    /// The index, which becomes the latest of its source.
    pub manifest: Arc<Manifest>,
    /// References to the indexes of the source that other jobs use, and the keys of the indexes of growing sources that jobs of the
    /// tenant use.
    pub in_use: Vec<String>,
}

/// An input of the state machine.
#[derive(Debug)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// A client opens or joins a job.
    OpenJob {
        /// Receives [`Reply::Opened`].
        request: RequestId,
        /// The job.
        spec: Box<JobSpec>,
        /// The saved indexes of the source.
        saved_index: SavedIndexes,
    },
    /// A client joins a job, or asks whether it may open the job. Never opens a job.
    JoinJob {
        /// Receives [`Reply::Opened`] if the job is open, and [`Reply::MayOpen`] or [`Reply::Rejected`] otherwise.
        request: RequestId,
        /// The job.
        spec: Box<JobSpec>,
        /// Whether the client may open the job.
        may_open: bool,
    },
    /// A client cancels a job.
    CancelJob {
        /// Receives [`Reply::Cancelled`].
        request: RequestId,
        /// The job.
        job: JobId,
    },
    /// A worker sends a report.
    Worker {
        /// Receives [`Reply::Worker`] when the plan has changed or the hold time has expired.
        request: RequestId,
        /// The report.
        report: WorkerReport,
    },
    /// A consumer sends a report.
    Consumer {
        /// Receives [`Reply::Consumer`] when the plan has changed or the hold time has expired.
        request: RequestId,
        /// The report.
        report: ConsumerReport,
    },
    /// The planner's complete allocations. A worker without an entry has no limits.
    Allocations {
        /// The allocations of each worker.
        allocations: PlanAllocations,
    },
    /// The driver has saved an index from [`Ready::manifests`], or has failed to save it.
    IndexSaved {
        /// The job.
        job: JobId,
        /// The result of saving the index. The error is one sentence with the fix.
        result: Result<(), String>,
    },
    /// A client changes the weights of the datasets in a job's mix.
    SetWeights {
        /// Receives [`Reply::WeightsChanged`].
        request: RequestId,
        /// The job.
        job: JobId,
        /// One weight for each dataset.
        weights: Vec<f64>,
    },
    /// A worker requests the details of a job.
    JobDetails {
        /// Receives [`Reply::Details`].
        request: RequestId,
        /// The job.
        job: JobId,
    },
    /// A client requests the status of jobs.
    JobStatus {
        /// Receives [`Reply::Status`].
        request: RequestId,
        /// The job; `None` requests all jobs.
        job: Option<JobId>,
    },
    /// A client requests the positions of all consumers of a job at one step.
    QueryPositions {
        /// Receives [`Reply::Positions`] when the positions are known or the hold time has expired.
        request: RequestId,
        /// The job.
        job: JobId,
        /// The step.
        step: StepId,
    },
}

impl Input {
    /// Returns the id of the request that is awaiting a reply, if any.
    pub fn request(&self) -> Option<RequestId> {
        match self {
            Self::OpenJob { request, .. }
            | Self::JoinJob { request, .. }
            | Self::CancelJob { request, .. }
            | Self::SetWeights { request, .. }
            | Self::Worker { request, .. }
            | Self::Consumer { request, .. }
            | Self::JobDetails { request, .. }
            | Self::JobStatus { request, .. }
            | Self::QueryPositions { request, .. } => Some(*request),
            Self::Tick | Self::Allocations { .. } | Self::IndexSaved { .. } => None,
        }
    }
}

/// A reply to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The id of the opened or joined job.
    Opened(JobId),
    /// The job is not open, and the client may open it.
    MayOpen,
    /// The job is cancelled or had already ended.
    Cancelled,
    /// The offset at which the new weights of the mix take effect.
    WeightsChanged(MixChange),
    /// The plan of a worker.
    Worker(WorkerPlan),
    /// The plan of a consumer.
    Consumer(ConsumerPlan),
    /// The details of a job.
    Details(Box<JobDetails>),
    /// The status of jobs.
    Status(Vec<JobStatus>),
    /// The positions of a job's consumers at one step.
    Positions(GroupPositions),
    /// The request was rejected and had no effect.
    Rejected(ServiceError),
}

/// The results of steps. The driver persists `records`, and then sends `replies`.
#[derive(Debug, Default)]
pub struct Ready {
    /// Indexes to save. Their jobs continue after [`Input::IndexSaved`].
    pub manifests: Vec<IndexToSave>,
    /// Records to persist, in order.
    pub records: Vec<Record>,
    /// Replies to send when the records of this step and of all earlier steps are persisted.
    pub replies: Vec<(RequestId, Reply)>,
}
