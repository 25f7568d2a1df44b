//! Starting and ending a coordinator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use feedline_cluster::Reply;
use feedline_data::ids::{Millis, WorkerId};
use feedline_data::messages::WorkerAllocations;
use feedline_data::messages::samples::Samples;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_data::random::mix64;
use feedline_proto::{CoordinatorService, PeerService};
use feedline_raft::log::FileLog;
use feedline_raft::{LogWrite, MemberId, Members, Message, PersistedState, RaftNode};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::bootstrap;
use crate::disk::Disk;
use crate::driver::{Driver, DriverCommand, DriverContext, QUEUED_COMMANDS};
use crate::error::CoordinatorError;
use crate::index_store::IndexStore;
use crate::peer_service::{QUEUED_BATCHES, RaftPeerService};
use crate::peers::{GrpcPeers, PeerDirectory, Peers, SendOutcome};
use crate::planning::{self, PlanningSettings};
use crate::request_queue::{QueuedRequest, RequestQueue, RequestReceiver};
use crate::scaling::{Scaler, ScalingPolicy};
use crate::service::LocalCoordinator;
use crate::settings::CoordinatorSettings;

/// A coordinator that runs. Dropping it ends its task without draining; [`Self::shutdown`] is the orderly way.
pub struct RunningCoordinator {
    service: Arc<LocalCoordinator>,
    peer_service: Arc<dyn PeerService>,
    commands: mpsc::Sender<DriverCommand>,
    /// Who leads.
    standing: watch::Receiver<Option<MemberId>>,
    stop: CancellationToken,
    /// `None` once its end was seen.
    task: Option<JoinHandle<Result<(), CoordinatorError>>>,
    planning: Option<JoinHandle<()>>,
}

/// What a coordinator works with besides its settings.
#[derive(Clone, Default)]
pub struct CoordinatorContext {
    /// Brings as many workers as plans want, within [`CoordinatorSettings::scale`].
    pub scaler: Option<Arc<dyn Scaler>>,
    /// How it finds other coordinators; by gRPC where nothing is said.
    pub peers: Option<Arc<dyn PeerDirectory>>,
}

/// Starts a coordinator: reads its log and goes on where it stood. `life` must be larger than that of every earlier
/// life on the same directory: a time in nanoseconds will do. One of several answers requests once it leads.
///
/// # Errors
/// When a directory cannot be used, another coordinator uses it, or the log is damaged: one sentence with the fix.
pub async fn start(settings: CoordinatorSettings, life: u64) -> Result<RunningCoordinator, CoordinatorError> {
    start_in(settings, life, CoordinatorContext::default()).await
}

/// As [`start`], in these surroundings.
///
/// # Errors
/// As [`start`].
pub async fn start_in(
    settings: CoordinatorSettings,
    life: u64,
    surroundings: CoordinatorContext,
) -> Result<RunningCoordinator, CoordinatorError> {
    if settings.tick_ms == 0 {
        return Err(CoordinatorError::Setting("tick_ms is 0; set it to 1 or more, 50 is usual".to_owned()));
    }
    let opened = tokio::task::spawn_blocking(move || open(&settings, life).map(|opened| (settings, opened)));
    let (settings, opened) = opened.await.map_err(|error| CoordinatorError::Stopped(error.to_string()))??;
    Ok(run(settings, life, opened, surroundings))
}

/// What was found when starting.
struct Opened {
    id: MemberId,
    stored: PersistedState,
    log: Option<FileLog>,
    store: IndexStore,
}

fn open(settings: &CoordinatorSettings, life: u64) -> Result<Opened, CoordinatorError> {
    let url = settings.url.bytes().fold(life, |hash, byte| mix64(hash ^ u64::from(byte)));
    let drawn = MemberId::from_random(mix64(url));
    let store = IndexStore::open(settings.index_dir.clone())?;
    let Some(folder) = &settings.data_dir else {
        return Ok(Opened { id: drawn, stored: PersistedState::default(), log: None, store });
    };
    let (log, stored) = FileLog::open(folder, drawn)?;
    Ok(Opened { id: log.id(), stored, log: Some(log), store })
}

fn run(
    settings: CoordinatorSettings,
    life: u64,
    opened: Opened,
    surroundings: CoordinatorContext,
) -> RunningCoordinator {
    let (sender, commands) = mpsc::channel(QUEUED_COMMANDS);
    let desk = RequestQueue::new();
    let (inbox_sender, inbox) = mpsc::channel(QUEUED_BATCHES);
    let store = Arc::new(opened.store);
    let directory = surroundings.peers.unwrap_or_else(|| Arc::new(GrpcPeers::default()));
    let (peers, deliveries) = Peers::new(opened.id, Arc::clone(&directory));
    let peers = Arc::new(peers);
    let has_state = Arc::new(AtomicBool::new(!opened.stored.is_empty()));
    let (views, seen) = watch::channel(Arc::default());
    let service = LocalCoordinator::new(
        Arc::clone(&desk),
        sender.clone(),
        Arc::clone(&store),
        Arc::clone(&peers),
        seen,
    );
    let service = Arc::new(service.that_lets_read(&settings));
    let peer_side = RaftPeerService {
        id: opened.id,
        has_state: Arc::clone(&has_state),
        inbox: inbox_sender,
        store: Arc::clone(&store),
    };
    let (leader, standing) = watch::channel(None);
    let stop = CancellationToken::new();
    let (interval_ms, scale) = (settings.plan_interval_ms, settings.scale);
    let (auto_cache, plans) = (settings.cluster.auto_cache, settings.plan);
    let starting = Starting {
        settings,
        life,
        id: opened.id,
        stored: opened.stored,
        log: opened.log,
        has_state,
        leader,
        directory,
        store,
        peers,
        deliveries,
        commands,
        desk: RequestReceiver::new(desk),
        inbox,
    };
    let task = tokio::spawn(starting.run(stop.clone()).instrument(tracing::info_span!("coordinator")));
    let planning = (interval_ms > 0).then(|| {
        let how =
            PlanningSettings { interval: Duration::from_millis(interval_ms), auto_cache, settings: plans };
        let scaled = surroundings.scaler.map(|scaler| ScalingPolicy::new(scale, scaler));
        let work = planning::run(sender.clone(), views, how, scaled, stop.clone());
        tokio::spawn(work.instrument(tracing::info_span!("planning")))
    });
    let peer_service: Arc<dyn PeerService> = Arc::new(peer_side);
    RunningCoordinator { service, peer_service, commands: sender, standing, stop, task: Some(task), planning }
}

/// A coordinator before it is known whether there is a state to go on from.
struct Starting {
    settings: CoordinatorSettings,
    life: u64,
    id: MemberId,
    stored: PersistedState,
    log: Option<FileLog>,
    has_state: Arc<AtomicBool>,
    leader: watch::Sender<Option<MemberId>>,
    directory: Arc<dyn PeerDirectory>,
    store: Arc<IndexStore>,
    peers: Arc<Peers>,
    deliveries: mpsc::Receiver<SendOutcome>,
    commands: mpsc::Receiver<DriverCommand>,
    desk: RequestReceiver,
    inbox: mpsc::Receiver<Vec<Message>>,
}

impl Starting {
    async fn run(mut self, stop: CancellationToken) -> Result<(), CoordinatorError> {
        if self.stored.is_empty() {
            let Some((stored, others)) = self.found(&stop).await? else { return Ok(()) };
            self.stored = stored;
            // Nothing was sent before.
            drop(self.peers.follow(&others));
            self.keep_founding().await?;
        }
        self.has_state.store(!self.stored.is_empty(), Ordering::Release);
        let settings = feedline_raft::RaftSettings {
            cluster: self.settings.cluster.clone(),
            tick_ms: self.settings.tick_ms,
            url: self.settings.url.clone(),
            ..feedline_raft::RaftSettings::default()
        };
        let member =
            RaftNode::new(self.id, self.stored, settings, self.life).map_err(CoordinatorError::Foreign)?;
        let disk = self.log.map_or_else(Disk::memory, |log| Disk::new(Box::new(log)));
        let parts = DriverContext {
            member,
            disk,
            store: self.store,
            peers: self.peers,
            has_state: self.has_state,
            leader: self.leader,
            deliveries: self.deliveries,
            commands: self.commands,
            desk: self.desk,
            limits: self.settings.limits.clone(),
            grace: Duration::from_millis(self.settings.grace_ms),
            inbox: self.inbox,
            tick_ms: self.settings.tick_ms,
            worker_lease_ms: self.settings.cluster.worker_lease_ms,
        };
        Driver::new(parts).run(stop).await
    }

    /// What a new coordinator starts with; `None` when it shall end.
    async fn found(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Option<(PersistedState, Members)>, CoordinatorError> {
        let (url, peers) = (&self.settings.url, &self.settings.peers);
        if peers.is_empty() {
            let alone = Members([(self.id, url.clone())].into());
            return Ok(Some((PersistedState::founded_by(&alone), alone)));
        }
        let founding = bootstrap::found(self.id, url, peers, self.directory.as_ref());
        tokio::pin!(founding);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(None),
                founded = &mut founding => return founded.map(Some),
                command = self.commands.recv() => match command {
                    Some(command) => command.refuse(not_founded()),
                    None => return Ok(None),
                },
                () = self.desk.news() => {
                    for QueuedRequest { reply, .. } in self.desk.take(REFUSED_TOGETHER) {
                        drop(reply.send(Reply::Refused(not_founded())));
                    }
                }
            }
        }
    }

    /// Puts the first state on disk.
    async fn keep_founding(&mut self) -> Result<(), CoordinatorError> {
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

/// Requests that are refused at a time before there is a cluster.
const REFUSED_TOGETHER: usize = 256;

fn not_founded() -> ServiceError {
    ServiceError::new(
        ServiceErrorKind::Unavailable,
        "this coordinator waits for the others of --peers; start them, and try again",
    )
}

impl RunningCoordinator {
    /// The coordinator's service, for local callers and for `feedline_proto::grpc::coordinator_routes`.
    pub fn service(&self) -> Arc<dyn CoordinatorService> {
        Arc::clone(&self.service) as Arc<dyn CoordinatorService>
    }

    /// Which coordinator leads, as far as this one knows.
    pub fn standing(&self) -> watch::Receiver<Option<MemberId>> {
        self.standing.clone()
    }

    /// What it answers other coordinators.
    pub fn peer_service(&self) -> Arc<dyn PeerService> {
        Arc::clone(&self.peer_service)
    }

    /// What workers and consumers have reported up to now, in milliseconds of the coordinator's clock; `None` when it has
    /// ended, or another leads.
    pub async fn samples(&self) -> Option<(Millis, Samples)> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(DriverCommand::Observe { reply }).await.ok()?;
        answer.await.ok().flatten().map(|(now, samples)| (now, *samples))
    }

    /// Tells workers at once what jobs may use of them: complete, so a worker that is not listed has no limits. Rows and
    /// their order do not depend on it. `false` when the coordinator has ended.
    pub async fn share(&self, shares: BTreeMap<WorkerId, WorkerAllocations>) -> bool {
        self.commands.send(DriverCommand::Share { shares }).await.is_ok()
    }

    /// Waits until the coordinator's task ends, which without [`Self::shutdown`] it does only when it cannot go on:
    /// the node that runs it should end too. Can be dropped and called again.
    ///
    /// # Errors
    /// Why it ended.
    pub async fn wait(&mut self) -> Result<(), CoordinatorError> {
        let Some(task) = &mut self.task else {
            return Err(CoordinatorError::Stopped("it had ended before".to_owned()));
        };
        let result = task.await;
        self.task = None;
        result.unwrap_or_else(|error| Err(CoordinatorError::Stopped(error.to_string())))
    }

    /// Takes no further requests, answers those that have arrived, persists and closes the log.
    ///
    /// # Errors
    /// When decisions could not be persisted. None of them had been acknowledged.
    pub async fn shutdown(mut self) -> Result<(), CoordinatorError> {
        self.stop.cancel();
        if let Some(planning) = self.planning.take() {
            // It ends with `stop`; where it crashed, the panic was told.
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
