//! Service errors.

use crate::ids::JobId;

/// The error returned for a rejected request. A rejected request has no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ServiceError {
    /// The kind of error, which determines whether a retry can succeed.
    pub kind: ServiceErrorKind,
    /// The message for the user, with the fix.
    pub message: String,
    /// The URL of the leading coordinator, if the request was sent to a follower.
    pub leader: Option<String>,
    /// The delay in milliseconds after which a retry may succeed, if known.
    pub retry_after_ms: Option<u64>,
    /// Whether the other process has another protocol version. The request has no effect, and the kind is `Unavailable`,
    /// because a rolling upgrade may replace the process.
    pub is_version_mismatch: bool,
    /// Whether the other process did not answer: the connection failed, or broke before the response. The kind is
    /// `Unavailable`.
    pub is_unreachable: bool,
}

/// Kinds of service errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceErrorKind {
    /// The request is invalid. A retry cannot succeed.
    Invalid,
    /// The job does not exist.
    NotFound,
    /// A newer session of the same consumer has replaced this one.
    Superseded,
    /// The caller is not authenticated, or not permitted to make the request.
    Denied,
    /// The coordinator cannot process the request now. A retry may succeed.
    Unavailable,
    /// A concurrency limit is reached. A retry may succeed after `retry_after_ms`.
    Busy,
}

impl ServiceErrorKind {
    /// Whether a retry of the same request may succeed.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::Busy)
    }
}

impl ServiceError {
    /// Creates an error of this kind.
    pub fn new(kind: ServiceErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            kind,
            message,
            leader: None,
            retry_after_ms: None,
            is_version_mismatch: false,
            is_unreachable: false,
        }
    }

    /// Creates an error for a reached concurrency limit. A retry may succeed after `retry_after_ms` milliseconds.
    pub fn busy(message: impl Into<String>, retry_after_ms: u64) -> Self {
        Self { retry_after_ms: Some(retry_after_ms), ..Self::new(ServiceErrorKind::Busy, message) }
    }

    /// Creates the error of a request to a process with another protocol version.
    pub fn version_mismatch(message: impl Into<String>) -> Self {
        Self { is_version_mismatch: true, ..Self::new(ServiceErrorKind::Unavailable, message) }
    }

    /// Creates the error of a request to a process that did not answer.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self { is_unreachable: true, ..Self::new(ServiceErrorKind::Unavailable, message) }
    }

    /// Creates an error for a job that does not exist or that the caller must not see. Callers cannot distinguish the two
    /// cases.
    pub fn unknown_job(job: JobId) -> Self {
        let message = format!("job {job} does not exist; list the jobs with `feedline job list`");
        Self::new(ServiceErrorKind::NotFound, message)
    }

    /// Creates the error that a follower returns for a request. The error contains the URL of the leader.
    pub fn not_leader(url: &str) -> Self {
        let message = format!("this coordinator is not the leader; send the request to the leader at {url}");
        Self { leader: Some(url.to_owned()), ..Self::new(ServiceErrorKind::Unavailable, message) }
    }
}
