//! Client errors.

use feedline_data::messages::{ServiceError, ServiceErrorKind};

/// An error while opening a job or receiving batches. Batches that were already delivered remain valid, and the job can
/// resume after them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// A setting is invalid.
    #[error("{0}")]
    Setting(String),
    /// The coordinator or a worker rejected the request permanently.
    #[error("{0}")]
    Refused(String),
    /// The coordinator does not have the job.
    #[error("{0}")]
    UnknownJob(String),
    /// No coordinator responded to the first request. The address may be wrong. A retry may succeed.
    #[error("{0}; check the address, and that a coordinator is running there")]
    Unreachable(String),
    /// No coordinator responded within the client's timeout. A retry may succeed.
    #[error(
        "no coordinator responded for {seconds} s: {message}; check that a coordinator is running, and reopen the job to resume"
    )]
    CoordinatorLost {
        /// Duration of the retries in seconds.
        seconds: u64,
        /// Error of the last attempt.
        message: String,
    },
    /// The service was still busy at the client's timeout. A retry may succeed.
    #[error("{message}; the client stopped retrying after {seconds} s")]
    Busy {
        /// Duration of the retries in seconds.
        seconds: u64,
        /// Error of the last attempt.
        message: String,
    },
    /// Coordinators or workers still had another protocol version at the client's timeout.
    #[error("{message}; the client stopped retrying after {seconds} s")]
    VersionMismatch {
        /// Duration of the retries in seconds.
        seconds: u64,
        /// Error of the last attempt, which names both versions.
        message: String,
    },
    /// A newer session superseded this consumer.
    #[error("{0}; give each process its own consumer index")]
    Superseded(String),
    /// The job failed, for example because a row cannot be read.
    #[error("{0}")]
    JobFailed(String),
    /// A user cancelled the job.
    #[error("the job was cancelled; open it again to resume from its last position")]
    Cancelled,
    /// Workers sent invalid frames, even after retries.
    #[error("split {split} cannot be read: {message}; use the same release on workers and clients")]
    Damaged {
        /// The split.
        split: String,
        /// The error of the last attempt.
        message: String,
    },
    /// The consumer was closed, or its runtime was shut down.
    #[error("the consumer is closed; keep its runtime running, or create a new consumer")]
    Closed,
}

impl From<ServiceError> for ClientError {
    fn from(error: ServiceError) -> Self {
        match error.kind {
            ServiceErrorKind::Invalid | ServiceErrorKind::Denied => Self::Refused(error.message),
            ServiceErrorKind::NotFound => Self::UnknownJob(error.message),
            ServiceErrorKind::Superseded => Self::Superseded(error.message),
            ServiceErrorKind::Unavailable if error.is_version_mismatch => {
                Self::VersionMismatch { seconds: 0, message: error.message }
            }
            ServiceErrorKind::Unavailable => Self::CoordinatorLost { seconds: 0, message: error.message },
            ServiceErrorKind::Busy => Self::Busy { seconds: 0, message: error.message },
        }
    }
}

impl ClientError {
    /// Whether a retry of the same request can succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_)
                | Self::CoordinatorLost { .. }
                | Self::VersionMismatch { .. }
                | Self::Busy { .. }
        )
    }
}
