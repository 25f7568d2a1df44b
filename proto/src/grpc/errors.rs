//! Conversion between service errors and gRPC statuses. An error of the transport becomes `Unavailable`.

use std::error::Error;
use std::sync::atomic::Ordering;

use feedline_data::messages::{ServiceError, ServiceErrorKind};
use tonic::{Code, Status};

use super::channel::RemoteName;
use super::version;
use crate::convert::WireError;
use crate::rpc::REQUEST_DEADLINE;

/// Metadata key of the address of the leader.
const LEADER: &str = "feedline-leader";
/// Metadata key of the retry delay in milliseconds. gRPC defines the key.
const RETRY_AFTER: &str = "grpc-retry-pushback-ms";
/// Maximum length of a status message. Longer messages are truncated, because the size of headers is limited.
const MAX_MESSAGE_BYTES: usize = 2 << 10;

/// Converts an error to a status. The metadata contains the address of the leader and the retry delay.
pub fn to_status(error: ServiceError) -> Status {
    let code = match error.kind {
        ServiceErrorKind::Invalid => Code::InvalidArgument,
        ServiceErrorKind::NotFound => Code::NotFound,
        ServiceErrorKind::Superseded => Code::Aborted,
        ServiceErrorKind::Denied => Code::PermissionDenied,
        ServiceErrorKind::Unavailable => Code::Unavailable,
        ServiceErrorKind::Busy => Code::ResourceExhausted,
    };
    let mut message = error.message;
    if message.len() > MAX_MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        message.push_str(" ...");
    }
    let mut status = Status::new(code, message);
    if let Some(Ok(leader)) = error.leader.as_deref().map(str::parse) {
        status.metadata_mut().insert(LEADER, leader);
    }
    if let Some(retry_after_ms) = error.retry_after_ms {
        status.metadata_mut().insert(RETRY_AFTER, retry_after_ms.into());
    }
    status
}

/// The status of a request that cannot be decoded.
pub(super) fn unreadable(error: WireError) -> Status {
    Status::invalid_argument(error.0)
}

impl RemoteName {
    /// Converts the result of a request to the remote process.
    pub(super) fn response<T>(&self, response: Result<T, Status>) -> Result<T, ServiceError> {
        match response {
            Ok(response) => {
                self.has_other_version.store(false, Ordering::Relaxed);
                Ok(response)
            }
            Err(status) => Err(self.error(&status)),
        }
    }

    /// Converts a status of the remote process to an error. Logs a warning for the first rejection of the protocol version
    /// since the last response.
    pub(super) fn error(&self, status: &Status) -> ServiceError {
        let Self { role, url, .. } = self;
        if version::is_version_mismatch(status) {
            if !self.has_other_version.swap(true, Ordering::Relaxed) {
                let reason = status.message();
                tracing::warn!(%url, reason, "the {role} has another protocol version; requests are retried");
            }
            return ServiceError::version_mismatch(status.message());
        }
        let retry_after = status.metadata().get(RETRY_AFTER).and_then(|ms| ms.to_str().ok()?.parse().ok());
        let kind = match status.code() {
            // The transport also uses this code for messages that are too large, but without a retry delay.
            Code::ResourceExhausted if retry_after.is_some() => ServiceErrorKind::Busy,
            Code::InvalidArgument | Code::Unimplemented | Code::OutOfRange | Code::ResourceExhausted => {
                ServiceErrorKind::Invalid
            }
            Code::NotFound => ServiceErrorKind::NotFound,
            Code::Aborted => ServiceErrorKind::Superseded,
            Code::PermissionDenied | Code::Unauthenticated => ServiceErrorKind::Denied,
            _ => ServiceErrorKind::Unavailable,
        };
        let message = match (status.code(), status.source()) {
            (Code::DeadlineExceeded, _) => self.timed_out(),
            // tonic reports its own request timeout this way.
            (Code::Cancelled, Some(_)) if status.message() == "Timeout expired" => self.timed_out(),
            (_, Some(source)) => {
                let cause = root_cause(source).to_string();
                format!("cannot reach {role} at {url}: {cause}{}", self.hint(&cause))
            }
            (Code::Unimplemented, None) => format!(
                "the server at {url} is not a {role}, or runs a different release; check the address, or use the same release on both sides"
            ),
            (_, None) => status.message().to_owned(),
        };
        let leader = status.metadata().get(LEADER).and_then(|url| url.to_str().ok());
        let has_timed_out = status.code() == Code::DeadlineExceeded || status.message() == "Timeout expired";
        ServiceError {
            leader: leader.map(str::to_owned),
            retry_after_ms: retry_after,
            is_unreachable: kind == ServiceErrorKind::Unavailable
                && status.source().is_some()
                && !has_timed_out,
            ..ServiceError::new(kind, message)
        }
    }

    fn timed_out(&self) -> String {
        let Self { role, url, .. } = self;
        format!("the {role} at {url} did not respond within {} s", REQUEST_DEADLINE.as_secs())
    }

    /// The error for a response that cannot be decoded.
    pub(super) fn unreadable(&self, error: &WireError) -> ServiceError {
        let Self { role, url, .. } = self;
        let message = format!("the {role} at {url} sent a malformed response: {error}");
        ServiceError::new(ServiceErrorKind::Invalid, message)
    }
}

fn root_cause<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}
