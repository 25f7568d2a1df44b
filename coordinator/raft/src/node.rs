//! One coordinator of several: a raft node that replicates the cluster's state machine.
//!
//! Its inputs are the time, messages of other members, requests and finished writes. Its outputs are messages, writes and
//! replies. It owns no clock, task, socket, file or source of randomness.

mod heartbeat;
mod leader;
mod leader_transfer;
mod lease;
mod membership;
mod planted;
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
use raft::eraftpb::{ConfChange, Entry, EntryType};
use raft::{Config, RawNode, ReadOnlyOption, StateRole};
use slog::{Discard, Logger, o};

use self::leader::LeaderState;
#[cfg(feature = "plants")]
pub use self::settings::PlantedBug;
pub use self::settings::{MonotonicTime, RaftSettings};
use self::write_queue::{PendingWrite, WriteQueue};
use crate::effects::{Effects, Role, ServingChange};
use crate::entry::EntryPayload;
use crate::members::{MemberId, Members};
use crate::persisted::{LogWrite, PersistedState};
use crate::snapshot::AppliedState;
use crate::storage::MemoryStorage;

/// The log is compacted when it is this many times as large as its snapshot.
const COMPACT_GROWTH: u64 = 4;
/// Ticks between two heartbeats.
const HEARTBEAT_TICKS: usize = 2;
/// Most bytes of entries in one message.
const MESSAGE_BYTES: u64 = 1 << 20;
/// Most messages with entries in flight to one member.
const MESSAGES_AHEAD: usize = 64;

/// One coordinator of several.
pub struct RaftNode {
    id: MemberId,
    settings: RaftSettings,
    /// Differs between members and between lives of a member.
    seed: u64,
    node: RawNode<MemoryStorage>,
    applied: AppliedState,
    leading: Option<LeaderState>,
    /// Inputs that arrived before the state machine was complete.
    held_inputs: Vec<Input>,
    /// Whether the state machine became complete since the last call of [`Self::effects`].
    has_begun_serving: bool,
    /// Whether the member is shutting down.
    retires: bool,
    /// Whether the next call compacts the log whatever its size.
    snapshot_due: bool,
    writing: WriteQueue,
    /// Whether term, vote or commit have changed since they were last written.
    state_changed: bool,
    ticks: u64,
    elections: u64,
    /// When each of the other members sent its last message.
    last_heard: BTreeMap<u64, Millis>,
    /// Bytes of the entries after the snapshot.
    log_bytes: u64,
    snapshot_bytes: u64,
    now: MonotonicTime,
    effects: Effects,
    /// Records for comparison with other members in the simulation.
    #[cfg(feature = "plants")]
    just_applied: Vec<(u64, Vec<feedline_cluster::records::Record>)>,
}

impl RaftNode {
    /// A member that continues from its persisted state. `seed` must be larger than those of its earlier lives, such as a time
    /// in nanoseconds.
    ///
    /// # Errors
    /// If the state is damaged: one clause.
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
        let log_bytes = stored.entries.iter().map(size).sum();
        let snapshot_bytes = stored.snapshot.data.len() as u64;
        let config = Config {
            id: id.get(),
            election_tick: settings.election_ticks as usize,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied: index,
            max_size_per_msg: MESSAGE_BYTES,
            max_inflight_msgs: MESSAGES_AHEAD,
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
            has_begun_serving: false,
            retires: false,
            snapshot_due: false,
            writing: WriteQueue::default(),
            state_changed: false,
            ticks: 0,
            elections: 0,
            last_heard: BTreeMap::new(),
            log_bytes,
            snapshot_bytes,
            now: MonotonicTime::default(),
            effects: Effects::default(),
            #[cfg(feature = "plants")]
            just_applied: Vec::new(),
        };
        if member.is_alone() {
            // No other member can be elected.
            let _ = member.node.campaign();
        }
        Ok(member)
    }

    /// The id of this member.
    pub fn id(&self) -> MemberId {
        self.id
    }

    /// The members of the applied configuration.
    pub fn members(&self) -> &Members {
        &self.applied.members
    }

    /// The role of this member.
    pub fn role(&self) -> Role {
        match &self.leading {
            Some(leading) => Role::Leader { serving: leading.cluster.is_some() },
            None => Role::Follower { leader: MemberId::new(self.node.raft.leader_id) },
        }
    }

    /// The current term.
    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    /// Bytes of the log: the snapshot and the entries after it.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes + self.snapshot_bytes
    }

    /// Entries in the log that are not applied yet.
    pub fn pending_entries(&self) -> u64 {
        self.node.raft.raft_log.last_index().saturating_sub(self.applied.index)
    }

    /// The state machine of a serving leader.
    pub fn cluster(&self) -> Option<&feedline_cluster::Cluster> {
        self.leading.as_ref().and_then(|leading| leading.cluster.as_ref())
    }

    /// The state machine of a serving leader, for its saved indexes.
    pub fn cluster_mut(&mut self) -> Option<&mut feedline_cluster::Cluster> {
        self.leading.as_mut().and_then(|leading| leading.cluster.as_mut())
    }

    /// The records of the entries that were applied since the last call.
    #[cfg(feature = "plants")]
    pub fn take_applied(&mut self) -> Vec<(u64, Vec<feedline_cluster::records::Record>)> {
        std::mem::take(&mut self.just_applied)
    }

    /// Whether all decisions are applied.
    pub fn is_settled(&self) -> bool {
        let is_proposed = self.leading.as_ref().is_none_or(|leading| leading.ready.records.is_empty());
        is_proposed && self.node.raft.raft_log.last_index() == self.applied.index
    }

    /// The records that rebuild the applied state.
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
        // Raft's own random timeouts could not be reproduced.
        let least = self.election_ticks();
        let draw = mix64(self.seed ^ mix64(self.term() ^ (self.elections << 32))) % least;
        self.node.raft.set_randomized_election_timeout((least + draw) as usize);
        // A tick lets a follower campaign.
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
        self.promote_learners();
        self.publish_address();
    }

    /// Takes an input, or replies with the address of the leader. [`Self::decide`] makes the resulting decisions.
    pub fn take_input(&mut self, now: MonotonicTime, input: Input) {
        self.advance_clock(now);
        match &mut self.leading {
            // Inputs without a request are not retried.
            Some(leading) if leading.is_transferring && input.request().is_some() => self.refuse(input),
            Some(LeaderState { cluster: Some(cluster), ready, .. }) => {
                cluster.take_input(self.now.cluster, input, ready)
            }
            Some(_) => self.held_inputs.push(input),
            None => self.refuse(input),
        }
    }

    /// Decides on all inputs since the last call and on the time, and proposes the resulting records.
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
        let records = planted::logged_records(&self.settings, &ready.records);
        for (data, records) in EntryPayload::encode_records(records) {
            if self.node.propose(Vec::new(), data).is_err() {
                // The state machine is ahead of the log.
                self.stop_leading();
                return;
            }
            leading.add_proposed(self.node.raft.raft_log.last_index(), records);
        }
        leading.reply_when_committed(self.node.raft.raft_log.last_index(), ready.replies);
        self.effects.decided.extend(ready.records);
    }

    /// Returns the messages, writes and replies since the last call.
    ///
    /// # Errors
    /// If an entry cannot be decoded: the member must stop and be started with a release that can. One clause.
    pub fn effects(&mut self) -> Result<Effects, String> {
        loop {
            self.follow_role();
            if !self.node.has_ready() {
                break;
            }
            self.handle_ready()?;
            if std::mem::take(&mut self.has_begun_serving) {
                self.decide(self.now);
            }
        }
        self.compact_if_due();
        self.send_due_replies();
        Ok(std::mem::take(&mut self.effects))
    }

    /// Handles one `Ready` of raft: messages to send, entries to write and entries to apply.
    fn handle_ready(&mut self) -> Result<(), String> {
        let mut ready = self.node.ready();
        let number = ready.number();
        self.effects.messages.extend(ready.take_messages());
        let messages = ready.take_persisted_messages();
        let reads = ready.take_read_states();
        let committed = ready.take_committed_entries();
        let entries = ready.take_entries();
        let snapshot = (!ready.snapshot().is_empty()).then(|| ready.snapshot().clone());
        let (must_write, installs) = (ready.must_sync() || snapshot.is_some(), snapshot.is_some());
        if let Some(state) = ready.hs() {
            self.node.mut_store().set_hard_state(state.clone());
            self.state_changed = true;
        }
        if let Some(snapshot) = snapshot {
            self.install(snapshot, number)?;
        }
        if !entries.is_empty() || ready.must_sync() {
            self.log_bytes += entries.iter().map(size).sum::<u64>();
            let storage = self.node.mut_store();
            storage.append(&entries);
            let hard_state = std::mem::take(&mut self.state_changed).then(|| storage.stored_state());
            self.effects.writes.push(LogWrite::Append { number, hard_state, entries });
        }
        self.node.advance_append_async(ready);
        self.queue_step(PendingWrite { number, messages, must_write, installs });
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
        self.state_changed = false;
        self.effects.writes.push(LogWrite::Install { number, stored: Box::new(storage.stored()) });
        Ok(())
    }

    fn apply(&mut self, entry: Entry) -> Result<(), String> {
        match entry.get_entry_type() {
            EntryType::EntryNormal if entry.data.is_empty() => {}
            EntryType::EntryNormal => {
                let leading = self.leading.as_mut();
                let payload = match leading.and_then(|it| it.take_proposed(entry.term, entry.index)) {
                    Some(records) => EntryPayload::Decided(records),
                    None => EntryPayload::from_bytes(&entry.data)?,
                };
                self.applied.apply(&payload);
                #[cfg(feature = "plants")]
                if let EntryPayload::Decided(records) = &payload {
                    self.just_applied.push((entry.index, records.clone()));
                }
                if matches!(payload, EntryPayload::Lead { .. }) {
                    self.applied.index = entry.index;
                    self.begin_serving(&entry);
                }
            }
            EntryType::EntryConfChange => {
                let mut change = ConfChange::default();
                change.merge_from_bytes(&entry.data).map_err(|error| error.to_string())?;
                self.apply_change(&change)?;
            }
            EntryType::EntryConfChangeV2 => return Err("an entry changes several members at once".to_owned()),
        }
        self.applied.index = entry.index;
        Ok(())
    }

    /// Replaces the applied entries by a snapshot once the log is large.
    fn compact_if_due(&mut self) {
        let limit = self.settings.compact_bytes.max(COMPACT_GROWTH * self.snapshot_bytes);
        let is_due = std::mem::take(&mut self.snapshot_due) || self.log_bytes > limit;
        if !is_due || self.applied.index <= self.node.store().snapshot_index() {
            return;
        }
        let data = self.applied.snapshot().to_bytes();
        self.snapshot_bytes = data.len() as u64;
        let storage = self.node.mut_store();
        storage.compact(self.applied.index, data.into(), self.settings.kept_entries);
        let stored = storage.stored();
        self.log_bytes = stored.entries.iter().map(size).sum();
        self.state_changed = false;
        self.effects.writes.push(LogWrite::Compact(Box::new(stored)));
    }

    /// Begins or stops leading with the role of the raft node.
    fn follow_role(&mut self) {
        let (term, leads) = (self.term(), self.node.raft.state == StateRole::Leader);
        if self.leading.as_ref().is_some_and(|leading| !leads || leading.term != term) {
            self.stop_leading();
        }
        if leads && self.leading.is_none() {
            let data = EntryPayload::Lead { life: self.seed }.to_bytes();
            if self.node.propose(Vec::new(), data).is_ok() {
                self.leading = Some(LeaderState::new(term, self.node.raft.raft_log.last_index()));
            }
        }
    }

    fn begin_serving(&mut self, entry: &Entry) {
        let life = self.applied.life;
        let Some(leading) =
            self.leading.as_mut().filter(|it| (it.term, it.index) == (entry.term, entry.index))
        else {
            return;
        };
        let mut cluster = self.applied.lead(life, self.now.cluster);
        let (preparing, state) = (cluster.preparing_jobs(), cluster.snapshot());
        for input in self.held_inputs.drain(..) {
            cluster.take_input(self.now.cluster, input, &mut leading.ready);
        }
        leading.cluster = Some(cluster);
        self.has_begun_serving = true;
        self.effects.serving = Some(ServingChange::Begun { preparing, state });
        self.renew_lease();
    }

    /// Rejects all unanswered requests: the next leader may decide differently.
    fn stop_leading(&mut self) {
        let Some(leading) = self.leading.take() else { return };
        let refusal = self.refusal();
        let held = std::mem::take(&mut self.held_inputs);
        let asked = held.iter().filter_map(Input::request).chain(leading.unanswered());
        self.effects.replies.extend(asked.map(|request| (request, Reply::Rejected(refusal.clone()))));
        self.effects
            .changes
            .extend(leading.changes.into_iter().map(|(request, _)| (request, Err(refusal.clone()))));
        if leading.cluster.is_some() {
            self.effects.serving = Some(ServingChange::Ended);
        }
    }

    fn refuse(&mut self, input: Input) {
        if let Some(request) = input.request() {
            self.effects.replies.push((request, Reply::Rejected(self.refusal())));
        }
    }

    /// The rejection of a request, with the address of the leader if it is known.
    pub fn refusal(&self) -> ServiceError {
        let leader = MemberId::new(self.node.raft.leader_id).filter(|leader| *leader != self.id);
        match leader.and_then(|leader| self.applied.members.url(leader)) {
            Some(url) => ServiceError::not_leader(url),
            None => ServiceError::new(
                ServiceErrorKind::Unavailable,
                "the coordinators are choosing a leader; try again in a second",
            ),
        }
    }

    /// Whether this member is the only voter.
    fn is_alone(&self) -> bool {
        self.node.store().conf_state().voters == [self.id.get()]
    }
}

/// Bytes of an entry without the overhead of its encoding.
fn size(entry: &Entry) -> u64 {
    (entry.data.len() + entry.context.len()) as u64
}

#[cfg(test)]
mod tests;
