//! Arrow Flight: any Flight client reads a job's batches, without a library of ours.
//!
//! The coordinator's process takes a consumer's place on the client's behalf, and hands each training batch on as one
//! record batch with its position in `app_metadata`. Batches pass through this process: training at full speed is for
//! the client library, which fetches from the workers.

mod command;
mod limit;
mod reader;

use std::pin::Pin;
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
use feedline_client::{ClientError, ClientSettings, GrpcWorkers, Job};
use feedline_data::ids::JobId;
use feedline_data::messages::{JobState, JobStatus, ServiceError};
use feedline_data::pipeline::{OrderMode, Pipeline, infer};
use feedline_data::schema::Schema;
use feedline_proto::CoordinatorService;
use feedline_proto::authenticator::Authenticator;
use feedline_proto::batch::output_schema;
use feedline_proto::grpc::{self, AuthService, CallerService, entered, shown_token, to_status};
use feedline_proto::local::Transport;
use futures::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tonic::{Request, Response, Status, Streaming};

use self::command::FlightCommand;
use self::limit::{FlightLimit, RETRY_MS};
use self::reader::{FlightAuthorization, FlightReader};
use crate::entropy;

/// Bytes of batches that wait here for one Flight client.
const BUFFER_BYTES: u64 = 64 << 20;
/// Clients that read at once, of all connections and of one: with [`BUFFER_BYTES`] each a gigabyte waits here at most.
const MOST_STREAMS: (u32, u32) = (16, 8);
/// Jobs that wait at once to be indexed before their flight is known.
const MOST_OPENINGS: (u32, u32) = (32, 8);
/// How often a job that is being indexed is looked at: at first, and after a while.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_LATER: Duration = Duration::from_millis(500);
/// Longest wait for a job to be indexed.
const OPEN_PATIENCE: Duration = Duration::from_secs(120);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Jobs of a coordinator as flights.
pub(crate) struct JobFlights {
    door: Arc<dyn Authenticator<dyn CoordinatorService>>,
    workers: Arc<GrpcWorkers>,
    openings: FlightLimit,
    streams: FlightLimit,
}

/// The service behind a coordinator's door.
pub(crate) type Flights = CallerService<AuthService<dyn CoordinatorService, FlightServiceServer<JobFlights>>>;

/// The service that reads jobs of the coordinator behind this door, with batches from workers that are shown these
/// credentials.
pub(crate) fn service(
    door: Arc<dyn Authenticator<dyn CoordinatorService>>,
    credentials: Credentials,
) -> Flights {
    let workers = Arc::new(GrpcWorkers::new(Transport::default(), credentials));
    let openings = FlightLimit::new("flights that wait for their data", MOST_OPENINGS.0, MOST_OPENINGS.1);
    let streams = FlightLimit::new("Flight streams", MOST_STREAMS.0, MOST_STREAMS.1);
    let flights = Arc::new(JobFlights { door: Arc::clone(&door), workers, openings, streams });
    grpc::behind(door, |most_bytes| {
        FlightServiceServer::from_arc(Arc::clone(&flights)).max_decoding_message_size(most_bytes)
    })
}

/// What a ticket says: whose place is taken.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    job: JobId,
    consumer: u32,
}

impl JobFlights {
    fn settings() -> ClientSettings {
        ClientSettings { buffer_bytes: BUFFER_BYTES, ..ClientSettings::default() }
    }

    /// Opens the job of a descriptor and waits until its data is indexed.
    async fn open(
        &self,
        coordinator: Arc<dyn CoordinatorService>,
        descriptor: &FlightDescriptor,
    ) -> Result<(JobStatus, SchemaRef), Status> {
        if descriptor.cmd.is_empty() {
            return Err(Status::invalid_argument(
                "the descriptor has no command; describe the flight by a command with the text of a pipeline file",
            ));
        }
        let spec = FlightCommand::read(&descriptor.cmd)
            .and_then(FlightCommand::spec)
            .map_err(Status::invalid_argument)?;
        let _place = self.openings.enter().map_err(to_status)?;
        let (pipeline, name) = (spec.pipeline.clone(), spec.name.clone());
        let job = coordinator.open_job(spec).await.map_err(to_status)?;
        let (deadline, mut pause) = (Instant::now() + OPEN_PATIENCE, LOOK);
        loop {
            let status = coordinator.job_status(job).await.map_err(to_status)?;
            match (&status.state, &status.dataset) {
                (JobState::Failed(message), _) => return Err(Status::failed_precondition(message.clone())),
                (JobState::Cancelled, _) => return Err(Status::cancelled("the job was cancelled")),
                (_, Some(dataset)) if status.layout.is_some() => {
                    let schema = batches_schema(&pipeline, &dataset.schema)?;
                    return Ok((status, schema));
                }
                _ if Instant::now() >= deadline => return Err(to_status(still_indexing(&name))),
                _ => sleep(pause).await,
            }
            pause = (pause * 2).min(LOOK_LATER);
        }
    }

    /// Takes the place of a ticket.
    async fn take(
        &self,
        coordinator: Arc<dyn CoordinatorService>,
        ticket: &Ticket,
        pass: FlightAuthorization,
    ) -> Result<FlightReader, Status> {
        let place: Place = serde_json::from_slice(&ticket.ticket).map_err(|_| {
            Status::invalid_argument("this is no ticket of a job; ask for a flight's tickets first")
        })?;
        let taken = self.streams.enter().map_err(to_status)?;
        let details = coordinator.job_details(place.job).await.map_err(to_status)?;
        let status = coordinator.job_status(place.job).await.map_err(to_status)?;
        if place.consumer >= status.consumers {
            let consumers = status.consumers;
            return Err(Status::invalid_argument(format!(
                "the job has {consumers} consumers, numbered from 0"
            )));
        }
        let schema = batches_schema(&details.pipeline, &details.dataset.schema)?;
        let workers = Arc::clone(&self.workers);
        let job = Job::attach(coordinator, workers, place.job, Self::settings()).await.map_err(refused)?;
        let alone = status.consumers == 1 && details.pipeline.order == OrderMode::Deterministic;
        Ok(FlightReader {
            consumer: job.consumer(place.consumer, entropy::session_id()),
            position: status.position.filter(|_| alone),
            schema,
            pass,
            _place: taken,
        })
    }
}

/// The columns of batches.
fn batches_schema(pipeline: &Pipeline, source: &Schema) -> Result<SchemaRef, Status> {
    let schemas = infer(pipeline, source).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let last = schemas.last().ok_or_else(|| Status::internal("a pipeline has a schema"))?;
    Ok(output_schema(last))
}

fn refused(error: ClientError) -> Status {
    match error {
        ClientError::UnknownJob(message) => Status::not_found(message),
        ClientError::Superseded(message) => Status::aborted(message),
        ClientError::CoordinatorLost { .. } => Status::unavailable(error.to_string()),
        ClientError::Busy { .. } => to_status(ServiceError::busy(error.to_string(), RETRY_MS)),
        other => Status::failed_precondition(other.to_string()),
    }
}

/// The refusal for a job whose data takes long: whoever gives its name comes back to it.
fn still_indexing(name: &str) -> ServiceError {
    let seconds = OPEN_PATIENCE.as_secs();
    ServiceError::busy(
        format!(
            "the data of job `{name}` is still being indexed after {seconds} s; ask again with the same command and `\"job\": \"{name}\"` in it"
        ),
        RETRY_MS,
    )
}

fn not_here<T>(what: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!(
        "{what} is not offered; get a flight's info by a pipeline, then its tickets"
    )))
}

#[async_trait]
impl FlightService for JobFlights {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;

    /// Opens a job: an endpoint for each consumer.
    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let coordinator = entered(&request)?;
        let descriptor = request.into_inner();
        let (status, schema) = self.open(coordinator, &descriptor).await?;
        let endpoint = |consumer: u32| {
            let place = Place { job: status.job, consumer };
            let ticket = serde_json::to_vec(&place).map_err(|error| Status::internal(error.to_string()))?;
            Ok(FlightEndpoint::new().with_ticket(Ticket::new(ticket)))
        };
        let endpoints = (0..status.consumers).map(endpoint).collect::<Result<_, Status>>()?;
        let rows = status.dataset.map_or(-1, |dataset| (dataset.rows * u64::from(status.epochs)) as i64);
        let info = FlightInfo::new()
            .try_with_schema(&schema)
            .map_err(|error| Status::internal(error.to_string()))?
            .with_descriptor(descriptor)
            .with_endpoints(endpoints)
            .with_total_records(rows)
            .with_ordered(true);
        Ok(Response::new(info))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let coordinator = entered(&request)?;
        let (_, schema) = self.open(coordinator, &request.into_inner()).await?;
        let options = IpcWriteOptions::default();
        let schema = SchemaAsIpc::new(&schema, &options).try_into();
        schema
            .map(Response::new)
            .map_err(|error: arrow::error::ArrowError| Status::internal(error.to_string()))
    }

    /// Reads the batches of one consumer.
    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let coordinator = entered(&request)?;
        let token = shown_token(request.metadata().as_ref()).map_err(to_status)?;
        let pass = FlightAuthorization { door: Arc::clone(&self.door), token: token.map(str::to_owned) };
        Ok(Response::new(self.take(coordinator, &request.into_inner(), pass).await?.messages()))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        not_here("a handshake")
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        not_here("a list of flights")
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        not_here("polling")
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        not_here("writing")
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        not_here("an exchange")
    }

    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        not_here("an action")
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        Ok(Response::new(stream::empty().boxed()))
    }
}
