//! Arrow Flight: any Flight client can read a job's batches without Feedline's client library.
//!
//! The coordinator's process acts as the consumer for the client. It sends each training batch as one record batch with
//! its position in `app_metadata`. All batches pass through this process. The client library is faster, because it
//! fetches directly from the workers.

mod command;
mod limit;
mod reader;
mod status;

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use async_trait::async_trait;
use feedline_access::Credentials;
use feedline_client::{ClientSettings, GrpcWorkers, Job};
use feedline_data::ids::JobId;
use feedline_data::layout::Layout;
use feedline_data::messages::{JobState, JobStatus, ServiceError};
use feedline_data::pipeline::OrderMode;
use feedline_proto::CoordinatorService;
use feedline_proto::authenticator::Authenticator;
use feedline_proto::batch::batch_schema;
use feedline_proto::grpc::{
    self, AuthService, CallerService, authenticated_service, bearer_token, to_status,
};
use feedline_proto::local::Transport;
use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tonic::{Request, Response, Status, Streaming};

use self::command::FlightCommand;
use self::limit::{FlightLimit, RETRY_MS};
use self::reader::{FlightAuthorization, FlightReader};
use self::status::{ResponseStream, client_status};
use crate::entropy;

/// Size of the receive buffer for one Flight client. A batch may be larger.
const BUFFER_BYTES: u64 = 64 << 20;
/// Maximum number of concurrent readers in total and per connection. With [`BUFFER_BYTES`] each, they buffer at most 1 GiB, unless
/// batches are larger.
const MAX_READERS: (u32, u32) = (16, 8);
/// Maximum number of requests that wait for the index of a dataset, in total and per connection.
const MAX_INDEX_WAITS: (u32, u32) = (32, 8);
/// First interval between polls of a job that is being indexed. The interval doubles after each poll.
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest interval between polls of a job that is being indexed.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout for indexing the dataset of a job.
const INDEX_TIMEOUT: Duration = Duration::from_secs(120);

/// Serves the jobs of a coordinator as flights.
pub(crate) struct JobFlights {
    authenticator: Arc<dyn Authenticator<dyn CoordinatorService>>,
    workers: Arc<GrpcWorkers>,
    index_wait_limit: FlightLimit,
    reader_limit: FlightLimit,
}

/// The Flight service with authentication.
pub(crate) type AuthFlightService =
    CallerService<AuthService<dyn CoordinatorService, FlightServiceServer<JobFlights>>>;

/// Creates the Flight service. It presents `credentials` to workers.
pub(crate) fn service(
    authenticator: Arc<dyn Authenticator<dyn CoordinatorService>>,
    credentials: Credentials,
) -> AuthFlightService {
    let workers = Arc::new(GrpcWorkers::new(Transport::default(), credentials));
    let index_wait_limit =
        FlightLimit::new("requests waiting for an index", MAX_INDEX_WAITS.0, MAX_INDEX_WAITS.1);
    let reader_limit = FlightLimit::new("Flight streams", MAX_READERS.0, MAX_READERS.1);
    let flights = Arc::new(JobFlights {
        authenticator: Arc::clone(&authenticator),
        workers,
        index_wait_limit,
        reader_limit,
    });
    grpc::with_authenticator(authenticator, |max_bytes| {
        FlightServiceServer::from_arc(Arc::clone(&flights)).max_decoding_message_size(max_bytes)
    })
}

/// The content of a Flight ticket: the consumer to act as.
#[derive(Debug, Serialize, Deserialize)]
struct FlightTicket {
    job: JobId,
    consumer: u32,
}

impl JobFlights {
    fn client_settings() -> ClientSettings {
        ClientSettings { buffer_bytes: BUFFER_BYTES, ..ClientSettings::default() }
    }

    /// Opens the job of a descriptor and waits until its dataset is indexed.
    async fn open_job(
        &self,
        coordinator: Arc<dyn CoordinatorService>,
        descriptor: &FlightDescriptor,
    ) -> Result<(JobStatus, SchemaRef), Status> {
        if descriptor.cmd.is_empty() {
            return Err(Status::invalid_argument(
                "the descriptor has no command: set the command to the text of a pipeline file",
            ));
        }
        let spec = FlightCommand::parse(&descriptor.cmd)
            .and_then(FlightCommand::spec)
            .map_err(Status::invalid_argument)?;
        let _permit = self.index_wait_limit.acquire().map_err(to_status)?;
        let (pipeline, name) = (spec.pipeline.clone(), spec.name.clone());
        let job = coordinator.open_job(spec).await.map_err(to_status)?;
        let (deadline, mut pause) = (Instant::now() + INDEX_TIMEOUT, FIRST_POLL_INTERVAL);
        loop {
            let status = coordinator.job_status(job).await.map_err(to_status)?;
            match (&status.state, &status.dataset) {
                (JobState::Failed(message), _) => return Err(Status::failed_precondition(message.clone())),
                (JobState::Cancelled, _) => return Err(Status::cancelled("the job was cancelled")),
                (_, Some(dataset)) if status.layout.is_some() => {
                    let schema = batch_schema(&pipeline, dataset).map_err(Status::invalid_argument)?;
                    return Ok((status, schema));
                }
                _ if Instant::now() >= deadline => return Err(to_status(indexing_timeout_error(&name))),
                _ => sleep(pause).await,
            }
            pause = (pause * 2).min(MAX_POLL_INTERVAL);
        }
    }

    /// Creates the reader for a ticket.
    async fn open_reader(
        &self,
        coordinator: Arc<dyn CoordinatorService>,
        ticket: &Ticket,
        authorization: FlightAuthorization,
    ) -> Result<FlightReader, Status> {
        let consumer: FlightTicket = serde_json::from_slice(&ticket.ticket)
            .map_err(|_| Status::invalid_argument("invalid ticket: use a ticket from GetFlightInfo"))?;
        let permit = self.reader_limit.acquire().map_err(to_status)?;
        let details = coordinator.job_details(consumer.job).await.map_err(to_status)?;
        let status = coordinator.job_status(consumer.job).await.map_err(to_status)?;
        if consumer.consumer >= status.consumers {
            let consumers = status.consumers;
            return Err(Status::invalid_argument(format!(
                "invalid ticket: the job has only {consumers} consumers"
            )));
        }
        let schema = batch_schema(&details.pipeline, &details.dataset).map_err(Status::invalid_argument)?;
        let workers = Arc::clone(&self.workers);
        let job = Job::attach(coordinator, workers, consumer.job, Self::client_settings())
            .await
            .map_err(client_status)?;
        let reader = job.consumer(consumer.consumer, entropy::session_id());
        reader.defer_delivery();
        let is_only_consumer = status.consumers == 1 && details.pipeline.order == OrderMode::Deterministic;
        Ok(FlightReader {
            consumer: reader,
            position: status.position.filter(|_| is_only_consumer),
            schema,
            authorization,
            _permit: permit,
        })
    }
}

/// Returns the number of records of a job; `None` if it is unknown. An indivisible batch is one record.
fn total_records(layout: &Layout, dataset_rows: u64) -> Option<i64> {
    if layout.unbounded {
        return None;
    }
    let batches = |stream| layout.stream_rows(stream).div_ceil(u64::from(layout.batch_rows));
    let records = match layout.indivisible {
        true => (0..layout.streams).map(batches).sum::<u64>(),
        false => dataset_rows,
    };
    records.checked_mul(u64::from(layout.epochs)).and_then(|records| i64::try_from(records).ok())
}

/// Returns the error for a dataset whose indexing exceeds the timeout. If the client repeats the request with the job's
/// name, it joins the same job.
fn indexing_timeout_error(name: &str) -> ServiceError {
    let seconds = INDEX_TIMEOUT.as_secs();
    ServiceError::busy(
        format!(
            "the dataset of job `{name}` is not indexed after {seconds} s: retry the same command with `\"job\": \"{name}\"`"
        ),
        RETRY_MS,
    )
}

fn unsupported<T>(method: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!(
        "{method} is not supported: call GetFlightInfo with a pipeline, then DoGet with its tickets"
    )))
}

#[async_trait]
impl FlightService for JobFlights {
    type HandshakeStream = ResponseStream<HandshakeResponse>;
    type ListFlightsStream = ResponseStream<FlightInfo>;
    type DoGetStream = ResponseStream<FlightData>;
    type DoPutStream = ResponseStream<PutResult>;
    type DoExchangeStream = ResponseStream<FlightData>;
    type DoActionStream = ResponseStream<arrow_flight::Result>;
    type ListActionsStream = ResponseStream<ActionType>;

    /// Opens a job, and returns one endpoint per consumer.
    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let coordinator = authenticated_service(&request)?;
        let descriptor = request.into_inner();
        let (status, schema) = self.open_job(coordinator, &descriptor).await?;
        let endpoint = |consumer: u32| {
            let ticket = FlightTicket { job: status.job, consumer };
            let ticket = serde_json::to_vec(&ticket).map_err(|error| Status::internal(error.to_string()))?;
            Ok(FlightEndpoint::new().with_ticket(Ticket::new(ticket)))
        };
        let endpoints = (0..status.consumers).map(endpoint).collect::<Result<_, Status>>()?;
        let dataset_rows = status.dataset.map(|dataset| dataset.rows);
        let records = status.layout.zip(dataset_rows).and_then(|(layout, rows)| total_records(&layout, rows));
        let info = FlightInfo::new()
            .try_with_schema(&schema)
            .map_err(|error| Status::internal(error.to_string()))?
            .with_descriptor(descriptor)
            .with_endpoints(endpoints)
            .with_total_records(records.unwrap_or(-1))
            .with_ordered(true);
        Ok(Response::new(info))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let coordinator = authenticated_service(&request)?;
        let (_, schema) = self.open_job(coordinator, &request.into_inner()).await?;
        let options = IpcWriteOptions::default();
        let schema = SchemaAsIpc::new(&schema, &options).try_into();
        schema
            .map(Response::new)
            .map_err(|error: arrow::error::ArrowError| Status::internal(error.to_string()))
    }

    /// Streams the batches of one consumer.
    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let coordinator = authenticated_service(&request)?;
        let token = bearer_token(request.metadata().as_ref()).map_err(to_status)?;
        let authorization = FlightAuthorization {
            authenticator: Arc::clone(&self.authenticator),
            token: token.map(str::to_owned),
        };
        let reader = self.open_reader(coordinator, &request.into_inner(), authorization).await?;
        Ok(Response::new(reader.into_messages()))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        unsupported("Handshake")
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        unsupported("ListFlights")
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        unsupported("PollFlightInfo")
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        unsupported("DoPut")
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        unsupported("DoExchange")
    }

    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        unsupported("DoAction")
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        Ok(Response::new(stream::empty().boxed()))
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::pipeline::Remainder;

    use super::*;

    #[test]
    fn a_batch_of_a_sampled_graph_is_one_record() {
        let rows = Layout {
            dataset_rows: 25,
            passes: 1,
            epochs: 3,
            streams: 2,
            batch_rows: 4,
            remainder: Remainder::Emit,
            changes_rows: false,
            split_rows: 4,
            group_rows: 4,
            coordinated: false,
            mix_changes: Vec::new(),
            runs: Default::default(),
            unbounded: false,
            indivisible: false,
        };
        assert_eq!(total_records(&rows, 25), Some(75));
        assert_eq!(total_records(&rows, u64::MAX / 2), None, "the number does not fit");
        let batches = Layout { indivisible: true, ..rows.clone() };
        // The last of the 25 rows is a batch by itself.
        assert_eq!(total_records(&batches, 25), Some(21));
        assert_eq!(total_records(&Layout { unbounded: true, ..rows }, 25), None);
    }
}
