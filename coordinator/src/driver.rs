//! The driver task, which owns the raft node: it takes requests, runs the node, writes and sends the effects, and replies.

mod addresses;
mod events;
mod held_inputs;
mod indexes;
mod pending;

use std::sync::Arc;

use feedline_cluster::{Input, Reply, SavedIndexes};
use feedline_data::ids::{JobId, Millis};
use feedline_data::messages::{PlanAllocations, ServiceError, ServiceErrorKind};
use feedline_raft::{
    Effects, MemberId, MemberView, Members, MembershipChange, MonotonicTime, RaftNode, Role, ServingChange,
};
use metrics::gauge;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Duration, Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use self::events::{Event, next};
use self::held_inputs::HeldInputs;
use self::indexes::{IndexEvent, IndexRequests};
use self::pending::PendingReplies;
use crate::address_book::AddressBook;
use crate::clock::PausableClock;
use crate::disk::{Disk, WriteOutcome};
use crate::error::CoordinatorError;
use crate::index_store::IndexStore;
use crate::leader_samples::LeaderSamples;
use crate::limits::RequestLimits;
use crate::metrics::{Gauges, LEADS, QUEUED_REQUESTS, TERM};
use crate::peer_event::PeerEvent;
use crate::peers::{Peers, SendOutcome};
use crate::request::{Request, shutting_down};
use crate::request_queue::{QueuedRequest, RequestReceiver};

/// Maximum number of queued commands, such as plans and membership changes. Requests have a separate queue.
pub(crate) const MAX_QUEUED_COMMANDS: usize = 64;
/// Maximum number of requests in one step of the state machine.
const MAX_BATCH_REQUESTS: usize = 256;
/// Maximum wait for another leader during a shutdown.
const LEADER_TRANSFER_TIMEOUT: Duration = Duration::from_secs(1);

/// A command from this process to the driver.
pub(crate) enum DriverCommand {
    /// Returns the samples for the planner; `None` if another coordinator leads.
    Observe { reply: oneshot::Sender<Option<LeaderSamples>> },
    /// Applies the allocations of the planner.
    Allocate { allocations: PlanAllocations },
    /// Lists the members.
    Members { reply: oneshot::Sender<Result<Vec<MemberView>, ServiceError>> },
    /// Adds a coordinator with an empty disk as a learner.
    Join { id: MemberId, url: String, reply: oneshot::Sender<Result<(), ServiceError>> },
    /// Adds or removes a member.
    Change { change: MembershipChange, reply: oneshot::Sender<Result<Members, ServiceError>> },
    /// Transfers leadership. The reply is sent once the target leads.
    TransferLeader { target: MemberId, reply: oneshot::Sender<Result<(), ServiceError>> },
}

impl DriverCommand {
    /// Rejects a command.
    pub(crate) fn refuse(self, refusal: ServiceError) {
        match self {
            // The sender may have stopped waiting.
            Self::Observe { reply } => drop(reply.send(None)),
            Self::Allocate { .. } => {}
            Self::Members { reply } => drop(reply.send(Err(refusal))),
            Self::Change { reply, .. } => drop(reply.send(Err(refusal))),
            Self::Join { reply, .. } | Self::TransferLeader { reply, .. } => drop(reply.send(Err(refusal))),
        }
    }
}

/// The components that the driver receives when it starts.
pub(crate) struct DriverContext {
    pub(crate) member: RaftNode,
    pub(crate) disk: Disk,
    pub(crate) store: Arc<IndexStore>,
    pub(crate) peers: Arc<Peers>,
    /// The leader, for readiness probes.
    pub(crate) leader: watch::Sender<Option<MemberId>>,
    pub(crate) deliveries: mpsc::Receiver<SendOutcome>,
    pub(crate) commands: mpsc::Receiver<DriverCommand>,
    pub(crate) requests: RequestReceiver,
    pub(crate) limits: RequestLimits,
    /// Maximum time to answer queued requests during a shutdown.
    pub(crate) grace: Duration,
    /// Messages and introductions of other coordinators.
    pub(crate) inbox: mpsc::Receiver<PeerEvent>,
    pub(crate) tick_ms: u64,
    pub(crate) worker_lease_ms: u64,
}

pub(crate) struct Driver {
    parts: DriverContext,
    pending: PendingReplies,
    /// The target of a leader transfer, and the channel for the reply.
    transfer: Option<(MemberId, oneshot::Sender<Result<(), ServiceError>>)>,
    clock: PausableClock,
    started: Instant,
    now: MonotonicTime,
    tick: Duration,
    indexes: IndexRequests,
    /// Inputs that arrived while saved indexes were loaded.
    held_inputs: HeldInputs,
    /// Whether requests wait in a batch while earlier records are written.
    is_batching: bool,
    /// The error of the last write, until a write succeeds.
    write_error: Option<ServiceError>,
    known_members: Members,
    addresses: AddressBook,
    /// `None` unless this coordinator serves as the leader.
    gauges: Option<Gauges>,
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
            held_inputs: HeldInputs::default(),
            is_batching: false,
            write_error: None,
            known_members: Members::default(),
            addresses: AddressBook::default(),
            gauges: None,
        }
    }

    /// Runs until `stop`. Then answers queued requests, transfers leadership and closes the log.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), CoordinatorError> {
        let mut ticks = tokio::time::interval(self.tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut commands = Vec::with_capacity(MAX_BATCH_REQUESTS);
        self.process_effects()?;
        loop {
            let DriverContext { disk, inbox, deliveries, commands: asked, requests, .. } = &mut self.parts;
            tokio::select! {
                () = stop.cancelled() => break,
                () = requests.ready() => self.run_step(&mut commands, false)?,
                taken = asked.recv_many(&mut commands, MAX_BATCH_REQUESTS) => {
                    if taken == 0 {
                        break;
                    }
                    self.run_step(&mut commands, false)?;
                }
                event = next(disk, inbox, deliveries, &mut self.indexes) => {
                    self.on_event(event?);
                    self.process_effects()?;
                    if self.is_batching {
                        self.run_step(&mut commands, false)?;
                    }
                }
                _ = ticks.tick() => {
                    self.on_tick();
                    self.run_step(&mut commands, true)?;
                }
            }
        }
        self.shut_down(&mut ticks).await
    }

    /// Answers queued requests and transfers leadership.
    async fn shut_down(mut self, ticks: &mut Interval) -> Result<(), CoordinatorError> {
        let mut commands = Vec::with_capacity(MAX_BATCH_REQUESTS);
        self.parts.requests.close();
        self.parts.commands.close();
        while self.parts.commands.recv_many(&mut commands, MAX_BATCH_REQUESTS).await > 0 {
            self.run_step(&mut commands, true)?;
        }
        while !self.parts.requests.is_empty() || self.is_batching {
            self.run_step(&mut commands, true)?;
        }
        let start = Instant::now();
        let write_deadline = start + self.parts.grace;
        let transfer_deadline = start + self.parts.grace.min(LEADER_TRANSFER_TIMEOUT);
        let is_transferring = self.parts.member.retire(self.now);
        self.process_effects()?;
        while self.write_error.is_none()
            && (self.parts.disk.has_work() && Instant::now() < write_deadline
                || is_transferring && self.leads() && Instant::now() < transfer_deadline)
        {
            let DriverContext { disk, inbox, deliveries, .. } = &mut self.parts;
            tokio::select! {
                event = next(disk, inbox, deliveries, &mut self.indexes) => self.on_event(event?),
                _ = ticks.tick() => self.on_tick(),
            }
            self.process_effects()?;
        }
        self.refuse_waiting(&shutting_down());
        match self.write_error {
            // The records of the failed writes were not acknowledged.
            Some(refusal) => Err(CoordinatorError::Stopped(refusal.message)),
            None => Ok(()),
        }
    }

    /// Runs a step: processes all commands and the next requests. While earlier records are being written, the requests wait
    /// for a common batch, at most until the next tick (`is_tick`).
    fn run_step(&mut self, commands: &mut Vec<DriverCommand>, is_tick: bool) -> Result<(), CoordinatorError> {
        self.advance_clocks();
        for command in commands.drain(..) {
            self.on_command(command);
        }
        for QueuedRequest { request, reply } in self.parts.requests.pop(MAX_BATCH_REQUESTS) {
            self.take_request(request, reply);
        }
        gauge!(QUEUED_REQUESTS).set(self.parts.requests.len() as f64);
        self.is_batching = !is_tick && self.leads() && self.parts.member.pending_entries() > 0;
        if self.write_error.is_none() && !self.is_batching {
            self.parts.member.decide(self.now);
        }
        if is_tick && let Some(gauges) = &mut self.gauges {
            gauges.publish(self.now.cluster, self.parts.worker_lease_ms);
            if let Ok(members) = self.parts.member.member_views() {
                Gauges::publish_voters(&members);
            }
        }
        self.process_effects()
    }

    /// Advances the clocks. The time of the state machine stops while the log cannot be written. Otherwise, workers would
    /// expire because their reports are not processed.
    fn advance_clocks(&mut self) {
        if self.write_error.is_none() {
            self.now.cluster = self.clock.advance();
        }
        self.now.real = self.started.elapsed().as_millis() as Millis;
    }

    fn on_command(&mut self, command: DriverCommand) {
        match command {
            DriverCommand::Observe { reply } => {
                let (term, now) = (self.parts.member.term(), self.now.cluster);
                let samples = self.parts.member.cluster().map(|cluster| Box::new(cluster.samples()));
                // The planner may have stopped waiting.
                let _ = reply.send(samples.map(|samples| LeaderSamples { term, now, samples }));
            }
            // The planner sends the allocations again with the next changed plan.
            DriverCommand::Allocate { .. } if self.write_error.is_some() => {}
            DriverCommand::Allocate { allocations } => {
                self.parts.member.take_input(self.now, Input::Allocations { allocations })
            }
            DriverCommand::Members { reply } => drop(reply.send(self.parts.member.member_views())),
            DriverCommand::Join { id, url, reply } => {
                drop(reply.send(self.parts.member.join(self.now, id, &url)));
            }
            DriverCommand::Change { change, reply } => {
                let request = self.pending.add_change(reply);
                self.parts.member.change_members(self.now, request, change);
            }
            DriverCommand::TransferLeader { target, reply } => {
                match self.parts.member.transfer_leader(self.now, target) {
                    Ok(()) => self.transfer = Some((target, reply)),
                    Err(refusal) => drop(reply.send(Err(refusal))),
                }
            }
        }
    }

    fn take_request(&mut self, request: Request, reply: oneshot::Sender<Reply>) {
        if let Some(refusal) = &self.write_error {
            drop(reply.send(Reply::Rejected(refusal.clone())));
            return;
        }
        if let Some(refusal) = self.check_limits(&request) {
            drop(reply.send(Reply::Rejected(refusal)));
            return;
        }
        if self.indexes.is_loading() && self.held_inputs.len() >= self.parts.limits.unanswered {
            drop(reply.send(Reply::Rejected(RequestLimits::too_many(self.held_inputs.len()))));
            return;
        }
        let id = self.pending.add(reply);
        let input = request.into_input(id);
        if !self.indexes.is_loading() {
            self.take_input(input);
        } else if let Some(earlier) = self.held_inputs.push(input) {
            self.pending.answer(earlier, Reply::Rejected(replaced_report()));
        }
    }

    /// Returns an error if the request exceeds the limits. Reports are never rejected, because the open jobs limit their
    /// number.
    fn check_limits(&self, request: &Request) -> Option<ServiceError> {
        if matches!(request, Request::Worker(_) | Request::Consumer(_)) {
            return None;
        }
        let (member, limits) = (&self.parts.member, &self.parts.limits);
        let opens = matches!(request, Request::OpenJob { .. } | Request::JoinJob { may_open: true, .. });
        limits.check(self.pending.len(), opens.then(|| (member.pending_entries(), member.log_bytes())))
    }

    fn take_input(&mut self, input: Input) {
        if let (Input::Worker { report, .. }, Some(gauges)) = (&input, &mut self.gauges) {
            gauges.on_worker(report.worker, self.now.cluster);
        }
        self.parts.member.take_input(self.now, input);
    }

    fn on_tick(&mut self) {
        self.advance_clocks();
        self.parts.member.tick(self.now);
        if self.write_error.is_some() {
            self.parts.disk.start();
        }
    }

    fn on_event(&mut self, event: Event) {
        self.advance_clocks();
        match event {
            Event::Written(written) => self.on_written(written),
            Event::Peer(event) => self.on_peer(event),
            Event::Delivery(delivery) => self.on_delivery(delivery),
            Event::Index(IndexEvent::Saved(job, saved)) => {
                self.parts.member.take_input(self.now, Input::IndexSaved { job, result: saved });
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
        match (written.error, &self.write_error) {
            (Some(error), None) => {
                let refusal = ServiceError::new(ServiceErrorKind::Unavailable, error.to_string());
                tracing::error!("{refusal}");
                self.refuse_waiting(&refusal);
                self.write_error = Some(refusal);
            }
            (None, Some(_)) => {
                tracing::info!("the coordinator's log is writable again");
                self.write_error = None;
                self.advance_clocks();
            }
            _ => {}
        }
    }

    /// Applies the effects of the raft node.
    fn process_effects(&mut self) -> Result<(), CoordinatorError> {
        loop {
            let effects = self.parts.member.effects().map_err(CoordinatorError::Foreign)?;
            let written = self.apply_effects(effects);
            if written.is_none() {
                break;
            }
            self.parts.member.on_written(self.now, written);
        }
        if self.write_error.is_none() {
            self.parts.disk.start();
        }
        self.follow_members();
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

    /// Answers a leader transfer once its target or another coordinator leads, or this coordinator continues to lead.
    fn answer_transfer(&mut self, leader: Option<MemberId>) {
        let (Some((target, _)), Some(leader)) = (&self.transfer, leader) else { return };
        let result = if leader == *target {
            Ok(())
        } else if self.parts.member.is_transferring() {
            return;
        } else {
            let message =
                format!("coordinator {target} did not become the leader: {leader} is the leader; retry");
            Err(ServiceError::new(ServiceErrorKind::Unavailable, message))
        };
        if let Some((_, reply)) = self.transfer.take() {
            let _ = reply.send(result);
        }
    }

    /// Sends messages and replies, and queues writes. Returns the number of the last write that is already finished.
    fn apply_effects(&mut self, effects: Effects) -> Option<u64> {
        for failed in self.parts.peers.send(effects.messages) {
            self.on_delivery(failed);
        }
        let has_ended = matches!(effects.serving_change, Some(ServingChange::Ended));
        let written = self.parts.disk.push(effects.writes);
        if let Some(serving) = effects.serving_change {
            self.on_serving(serving);
        }
        if let Some(gauges) = &mut self.gauges {
            effects.proposed_records.iter().for_each(|record| gauges.on_record(record));
        }
        Gauges::count(&effects.proposed_records);
        for index in effects.manifests {
            let others = self.parts.member.voters() / 2;
            self.indexes.save(index, others);
        }
        for (request, reply) in effects.replies {
            self.pending.answer(request, reply);
        }
        for (request, changed) in effects.membership_results {
            self.pending.answer_change(request, changed);
        }
        if has_ended {
            // The state machine with these long polls no longer exists.
            self.refuse_waiting(&self.parts.member.rejection());
        }
        written
    }

    fn on_serving(&mut self, serving: ServingChange) {
        match serving {
            ServingChange::Started { preparing, records } => {
                tracing::info!(term = self.parts.member.term(), "this coordinator is the leader");
                let mut gauges = Gauges::default();
                records.iter().for_each(|record| gauges.on_record(record));
                self.gauges = Some(gauges);
                let cluster = self.parts.member.cluster_mut();
                let start =
                    |job| cluster.as_ref().map(|cluster| cluster.start_content(job)).unwrap_or_default();
                let preparing = preparing.into_iter().map(|(job, key)| (job, key, start(job))).collect();
                self.indexes.load_all(preparing);
            }
            ServingChange::Ended => {
                tracing::info!(term = self.parts.member.term(), "this coordinator is no longer the leader");
                if let Some(gauges) = self.gauges.take() {
                    gauges.retire();
                }
                self.indexes.abort_all();
                self.take_held_inputs();
            }
        }
    }

    fn on_loaded(&mut self, job: JobId, saved: SavedIndexes) {
        if let Some(cluster) = self.parts.member.cluster_mut() {
            cluster.set_saved_index(job, saved);
        }
        if self.indexes.finish_loading() {
            self.take_held_inputs();
        }
    }

    fn take_held_inputs(&mut self) {
        for input in self.held_inputs.take() {
            self.take_input(input);
        }
    }

    fn leads(&self) -> bool {
        matches!(self.parts.member.role(), Role::Leader { .. })
    }

    fn refuse_waiting(&mut self, refusal: &ServiceError) {
        self.held_inputs.take();
        self.pending.refuse_all(refusal);
    }
}

/// Returns the error for a report that a later report of the same session has replaced.
fn replaced_report() -> ServiceError {
    ServiceError::new(
        ServiceErrorKind::Unavailable,
        "this report was superseded by a later report from the same session; retry",
    )
}

#[cfg(test)]
mod tests;
