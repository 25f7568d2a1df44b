//! Batches of one consumer as Flight messages.

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
use super::{Answers, refused};

/// How often the token of a client that waits for a batch is looked at.
const CHECK_AGAIN: Duration = Duration::from_secs(5);

/// What stands in a batch's `app_metadata`.
#[derive(Debug, Serialize)]
struct Metadata<'a> {
    epoch: u32,
    /// The virtual consumer whose batch it is.
    stream: u32,
    rows: u32,
    /// Where to go on after this batch; only a job's one consumer knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<&'a Position>,
}

/// A consumer that is read by a Flight client.
pub(super) struct FlightReader {
    pub(super) consumer: Consumer,
    /// Where the job stands, for its one consumer.
    pub(super) position: Option<Position>,
    pub(super) schema: SchemaRef,
    pub(super) pass: FlightAuthorization,
    /// Its place among all that are read.
    pub(super) _place: FlightPermit,
}

/// What the client has shown: a token may expire while batches are read.
pub(super) struct FlightAuthorization {
    pub(super) door: Arc<dyn Authenticator<dyn CoordinatorService>>,
    pub(super) token: Option<String>,
}

impl FlightAuthorization {
    /// Refuses a client whose token is no longer good.
    pub(super) fn check(&self) -> Result<(), Status> {
        self.door.enter(self.token.as_deref()).map(drop).map_err(to_status)
    }

    /// What `next` gives, for as long as the client may have it.
    async fn admit<T>(&self, next: impl Future<Output = Result<T, ClientError>>) -> Result<T, Status> {
        self.check()?;
        tokio::pin!(next);
        loop {
            tokio::select! {
                given = &mut next => return given.map_err(refused),
                () = tokio::time::sleep(CHECK_AGAIN) => self.check()?,
            }
        }
    }
}

impl FlightReader {
    /// The schema, then every batch.
    pub(super) fn messages(self) -> Answers<FlightData> {
        let options = IpcWriteOptions::default();
        let schema = FlightData::from(SchemaAsIpc::new(&self.schema, &options));
        let batches = stream::try_unfold(self, |mut reading| async move {
            match reading.next().await? {
                Some(batch) => Ok(Some((reading.message(&batch)?, reading))),
                None => {
                    reading.consumer.close().await.map_err(refused)?;
                    Ok(None)
                }
            }
        });
        stream::once(async { Ok(schema) }).chain(batches).boxed()
    }

    async fn next(&mut self) -> Result<Option<Batch>, Status> {
        let Self { consumer, pass, .. } = self;
        pass.admit(consumer.next()).await
    }

    /// One batch as one message.
    fn message(&mut self, batch: &Batch) -> Result<FlightData, Status> {
        if let Some(position) = &mut self.position {
            for (stream, next) in self.consumer.positions() {
                if let Some(place) = position.streams.get_mut(stream as usize) {
                    *place = next;
                }
            }
        }
        let metadata = Metadata {
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

    /// Closed since the token expired.
    struct Shut;

    impl Authenticator<dyn CoordinatorService> for Shut {
        fn enter(&self, token: Option<&str>) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
            assert_eq!(token, Some("token"));
            Err(ServiceError::new(ServiceErrorKind::Denied, "the token of `ci` expired 1 s ago"))
        }
    }

    #[test]
    fn a_token_that_has_expired_gets_no_further_batch() {
        let pass = FlightAuthorization { door: Arc::new(Shut), token: Some("token".to_owned()) };
        let status = pass.check().unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(status.message(), "the token of `ci` expired 1 s ago");
    }

    /// Open until the token expires.
    struct Until {
        end: Instant,
        service: Arc<dyn CoordinatorService>,
    }

    impl Authenticator<dyn CoordinatorService> for Until {
        fn enter(&self, _: Option<&str>) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
            if Instant::now() < self.end {
                return Ok(Arc::clone(&self.service));
            }
            Err(ServiceError::new(ServiceErrorKind::Denied, "the token of `ci` expired 1 s ago"))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_when_its_token_expires_whether_batches_come_or_not() {
        // Nobody is asked there.
        let service = grpc::connect_coordinator("http://127.0.0.1:1", &Credentials::default()).unwrap();
        let end = Instant::now() + 10 * CHECK_AGAIN;
        let pass = FlightAuthorization { door: Arc::new(Until { end, service }), token: None };
        let batch = async || pass.admit(async { Ok::<_, ClientError>(7) }).await;
        assert_eq!(batch().await.unwrap(), 7);
        let never = std::future::pending::<Result<(), ClientError>>();
        let status = pass.admit(never).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert!(Instant::now() < end + 2 * CHECK_AGAIN);
        assert_eq!(batch().await.unwrap_err().code(), Code::PermissionDenied);
    }
}
