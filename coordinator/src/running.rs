//! Startup and shutdown of a coordinator.

use std::sync::Arc;
use std::time::Duration;

use feedline_cluster::Reply;
use feedline_common::metric_table::start_counters;
use feedline_data::ids::Millis;
use feedline_data::messages::samples::Samples;
use feedline_data::messages::{PlanAllocations, ServiceError, ServiceErrorKind};
use feedline_data::random::mix64;
use feedline_proto::{CoordinatorService, PeerService};
use feedline_raft::log::FileLog;
use feedline_raft::{LogWrite, MemberId, Members, PersistedState, RaftNode};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::bootstrap;
use crate::disk::Disk;
use crate::driver::{Driver, DriverCommand, DriverContext, MAX_QUEUED_COMMANDS};
use crate::error::CoordinatorError;
use crate::identity::OwnIdentity;
use crate::index_store::IndexStore;
use crate::introductions::Introductions;
use crate::job_series::JobSeries;
use crate::metrics::METRICS;
use crate::peer_event::PeerEvent;
use crate::peer_service::{MAX_QUEUED_EVENTS, RaftPeerService};
use crate::peers::{GrpcPeers, PeerDirectory, Peers, SendOutcome};
use crate::planning::{self, PlanOutputs, PlanningSettings};
use crate::request_queue::{QueuedRequest, RequestQueue, RequestReceiver};
use crate::scaling::Scaler;
use crate::scaling_policy::ScalingPolicy;
use crate::service::LocalCoordinator;
use crate::settings::CoordinatorSettings;

/// A running coordinator. Dropping it aborts its tasks; [`Self::shutdown`] ends it gracefully.
pub struct RunningCoordinator {
    service: Arc<LocalCoordinator>,
    peer_service: Arc<dyn PeerService>,
    commands: mpsc::Sender<DriverCommand>,
    leader: watch::Receiver<Option<MemberId>>,
    job_series: watch::Receiver<Arc<[JobSeries]>>,
    stop: CancellationToken,
    /// `None` after the task has ended.
    task: Option<JoinHandle<Result<(), CoordinatorError>>>,
    planning: Option<JoinHandle<()>>,
}

/// Whether the tasks of a coordinator run that must run until it stops.
#[derive(Debug, Clone)]
pub struct CoordinatorHealth {
    tasks: Vec<(&'static str, AbortHandle)>,
    stop: CancellationToken,
}

impl CoordinatorHealth {
    /// Checks that all tasks run.
    ///
    /// # Errors
    /// Returns a message if a task has ended, although the coordinator has not been stopped.
    pub fn check(&self) -> Result<(), String> {
        let ended = self.tasks.iter().find(|(_, task)| task.is_finished());
        match ended {
            Some((name, _)) if !self.stop.is_cancelled() => Err(format!(
                "the {name} of the coordinator has ended after an internal error; restart the process"
            )),
            _ => Ok(()),
        }
    }
}

/// The components of a coordinator that are not settings.
#[derive(Clone, Default)]
pub struct CoordinatorContext {
    /// Starts and stops workers.
    pub scaler: Option<Arc<dyn Scaler>>,
    /// Connects to other coordinators; gRPC by default.
    pub peers: Option<Arc<dyn PeerDirectory>>,
}

/// Starts a coordinator, which continues from its log. `incarnation` must be larger than in all earlier starts with the same
/// directory. A time in nanoseconds is suitable. With several coordinators, only the leader answers requests.
///
/// # Errors
/// Returns an error if a directory cannot be used, is used by another coordinator, or contains a corrupted log.
pub async fn start(
    settings: CoordinatorSettings,
    incarnation: u64,
) -> Result<RunningCoordinator, CoordinatorError> {
    start_in(settings, incarnation, CoordinatorContext::default()).await
}

/// Starts a coordinator like [`start`], with additional components.
///
/// # Errors
/// Returns the errors of [`start`].
pub async fn start_in(
    settings: CoordinatorSettings,
    incarnation: u64,
    context: CoordinatorContext,
) -> Result<RunningCoordinator, CoordinatorError> {
    if settings.tick_ms == 0 {
        return Err(CoordinatorError::Setting(
            "invalid tick_ms 0: expected at least 1, such as 50".to_owned(),
        ));
    }
    let opened =
        tokio::task::spawn_blocking(move || open(&settings, incarnation).map(|opened| (settings, opened)));
    let (settings, opened) = opened.await.map_err(|error| CoordinatorError::Stopped(error.to_string()))??;
    Ok(run(settings, incarnation, opened, context))
}

/// The state on disk.
struct OpenedState {
    id: MemberId,
    stored: PersistedState,
    log: Option<FileLog>,
    store: IndexStore,
}

fn open(settings: &CoordinatorSettings, incarnation: u64) -> Result<OpenedState, CoordinatorError> {
    let url = settings.url.bytes().fold(incarnation, |hash, byte| mix64(hash ^ u64::from(byte)));
    let drawn = MemberId::from_random(mix64(url));
    // The index directory is in the data directory by default, so that an error must name the data directory first.
    let opened = settings.data_dir.as_deref().map(|folder| FileLog::open(folder, drawn)).transpose()?;
    let store = IndexStore::open(settings.index_dir.clone())?;
    Ok(match opened {
        Some((log, stored)) => OpenedState { id: log.id(), stored, log: Some(log), store },
        None => OpenedState { id: drawn, stored: PersistedState::default(), log: None, store },
    })
}

fn run(
    settings: CoordinatorSettings,
    incarnation: u64,
    opened: OpenedState,
    context: CoordinatorContext,
) -> RunningCoordinator {
    start_counters(METRICS);
    let (sender, commands) = mpsc::channel(MAX_QUEUED_COMMANDS);
    let requests = RequestQueue::new();
    let (inbox_sender, inbox) = mpsc::channel(MAX_QUEUED_EVENTS);
    let store = Arc::new(opened.store);
    let directory = context.peers.unwrap_or_else(|| Arc::new(GrpcPeers::default()));
    let has_state = !opened.stored.is_empty();
    let own = Arc::new(OwnIdentity::new(opened.id, settings.url.clone(), incarnation, has_state));
    let (peers, deliveries) = Peers::new(own, directory);
    let peers = Arc::new(peers);
    let outputs = PlanOutputs::default();
    let (seen, job_series) = (outputs.views.subscribe(), outputs.job_series.subscribe());
    let service = LocalCoordinator::new(
        Arc::clone(&requests),
        sender.clone(),
        Arc::clone(&store),
        Arc::clone(&peers),
        seen,
    );
    let service = Arc::new(service.with_read_policy(&settings));
    let peer_side = RaftPeerService {
        peers: Arc::clone(&peers),
        inbox: inbox_sender.clone(),
        commands: sender.clone(),
        store: Arc::clone(&store),
    };
    let (leader, known_leader) = watch::channel(None);
    let stop = CancellationToken::new();
    let (interval_ms, shrink_after_ms) = (settings.plan_interval_ms, settings.shrink_after_ms);
    let (auto_cache, plans) = (settings.cluster.auto_cache, settings.plan);
    let starting = StartingCoordinator {
        settings,
        incarnation,
        id: opened.id,
        stored: opened.stored,
        log: opened.log,
        leader,
        store,
        peers,
        deliveries,
        commands,
        requests: RequestReceiver::new(requests),
        events: inbox_sender,
        inbox,
    };
    let task = tokio::spawn(starting.run(stop.clone()).instrument(tracing::info_span!("coordinator")));
    let planning = (interval_ms > 0).then(|| {
        let how =
            PlanningSettings { interval: Duration::from_millis(interval_ms), auto_cache, settings: plans };
        let scaled = context.scaler.map(|scaler| ScalingPolicy::new(shrink_after_ms, scaler));
        let throttle_signal = service.throttle_signal();
        let work = planning::run(sender.clone(), outputs, how, scaled, throttle_signal, stop.clone());
        tokio::spawn(work.instrument(tracing::info_span!("planning")))
    });
    let peer_service: Arc<dyn PeerService> = Arc::new(peer_side);
    RunningCoordinator {
        service,
        peer_service,
        commands: sender,
        leader: known_leader,
        job_series,
        stop,
        task: Some(task),
        planning,
    }
}

/// A coordinator without a state.
struct StartingCoordinator {
    settings: CoordinatorSettings,
    incarnation: u64,
    id: MemberId,
    stored: PersistedState,
    log: Option<FileLog>,
    leader: watch::Sender<Option<MemberId>>,
    store: Arc<IndexStore>,
    peers: Arc<Peers>,
    deliveries: mpsc::Receiver<SendOutcome>,
    commands: mpsc::Receiver<DriverCommand>,
    requests: RequestReceiver,
    events: mpsc::Sender<PeerEvent>,
    inbox: mpsc::Receiver<PeerEvent>,
}

impl StartingCoordinator {
    async fn run(mut self, stop: CancellationToken) -> Result<(), CoordinatorError> {
        if self.stored.is_empty() {
            let Some(stored) = self.bootstrap(&stop).await? else { return Ok(()) };
            self.stored = stored;
            self.persist_bootstrap().await?;
        }
        if !self.stored.is_empty() {
            self.peers.own().set_has_state();
        }
        let settings = feedline_raft::RaftSettings {
            cluster: self.settings.cluster.clone(),
            tick_ms: self.settings.tick_ms,
            url: self.settings.url.clone(),
            ..feedline_raft::RaftSettings::default()
        };
        let member = RaftNode::new(self.id, self.stored, settings, self.incarnation)
            .map_err(CoordinatorError::Foreign)?;
        let disk = self.log.map_or_else(Disk::memory, |log| Disk::new(Box::new(log)));
        let introductions = Introductions::new(Arc::clone(&self.peers), self.settings.peers, self.events);
        let parts = DriverContext {
            member,
            disk,
            store: self.store,
            peers: self.peers,
            leader: self.leader,
            deliveries: self.deliveries,
            commands: self.commands,
            requests: self.requests,
            limits: self.settings.limits.clone(),
            grace: Duration::from_millis(self.settings.grace_ms),
            inbox: self.inbox,
            tick_ms: self.settings.tick_ms,
            worker_lease_ms: self.settings.cluster.worker_lease_ms,
        };
        tokio::select! {
            result = Driver::new(parts).run(stop) => result,
            never = introductions.run() => match never {},
        }
    }

    /// Returns the initial state of a new coordinator; `None` if the coordinator stops first.
    async fn bootstrap(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<PersistedState>, CoordinatorError> {
        let (url, urls) = (&self.settings.url, &self.settings.peers);
        if urls.is_empty() {
            let alone = Members([(self.id, url.clone())].into());
            return Ok(Some(PersistedState::bootstrap(&alone)));
        }
        let bootstrapping = bootstrap::bootstrap(&self.peers, urls);
        tokio::pin!(bootstrapping);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(None),
                bootstrapped = &mut bootstrapping => return bootstrapped.map(Some),
                command = self.commands.recv() => match command {
                    Some(command) => command.refuse(not_bootstrapped()),
                    None => return Ok(None),
                },
                () = self.requests.ready() => {
                    for QueuedRequest { reply, .. } in self.requests.pop(MAX_REJECTED_BATCH) {
                        drop(reply.send(Reply::Rejected(not_bootstrapped())));
                    }
                }
            }
        }
    }

    /// Writes the initial state to disk.
    async fn persist_bootstrap(&mut self) -> Result<(), CoordinatorError> {
        if self.stored.is_empty() {
            return Ok(());
        }
        let Some(mut log) = self.log.take() else { return Ok(()) };
        let mut writes = vec![LogWrite::Install { number: 0, stored: Box::new(self.stored.clone()) }];
        let written = tokio::task::spawn_blocking(move || log.write(&mut writes).map(|()| log));
        self.log = Some(written.await.map_err(|error| CoordinatorError::Stopped(error.to_string()))??);
        Ok(())
    }
}

/// Maximum number of requests that are rejected together before the bootstrap.
const MAX_REJECTED_BATCH: usize = 256;

fn not_bootstrapped() -> ServiceError {
    ServiceError::new(
        ServiceErrorKind::Unavailable,
        "this coordinator is waiting for the other coordinators in --peers; start all coordinators, then retry",
    )
}

impl RunningCoordinator {
    /// Returns the coordinator's service, for local callers and for `feedline_proto::grpc::coordinator_routes`.
    pub fn service(&self) -> Arc<dyn CoordinatorService> {
        Arc::clone(&self.service) as Arc<dyn CoordinatorService>
    }

    /// Returns the leader, if known.
    pub fn leader(&self) -> watch::Receiver<Option<MemberId>> {
        self.leader.clone()
    }

    /// Returns the health of the coordinator, for a liveness probe.
    pub fn health(&self) -> CoordinatorHealth {
        let driver = self.task.as_ref().map(|task| ("driver", task.abort_handle()));
        let planning = self.planning.as_ref().map(|task| ("planning task", task.abort_handle()));
        CoordinatorHealth { tasks: driver.into_iter().chain(planning).collect(), stop: self.stop.clone() }
    }

    /// Returns the series of the running jobs, sorted by name and labels, for the page of metrics. There are none unless
    /// this coordinator leads and plans.
    pub fn job_series(&self) -> watch::Receiver<Arc<[JobSeries]>> {
        self.job_series.clone()
    }

    /// Returns the service for other coordinators.
    pub fn peer_service(&self) -> Arc<dyn PeerService> {
        Arc::clone(&self.peer_service)
    }

    /// Returns the last reports from workers and consumers, with the time of the state machine; `None` if the coordinator
    /// has ended or is not the leader.
    pub async fn samples(&self) -> Option<(Millis, Samples)> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(DriverCommand::Observe { reply }).await.ok()?;
        answer.await.ok().flatten().map(|observed| (observed.now, *observed.samples))
    }

    /// Applies the allocations of all workers. A worker without an allocation has no limits. Allocations affect neither rows
    /// nor their order. Returns `false` if the coordinator has ended.
    pub async fn allocate(&self, allocations: PlanAllocations) -> bool {
        self.commands.send(DriverCommand::Allocate { allocations }).await.is_ok()
    }

    /// Waits until the coordinator ends. Without [`Self::shutdown`], a coordinator ends only after an error, and the process
    /// should also end. Cancel safe.
    ///
    /// # Errors
    /// Returns the error that ended the coordinator.
    pub async fn wait(&mut self) -> Result<(), CoordinatorError> {
        let Some(task) = &mut self.task else {
            return Err(CoordinatorError::Stopped("it has already ended".to_owned()));
        };
        let result = task.await;
        self.task = None;
        result.unwrap_or_else(|error| Err(CoordinatorError::Stopped(error.to_string())))
    }

    /// Stops accepting requests, answers queued requests and closes the log.
    ///
    /// # Errors
    /// Returns an error if records could not be written. Their requests were not acknowledged.
    pub async fn shutdown(mut self) -> Result<(), CoordinatorError> {
        self.stop.cancel();
        if let Some(planning) = self.planning.take() {
            // A panic of the planner was logged.
            let _ = planning.await;
        }
        self.wait().await
    }
}

impl Drop for RunningCoordinator {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        if let Some(planning) = &self.planning {
            planning.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends a task, as a panic would.
    async fn end<T>(task: &mut Option<JoinHandle<T>>) {
        let task = task.as_mut().unwrap();
        task.abort();
        assert!(task.await.is_err());
    }

    #[tokio::test]
    async fn a_task_that_ends_before_the_coordinator_stops_fails_the_health_check() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [first, second] = folders.each_ref().map(|folder| CoordinatorSettings::in_memory(folder.path()));
        let mut first = start(first, 1).await.unwrap();
        let health = first.health();
        assert_eq!(health.check(), Ok(()));
        end(&mut first.planning).await;
        let error =
            "the planning task of the coordinator has ended after an internal error; restart the process";
        assert_eq!(health.check(), Err(error.to_owned()));
        first.stop.cancel();
        assert_eq!(health.check(), Ok(()), "all tasks end when the coordinator stops");
        let mut second = start(second, 1).await.unwrap();
        let health = second.health();
        end(&mut second.task).await;
        let error = "the driver of the coordinator has ended after an internal error; restart the process";
        assert_eq!(health.check(), Err(error.to_owned()));
    }
}
