//! Why a consumer gets no further batches.

use feedline_data::messages::{ServiceError, ServiceErrorKind};

/// Why a job cannot be opened or a consumer gets no further batches. What was delivered before stays valid, and
/// opening the job again goes on after it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// A setting is out of range.
    #[error("{0}")]
    Setting(String),
    /// The coordinator refused: trying the same again cannot help.
    #[error("{0}")]
    Refused(String),
    /// The coordinator knows no such job.
    #[error("{0}")]
    UnknownJob(String),
    /// No coordinator is reached at the start, when the address may be wrong, too. Trying again later may help.
    #[error("{0}; check the address, and that a coordinator runs there")]
    Unreachable(String),
    /// No coordinator answered for the client's patience. Trying again later is right.
    #[error(
        "no coordinator for {seconds} s: {message}; check that it runs, then start again, which goes on where this stopped"
    )]
    CoordinatorLost {
        /// Seconds waited.
        seconds: u64,
        /// What the last try said.
        message: String,
    },
    /// There was no room for as long as the client waits. Trying again later is right.
    #[error("{message}; it was asked for again for {seconds} s")]
    Busy {
        /// Seconds waited.
        seconds: u64,
        /// What the last try said.
        message: String,
    },
    /// A newer session took this consumer's place.
    #[error("{0}; give each process its own consumer index")]
    Superseded(String),
    /// The job failed: one sentence.
    #[error("{0}")]
    JobFailed(String),
    /// Someone cancelled the job.
    #[error("the job was cancelled; open it anew to go on from its last position")]
    Cancelled,
    /// A worker sends what cannot be read, also when asked again.
    #[error("split {split} cannot be read: {message}; use the same release on workers and clients")]
    Damaged {
        /// Which split.
        split: String,
        /// What is wrong.
        message: String,
    },
    /// The consumer's task ended: the runtime it was made on is gone, or it was closed.
    #[error("the consumer is closed; keep the runtime it was made on running, or make a new consumer")]
    Closed,
}

impl From<ServiceError> for ClientError {
    fn from(refusal: ServiceError) -> Self {
        match refusal.kind {
            ServiceErrorKind::Invalid | ServiceErrorKind::Denied => Self::Refused(refusal.message),
            ServiceErrorKind::NotFound => Self::UnknownJob(refusal.message),
            ServiceErrorKind::Superseded => Self::Superseded(refusal.message),
            ServiceErrorKind::Unavailable => Self::CoordinatorLost { seconds: 0, message: refusal.message },
            ServiceErrorKind::Busy => Self::Busy { seconds: 0, message: refusal.message },
        }
    }
}

impl ClientError {
    /// Whether doing the same again, without any change, can succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::CoordinatorLost { .. } | Self::Busy { .. })
    }
}
