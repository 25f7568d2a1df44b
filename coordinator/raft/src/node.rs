//! A coordinator as a raft node that replicates the cluster's state machine.
//!
//! The inputs are the time, messages from other members, requests and finished writes. The outputs are messages, writes and
//! replies. A node owns no clock, task, socket, file or source of randomness.

mod addresses;
mod heartbeat;
mod injected_faults;
mod joining;
mod leader;
mod leader_transfer;
mod lease;
mod membership;
mod replies;
mod settings;
mod write_queue;
mod writes;

use std::collections::BTreeMap;

use feedline_cluster::{Input, Reply};
use feedline_data::ids::Millis;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_data::random::mix64;
use protobuf::Message as _;
use raft::eraftpb::{ConfChange, ConfChangeV2, Entry, EntryType};
use raft::{Config, RawNode, ReadOnlyOption, StateRole};
use slog::{Discard, Logger, o};

use self::leader::LeaderState;
pub use self::settings::{InjectedFault, MonotonicTime, RaftSettings};
use self::write_queue::{PendingWrite, WriteQueue};
use crate::effects::{Effects, Role, ServingChange};
use crate::entry::EntryPayload;
use crate::members::{MemberId, Members, removed_member};
use crate::persisted::{LogWrite, PersistedState};
use crate::snapshot::AppliedState;
use crate::storage::{MemoryStorage, entry_bytes};

/// The log is compacted when its entries are this many times as large as its snapshot.
const COMPACTION_GROWTH_FACTOR: u64 = 4;
/// Maximum size of the entries before a snapshot that stay in memory, unless the snapshot is larger.
const MIN_KEPT_BYTES: u64 = 8 << 20;
/// Number of ticks between two heartbeats.
const HEARTBEAT_TICKS: usize = 2;
/// Maximum size of the entries in one message.
const MAX_MESSAGE_BYTES: u64 = 1 << 20;
/// Maximum number of messages with entries in flight to one member.
const MAX_INFLIGHT_MESSAGES: usize = 64;

/// A coordinator that replicates its state machine with raft.
pub struct RaftNode {
    id: MemberId,
    settings: RaftSettings,
    /// Differs between members and between restarts of a member.
    seed: u64,
    node: RawNode<MemoryStorage>,
    applied: AppliedState,
    leading: Option<LeaderState>,
    /// Inputs that arrived before the state machine was complete.
    held_inputs: Vec<Input>,
    /// Whether the state machine has become complete since the last call to [`Self::effects`].
    has_started_serving: bool,
    /// Whether the member is shutting down.
    is_retiring: bool,
    /// Whether the next call to [`Self::effects`] compacts the log regardless of its size.
    snapshot_due: bool,
    write_queue: WriteQueue,
    /// Whether the term, vote or commit has changed since the last write.
    hard_state_changed: bool,
    ticks: u64,
    elections: u64,
    /// The time of the last message from each other member.
    last_heard: BTreeMap<u64, Millis>,
    /// The addresses that other coordinators have stated since the start.
    addresses: BTreeMap<MemberId, String>,
    /// Size of the entries after the snapshot.
    log_bytes: u64,
    snapshot_bytes: u64,
    now: MonotonicTime,
    effects: Effects,
    /// Applied records, if the settings ask for them. The simulation compares them between members.
    just_applied: Vec<(u64, Vec<feedline_cluster::records::Record>)>,
}

impl RaftNode {
    /// Creates a member that continues from its persisted state. `seed` must be larger than all earlier seeds of the member.
    /// A time in nanoseconds is suitable.
    ///
    /// # Errors
    /// Returns an error if the state is corrupted. The error is part of a sentence.
    pub fn new(
        id: MemberId,
        stored: PersistedState,
        settings: RaftSettings,
        seed: u64,
    ) -> Result<Self, String> {
        stored.check()?;
        let mut applied = AppliedState::new(settings.cluster.clone());
        let index = stored.snapshot.get_metadata().index;
        if index > 0 {
            applied.install(index, &stored.snapshot.data)?;
        }
        let log_bytes = stored.entries.iter().map(entry_bytes).sum();
        let snapshot_bytes = stored.snapshot.data.len() as u64;
        let config = Config {
            id: id.get(),
            election_tick: settings.election_ticks as usize,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied: index,
            max_size_per_msg: MAX_MESSAGE_BYTES,
            max_inflight_msgs: MAX_INFLIGHT_MESSAGES,
            check_quorum: true,
            pre_vote: true,
            read_only_option: ReadOnlyOption::Safe,
            batch_append: true,
            max_uncommitted_size: raft::NO_LIMIT,
            max_committed_size_per_ready: raft::NO_LIMIT,
            ..Config::default()
        };
        let node = RawNode::new(&config, MemoryStorage::new(stored), &Logger::root(Discard, o!()))
            .map_err(|error| error.to_string())?;
        let mut member = Self {
            id,
            settings,
            seed,
            node,
            applied,
            leading: None,
            held_inputs: Vec::new(),
            has_started_serving: false,
            is_retiring: false,
            snapshot_due: false,
            write_queue: WriteQueue::default(),
            hard_state_changed: false,
            ticks: 0,
            elections: 0,
            last_heard: BTreeMap::new(),
            addresses: BTreeMap::new(),
            log_bytes,
            snapshot_bytes,
            now: MonotonicTime::default(),
            effects: Effects::default(),
            just_applied: Vec::new(),
        };
        if member.is_alone() {
            // No other member can be elected.
            let _ = member.node.campaign();
        }
        Ok(member)
    }

    /// Returns the id of this member.
    pub fn id(&self) -> MemberId {
        self.id
    }

    /// Returns the members of the applied configuration.
    pub fn members(&self) -> &Members {
        &self.applied.members
    }

    /// Returns the role of this member.
    pub fn role(&self) -> Role {
        match &self.leading {
            Some(leading) => Role::Leader { serving: leading.cluster.is_some() },
            None => Role::Follower { leader: MemberId::new(self.node.raft.leader_id) },
        }
    }

    /// Returns the current term.
    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    /// Returns the size of the log: the snapshot and the entries after the snapshot.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes + self.snapshot_bytes
    }

    /// Returns the number of entries in the log that are not applied yet.
    pub fn pending_entries(&self) -> u64 {
        self.node.raft.raft_log.last_index().saturating_sub(self.applied.index)
    }

    /// Returns the state machine of a serving leader.
    pub fn cluster(&self) -> Option<&feedline_cluster::Cluster> {
        self.leading.as_ref().and_then(|leading| leading.cluster.as_ref())
    }

    /// Returns the state machine of a serving leader for changes to its saved indexes.
    pub fn cluster_mut(&mut self) -> Option<&mut feedline_cluster::Cluster> {
        self.leading.as_mut().and_then(|leading| leading.cluster.as_mut())
    }

    /// Returns the records of the entries that were applied since the last call, with the index of each entry. The list is
    /// empty without [`RaftSettings::collect_applied`].
    pub fn take_applied(&mut self) -> Vec<(u64, Vec<feedline_cluster::records::Record>)> {
        std::mem::take(&mut self.just_applied)
    }

    /// Returns whether all records are applied.
    pub fn is_settled(&self) -> bool {
        let is_proposed = self.leading.as_ref().is_none_or(|leading| leading.ready.records.is_empty());
        is_proposed && self.node.raft.raft_log.last_index() == self.applied.index
    }

    /// Returns the records from which the applied state can be rebuilt.
    pub fn snapshot(&self) -> Vec<feedline_cluster::records::Record> {
        self.applied.snapshot().records
    }

    fn advance_clock(&mut self, now: MonotonicTime) {
        self.now.cluster = self.now.cluster.max(now.cluster);
        self.now.real = self.now.real.max(now.real);
    }

    /// Handles one tick of the clock.
    pub fn tick(&mut self, now: MonotonicTime) {
        self.advance_clock(now);
        self.ticks += 1;
        // Raft's random timeouts would not be reproducible.
        let min_ticks = self.election_ticks();
        let draw = mix64(self.seed ^ mix64(self.term() ^ (self.elections << 32))) % min_ticks;
        self.node.raft.set_randomized_election_timeout((min_ticks + draw) as usize);
        // A follower campaigns after a number of ticks.
        if self.leading.is_some() || self.may_campaign() {
            self.node.tick();
        }
        let raft = &self.node.raft;
        let campaigns = matches!(raft.state, StateRole::PreCandidate | StateRole::Candidate);
        if campaigns && raft.election_elapsed == 0 {
            self.elections += 1;
        }
        self.finish_hung_steps();
        self.end_failed_transfer();
        self.transfer_if_unfit();
        self.renew_lease();
        self.confirm_removal();
        self.leave_joint();
        self.promote_learners();
        self.publish_address();
    }

    /// Accepts an input, or replies with the address of the leader. [`Self::decide`] processes the input.
    pub fn take_input(&mut self, now: MonotonicTime, input: Input) {
        self.advance_clock(now);
        match &mut self.leading {
            // Inputs without a request are not retried.
            Some(leading) if leading.is_transferring && input.request().is_some() => self.reject(input),
            Some(LeaderState { cluster: Some(cluster), ready, .. }) => {
                cluster.take_input(self.now.cluster, input, ready)
            }
            Some(_) => self.held_inputs.push(input),
            None => self.reject(input),
        }
    }

    /// Processes all inputs since the last call and all deadlines up to `now`, and proposes the resulting records.
    pub fn decide(&mut self, now: MonotonicTime) {
        self.advance_clock(now);
        if self.cannot_write() {
            return;
        }
        let Some(leading) = self.leading.as_mut().filter(|leading| !leading.is_transferring) else { return };
        let Some(cluster) = &mut leading.cluster else { return };
        cluster.step(self.now.cluster, Input::Tick, &mut leading.ready);
        let ready = std::mem::take(&mut leading.ready);
        self.effects.manifests.extend(ready.manifests);
        let needs_proof = !ready.replies.is_empty() && leading.lease.is_given_up();
        if ready.records.is_empty() && !needs_proof {
            leading.reply_when_leading(ready.replies);
            return;
        }
        let records = injected_faults::logged_records(&self.settings, &ready.records);
        for (data, records) in EntryPayload::encode_records(records) {
            if self.node.propose(Vec::new(), data).is_err() {
                // The state machine is ahead of the log.
                self.stop_leading();
                return;
            }
            leading.add_proposed(self.node.raft.raft_log.last_index(), records);
        }
        leading.reply_when_committed(self.node.raft.raft_log.last_index(), ready.replies);
        self.effects.proposed_records.extend(ready.records);
    }

    /// Returns the messages, writes and replies since the last call.
    ///
    /// # Errors
    /// Returns an error if an entry cannot be decoded. The member must stop and restart with a newer release. The error is
    /// part of a sentence.
    pub fn effects(&mut self) -> Result<Effects, String> {
        loop {
            self.follow_role();
            if !self.node.has_ready() {
                break;
            }
            self.handle_ready()?;
            if std::mem::take(&mut self.has_started_serving) {
                self.decide(self.now);
            }
        }
        self.compact_if_due();
        self.send_due_replies();
        Ok(std::mem::take(&mut self.effects))
    }

    /// Handles one `Ready` from raft: messages to send, entries to write and entries to apply.
    fn handle_ready(&mut self) -> Result<(), String> {
        let mut ready = self.node.ready();
        let number = ready.number();
        self.effects.messages.extend(ready.take_messages());
        let messages = ready.take_persisted_messages();
        let reads = ready.take_read_states();
        let committed = ready.take_committed_entries();
        let entries = ready.take_entries();
        let snapshot = (!ready.snapshot().is_empty()).then(|| ready.snapshot().clone());
        let (must_write, is_install) = (ready.must_sync() || snapshot.is_some(), snapshot.is_some());
        if let Some(state) = ready.hs() {
            self.node.mut_store().set_hard_state(state.clone());
            self.hard_state_changed = true;
        }
        if let Some(snapshot) = snapshot {
            self.install(snapshot, number)?;
        }
        if !entries.is_empty() || ready.must_sync() {
            self.log_bytes += entries.iter().map(entry_bytes).sum::<u64>();
            let storage = self.node.mut_store();
            storage.append(&entries);
            let hard_state = std::mem::take(&mut self.hard_state_changed).then(|| storage.stored_state());
            self.effects.writes.push(LogWrite::Append { number, hard_state, entries });
        }
        self.node.advance_append_async(ready);
        self.queue_step(PendingWrite { number, messages, must_write, is_install });
        for entry in committed {
            self.apply(entry)?;
        }
        self.report_applied();
        self.answer_changes();
        for read in reads {
            self.on_read_index_confirmed(&read.request_ctx);
        }
        Ok(())
    }

    fn install(&mut self, snapshot: raft::eraftpb::Snapshot, number: u64) -> Result<(), String> {
        self.applied.install(snapshot.get_metadata().index, &snapshot.data)?;
        (self.log_bytes, self.snapshot_bytes) = (0, snapshot.data.len() as u64);
        let storage = self.node.mut_store();
        storage.install(snapshot);
        self.hard_state_changed = false;
        self.effects.writes.push(LogWrite::Install { number, stored: Box::new(storage.stored()) });
        Ok(())
    }

    fn apply(&mut self, entry: Entry) -> Result<(), String> {
        match entry.get_entry_type() {
            EntryType::EntryNormal if entry.data.is_empty() => {}
            EntryType::EntryNormal => {
                let leading = self.leading.as_mut();
                let payload = match leading.and_then(|it| it.take_proposed(entry.term, entry.index)) {
                    Some(records) => EntryPayload::Records(records),
                    None => EntryPayload::from_bytes(&entry.data)?,
                };
                self.applied.apply(&payload);
                if let EntryPayload::Records(records) = &payload
                    && self.settings.collect_applied
                {
                    self.just_applied.push((entry.index, records.clone()));
                }
                if matches!(payload, EntryPayload::Lead { .. }) {
                    self.applied.index = entry.index;
                    self.start_serving(&entry);
                }
            }
            EntryType::EntryConfChange => {
                let mut change = ConfChange::default();
                change.merge_from_bytes(&entry.data).map_err(|error| error.to_string())?;
                self.apply_change(&change)?;
            }
            EntryType::EntryConfChangeV2 => {
                let mut change = ConfChangeV2::default();
                change.merge_from_bytes(&entry.data).map_err(|error| error.to_string())?;
                self.apply_replacement(&change)?;
            }
        }
        self.applied.index = entry.index;
        Ok(())
    }

    /// Replaces the applied entries with a snapshot if the log is large.
    fn compact_if_due(&mut self) {
        let limit = self.settings.compact_bytes.max(COMPACTION_GROWTH_FACTOR * self.snapshot_bytes);
        let is_due = std::mem::take(&mut self.snapshot_due) || self.log_bytes > limit;
        if !is_due || self.applied.index <= self.node.store().snapshot_index() {
            return;
        }
        let data = self.applied.snapshot().to_bytes();
        self.snapshot_bytes = data.len() as u64;
        let storage = self.node.mut_store();
        // A member that lacks more bytes than these is sent the snapshot.
        let kept_bytes = MIN_KEPT_BYTES.max(self.snapshot_bytes);
        storage.compact(self.applied.index, data.into(), self.settings.kept_entries, kept_bytes);
        let stored = storage.stored();
        self.log_bytes = stored.entries.iter().map(entry_bytes).sum();
        self.hard_state_changed = false;
        self.effects.writes.push(LogWrite::Compact(Box::new(stored)));
    }

    /// Starts or stops leading according to the role of the raft node.
    fn follow_role(&mut self) {
        let (term, leads) = (self.term(), self.node.raft.state == StateRole::Leader);
        if self.leading.as_ref().is_some_and(|leading| !leads || leading.term != term) {
            self.stop_leading();
        }
        if leads && self.leading.is_none() {
            let data = EntryPayload::Lead { incarnation: self.seed }.to_bytes();
            if self.node.propose(Vec::new(), data).is_ok() {
                let index = self.node.raft.raft_log.last_index();
                self.leading = Some(LeaderState::new(term, index, self.now.real));
            }
        }
    }

    fn start_serving(&mut self, entry: &Entry) {
        let incarnation = self.applied.incarnation;
        let Some(leading) =
            self.leading.as_mut().filter(|it| (it.term, it.index) == (entry.term, entry.index))
        else {
            return;
        };
        let mut cluster = self.applied.to_leader(incarnation, self.now.cluster);
        let (preparing, records) = (cluster.preparing_jobs(), cluster.snapshot());
        for input in self.held_inputs.drain(..) {
            cluster.take_input(self.now.cluster, input, &mut leading.ready);
        }
        leading.cluster = Some(cluster);
        self.has_started_serving = true;
        self.effects.serving_change = Some(ServingChange::Started { preparing, records });
        self.renew_lease();
    }

    /// Rejects all unanswered requests, because the next leader may decide differently.
    fn stop_leading(&mut self) {
        let Some(leading) = self.leading.take() else { return };
        let rejection = self.rejection();
        let held = std::mem::take(&mut self.held_inputs);
        let unanswered = held.iter().filter_map(Input::request).chain(leading.unanswered());
        self.effects.replies.extend(unanswered.map(|request| (request, Reply::Rejected(rejection.clone()))));
        self.effects
            .membership_results
            .extend(leading.changes.into_iter().map(|(request, _)| (request, Err(rejection.clone()))));
        if leading.cluster.is_some() {
            self.effects.serving_change = Some(ServingChange::Ended);
        }
    }

    fn reject(&mut self, input: Input) {
        if let Some(request) = input.request() {
            self.effects.replies.push((request, Reply::Rejected(self.rejection())));
        }
    }

    /// Returns the error for a request that only the leader can process, with the address of the leader if known.
    pub fn rejection(&self) -> ServiceError {
        if self.applied.removed.contains(&self.id) {
            let ServiceError { message, .. } = removed_member(self.id);
            // Another coordinator may answer.
            return ServiceError::new(ServiceErrorKind::Unavailable, message);
        }
        let leader = MemberId::new(self.node.raft.leader_id).filter(|leader| *leader != self.id);
        match leader.and_then(|leader| self.address_of(leader)) {
            Some(url) => ServiceError::not_leader(url),
            None => ServiceError::new(
                ServiceErrorKind::Unavailable,
                "the coordinators are electing a leader; retry in a second",
            ),
        }
    }

    /// Returns whether this member is the only voter.
    fn is_alone(&self) -> bool {
        self.node.store().conf_state().voters == [self.id.get()] && !self.is_joint()
    }
}

#[cfg(test)]
mod tests;
