//! What the state machine takes and what it returns.

use std::collections::BTreeMap;
use std::sync::Arc;

use feedline_data::checkpoint::StepId;
use feedline_data::ids::{JobId, WorkerId};
use feedline_data::manifest::Manifest;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobStatus, ServiceError,
    WorkerAllocations, WorkerPlan, WorkerReport,
};
use feedline_data::mix::MixChange;

use crate::records::Record;

/// Names a request that waits for an answer; chosen by the driver.
pub type RequestId = u64;

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// Time passed.
    Tick,
    /// Someone opens or joins a job.
    OpenJob {
        /// Answered with [`Reply::Opened`].
        request: RequestId,
        /// The job.
        spec: Box<JobSpec>,
        /// The dataset's saved index, if there is one.
        saved: Option<Arc<Manifest>>,
    },
    /// Someone joins a job, or asks whether one may be opened: none is.
    JoinJob {
        /// Answered with [`Reply::Opened`] where such a job is open, else with [`Reply::MayOpen`] or a refusal.
        request: RequestId,
        /// The job.
        spec: Box<JobSpec>,
        /// Whether whoever asks may open it where there is none.
        may_open: bool,
    },
    /// Someone cancels a job.
    CancelJob {
        /// Answered with [`Reply::Cancelled`].
        request: RequestId,
        /// The job.
        job: JobId,
    },
    /// A worker reports.
    Worker {
        /// Answered with [`Reply::Worker`] once its plan has changed or the hold time is over.
        request: RequestId,
        /// The report.
        report: WorkerReport,
    },
    /// A consumer reports.
    Consumer {
        /// Answered with [`Reply::Consumer`] once its plan has changed or the hold time is over.
        request: RequestId,
        /// The report.
        report: ConsumerReport,
    },
    /// It was decided what jobs may use of workers: complete, so a worker that is not listed has no limits.
    Shares {
        /// By worker.
        shares: BTreeMap<WorkerId, WorkerAllocations>,
    },
    /// The index of a job's dataset, as [`Ready::manifests`] had it, is saved, or cannot be.
    IndexSaved {
        /// The job.
        job: JobId,
        /// One sentence with the fix where it cannot be.
        saved: Result<(), String>,
    },
    /// Someone gives the datasets of a job's mix other weights.
    SetWeights {
        /// Answered with [`Reply::Remixed`].
        request: RequestId,
        /// The job.
        job: JobId,
        /// One for each dataset.
        weights: Vec<f64>,
    },
    /// Someone asks for what a worker needs to know of a job.
    JobDetails {
        /// Answered with [`Reply::Details`].
        request: RequestId,
        /// The job.
        job: JobId,
    },
    /// Someone asks how jobs stand.
    JobStatus {
        /// Answered with [`Reply::Status`].
        request: RequestId,
        /// One job, or all.
        job: Option<JobId>,
    },
    /// Someone asks where all consumers of a job stand at a step.
    Places {
        /// Answered with [`Reply::Places`] once that is known, or the hold time is over.
        request: RequestId,
        /// The job.
        job: JobId,
        /// The step.
        step: StepId,
    },
}

impl Input {
    /// Who waits for an answer.
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
            | Self::Places { request, .. } => Some(*request),
            Self::Tick | Self::Shares { .. } | Self::IndexSaved { .. } => None,
        }
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The job's id.
    Opened(JobId),
    /// No such job is open, and there is room for it.
    MayOpen,
    /// The job is cancelled, or had ended before.
    Cancelled,
    /// From where on the mix has the weights that were given.
    Remixed(MixChange),
    /// What the worker shall do.
    Worker(WorkerPlan),
    /// What the consumer shall do.
    Consumer(ConsumerPlan),
    /// What a worker needs to know of a job.
    Details(Box<JobDetails>),
    /// How jobs stand.
    Status(Vec<JobStatus>),
    /// Where the consumers of a job stand.
    Places(GroupPositions),
    /// Refused; nothing was changed.
    Refused(ServiceError),
}

/// What to do after a step: persist `records`, then send `replies`.
#[derive(Debug, Default)]
pub struct Ready {
    /// Indexes of jobs to save under a source's key; then [`Input::IndexSaved`] says so, and the job goes on.
    pub manifests: Vec<(JobId, String, Arc<Manifest>)>,
    /// Decisions to persist, in order.
    pub records: Vec<Record>,
    /// Answers to send once the records of this and all earlier steps are persisted.
    pub replies: Vec<(RequestId, Reply)>,
}
