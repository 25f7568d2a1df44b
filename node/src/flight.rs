//! Arrow Flight: any Flight client reads a job's batches, without a library of ours.
//!
//! The coordinator's process takes a consumer's place on the client's behalf, and hands each training batch on as one
//! record batch with its position in `app_metadata`. Batches pass through this process: training at full speed is for
//! the client library, which fetches from the workers.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use async_trait::async_trait;
use feedline_access::Credentials;
use feedline_client::{Batch, ClientError, ClientSettings, Consumer, GrpcWorkers, Job};
use feedline_core::cluster::messages::{JobSpec, JobState, JobStatus, Refusal, RefusalKind};
use feedline_core::ids::JobId;
use feedline_core::pipeline::{OrderMode, Pipeline, infer};
use feedline_core::position::Position;
use feedline_core::schema::Schema;
use feedline_proto::CoordinatorService;
use feedline_proto::batch::output_schema;
use feedline_proto::door::Door;
use feedline_proto::grpc::shown_token;
use feedline_proto::local::Transport;
use futures::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use tonic::{Request, Response, Status, Streaming};

use crate::entropy;

/// Bytes of batches that wait here for one Flight client.
const BUFFER_BYTES: u64 = 64 << 20;
/// How often a job that is being indexed is looked at.
const LOOK: Duration = Duration::from_millis(20);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Jobs of a coordinator as flights.
pub(crate) struct JobFlights {
    door: Arc<dyn Door<dyn CoordinatorService>>,
    workers: Arc<GrpcWorkers>,
}

/// The service that reads jobs of the coordinator behind this door, with batches from workers that are shown these
/// credentials.
pub(crate) fn service(
    door: Arc<dyn Door<dyn CoordinatorService>>,
    credentials: Credentials,
) -> FlightServiceServer<JobFlights> {
    let workers = Arc::new(GrpcWorkers::by(Transport::default(), credentials));
    FlightServiceServer::new(JobFlights { door, workers })
}

/// What a descriptor's command asks for, as JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    /// The text of a pipeline file.
    pipeline: String,
    /// Name of the run: clients that give the same share it.
    #[serde(default)]
    job: Option<String>,
    #[serde(default = "one")]
    epochs: u32,
    #[serde(default = "one")]
    consumers: u32,
    #[serde(default)]
    virtual_consumers: Option<u32>,
    /// Where to start: a position from a batch's `app_metadata`.
    #[serde(default)]
    start: Option<Position>,
}

fn one() -> u32 {
    1
}

impl Command {
    /// Reads JSON, or the bare text of a pipeline file.
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| "the command is not text; send the text of a pipeline file")?;
        if text.trim_start().starts_with('{') {
            return serde_json::from_str(text)
                .map_err(|error| format!("the command is not what it should be: {error}"));
        }
        let pipeline = text.to_owned();
        Ok(Self { pipeline, job: None, epochs: 1, consumers: 1, virtual_consumers: None, start: None })
    }

    fn spec(self) -> Result<JobSpec, String> {
        let pipeline =
            Pipeline::from_yaml(&self.pipeline, "the command").map_err(|error| error.to_string())?;
        let name = self.job.unwrap_or_else(|| format!("{}-{}", pipeline.name, entropy::name_suffix()));
        Ok(JobSpec {
            name,
            epochs: self.epochs,
            consumers: self.consumers,
            virtual_consumers: self.virtual_consumers.unwrap_or(self.consumers),
            start: self.start,
            ..JobSpec::new(pipeline)
        })
    }
}

/// What a ticket says: whose place is taken.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    job: JobId,
    consumer: u32,
}

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

impl JobFlights {
    fn settings() -> ClientSettings {
        ClientSettings { buffer_bytes: BUFFER_BYTES, ..ClientSettings::default() }
    }

    /// The coordinator as whoever sends this request may use it.
    fn coordinator<T>(&self, request: &Request<T>) -> Result<Arc<dyn CoordinatorService>, Status> {
        shown_token(request).and_then(|token| self.door.enter(token)).map_err(refusal)
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
        let spec =
            Command::read(&descriptor.cmd).and_then(Command::spec).map_err(Status::invalid_argument)?;
        let pipeline = spec.pipeline.clone();
        let workers = Arc::clone(&self.workers);
        let job = Job::open(coordinator, workers, spec, Self::settings()).await.map_err(refused)?;
        loop {
            let status = job.status().await.map_err(refused)?;
            match (&status.state, &status.dataset) {
                (JobState::Failed(message), _) => return Err(Status::failed_precondition(message.clone())),
                (JobState::Cancelled, _) => return Err(Status::cancelled("the job was cancelled")),
                (_, Some(dataset)) if status.layout.is_some() => {
                    let schema = batches_schema(&pipeline, &dataset.schema)?;
                    return Ok((status, schema));
                }
                _ => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Takes the place of a ticket.
    async fn take(
        &self,
        coordinator: Arc<dyn CoordinatorService>,
        ticket: &Ticket,
    ) -> Result<Reading, Status> {
        let place: Place = serde_json::from_slice(&ticket.ticket).map_err(|_| {
            Status::invalid_argument("this is no ticket of a job; ask for a flight's tickets first")
        })?;
        let details = coordinator.job_details(place.job).await.map_err(refusal)?;
        let status = coordinator.job_status(place.job).await.map_err(refusal)?;
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
        Ok(Reading {
            consumer: job.consumer(place.consumer, entropy::session_id()),
            position: status.position.filter(|_| alone),
            schema,
        })
    }
}

/// The columns of batches.
fn batches_schema(pipeline: &Pipeline, source: &Schema) -> Result<SchemaRef, Status> {
    let schemas = infer(pipeline, source).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let last = schemas.last().ok_or_else(|| Status::internal("a pipeline has a schema"))?;
    Ok(output_schema(last))
}

/// A consumer that is read by a Flight client.
struct Reading {
    consumer: Consumer,
    position: Option<Position>,
    schema: SchemaRef,
}

impl Reading {
    /// The schema, then every batch.
    fn messages(self) -> Answers<FlightData> {
        let options = IpcWriteOptions::default();
        let schema = FlightData::from(SchemaAsIpc::new(&self.schema, &options));
        let batches = stream::try_unfold(self, |mut reading| async move {
            match reading.consumer.next().await.map_err(refused)? {
                Some(batch) => Ok(Some((reading.message(&batch)?, reading))),
                None => {
                    reading.consumer.close().await.map_err(refused)?;
                    Ok(None)
                }
            }
        });
        stream::once(async { Ok(schema) }).chain(batches).boxed()
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

fn refused(error: ClientError) -> Status {
    match error {
        ClientError::UnknownJob(message) => Status::not_found(message),
        ClientError::Superseded(message) => Status::aborted(message),
        ClientError::CoordinatorLost { .. } => Status::unavailable(error.to_string()),
        ClientError::Busy { .. } => Status::resource_exhausted(error.to_string()),
        other => Status::failed_precondition(other.to_string()),
    }
}

fn refusal(refusal: Refusal) -> Status {
    match refusal.kind {
        RefusalKind::Invalid => Status::invalid_argument(refusal.message),
        RefusalKind::NotFound => Status::not_found(refusal.message),
        RefusalKind::Denied => Status::permission_denied(refusal.message),
        RefusalKind::Superseded => Status::aborted(refusal.message),
        RefusalKind::Unavailable => Status::unavailable(refusal.message),
        RefusalKind::Busy => Status::resource_exhausted(refusal.message),
    }
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
        let coordinator = self.coordinator(&request)?;
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
        let coordinator = self.coordinator(&request)?;
        let (_, schema) = self.open(coordinator, &request.into_inner()).await?;
        let options = IpcWriteOptions::default();
        let schema = SchemaAsIpc::new(&schema, &options).try_into();
        schema
            .map(Response::new)
            .map_err(|error: arrow::error::ArrowError| Status::internal(error.to_string()))
    }

    /// Reads the batches of one consumer.
    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let coordinator = self.coordinator(&request)?;
        Ok(Response::new(self.take(coordinator, &request.into_inner()).await?.messages()))
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
