//! The requests of workers, consumers and users.

use feedline_cluster::{Input, RequestId, SavedIndexes};
use feedline_data::checkpoint::StepId;
use feedline_data::ids::JobId;
use feedline_data::messages::{ConsumerReport, JobSpec, ServiceError, ServiceErrorKind, WorkerReport};

/// A request, which is an [`Input`] without a number.
#[derive(Debug)]
pub(crate) enum Request {
    OpenJob { spec: Box<JobSpec>, saved: SavedIndexes },
    JoinJob { spec: Box<JobSpec>, may_open: bool },
    CancelJob(JobId),
    SetWeights(JobId, Vec<f64>),
    Worker(WorkerReport),
    Consumer(ConsumerReport),
    JobDetails(JobId),
    JobStatus(Option<JobId>),
    Positions(JobId, StepId),
}

impl Request {
    pub(crate) fn into_input(self, request: RequestId) -> Input {
        match self {
            Self::OpenJob { spec, saved } => Input::OpenJob { request, spec, saved_index: saved },
            Self::JoinJob { spec, may_open } => Input::JoinJob { request, spec, may_open },
            Self::CancelJob(job) => Input::CancelJob { request, job },
            Self::SetWeights(job, weights) => Input::SetWeights { request, job, weights },
            Self::Worker(report) => Input::Worker { request, report },
            Self::Consumer(report) => Input::Consumer { request, report },
            Self::JobDetails(job) => Input::JobDetails { request, job },
            Self::JobStatus(job) => Input::JobStatus { request, job },
            Self::Positions(job, step) => Input::QueryPositions { request, job, step },
        }
    }
}

/// Returns the error for requests during a shutdown.
pub(crate) fn shutting_down() -> ServiceError {
    ServiceError::new(
        ServiceErrorKind::Unavailable,
        "the coordinator is shutting down; retry after it has restarted",
    )
}
