//! Refusals as gRPC statuses and back. What the transport reports becomes `Unavailable`.

use std::error::Error;

use feedline_data::messages::{ServiceError, ServiceErrorKind};
use tonic::{Code, Status};

use super::channel::RemoteName;
use crate::convert::WireError;
use crate::rpc::REQUEST_DEADLINE;

/// Metadata key of the coordinator that leads.
const LEADER: &str = "feedline-leader";
/// Metadata key of the time after which asking again may help, in milliseconds: gRPC's own.
const RETRY_AFTER: &str = "grpc-retry-pushback-ms";
/// A status travels in a header, which must stay small: longer messages are cut.
const MAX_MESSAGE_BYTES: usize = 2 << 10;

/// The status that carries a refusal, the time to wait and the coordinator to ask instead among it.
pub fn to_status(refusal: ServiceError) -> Status {
    let code = match refusal.kind {
        ServiceErrorKind::Invalid => Code::InvalidArgument,
        ServiceErrorKind::NotFound => Code::NotFound,
        ServiceErrorKind::Superseded => Code::Aborted,
        ServiceErrorKind::Denied => Code::PermissionDenied,
        ServiceErrorKind::Unavailable => Code::Unavailable,
        ServiceErrorKind::Busy => Code::ResourceExhausted,
    };
    let mut message = refusal.message;
    if message.len() > MAX_MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        message.push_str(" ...");
    }
    let mut status = Status::new(code, message);
    if let Some(Ok(leader)) = refusal.leader.as_deref().map(str::parse) {
        status.metadata_mut().insert(LEADER, leader);
    }
    if let Some(retry_after_ms) = refusal.retry_after_ms {
        status.metadata_mut().insert(RETRY_AFTER, retry_after_ms.into());
    }
    status
}

/// The status for a request that could not be read.
pub(super) fn unreadable(error: WireError) -> Status {
    Status::invalid_argument(error.0)
}

impl RemoteName {
    /// The refusal that a status stands for.
    pub(super) fn refusal(&self, status: &Status) -> ServiceError {
        let Self { role, url, .. } = self;
        let retry_after = status.metadata().get(RETRY_AFTER).and_then(|ms| ms.to_str().ok()?.parse().ok());
        let kind = match status.code() {
            // Without a time it is the transport that says so, of a message that is too large.
            Code::ResourceExhausted if retry_after.is_some() => ServiceErrorKind::Busy,
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::Unimplemented
            | Code::OutOfRange
            | Code::ResourceExhausted => ServiceErrorKind::Invalid,
            Code::NotFound => ServiceErrorKind::NotFound,
            Code::Aborted => ServiceErrorKind::Superseded,
            Code::PermissionDenied | Code::Unauthenticated => ServiceErrorKind::Denied,
            _ => ServiceErrorKind::Unavailable,
        };
        let message = match (status.code(), status.source()) {
            (Code::DeadlineExceeded, _) => self.too_late(),
            // What tonic calls a request that its own timeout ended.
            (Code::Cancelled, Some(_)) if status.message() == "Timeout expired" => self.too_late(),
            (_, Some(source)) => {
                let cause = root_cause(source).to_string();
                format!("cannot reach {role} at {url}: {cause}{}", self.hint(&cause))
            }
            (Code::Unimplemented, None) => format!(
                "what answers at {url} is no {role} of this release; check the address, or use the same release on both"
            ),
            (_, None) => status.message().to_owned(),
        };
        let leader = status.metadata().get(LEADER).and_then(|url| url.to_str().ok());
        ServiceError { kind, message, leader: leader.map(str::to_owned), retry_after_ms: retry_after }
    }

    fn too_late(&self) -> String {
        let Self { role, url, .. } = self;
        format!("the {role} at {url} did not answer within {} s", REQUEST_DEADLINE.as_secs())
    }

    /// The refusal for an answer that could not be read.
    pub(super) fn unreadable(&self, error: &WireError) -> ServiceError {
        let Self { role, url, .. } = self;
        ServiceError::new(
            ServiceErrorKind::Invalid,
            format!("the {role} at {url} sent what cannot be read: {error}"),
        )
    }
}

fn root_cause<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}
