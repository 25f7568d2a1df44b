//! The client's interface to a job: opens a job, creates its consumers, and queries its status.

use std::future::Future;
use std::sync::Arc;

use feedline_access::Credentials;
use feedline_common::mismatch_timer::{MismatchTimer, Rejection};
use feedline_data::checkpoint::Position;
use feedline_data::checkpoint::StepId;
use feedline_data::ids::{JobId, SessionId};
use feedline_data::messages::{GroupPositions, JobSpec, JobStatus, ServiceError, ServiceErrorKind};
use feedline_data::mix::MixChange;
use feedline_data::pipeline::OrderMode;
use feedline_proto::CoordinatorService;
use feedline_proto::grpc::connect_coordinators;
use feedline_proto::local::Transport;
use tokio::time::{Duration, Instant};

use crate::busy;
use crate::consumer::Consumer;
use crate::error::ClientError;
use crate::settings::ClientSettings;
use crate::state::ConsumerIdentity;
use crate::workers::{GrpcWorkers, WorkerDirectory};

/// Pause between two position requests.
const POSITIONS_PAUSE: Duration = Duration::from_millis(50);

/// A job that this client opened or joined. Clones refer to the same job.
#[derive(Clone)]
pub struct Job {
    id: JobId,
    order: OrderMode,
    coordinator: Arc<dyn CoordinatorService>,
    workers: Arc<dyn WorkerDirectory>,
    settings: ClientSettings,
}

impl Job {
    /// Opens a job, or joins the job with the same name and spec. Retries for [`ClientSettings::patience_ms`] if the coordinator is
    /// unavailable, for [`ClientSettings::admission_ms`] if the coordinator is busy, and for [`ClientSettings::upgrade_ms`] if
    /// it has another protocol version.
    ///
    /// # Errors
    /// Returns an error if the coordinator rejects the spec, a setting is invalid, or no coordinator responds.
    pub async fn open(
        coordinator: Arc<dyn CoordinatorService>,
        workers: Arc<dyn WorkerDirectory>,
        spec: JobSpec,
        settings: ClientSettings,
    ) -> Result<Self, ClientError> {
        settings.validate().map_err(ClientError::Setting)?;
        let order = spec.pipeline.order;
        let id = retry(&settings, || coordinator.open_job(spec.clone())).await?;
        Ok(Self { id, order, coordinator, workers, settings })
    }

    /// Opens a job on a cluster. `url` is the URL of a coordinator, such as `http://10.0.0.1:7070`, or a comma-separated list of URLs.
    /// `credentials` contains the token, and the certificates for `https://` URLs.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open`], and an error if a URL is invalid.
    pub async fn connect(
        url: &str,
        credentials: &Credentials,
        spec: JobSpec,
        settings: ClientSettings,
    ) -> Result<Self, ClientError> {
        let urls: Vec<String> = url.split(',').map(str::to_owned).collect();
        let coordinator = connect_coordinators(&urls, credentials)?;
        let workers = GrpcWorkers::new(Transport::default(), credentials.clone());
        Self::open(coordinator, Arc::new(workers), spec, settings).await
    }

    /// Joins a job that another client has opened. Waits until its dataset is indexed.
    ///
    /// # Errors
    /// Returns an error if the job is unknown, a setting is invalid, or no coordinator responds.
    pub async fn attach(
        coordinator: Arc<dyn CoordinatorService>,
        workers: Arc<dyn WorkerDirectory>,
        id: JobId,
        settings: ClientSettings,
    ) -> Result<Self, ClientError> {
        settings.validate().map_err(ClientError::Setting)?;
        let details = retry(&settings, || coordinator.job_details(id)).await?;
        Ok(Self { id, order: details.pipeline.order, coordinator, workers, settings })
    }

    /// Returns the job ID.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Creates consumer `index` and starts to fetch. `session` supersedes all smaller sessions of the consumer, so use the
    /// current time in nanoseconds. Must be called in a tokio runtime, which runs the consumer's task.
    pub fn consumer(&self, index: u32, session: SessionId) -> Consumer {
        let is_relaxed = self.order == OrderMode::Relaxed;
        let identity = ConsumerIdentity { job: self.id, consumer: index, session, is_relaxed };
        Consumer::start(
            identity,
            Arc::clone(&self.coordinator),
            Arc::clone(&self.workers),
            self.settings.clone(),
        )
    }

    /// Returns the status of the job.
    ///
    /// # Errors
    /// Returns an error if no coordinator responds within the client's timeout, or if the job is unknown.
    pub async fn status(&self) -> Result<JobStatus, ClientError> {
        retry(&self.settings, || self.coordinator.job_status(self.id)).await
    }

    /// Returns the position that the coordinator has stored. Call [`Consumer::flush`] first to include all deliveries. `None` until the
    /// dataset is indexed.
    ///
    /// # Errors
    /// Returns an error if no coordinator responds within the client's timeout, or if the job is unknown.
    pub async fn position(&self) -> Result<Option<Position>, ClientError> {
        Ok(self.status().await?.position)
    }

    /// Changes the weights of the job's mix. `weights` contains one relative weight per dataset, in the order of the
    /// pipeline. The weights apply to all rows that no worker has leased yet. Returns the first row that they apply to.
    /// Later positions contain the change.
    ///
    /// # Errors
    /// Returns an error if the job has no mix, has a mix with `stop: first`, has ended, or has leased all rows, or if
    /// no coordinator responds.
    pub async fn set_weights(&self, weights: &[f64]) -> Result<MixChange, ClientError> {
        retry(&self.settings, || self.coordinator.set_weights(self.id, weights.to_vec())).await
    }

    /// Returns the positions of all consumers at a step. Waits up to `timeout` for consumers that have not reached the step, and then
    /// lists them as missing. A consumer can answer for its recent steps, and for later steps whose batches have arrived.
    ///
    /// # Errors
    /// Returns an error if the job is unknown, its consumers have no common steps, or no coordinator responds within
    /// `timeout`.
    pub async fn positions_at(&self, step: StepId, timeout: Duration) -> Result<GroupPositions, ClientError> {
        let started = Instant::now();
        loop {
            let is_late = started.elapsed() >= timeout;
            match self.coordinator.positions(self.id, step).await {
                Ok(group) if group.missing.is_empty() || !group.is_retryable || is_late => return Ok(group),
                Ok(_) => {}
                Err(error) if error.kind.is_retryable() && !is_late => {
                    tokio::time::sleep(POSITIONS_PAUSE).await
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Cancels the job for all consumers.
    ///
    /// # Errors
    /// Returns an error if no coordinator responds within the client's timeout, or if the job is unknown.
    pub async fn cancel(&self) -> Result<(), ClientError> {
        retry(&self.settings, || self.coordinator.cancel_job(self.id)).await
    }
}

/// Retries an idempotent request while the coordinator is unavailable or busy, or has another protocol version.
async fn retry<T, F: Future<Output = Result<T, ServiceError>>>(
    settings: &ClientSettings,
    mut request: impl FnMut() -> F,
) -> Result<T, ClientError> {
    let unavailable_timeout = Duration::from_millis(settings.patience_ms);
    let busy_timeout = Duration::from_millis(settings.admission_ms);
    let upgrade_timeout = Duration::from_millis(settings.upgrade_ms);
    let started = Instant::now();
    let mut last_answer = started;
    let mut mismatch = MismatchTimer::default();
    let mut backoff = busy::COORDINATOR_BACKOFF;
    let mut logged = String::new();
    loop {
        match request().await {
            Ok(reply) => return Ok(reply),
            Err(error) if error.kind == ServiceErrorKind::Busy => {
                let delay = busy::retry_delay(&error);
                if started.elapsed() + delay > busy_timeout {
                    let seconds = started.elapsed().as_secs();
                    return Err(ClientError::Busy { seconds, message: error.message });
                }
                if logged != error.message {
                    tracing::warn!("the coordinator is busy, retrying: {error}");
                    logged = error.message;
                }
                tokio::time::sleep(delay).await;
                last_answer = Instant::now();
                mismatch.reset();
                backoff.reset();
            }
            Err(error) if error.is_version_mismatch => {
                let Rejection { lasted, is_warning_due } = mismatch.record(Instant::now().into_std());
                if is_warning_due {
                    tracing::warn!("{error}; retrying");
                }
                if lasted >= upgrade_timeout {
                    let seconds = lasted.as_secs();
                    return Err(ClientError::VersionMismatch { seconds, message: error.message });
                }
                tokio::time::sleep(backoff.next_pause()).await;
                last_answer = Instant::now();
            }
            Err(error) if error.kind != ServiceErrorKind::Unavailable => return Err(error.into()),
            Err(error) if last_answer.elapsed() >= unavailable_timeout => {
                return Err(ClientError::CoordinatorLost {
                    seconds: unavailable_timeout.as_secs(),
                    message: error.message,
                });
            }
            Err(_) => {
                tokio::time::sleep(backoff.next_pause()).await;
            }
        }
    }
}
