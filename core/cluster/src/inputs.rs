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

/// Identifies a request that waits for a reply; the driver chooses it.
pub type RequestId = u64;

/// One input.
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
        /// The saved index of the dataset, if there is one.
        saved: Option<Arc<Manifest>>,
    },
    /// A client joins a job, or asks whether it may open one. This opens no job.
    JoinJob {
        /// Receives [`Reply::Opened`] if the job is open, else [`Reply::MayOpen`] or a refusal.
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
    /// A worker reports.
    Worker {
        /// Receives [`Reply::Worker`] once the plan has changed or the hold time is over.
        request: RequestId,
        /// The report.
        report: WorkerReport,
    },
    /// A consumer reports.
    Consumer {
        /// Receives [`Reply::Consumer`] once the plan has changed or the hold time is over.
        request: RequestId,
        /// The report.
        report: ConsumerReport,
    },
    /// The planner's allocations. They are complete: a worker that is missing has no limits.
    Allocations {
        /// The allocations of each worker.
        allocations: PlanAllocations,
    },
    /// An index of [`Ready::manifests`] was saved, or could not be.
    IndexSaved {
        /// The job.
        job: JobId,
        /// The error is one sentence with a remedy.
        saved: Result<(), String>,
    },
    /// A client changes the weights of the datasets in a job's mix.
    SetWeights {
        /// Receives [`Reply::Remixed`].
        request: RequestId,
        /// The job.
        job: JobId,
        /// One weight for each dataset.
        weights: Vec<f64>,
    },
    /// A worker asks for the details of a job.
    JobDetails {
        /// Receives [`Reply::Details`].
        request: RequestId,
        /// The job.
        job: JobId,
    },
    /// A client asks for the status of jobs.
    JobStatus {
        /// Receives [`Reply::Status`].
        request: RequestId,
        /// One job, or all.
        job: Option<JobId>,
    },
    /// A client asks for the positions of all consumers of a job at one step.
    Places {
        /// Receives [`Reply::Places`] once the positions are known or the hold time is over.
        request: RequestId,
        /// The job.
        job: JobId,
        /// The step.
        step: StepId,
    },
}

impl Input {
    /// The request that waits for a reply.
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
            Self::Tick | Self::Allocations { .. } | Self::IndexSaved { .. } => None,
        }
    }
}

/// A reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The id of the opened or joined job.
    Opened(JobId),
    /// The job is not open, and the client may open it.
    MayOpen,
    /// The job is cancelled, or had ended before.
    Cancelled,
    /// The place from which the new weights of the mix apply.
    Remixed(MixChange),
    /// The desired state of a worker.
    Worker(WorkerPlan),
    /// The desired state of a consumer.
    Consumer(ConsumerPlan),
    /// The details of a job.
    Details(Box<JobDetails>),
    /// The status of jobs.
    Status(Vec<JobStatus>),
    /// The positions of a job's consumers at one step.
    Places(GroupPositions),
    /// The request was rejected and has changed nothing.
    Refused(ServiceError),
}

/// The results of steps: the driver persists `records`, then sends `replies`.
#[derive(Debug, Default)]
pub struct Ready {
    /// Indexes to save under the key of a source. An [`Input::IndexSaved`] continues the job.
    pub manifests: Vec<(JobId, String, Arc<Manifest>)>,
    /// Records to persist, in order.
    pub records: Vec<Record>,
    /// Replies to send once the records of this step and of all earlier steps are persisted.
    pub replies: Vec<(RequestId, Reply)>,
}
