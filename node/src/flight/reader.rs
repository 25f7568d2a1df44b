//! Streams the batches of one consumer as Flight messages. A batch counts as delivered when the connection can accept the next
//! message, or after the last batch. The next reader of the consumer receives a batch that a broken connection interrupted.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_flight::{FlightData, SchemaAsIpc};
use feedline_client::{Batch, ClientError, Consumer};
use feedline_data::checkpoint::Position;
use feedline_proto::CoordinatorService;
use feedline_proto::authenticator::Authenticator;
use feedline_proto::grpc::to_status;
use futures::{StreamExt, stream};
use serde::Serialize;
use tonic::Status;

use super::limit::FlightPermit;
use super::status::{ResponseStream, client_status};

/// Interval between checks of the token of a client that waits for a batch.
const TOKEN_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The `app_metadata` of a batch.
#[derive(Debug, Serialize)]
struct BatchMetadata<'a> {
    epoch: u32,
    /// The virtual consumer of the batch.
    stream: u32,
    rows: u32,
    /// Position after this batch; `None` if the job has several consumers.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<&'a Position>,
}

/// A consumer that receives batches on behalf of a Flight client.
pub(super) struct FlightReader {
    /// The consumer, with deferred delivery.
    pub(super) consumer: Consumer,
    /// Position of the job, if it has one consumer.
    pub(super) position: Option<Position>,
    pub(super) schema: SchemaRef,
    pub(super) authorization: FlightAuthorization,
    /// Counts this reader against the limit until it is dropped.
    pub(super) _permit: FlightPermit,
}

/// The client's token, which may expire during the stream.
pub(super) struct FlightAuthorization {
    pub(super) authenticator: Arc<dyn Authenticator<dyn CoordinatorService>>,
    pub(super) token: Option<String>,
}

impl FlightAuthorization {
    /// Rejects a client with an expired token.
    pub(super) fn check(&self) -> Result<(), Status> {
        self.authenticator.authenticate(self.token.as_deref()).map(drop).map_err(to_status)
    }

    /// Waits for `next`, and checks the token periodically.
    async fn wait_authorized<T>(
        &self,
        next: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, Status> {
        self.check()?;
        tokio::pin!(next);
        loop {
            tokio::select! {
                result = &mut next => return result.map_err(client_status),
                () = tokio::time::sleep(TOKEN_CHECK_INTERVAL) => self.check()?,
            }
        }
    }
}

impl FlightReader {
    /// Returns the schema and then every batch.
    pub(super) fn into_messages(self) -> ResponseStream<FlightData> {
        let options = IpcWriteOptions::default();
        let schema = FlightData::from(SchemaAsIpc::new(&self.schema, &options));
        let batches = stream::try_unfold(self, |mut reader| async move {
            // tonic collects small messages while the stream is ready. Without a pause, it would request the next batch before it
            // sends the last one.
            tokio::task::yield_now().await;
            match reader.next_batch().await? {
                Some(batch) => Ok(Some((reader.encode(&batch)?, reader))),
                None => {
                    reader.consumer.close().await.map_err(client_status)?;
                    Ok(None)
                }
            }
        });
        stream::once(async { Ok(schema) }).chain(batches).boxed()
    }

    async fn next_batch(&mut self) -> Result<Option<Batch>, Status> {
        let Self { consumer, authorization, .. } = self;
        authorization.wait_authorized(consumer.next()).await
    }

    /// Encodes a batch as one message.
    fn encode(&mut self, batch: &Batch) -> Result<FlightData, Status> {
        if let Some(position) = &mut self.position {
            for (stream, next) in self.consumer.positions() {
                if let Some(stream_position) = position.streams.get_mut(stream as usize) {
                    *stream_position = next;
                }
            }
        }
        let metadata = BatchMetadata {
            epoch: batch.info.epoch,
            stream: batch.info.stream,
            rows: batch.info.rows,
            position: self.position.as_ref(),
        };
        let metadata = serde_json::to_vec(&metadata).map_err(|error| Status::internal(error.to_string()))?;
        let mut tracker = DictionaryTracker::new(false);
        let encoded = IpcDataGenerator::default().encode(
            &batch.records,
            &mut tracker,
            &IpcWriteOptions::default(),
            &mut IpcWriteContext::default(),
        );
        let (_, encoded) = encoded.map_err(|error| Status::internal(error.to_string()))?;
        Ok(FlightData::from(encoded).with_app_metadata(metadata))
    }
}

#[cfg(test)]
mod tests {
    use feedline_access::Credentials;
    use feedline_data::messages::{ServiceError, ServiceErrorKind};
    use feedline_proto::grpc;
    use tokio::time::Instant;
    use tonic::Code;

    use super::*;

    /// Rejects every token as expired.
    struct ExpiredTokens;

    impl Authenticator<dyn CoordinatorService> for ExpiredTokens {
        fn authenticate(&self, token: Option<&str>) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
            assert_eq!(token, Some("token"));
            Err(ServiceError::new(ServiceErrorKind::Denied, "the token of `ci` expired 1 s ago"))
        }
    }

    #[test]
    fn an_expired_token_is_rejected() {
        let authorization =
            FlightAuthorization { authenticator: Arc::new(ExpiredTokens), token: Some("token".to_owned()) };
        let status = authorization.check().unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(status.message(), "the token of `ci` expired 1 s ago");
    }

    /// Accepts every token until a time.
    struct AcceptsUntil {
        end: Instant,
        service: Arc<dyn CoordinatorService>,
    }

    impl Authenticator<dyn CoordinatorService> for AcceptsUntil {
        fn authenticate(&self, _: Option<&str>) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
            if Instant::now() < self.end {
                return Ok(Arc::clone(&self.service));
            }
            Err(ServiceError::new(ServiceErrorKind::Denied, "the token of `ci` expired 1 s ago"))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_when_its_token_expires_even_without_batches() {
        // No server listens there, and no request is sent.
        let service = grpc::connect_coordinator("http://127.0.0.1:1", &Credentials::default()).unwrap();
        let end = Instant::now() + 10 * TOKEN_CHECK_INTERVAL;
        let authorization =
            FlightAuthorization { authenticator: Arc::new(AcceptsUntil { end, service }), token: None };
        let batch = async || authorization.wait_authorized(async { Ok::<_, ClientError>(7) }).await;
        assert_eq!(batch().await.unwrap(), 7);
        let never = std::future::pending::<Result<(), ClientError>>();
        let status = authorization.wait_authorized(never).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert!(Instant::now() < end + 2 * TOKEN_CHECK_INTERVAL);
        assert_eq!(batch().await.unwrap_err().code(), Code::PermissionDenied);
    }
}
