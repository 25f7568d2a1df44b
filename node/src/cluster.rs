//! The cluster that a command uses: a remote cluster, or a coordinator and workers in this process. Callers use both in
//! the same way.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use feedline_access::Credentials;
use feedline_client::{ClientError, ClientSettings, GrpcWorkers, WorkerDirectory};
use feedline_common::mismatch_timer::{MismatchTimer, Rejection};
use feedline_coordinator::{CoordinatorSettings, RunningCoordinator};
use feedline_data::messages::{ServiceError, ServiceErrorKind, WorkerAddress};
use feedline_proto::{CoordinatorService, WorkerService, grpc};
use feedline_worker::{PeerWorkers, WorkerSettings};
use futures::future::join_all;

use crate::cli::{AccessArgs, LocalArgs, SwitchArg};
use crate::failure::Failure;
use crate::local_listener::TransportArg;
use crate::local_workers::{self, LocalWorker};
use crate::reload::ReloadedCredentials;
use crate::{entropy, environment, store_access};

/// Time that several coordinators have to elect a leader.
pub(crate) const ELECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a coordinator has to restart during an upgrade.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two requests during an election.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Prefix of the addresses of workers in this process.
const LOCAL_ADDRESS_PREFIX: &str = "local:";

/// A coordinator with its workers.
pub(crate) struct LocalCluster {
    /// The coordinator.
    pub(crate) coordinator: Arc<dyn CoordinatorService>,
    embedded: Option<EmbeddedRoles>,
    transport: TransportArg,
    access: ReloadedCredentials,
}

/// A coordinator and workers in this process.
struct EmbeddedRoles {
    coordinator: RunningCoordinator,
    workers: Vec<LocalWorker>,
}

impl LocalCluster {
    /// Connects to the coordinators at these URLs or, without a URL, starts a cluster in this process. Waits for the end of
    /// a rolling upgrade, as the client of a running job does.
    pub(crate) async fn open(
        urls: &[String],
        access: &AccessArgs,
        (local, auto_cache): (&LocalArgs, SwitchArg),
    ) -> Result<Self, Failure> {
        match urls {
            [_, ..] => {
                let access = access.reloaded_credentials()?;
                let upgrade_timeout = Duration::from_millis(ClientSettings::default().upgrade_ms);
                let coordinator = connect_within(urls, &access.credentials, upgrade_timeout).await?;
                Ok(Self { coordinator, embedded: None, transport: TransportArg::Auto, access })
            }
            [] => {
                let mut settings = CoordinatorSettings::in_memory(index_dir(local)?);
                settings.cluster.auto_cache = auto_cache.is_on();
                Self::start(settings, local).await
            }
        }
    }

    /// Starts a cluster in this process without a planner. The caller sets the allocations of jobs.
    pub(crate) async fn open_without_planner(local: &LocalArgs) -> Result<Self, Failure> {
        let mut settings = CoordinatorSettings::in_memory(index_dir(local)?);
        settings.plan_interval_ms = 0;
        settings.cluster.auto_cache = false;
        Self::start(settings, local).await
    }

    async fn start(mut settings: CoordinatorSettings, local: &LocalArgs) -> Result<Self, Failure> {
        if let Some(folder) = &local.cache.cache_dir {
            local_workers::check_cache_dir(folder)?;
        }
        let access = store_access::for_worker(&local.stores)?;
        settings.reads = access.reads().clone();
        let running = feedline_coordinator::start(settings, entropy::coordinator_start_id())
            .await
            .map_err(Failure::failed)?;
        let mut workers = Vec::new();
        for (number, settings) in local_workers::settings(local, &access)?.into_iter().enumerate() {
            let address = format!("{LOCAL_ADDRESS_PREFIX}{number}");
            workers.push(local_workers::start(WorkerSettings { address, ..settings }, running.service())?);
        }
        let services: Vec<_> = workers.iter().map(|worker| worker.running.service()).collect();
        let peers = Arc::new(LocalPeers(services.iter().map(Arc::downgrade).collect()));
        for worker in &workers {
            worker.running.set_peers(Arc::clone(&peers) as Arc<dyn PeerWorkers>);
        }
        let coordinator = running.service();
        let embedded = Some(EmbeddedRoles { coordinator: running, workers });
        let access = ReloadedCredentials::new(Credentials::default());
        Ok(Self { coordinator, embedded, transport: TransportArg::Auto, access })
    }

    /// Returns the coordinator if it runs in this process.
    pub(crate) fn local_coordinator(&self) -> Option<&RunningCoordinator> {
        self.embedded.as_ref().map(|embedded| &embedded.coordinator)
    }

    /// Returns the number of workers in this process.
    pub(crate) fn local_worker_count(&self) -> usize {
        self.embedded.as_ref().map_or(0, |embedded| embedded.workers.len())
    }

    /// Sets the transport of batches from remote workers.
    pub(crate) fn with_transport(self, transport: TransportArg) -> Self {
        Self { transport, ..self }
    }

    /// Returns the directory that resolves worker addresses.
    pub(crate) fn directory(&self) -> Arc<dyn WorkerDirectory> {
        let Some(EmbeddedRoles { workers, .. }) = &self.embedded else {
            return Arc::new(GrpcWorkers::new(self.transport.into(), self.access.credentials.clone()));
        };
        Arc::new(LocalWorkers(workers.iter().map(|worker| worker.running.service()).collect()))
    }

    /// Whether all roles run in this process.
    pub(crate) fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// Stops the roles in this process. A remote cluster continues.
    pub(crate) async fn shutdown(self) {
        let Some(EmbeddedRoles { coordinator, workers }) = self.embedded else { return };
        join_all(workers.into_iter().map(LocalWorker::stop)).await;
        if let Err(error) = coordinator.shutdown().await {
            tracing::warn!(%error, "the coordinator failed during shutdown");
        }
    }
}

/// Connects to the coordinators at these URLs. Fails immediately if a single coordinator cannot be reached, because the
/// address may be wrong. With several coordinators, or if a follower answers, waits for a leader.
pub(crate) async fn connect(
    urls: &[String],
    credentials: &Credentials,
) -> Result<Arc<dyn CoordinatorService>, Failure> {
    connect_within(urls, credentials, Duration::ZERO).await
}

/// Like [`connect`]. Retries for `upgrade_timeout` while the coordinators have another protocol version.
async fn connect_within(
    urls: &[String],
    credentials: &Credentials,
    upgrade_timeout: Duration,
) -> Result<Arc<dyn CoordinatorService>, Failure> {
    let coordinator = grpc::connect_coordinators(urls, credentials)?;
    let (mut is_sole_address, mut deadline) = (urls.len() == 1, Instant::now() + ELECTION_TIMEOUT);
    let mut mismatch = MismatchTimer::default();
    loop {
        match coordinator.list_jobs().await {
            Ok(_) => return Ok(coordinator),
            // A busy coordinator is reachable, and later requests retry until it accepts them.
            Err(error) if error.kind == ServiceErrorKind::Busy => return Ok(coordinator),
            Err(error) if error.is_version_mismatch => {
                let Rejection { lasted, is_warning_due } = mismatch.record(Instant::now());
                if upgrade_timeout.is_zero() {
                    if is_sole_address || Instant::now() >= deadline {
                        return Err(error.into());
                    }
                } else if lasted >= upgrade_timeout {
                    let (seconds, message) = (lasted.as_secs(), error.message);
                    return Err(ClientError::VersionMismatch { seconds, message }.into());
                } else {
                    // The address is not wrong, and an upgrade restarts the coordinator.
                    (is_sole_address, deadline) = (false, Instant::now() + RESTART_TIMEOUT);
                    if is_warning_due {
                        tracing::warn!("{error}; retrying");
                    }
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) if error.kind == ServiceErrorKind::Unavailable => {
                // A follower behind a load balancer answers at the right address.
                let is_wrong_address = is_sole_address && error.leader.is_none();
                if is_wrong_address || Instant::now() >= deadline {
                    return Err(Failure::Failed(ClientError::Unreachable(error.to_string()).into()));
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The workers in this process. The address of a worker contains its index.
struct LocalWorkers(Vec<Arc<dyn WorkerService>>);

impl WorkerDirectory for LocalWorkers {
    fn worker(&self, address: &WorkerAddress) -> Result<Arc<dyn WorkerService>, ServiceError> {
        let worker = local_number(address).and_then(|number| self.0.get(number)).cloned();
        worker.ok_or_else(|| no_local_worker(address))
    }
}

/// The same workers for each other. They do not keep each other alive.
struct LocalPeers(Vec<Weak<dyn WorkerService>>);

impl PeerWorkers for LocalPeers {
    fn worker(&self, address: &WorkerAddress) -> Result<Arc<dyn WorkerService>, ServiceError> {
        let worker = local_number(address).and_then(|number| self.0.get(number)?.upgrade());
        worker.ok_or_else(|| no_local_worker(address))
    }
}

/// Returns the number of a worker in this process.
fn local_number(address: &WorkerAddress) -> Option<usize> {
    address.url.strip_prefix(LOCAL_ADDRESS_PREFIX)?.parse().ok()
}

fn no_local_worker(address: &WorkerAddress) -> ServiceError {
    let message = format!("no worker in this process has the address `{address}`");
    ServiceError::new(ServiceErrorKind::Invalid, message)
}

fn index_dir(local: &LocalArgs) -> Result<PathBuf, Failure> {
    match &local.index_dir {
        Some(folder) => Ok(folder.clone()),
        None => Ok(environment::cache_dir()?.join("index")),
    }
}
