//! Failed calls to the API server: whether a retry may succeed, and the message.

use std::future::Future;
use std::time::Duration;

use kube::core::Status;
use kube::runtime::watcher;

use crate::api_client::describe;
use crate::metrics::ScaleCallResult;

/// Maximum duration of a call.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Status code of a request that the API server rejects because it is overloaded.
const TOO_MANY_REQUESTS: u16 = 429;
/// Status code of a watch that continues from a version that the API server has discarded.
const GONE: u16 = 410;

/// The reason why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallFailure {
    /// Another process has changed the object since it was read.
    Conflict,
    /// The object does not exist.
    NotFound,
    /// The service account lacks a permission. Contains the message of the API server.
    Forbidden(String),
    /// The API server rejected the request for another reason.
    Rejected(String),
    /// The API server could not be reached, or failed.
    Unavailable(String),
    /// The API server did not answer in time.
    Timeout,
}

impl CallFailure {
    /// Whether a later call may succeed without a change by the user.
    pub(super) fn is_temporary(&self) -> bool {
        matches!(self, Self::Conflict | Self::Unavailable(_) | Self::Timeout)
    }

    /// The result of the call in the metric.
    pub(super) fn result(&self) -> ScaleCallResult {
        match self {
            Self::Conflict => ScaleCallResult::Conflict,
            Self::NotFound | Self::Forbidden(_) | Self::Rejected(_) => ScaleCallResult::Rejected,
            Self::Unavailable(_) => ScaleCallResult::Unavailable,
            Self::Timeout => ScaleCallResult::Timeout,
        }
    }

    /// Returns the message. `object` is the name of the object with its kind, and `action` the denied action.
    pub(super) fn sentence(&self, object: &str, action: &str) -> String {
        match self {
            Self::Conflict => format!("another process has changed {object}"),
            Self::NotFound => {
                format!("{object} does not exist: create it, or correct --scale-pool or --namespace")
            }
            Self::Forbidden(message) => {
                format!(
                    "the coordinator may not {action} {object}: {message}; grant this permission in its Role"
                )
            }
            Self::Rejected(message) => {
                format!("the API server of Kubernetes rejected the request: {message}")
            }
            Self::Unavailable(message) => format!("cannot reach the API server of Kubernetes: {message}"),
            Self::Timeout => {
                let seconds = CALL_TIMEOUT.as_secs();
                format!("the API server of Kubernetes did not answer within {seconds} s")
            }
        }
    }

    fn of_status(status: &Status) -> Self {
        let message = if status.message.is_empty() { &status.reason } else { &status.message };
        match status.code {
            _ if status.is_conflict() => Self::Conflict,
            _ if status.is_not_found() => Self::NotFound,
            _ if status.is_forbidden() => Self::Forbidden(message.clone()),
            TOO_MANY_REQUESTS => Self::Unavailable(message.clone()),
            400..500 => Self::Rejected(message.clone()),
            _ => Self::Unavailable(message.clone()),
        }
    }

    /// Returns the failure of a watch; `None` if the watch only has to list the objects again.
    pub(super) fn of_watch(error: &watcher::Error) -> Option<Self> {
        use watcher::Error;
        match error {
            Error::InitialListFailed(error) | Error::WatchStartFailed(error) | Error::WatchFailed(error) => {
                Some(Self::from(error)).filter(|_| !is_gone(error))
            }
            Error::WatchError(status) => Some(Self::of_status(status)).filter(|_| status.code != GONE),
            Error::NoResourceVersion => Some(Self::Unavailable(error.to_string())),
        }
    }
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == GONE)
}

impl From<&kube::Error> for CallFailure {
    fn from(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(status),
            other => Self::Unavailable(describe(other)),
        }
    }
}

/// Waits for a call for at most [`CALL_TIMEOUT`].
pub(super) async fn call<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, CallFailure> {
    match tokio::time::timeout(CALL_TIMEOUT, request).await {
        Ok(result) => result.map_err(|error| CallFailure::from(&error)),
        Err(_) => Err(CallFailure::Timeout),
    }
}
