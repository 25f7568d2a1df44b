//! Whom a command works with: a cluster behind a URL, or a coordinator and workers in this process. Callers do not see
//! which.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use feedline_access::Credentials;
use feedline_client::{ClientError, GrpcWorkers, WorkerDirectory};
use feedline_coordinator::{CoordinatorSettings, RunningCoordinator};
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::{CoordinatorService, WorkerService, grpc};
use futures::future::join_all;

use crate::cli::{AccessArgs, LocalArgs};
use crate::failure::Failure;
use crate::local_listener::TransportArg;
use crate::local_workers::{self, LocalWorker, shares};
use crate::{entropy, environment, store_access};

/// Time that several coordinators have to choose one that leads.
const CHOOSING: Duration = Duration::from_secs(5);
/// Pause before they are asked again.
const RETRY: Duration = Duration::from_millis(200);

/// A coordinator with its workers.
pub(crate) struct LocalCluster {
    /// The coordinator.
    pub(crate) coordinator: Arc<dyn CoordinatorService>,
    embedded: Option<Embedded>,
    transport: TransportArg,
    credentials: Credentials,
}

/// All roles in this process.
struct Embedded {
    coordinator: RunningCoordinator,
    workers: Vec<LocalWorker>,
}

impl LocalCluster {
    /// The cluster of these coordinators, or a new one in this process.
    pub(crate) async fn open(
        urls: &[String],
        access: &AccessArgs,
        local: &LocalArgs,
    ) -> Result<Self, Failure> {
        match urls {
            [_, ..] => {
                let credentials = access.credentials()?;
                let coordinator = connect(urls, &credentials).await?;
                Ok(Self { coordinator, embedded: None, transport: TransportArg::Auto, credentials })
            }
            [] => Self::start(Self::settings(local)?, local).await,
        }
    }

    /// A new cluster in this process whose coordinator does not plan: what jobs may use of workers is the caller's to say.
    pub(crate) async fn unplanned(local: &LocalArgs) -> Result<Self, Failure> {
        let mut settings = Self::settings(local)?;
        settings.plan_interval_ms = 0;
        settings.cluster.auto_cache = false;
        Self::start(settings, local).await
    }

    fn settings(local: &LocalArgs) -> Result<CoordinatorSettings, Failure> {
        let mut settings = CoordinatorSettings::in_memory(index_dir(local)?);
        settings.cluster.auto_cache = local.auto_cache.is_on();
        Ok(settings)
    }

    async fn start(mut settings: CoordinatorSettings, local: &LocalArgs) -> Result<Self, Failure> {
        let access = store_access::of_worker(&local.stores)?;
        settings.reads = access.reads().clone();
        let running = feedline_coordinator::start(settings, entropy::coordinator_life())
            .await
            .map_err(Failure::failed)?;
        let mut workers = Vec::new();
        for (number, share) in shares(local)?.into_iter().enumerate() {
            workers.push(local_workers::start(
                local_address(number),
                share,
                access.clone(),
                (running.service(), false),
            )?);
        }
        let coordinator = running.service();
        let embedded = Some(Embedded { coordinator: running, workers });
        let credentials = Credentials::default();
        Ok(Self { coordinator, embedded, transport: TransportArg::Auto, credentials })
    }

    /// The coordinator, where it is in this process.
    pub(crate) fn local_coordinator(&self) -> Option<&RunningCoordinator> {
        self.embedded.as_ref().map(|embedded| &embedded.coordinator)
    }

    /// Workers in this process.
    pub(crate) fn local_workers(&self) -> usize {
        self.embedded.as_ref().map_or(0, |embedded| embedded.workers.len())
    }

    /// Batches of workers behind a URL come by this way.
    pub(crate) fn by(self, transport: TransportArg) -> Self {
        Self { transport, ..self }
    }

    /// How consumers find the workers.
    pub(crate) fn directory(&self) -> Arc<dyn WorkerDirectory> {
        let Some(Embedded { workers, .. }) = &self.embedded else {
            return Arc::new(GrpcWorkers::new(self.transport.into(), self.credentials.clone()));
        };
        Arc::new(LocalWorkers(workers.iter().map(|worker| worker.running.service()).collect()))
    }

    /// Whether all roles are this process.
    pub(crate) fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// Ends what runs in this process; a cluster behind a URL goes on.
    pub(crate) async fn shutdown(self) {
        let Some(Embedded { coordinator, workers }) = self.embedded else { return };
        join_all(workers.into_iter().map(LocalWorker::stop)).await;
        if let Err(error) = coordinator.shutdown().await {
            tracing::warn!(%error, "the coordinator ended badly");
        }
    }
}

/// The cluster of these coordinators. One that cannot be reached is told at once, since the address may be wrong; several
/// have time to choose a leader.
pub(crate) async fn connect(
    urls: &[String],
    credentials: &Credentials,
) -> Result<Arc<dyn CoordinatorService>, Failure> {
    let coordinator = grpc::connect_coordinators(urls, credentials)?;
    let deadline = Instant::now() + CHOOSING;
    loop {
        match coordinator.list_jobs().await {
            Ok(_) => return Ok(coordinator),
            // It is there, and whoever asks for more than a list waits for room.
            Err(refusal) if refusal.kind == ServiceErrorKind::Busy => return Ok(coordinator),
            Err(refusal) if refusal.kind == ServiceErrorKind::Unavailable => {
                if urls.len() == 1 || Instant::now() >= deadline {
                    return Err(Failure::Failed(ClientError::Unreachable(refusal.to_string()).into()));
                }
                tokio::time::sleep(RETRY).await;
            }
            Err(refusal) => return Err(refusal.into()),
        }
    }
}

/// The workers of this process, by number.
struct LocalWorkers(Vec<Arc<dyn WorkerService>>);

impl WorkerDirectory for LocalWorkers {
    fn worker(&self, address: &str) -> Result<Arc<dyn WorkerService>, ServiceError> {
        let number = address.strip_prefix(LOCAL).and_then(|number| number.parse::<usize>().ok());
        let worker = number.and_then(|number| self.0.get(number)).cloned();
        worker.ok_or_else(|| {
            ServiceError::new(ServiceErrorKind::Invalid, format!("`{address}` is no worker of this process"))
        })
    }
}

/// Opens the address of a worker of this process.
const LOCAL: &str = "local:";

/// Address of a worker of this process.
fn local_address(number: usize) -> String {
    format!("{LOCAL}{number}")
}

fn index_dir(local: &LocalArgs) -> Result<PathBuf, Failure> {
    match &local.index_dir {
        Some(folder) => Ok(folder.clone()),
        None => Ok(environment::cache_dir()?.join("index")),
    }
}
