//! A job as a client sees it.

use std::future::Future;
use std::sync::Arc;

use feedline_access::Credentials;
use feedline_data::ids::{JobId, SessionId};
use feedline_data::messages::{GroupPositions, JobSpec, JobStatus, ServiceError, ServiceErrorKind};
use feedline_data::mix::MixChange;
use feedline_data::pipeline::OrderMode;
use feedline_data::position::Position;
use feedline_data::position_history::StepId;
use feedline_proto::CoordinatorService;
use feedline_proto::grpc::connect_coordinators;
use feedline_proto::local::Transport;
use tokio::time::{Duration, Instant};

use crate::busy;
use crate::consumer::Consumer;
use crate::error::ClientError;
use crate::settings::ClientSettings;
use crate::workers::{GrpcWorkers, WorkerDirectory};

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_millis(250);

/// A job that was opened or joined. Clones are the same job.
#[derive(Clone)]
pub struct Job {
    id: JobId,
    order: OrderMode,
    coordinator: Arc<dyn CoordinatorService>,
    workers: Arc<dyn WorkerDirectory>,
    settings: ClientSettings,
}

impl Job {
    /// Opens a job, or joins the one that has the same name and spec. Waits for an unreachable coordinator as long as
    /// the client's patience lasts, and for one that has no room as long as [`ClientSettings::admission_ms`]; what it waits
    /// for is logged.
    ///
    /// # Errors
    /// When the spec or a setting is refused, or no coordinator answers.
    pub async fn open(
        coordinator: Arc<dyn CoordinatorService>,
        workers: Arc<dyn WorkerDirectory>,
        spec: JobSpec,
        settings: ClientSettings,
    ) -> Result<Self, ClientError> {
        settings.check().map_err(ClientError::Setting)?;
        let order = spec.pipeline.order;
        let id = patiently(&settings, || coordinator.open_job(spec.clone())).await?;
        Ok(Self { id, order, coordinator, workers, settings })
    }

    /// As [`Self::open`], with the coordinator at `url`, such as `http://10.0.0.1:7070`, or one or more of several with
    /// commas between them, and workers behind gRPC. `https://` addresses are reached by TLS; `credentials` has the
    /// certificates for it and the token, where the cluster asks for one.
    ///
    /// # Errors
    /// As [`Self::open`]; also for an address that cannot be one.
    pub async fn connect(
        url: &str,
        credentials: &Credentials,
        spec: JobSpec,
        settings: ClientSettings,
    ) -> Result<Self, ClientError> {
        let urls: Vec<String> = url.split(',').map(str::to_owned).collect();
        let coordinator = connect_coordinators(&urls, credentials)?;
        let workers = GrpcWorkers::by(Transport::default(), credentials.clone());
        Self::open(coordinator, Arc::new(workers), spec, settings).await
    }

    /// The job that another client has opened, once its dataset is indexed.
    ///
    /// # Errors
    /// As [`Self::open`]; also when there is no such job.
    pub async fn attach(
        coordinator: Arc<dyn CoordinatorService>,
        workers: Arc<dyn WorkerDirectory>,
        id: JobId,
        settings: ClientSettings,
    ) -> Result<Self, ClientError> {
        settings.check().map_err(ClientError::Setting)?;
        let details = patiently(&settings, || coordinator.job_details(id)).await?;
        Ok(Self { id, order: details.pipeline.order, coordinator, workers, settings })
    }

    /// The job's id.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Takes the place of consumer `index` and begins to fetch. `session` must be larger than that of whoever had the
    /// place before, which ends then: a time in nanoseconds will do. Must be called inside a tokio runtime, which
    /// then runs the consumer's task.
    pub fn consumer(&self, index: u32, session: SessionId) -> Consumer {
        let relaxed = self.order == OrderMode::Relaxed;
        let identity = crate::feed::ConsumerIdentity { job: self.id, consumer: index, session, relaxed };
        Consumer::start(
            identity,
            Arc::clone(&self.coordinator),
            Arc::clone(&self.workers),
            self.settings.clone(),
        )
    }

    /// How the job stands.
    ///
    /// # Errors
    /// When no coordinator answers for the client's patience, or it does not know the job.
    pub async fn status(&self) -> Result<JobStatus, ClientError> {
        patiently(&self.settings, || self.coordinator.job_status(self.id)).await
    }

    /// Where the job's consumers stand as far as the coordinator holds it: see [`Consumer::flush`]. `None` until the
    /// dataset is known.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub async fn position(&self) -> Result<Option<Position>, ClientError> {
        Ok(self.status().await?.position)
    }

    /// Gives the datasets of the job's mix other weights: one for each, in the pipeline's order, relative to each other. They hold from
    /// behind everything that was handed out on; the answer tells where that is, and so do all positions from then on.
    ///
    /// # Errors
    /// When the job has no mix, one with `stop: first`, has ended, or has handed out all of its rows; or no coordinator answers.
    pub async fn set_weights(&self, weights: &[f64]) -> Result<MixChange, ClientError> {
        patiently(&self.settings, || self.coordinator.set_weights(self.id, weights.to_vec())).await
    }

    /// Where all consumers stand at a step. Asks for up to `wait` while some of them have not come there or said so; then the
    /// answer names them. Consumers tell of steps that their next batches are part of as soon as these have arrived, and of the last ones that
    /// they have had.
    ///
    /// # Errors
    /// When the coordinator does not know the job, or its consumers have no steps in common; when none answers in that time.
    pub async fn places(&self, step: StepId, wait: Duration) -> Result<GroupPositions, ClientError> {
        let begun = Instant::now();
        loop {
            let is_late = begun.elapsed() >= wait;
            match self.coordinator.places(self.id, step).await {
                Ok(told) if told.missing.is_empty() || !told.waits || is_late => return Ok(told),
                Ok(_) => {}
                Err(refusal) if refusal.kind.is_passing() && !is_late => {
                    tokio::time::sleep(BACKOFF_MIN).await
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
    }

    /// Ends the job for everyone.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub async fn cancel(&self) -> Result<(), ClientError> {
        patiently(&self.settings, || self.coordinator.cancel_job(self.id)).await
    }
}

/// Asks again while the coordinator cannot be reached, or has no room. Every request may be repeated.
async fn patiently<T, F: Future<Output = Result<T, ServiceError>>>(
    settings: &ClientSettings,
    mut ask: impl FnMut() -> F,
) -> Result<T, ClientError> {
    let patience = Duration::from_millis(settings.patience_ms);
    let admission = Duration::from_millis(settings.admission_ms);
    let (mut start, begun) = (Instant::now(), Instant::now());
    let mut backoff = BACKOFF_MIN;
    let mut said = String::new();
    loop {
        let asked = Instant::now();
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(refusal) if refusal.kind == ServiceErrorKind::Busy => {
                let pause = busy::pause(&refusal, busy::draw(asked));
                if begun.elapsed() + pause > admission {
                    return Err(ClientError::Busy {
                        seconds: begun.elapsed().as_secs(),
                        message: refusal.message,
                    });
                }
                if said != refusal.message {
                    tracing::warn!("waiting for room: {refusal}");
                    said = refusal.message;
                }
                tokio::time::sleep(pause).await;
                // It was there.
                (start, backoff) = (Instant::now(), BACKOFF_MIN);
            }
            Err(refusal) if refusal.kind != ServiceErrorKind::Unavailable => return Err(refusal.into()),
            Err(refusal) if start.elapsed() >= patience => {
                return Err(ClientError::CoordinatorLost {
                    seconds: patience.as_secs(),
                    message: refusal.message,
                });
            }
            Err(_) => {
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
    }
}
