//! Types that all Flight methods return: response streams, and client errors as gRPC statuses.

use std::pin::Pin;

use feedline_client::ClientError;
use feedline_data::messages::ServiceError;
use feedline_proto::grpc::to_status;
use futures::Stream;
use tonic::Status;

use super::limit::RETRY_MS;

/// The messages of a streaming response.
pub(super) type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Converts a client error to a gRPC status.
pub(super) fn client_status(error: ClientError) -> Status {
    match error {
        ClientError::UnknownJob(message) => Status::not_found(message),
        ClientError::Superseded(message) => Status::aborted(message),
        ClientError::CoordinatorLost { .. } | ClientError::VersionMismatch { .. } => {
            Status::unavailable(error.to_string())
        }
        ClientError::Busy { .. } => to_status(ServiceError::busy(error.to_string(), RETRY_MS)),
        other => Status::failed_precondition(other.to_string()),
    }
}
