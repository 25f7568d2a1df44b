//! One coordinator of several: a raft node with the cluster's state machine on it. It is told the time, messages and what
//! was written, and says what to send, write and answer. It owns no clock, task, socket or file, and draws nothing.

mod heartbeat;
mod leader;
mod leader_transfer;
mod lease;
mod membership;
mod planted;
mod settings;
mod write_queue;

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

/// A log this many times as large as its snapshot is mostly past.
const COMPACT_GROWTH: u64 = 4;
/// Ticks between two heartbeats. Proofs of the lease come between them.
const HEARTBEAT_TICKS: usize = 2;
/// Bytes of entries in one message.
const MESSAGE_BYTES: u64 = 1 << 20;
/// Messages with entries on their way to one member.
const MESSAGES_AHEAD: usize = 64;

/// One coordinator of several.
pub struct RaftNode {
    id: MemberId,
    settings: RaftSettings,
    /// Differs from life to life and from member to member.
    seed: u64,
    node: RawNode<MemoryStorage>,
    applied: AppliedState,
    leading: Option<LeaderState>,
    /// What was asked while it took over.
    held: Vec<Input>,
    /// Whether it serves from this call on.
    begun: bool,
    /// Whether it ends soon.
    retires: bool,
    /// Whether a snapshot is wanted, however small the log is.
    snapshot_due: bool,
    writing: WriteQueue,
    /// Whether term, vote or commit have changed since they were last written.
    state_changed: bool,
    ticks: u64,
    elections: u64,
    /// When each of the others was heard last.
    heard: BTreeMap<u64, Millis>,
    /// Bytes of entries behind the snapshot, and of the snapshot.
    log_bytes: u64,
    snapshot_bytes: u64,
    now: MonotonicTime,
    out: Effects,
    /// What a simulator compares with other members.
    #[cfg(feature = "plants")]
    just_applied: Vec<(u64, Vec<feedline_cluster::records::Record>)>,
}

impl RaftNode {
    /// A member that goes on from what it has on disk. `seed` should be larger than that of its earlier lives: a time in
    /// nanoseconds will do.
    ///
    /// # Errors
    /// When what is there cannot be read: one clause.
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
            held: Vec::new(),
            begun: false,
            retires: false,
            snapshot_due: false,
            writing: WriteQueue::default(),
            state_changed: false,
            ticks: 0,
            elections: 0,
            heard: BTreeMap::new(),
            log_bytes,
            snapshot_bytes,
            now: MonotonicTime::default(),
            out: Effects::default(),
            #[cfg(feature = "plants")]
            just_applied: Vec::new(),
        };
        if member.is_alone() {
            // Nobody else could be elected.
            let _ = member.node.campaign();
        }
        Ok(member)
    }

    /// Its id.
    pub fn id(&self) -> MemberId {
        self.id
    }

    /// Who takes part, as far as it knows.
    pub fn members(&self) -> &Members {
        &self.applied.members
    }

    /// Who it is to the others.
    pub fn role(&self) -> Role {
        match &self.leading {
            Some(leading) => Role::Leader { serving: leading.cluster.is_some() },
            None => Role::Follower { leader: MemberId::new(self.node.raft.leader_id) },
        }
    }

    /// The term it is in.
    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    /// Bytes of its log: entries, and the snapshot before them.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes + self.snapshot_bytes
    }

    /// Entries that were decided here or have come, and are not kept by a majority and applied yet.
    pub fn pending_entries(&self) -> u64 {
        self.node.raft.raft_log.last_index().saturating_sub(self.applied.index)
    }

    /// The state machine, where it leads and serves.
    pub fn cluster(&self) -> Option<&feedline_cluster::Cluster> {
        self.leading.as_ref().and_then(|leading| leading.cluster.as_ref())
    }

    /// The same, to tell it of saved indexes.
    pub fn cluster_mut(&mut self) -> Option<&mut feedline_cluster::Cluster> {
        self.leading.as_mut().and_then(|leading| leading.cluster.as_mut())
    }

    /// Records of the entries that were applied since this was asked last.
    #[cfg(feature = "plants")]
    pub fn take_applied(&mut self) -> Vec<(u64, Vec<feedline_cluster::records::Record>)> {
        std::mem::take(&mut self.just_applied)
    }

    /// Whether everything that was decided is applied; what waits for a disk that cannot write is not.
    pub fn is_settled(&self) -> bool {
        let is_proposed = self.leading.as_ref().is_none_or(|leading| leading.ready.records.is_empty());
        is_proposed && self.node.raft.raft_log.last_index() == self.applied.index
    }

    /// The durable state as far as it was applied.
    pub fn snapshot(&self) -> Vec<feedline_cluster::records::Record> {
        self.applied.snapshot().records
    }

    fn pass(&mut self, now: MonotonicTime) {
        self.now.cluster = self.now.cluster.max(now.cluster);
        self.now.real = self.now.real.max(now.real);
    }

    /// A tick has passed.
    pub fn tick(&mut self, now: MonotonicTime) {
        self.pass(now);
        self.ticks += 1;
        // Drawn here, since raft's own draws could not be repeated.
        let least = self.election_ticks();
        let draw = mix64(self.seed ^ mix64(self.term() ^ (self.elections << 32))) % least;
        self.node.raft.set_randomized_election_timeout((least + draw) as usize);
        // One who does not lead stands for election by it.
        if self.leading.is_some() || self.may_stand() {
            self.node.tick();
        }
        let raft = &self.node.raft;
        let campaigns = matches!(raft.state, StateRole::PreCandidate | StateRole::Candidate);
        if campaigns && raft.election_elapsed == 0 {
            self.elections += 1;
        }
        self.pass_hung_steps();
        self.take_back();
        self.yield_lead();
        self.ask_for_lease();
        self.follow_removal();
        self.promote_learners();
        self.tell_new_address();
    }

    /// Takes a request, or says who does. What follows is decided by [`Self::decide`].
    pub fn ask(&mut self, now: MonotonicTime, input: Input) {
        self.pass(now);
        match &mut self.leading {
            // What nobody waits for is not told again.
            Some(leading) if leading.hands_over && input.request().is_some() => self.refuse(input),
            Some(LeaderState { cluster: Some(cluster), ready, .. }) => {
                cluster.take(self.now.cluster, input, ready)
            }
            Some(_) => self.held.push(input),
            None => self.refuse(input),
        }
    }

    /// Decides what follows from everything that was asked, and from the time.
    pub fn decide(&mut self, now: MonotonicTime) {
        self.pass(now);
        if self.cannot_write() {
            return;
        }
        let Some(leading) = self.leading.as_mut().filter(|leading| !leading.hands_over) else { return };
        let Some(cluster) = &mut leading.cluster else { return };
        cluster.step(self.now.cluster, Input::Tick, &mut leading.ready);
        let ready = std::mem::take(&mut leading.ready);
        self.out.manifests.extend(ready.manifests);
        let needs_proof = !ready.replies.is_empty() && leading.lease.is_given_up();
        if ready.records.is_empty() && !needs_proof {
            leading.answer_when_proved(ready.replies);
            return;
        }
        for data in EntryPayload::decided(&planted::kept(&self.settings, &ready.records)) {
            if self.node.propose(Vec::new(), data).is_err() {
                // The state machine is ahead of the log, so it is of no use any more.
                self.stop_leading();
                return;
            }
        }
        leading.answer_when_kept(self.node.raft.raft_log.last_index(), ready.replies);
        self.out.decided.extend(ready.records);
    }

    /// What follows from everything since the last call.
    ///
    /// # Errors
    /// When an entry cannot be read: the member must stop, and be started as a release that can. One clause.
    pub fn effects(&mut self) -> Result<Effects, String> {
        loop {
            self.follow_role();
            if !self.node.has_ready() {
                break;
            }
            self.pass_step()?;
            if std::mem::take(&mut self.begun) {
                // What was asked while it took over.
                self.decide(self.now);
            }
        }
        self.compact_if_due();
        self.answer();
        Ok(std::mem::take(&mut self.out))
    }

    /// Takes one step of raft's: what is to be sent, written and applied.
    fn pass_step(&mut self) -> Result<(), String> {
        let mut ready = self.node.ready();
        let number = ready.number();
        self.out.messages.extend(ready.take_messages());
        let messages = ready.take_persisted_messages();
        let reads = ready.take_read_states();
        let committed = ready.take_committed_entries();
        let entries = ready.take_entries();
        let snapshot = (!ready.snapshot().is_empty()).then(|| ready.snapshot().clone());
        let (waits, installs) = (ready.must_sync() || snapshot.is_some(), snapshot.is_some());
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
            self.out.writes.push(LogWrite::Append { number, hard_state, entries });
        }
        self.node.advance_append_async(ready);
        self.keep_step(PendingWrite { number, messages, waits, installs });
        for entry in committed {
            self.apply(entry)?;
        }
        self.tell_applied();
        self.answer_changes();
        for read in reads {
            self.on_lease_proved(&read.request_ctx);
        }
        Ok(())
    }

    fn install(&mut self, snapshot: raft::eraftpb::Snapshot, number: u64) -> Result<(), String> {
        self.applied.install(snapshot.get_metadata().index, &snapshot.data)?;
        (self.log_bytes, self.snapshot_bytes) = (0, snapshot.data.len() as u64);
        let storage = self.node.mut_store();
        storage.install(snapshot);
        self.state_changed = false;
        self.out.writes.push(LogWrite::Install { number, stored: Box::new(storage.stored()) });
        Ok(())
    }

    fn apply(&mut self, entry: Entry) -> Result<(), String> {
        match entry.get_entry_type() {
            EntryType::EntryNormal if entry.data.is_empty() => {}
            EntryType::EntryNormal => {
                let payload = self.applied.apply(&entry.data)?;
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

    /// Makes a snapshot of what was applied once the log is mostly past.
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
        self.out.writes.push(LogWrite::Compact(Box::new(stored)));
    }

    /// Begins to lead, or stops, as raft has it.
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
        let (preparing, state) = (cluster.preparing(), cluster.snapshot());
        for input in self.held.drain(..) {
            cluster.take(self.now.cluster, input, &mut leading.ready);
        }
        leading.cluster = Some(cluster);
        self.begun = true;
        self.out.serving = Some(ServingChange::Begun { preparing, state });
        self.ask_for_lease();
    }

    /// Nothing that was not answered will be: it may be decided otherwise by the next leader.
    fn stop_leading(&mut self) {
        let Some(leading) = self.leading.take() else { return };
        let refusal = self.refusal();
        let held = std::mem::take(&mut self.held);
        let asked = held.iter().filter_map(Input::request).chain(leading.unanswered());
        self.out.replies.extend(asked.map(|request| (request, Reply::Refused(refusal.clone()))));
        self.out
            .changes
            .extend(leading.changes.into_iter().map(|(request, _)| (request, Err(refusal.clone()))));
        if leading.cluster.is_some() {
            self.out.serving = Some(ServingChange::Ended);
        }
    }

    fn refuse(&mut self, input: Input) {
        if let Some(request) = input.request() {
            self.out.replies.push((request, Reply::Refused(self.refusal())));
        }
    }

    /// Where to go instead.
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

    /// Whether no other votes.
    fn is_alone(&self) -> bool {
        self.node.store().conf_state().voters == [self.id.get()]
    }
}

/// Bytes of an entry, without what its form adds.
fn size(entry: &Entry) -> u64 {
    (entry.data.len() + entry.context.len()) as u64
}

#[cfg(test)]
mod tests;
