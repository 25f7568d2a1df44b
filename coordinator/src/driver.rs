//! The one task that owns a coordinator's part in the cluster: takes what waits, decides, has it written and sent, answers.

mod events;
mod indexes;
mod long_polls;
mod pending;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use feedline_cluster::{Input, Reply};
use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::manifest::Manifest;
use feedline_data::messages::WorkerAllocations;
use feedline_data::messages::samples::Samples;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_raft::{
    Effects, MemberId, MemberView, Members, MembershipChange, Message, MonotonicTime, RaftNode, Role,
    ServingChange,
};
use metrics::gauge;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Duration, Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use self::events::{Event, next};
use self::indexes::{IndexEvent, IndexRequests};
use self::long_polls::LongPolls;
use self::pending::PendingReplies;
use crate::clock::PausableClock;
use crate::disk::{Disk, WriteOutcome};
use crate::error::CoordinatorError;
use crate::index_store::IndexStore;
use crate::limits::RequestLimits;
use crate::metrics::{Gauges, LEADS, QUEUED_REQUESTS, TERM};
use crate::peers::{Peers, SendOutcome};
use crate::request::{Request, shutting_down};
use crate::request_queue::{QueuedRequest, RequestReceiver};

/// What this process itself asks of the driver: planning, and changes of the members. Requests wait at the desk.
pub(crate) const QUEUED_COMMANDS: usize = 64;
/// Requests that are decided on together.
const REQUESTS_TOGETHER: usize = 256;
/// Time that another coordinator has to take over from one that ends.
const HAND_OVER: Duration = Duration::from_secs(1);

/// What the driver is told besides requests.
pub(crate) enum DriverCommand {
    /// Whoever plans wants to know what was reported, with the state machine's time; `None` where another leads.
    Observe { reply: oneshot::Sender<Option<(Millis, Box<Samples>)>> },
    /// Whoever plans has decided what jobs may use of workers.
    Share { shares: BTreeMap<WorkerId, WorkerAllocations> },
    /// Someone asks who takes part.
    Members { reply: oneshot::Sender<Result<Vec<MemberView>, ServiceError>> },
    /// Someone changes who takes part.
    Change { change: MembershipChange, reply: oneshot::Sender<Result<Members, ServiceError>> },
    /// Someone makes another coordinator the leader; the reply follows once it leads.
    TransferLeader { target: MemberId, reply: oneshot::Sender<Result<(), ServiceError>> },
}

impl DriverCommand {
    /// Answers a command that is not carried out.
    pub(crate) fn refuse(self, refusal: ServiceError) {
        match self {
            // A sender that no longer waits needs no answer.
            Self::Observe { reply } => drop(reply.send(None)),
            Self::Share { .. } => {}
            Self::Members { reply } => drop(reply.send(Err(refusal))),
            Self::Change { reply, .. } => drop(reply.send(Err(refusal))),
            Self::TransferLeader { reply, .. } => drop(reply.send(Err(refusal))),
        }
    }
}

/// What the driver works with.
pub(crate) struct DriverContext {
    pub(crate) member: RaftNode,
    pub(crate) disk: Disk,
    pub(crate) store: Arc<IndexStore>,
    pub(crate) peers: Arc<Peers>,
    /// Whether this coordinator is part of a cluster: told to new ones.
    pub(crate) has_state: Arc<AtomicBool>,
    /// Who leads: told to whoever looks whether the coordinator is ready.
    pub(crate) leader: watch::Sender<Option<MemberId>>,
    pub(crate) deliveries: mpsc::Receiver<SendOutcome>,
    pub(crate) commands: mpsc::Receiver<DriverCommand>,
    /// Where requests wait.
    pub(crate) desk: RequestReceiver,
    /// Most that may wait for the log before further jobs are refused.
    pub(crate) limits: RequestLimits,
    /// Time to keep and answer what has arrived, at the end.
    pub(crate) grace: Duration,
    /// Messages of other coordinators.
    pub(crate) inbox: mpsc::Receiver<Vec<Message>>,
    pub(crate) tick_ms: u64,
    pub(crate) worker_lease_ms: u64,
}

pub(crate) struct Driver {
    parts: DriverContext,
    pending: PendingReplies,
    /// The coordinator that is to lead, and who waits until it does.
    transfer: Option<(MemberId, oneshot::Sender<Result<(), ServiceError>>)>,
    clock: PausableClock,
    started: Instant,
    now: MonotonicTime,
    tick: Duration,
    indexes: IndexRequests,
    /// Requests that arrived while saved indexes were loaded.
    held: LongPolls,
    /// Whether something was asked that is not decided on yet: it gathers while the decisions before it are written.
    gathers: bool,
    /// Why the log could not be written.
    stuck: Option<ServiceError>,
    known: Members,
    gauges: Gauges,
}

impl Driver {
    pub(crate) fn new(parts: DriverContext) -> Self {
        let tick_ms = parts.tick_ms;
        let indexes = IndexRequests::new(Arc::clone(&parts.store), Arc::clone(&parts.peers));
        Self {
            parts,
            pending: PendingReplies::default(),
            transfer: None,
            clock: PausableClock::new(tick_ms),
            started: Instant::now(),
            now: MonotonicTime::default(),
            tick: Duration::from_millis(tick_ms),
            indexes,
            held: LongPolls::default(),
            gathers: false,
            stuck: None,
            known: Members::default(),
            gauges: Gauges::default(),
        }
    }

    /// Runs until `stop`; then answers what has arrived, lets another lead, and closes the log.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), CoordinatorError> {
        let mut ticks = tokio::time::interval(self.tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut commands = Vec::with_capacity(REQUESTS_TOGETHER);
        self.follow_up()?;
        loop {
            let DriverContext { disk, inbox, deliveries, commands: asked, desk, .. } = &mut self.parts;
            tokio::select! {
                () = stop.cancelled() => break,
                () = desk.news() => self.turn(&mut commands, false)?,
                taken = asked.recv_many(&mut commands, REQUESTS_TOGETHER) => {
                    if taken == 0 {
                        break;
                    }
                    self.turn(&mut commands, false)?;
                }
                event = next(disk, inbox, deliveries, &mut self.indexes) => {
                    self.on_event(event?);
                    self.follow_up()?;
                    if self.gathers {
                        self.turn(&mut commands, false)?;
                    }
                }
                _ = ticks.tick() => {
                    self.on_tick();
                    self.turn(&mut commands, true)?;
                }
            }
        }
        self.end(&mut ticks).await
    }

    /// Answers what has arrived, and has another lead where there is one.
    async fn end(mut self, ticks: &mut Interval) -> Result<(), CoordinatorError> {
        let mut commands = Vec::with_capacity(REQUESTS_TOGETHER);
        self.parts.desk.close();
        self.parts.commands.close();
        while self.parts.commands.recv_many(&mut commands, REQUESTS_TOGETHER).await > 0 {
            self.turn(&mut commands, true)?;
        }
        while !self.parts.desk.is_empty() || self.gathers {
            self.turn(&mut commands, true)?;
        }
        let begun = Instant::now();
        let (kept, handed) = (begun + self.parts.grace, begun + self.parts.grace.min(HAND_OVER));
        let hands_over = self.parts.member.retire(self.now);
        self.follow_up()?;
        while self.stuck.is_none()
            && (self.parts.disk.has_work() && Instant::now() < kept
                || hands_over && self.leads() && Instant::now() < handed)
        {
            let DriverContext { disk, inbox, deliveries, .. } = &mut self.parts;
            tokio::select! {
                event = next(disk, inbox, deliveries, &mut self.indexes) => self.on_event(event?),
                _ = ticks.tick() => self.on_tick(),
            }
            self.follow_up()?;
        }
        self.refuse_waiting(&shutting_down());
        match self.stuck {
            // Nothing of it was acknowledged.
            Some(refusal) => Err(CoordinatorError::Stopped(refusal.message)),
            None => Ok(()),
        }
    }

    /// Takes everything in `commands` and the next requests at one time, and decides what follows: as soon as what was decided
    /// before is kept, so that decisions are written and sent together, or now where that takes longer.
    fn turn(&mut self, commands: &mut Vec<DriverCommand>, now: bool) -> Result<(), CoordinatorError> {
        self.look_at_clocks();
        for command in commands.drain(..) {
            self.on_command(command);
        }
        for QueuedRequest { request, reply } in self.parts.desk.take(REQUESTS_TOGETHER) {
            self.ask(request, reply);
        }
        gauge!(QUEUED_REQUESTS).set(self.parts.desk.waiting() as f64);
        self.gathers = !now && self.leads() && self.parts.member.pending_entries() > 0;
        if self.stuck.is_none() && !self.gathers {
            self.parts.member.decide(self.now);
            self.gauges.publish(self.now.cluster, self.parts.worker_lease_ms);
        }
        self.follow_up()
    }

    /// The state machine's time stands still while nothing can be decided: its workers did not fall silent.
    fn look_at_clocks(&mut self) {
        if self.stuck.is_none() {
            self.now.cluster = self.clock.advance();
        }
        self.now.real = self.started.elapsed().as_millis() as Millis;
    }

    fn on_command(&mut self, command: DriverCommand) {
        match command {
            DriverCommand::Observe { reply } => {
                let samples = self.parts.member.cluster().map(|cluster| Box::new(cluster.samples()));
                // Who no longer waits needs no answer.
                let _ = reply.send(samples.map(|samples| (self.now.cluster, samples)));
            }
            // Told again with the next plan that differs.
            DriverCommand::Share { .. } if self.stuck.is_some() => {}
            DriverCommand::Share { shares } => self.parts.member.ask(self.now, Input::Shares { shares }),
            DriverCommand::Members { reply } => drop(reply.send(self.parts.member.views())),
            DriverCommand::Change { change, reply } => {
                let request = self.pending.add_change(reply);
                self.parts.member.change(self.now, request, change);
            }
            DriverCommand::TransferLeader { target, reply } => {
                match self.parts.member.transfer_leader(self.now, target) {
                    Ok(()) => self.transfer = Some((target, reply)),
                    Err(refusal) => drop(reply.send(Err(refusal))),
                }
            }
        }
    }

    fn ask(&mut self, asked: Request, reply: oneshot::Sender<Reply>) {
        if let Some(refusal) = &self.stuck {
            drop(reply.send(Reply::Refused(refusal.clone())));
            return;
        }
        if let Some(refusal) = self.lacks_room(&asked) {
            drop(reply.send(Reply::Refused(refusal)));
            return;
        }
        if self.indexes.is_loading() && self.held.len() >= self.parts.limits.unanswered {
            drop(reply.send(Reply::Refused(RequestLimits::too_many(self.held.len()))));
            return;
        }
        let request = self.pending.add(reply);
        let input = asked.into_input(request);
        if !self.indexes.is_loading() {
            self.take(input);
        } else if let Some(earlier) = self.held.put(input) {
            self.pending.answer(earlier, Reply::Refused(overtaken()));
        }
    }

    /// Why a request is not taken now. Reports always are: what they change is bounded by what was opened.
    fn lacks_room(&self, asked: &Request) -> Option<ServiceError> {
        if matches!(asked, Request::Worker(_) | Request::Consumer(_)) {
            return None;
        }
        let (member, limits) = (&self.parts.member, &self.parts.limits);
        let opens = matches!(asked, Request::OpenJob { .. } | Request::JoinJob { may_open: true, .. });
        limits.check(self.pending.len(), opens.then(|| (member.pending_entries(), member.log_bytes())))
    }

    fn take(&mut self, input: Input) {
        if let Input::Worker { report, .. } = &input {
            self.gauges.on_worker(report.worker, self.now.cluster);
        }
        self.parts.member.ask(self.now, input);
    }

    fn on_tick(&mut self) {
        self.look_at_clocks();
        self.parts.member.tick(self.now);
        if self.stuck.is_some() {
            self.parts.disk.start();
        }
    }

    fn on_event(&mut self, event: Event) {
        self.look_at_clocks();
        match event {
            Event::Written(written) => self.on_written(written),
            Event::Messages(messages) => {
                messages.into_iter().for_each(|it| self.parts.member.receive(self.now, it));
            }
            Event::Delivery(delivery) => self.on_delivery(delivery),
            Event::Index(IndexEvent::Saved(job, saved)) => {
                self.parts.member.ask(self.now, Input::IndexSaved { job, saved });
                self.parts.member.decide(self.now);
            }
            Event::Index(IndexEvent::Loaded(job, saved)) => self.on_loaded(job, saved),
        }
    }

    fn on_delivery(&mut self, delivery: SendOutcome) {
        match delivery {
            SendOutcome::Failed(id) => self.parts.member.on_unreachable(id),
            SendOutcome::Snapshot(id, arrived) => self.parts.member.on_snapshot_sent(id, arrived),
        }
    }

    fn on_written(&mut self, written: WriteOutcome) {
        if written.number.is_some() || written.error.is_none() {
            self.parts.member.on_written(self.now, written.number);
        }
        if written.error.is_some() {
            self.parts.member.on_write_failed(self.now);
        }
        match (written.error, &self.stuck) {
            (Some(error), None) => {
                let refusal = ServiceError::new(ServiceErrorKind::Unavailable, error.to_string());
                tracing::error!("{refusal}");
                self.refuse_waiting(&refusal);
                self.stuck = Some(refusal);
            }
            (None, Some(_)) => {
                tracing::info!("the coordinator's log can be written again");
                self.stuck = None;
                self.look_at_clocks();
            }
            _ => {}
        }
    }

    /// Does what follows from everything so far.
    fn follow_up(&mut self) -> Result<(), CoordinatorError> {
        loop {
            let effects = self.parts.member.effects().map_err(CoordinatorError::Foreign)?;
            let written = self.carry_out(effects);
            if written.is_none() {
                break;
            }
            self.parts.member.on_written(self.now, written);
        }
        if self.stuck.is_none() {
            self.parts.disk.start();
        }
        if self.known != *self.parts.member.members() {
            self.known = self.parts.member.members().clone();
            self.parts.has_state.store(true, Ordering::Release);
            self.parts.peers.follow(&self.known).into_iter().for_each(|lost| self.on_delivery(lost));
        }
        let leader = match self.parts.member.role() {
            Role::Leader { serving: true } => Some(self.parts.member.id()),
            Role::Leader { serving: false } => None,
            Role::Follower { leader } => leader,
        };
        self.answer_transfer(leader);
        self.parts.leader.send_if_modified(|known| std::mem::replace(known, leader) != leader);
        gauge!(LEADS).set(if leader == Some(self.parts.member.id()) { 1.0 } else { 0.0 });
        gauge!(TERM).set(self.parts.member.term() as f64);
        Ok(())
    }

    /// Answers a leader transfer once its target leads, another coordinator does, or this one keeps leading.
    fn answer_transfer(&mut self, leader: Option<MemberId>) {
        let (Some((target, _)), Some(leader)) = (&self.transfer, leader) else { return };
        let result = if leader == *target {
            Ok(())
        } else if self.parts.member.hands_over() {
            return;
        } else {
            let message = format!("coordinator {target} did not take over, {leader} leads; try again");
            Err(ServiceError::new(ServiceErrorKind::Unavailable, message))
        };
        if let Some((_, reply)) = self.transfer.take() {
            let _ = reply.send(result);
        }
    }

    /// Gives the number up to which everything is written already.
    fn carry_out(&mut self, effects: Effects) -> Option<u64> {
        for failed in self.parts.peers.send(effects.messages) {
            self.on_delivery(failed);
        }
        let has_ended = matches!(effects.serving, Some(ServingChange::Ended));
        let written = self.parts.disk.push(effects.writes);
        if let Some(serving) = effects.serving {
            self.on_serving(serving);
        }
        effects.decided.iter().for_each(|record| self.gauges.on_record(record));
        Gauges::count(&effects.decided);
        for (job, key, manifest) in effects.manifests {
            let others = self.parts.member.voters() / 2;
            self.indexes.save(job, key, manifest, others);
        }
        for (request, reply) in effects.replies {
            self.pending.answer(request, reply);
        }
        for (request, changed) in effects.changes {
            self.pending.answer_change(request, changed);
        }
        if has_ended {
            // The state machine that held their reports back is gone.
            self.refuse_waiting(&self.parts.member.refusal());
        }
        written
    }

    fn on_serving(&mut self, serving: ServingChange) {
        self.gauges = Gauges::default();
        match serving {
            ServingChange::Begun { preparing, state } => {
                tracing::info!(term = self.parts.member.term(), "this coordinator leads");
                state.iter().for_each(|record| self.gauges.on_record(record));
                self.indexes.load_all(preparing);
            }
            ServingChange::Ended => {
                tracing::info!(term = self.parts.member.term(), "this coordinator leads no more");
                self.indexes.abort_all();
                self.release_held();
            }
        }
    }

    fn on_loaded(&mut self, job: JobId, saved: Option<Arc<Manifest>>) {
        if let (Some(cluster), Some(saved)) = (self.parts.member.cluster_mut(), saved) {
            cluster.set_saved(job, saved);
        }
        if self.indexes.finish_loading() {
            self.release_held();
        }
    }

    fn release_held(&mut self) {
        for input in self.held.take() {
            self.take(input);
        }
    }

    fn leads(&self) -> bool {
        matches!(self.parts.member.role(), Role::Leader { .. })
    }

    fn refuse_waiting(&mut self, refusal: &ServiceError) {
        self.held.take();
        self.pending.refuse_all(refusal);
    }
}

/// What the sender of a report hears whose next one came before a new leader had loaded what it needs.
fn overtaken() -> ServiceError {
    ServiceError::new(
        ServiceErrorKind::Unavailable,
        "a later report has come before this one was answered; ask again",
    )
}

#[cfg(test)]
mod tests;
