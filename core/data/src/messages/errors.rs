//! Why a service refuses a request.

use crate::ids::JobId;

/// Why something was refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ServiceError {
    /// What kind of refusal: decides whether trying again can help.
    pub kind: ServiceErrorKind,
    /// One sentence with the fix.
    pub message: String,
    /// Where to ask instead: the coordinator that leads.
    pub leader: Option<String>,
    /// Milliseconds after which asking again may help, where that is known.
    pub retry_after_ms: Option<u64>,
}

/// Kinds of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceErrorKind {
    /// The request can never work as it is.
    Invalid,
    /// There is no such job.
    NotFound,
    /// Another consumer has taken this place.
    Superseded,
    /// Whoever asks may not do it, or has not shown who it is.
    Denied,
    /// The coordinator cannot do it now; nothing was lost, try again.
    Unavailable,
    /// There is no room for it now. Nothing is wrong with it, and whoever refuses is well: ask again later, and not before.
    Busy,
}

impl ServiceErrorKind {
    /// Whether the same request may be taken at another time.
    pub fn is_passing(self) -> bool {
        matches!(self, Self::Unavailable | Self::Busy)
    }
}

impl ServiceError {
    /// A refusal of this kind.
    pub fn new(kind: ServiceErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), leader: None, retry_after_ms: None }
    }

    /// There is no room; asking again may help after so many milliseconds.
    pub fn busy(message: impl Into<String>, retry_after_ms: u64) -> Self {
        Self { retry_after_ms: Some(retry_after_ms), ..Self::new(ServiceErrorKind::Busy, message) }
    }

    /// The refusal where there is no such job, or none that the asker may know of: nothing tells these apart.
    pub fn unknown_job(job: JobId) -> Self {
        let message =
            format!("there is no job {job} here; `feedline job list` lists the jobs of a coordinator");
        Self::new(ServiceErrorKind::NotFound, message)
    }

    /// The refusal of a coordinator that follows.
    pub fn led_by(url: &str) -> Self {
        let message = format!("this coordinator follows the one at {url}; ask that one");
        Self { leader: Some(url.to_owned()), ..Self::new(ServiceErrorKind::Unavailable, message) }
    }
}
