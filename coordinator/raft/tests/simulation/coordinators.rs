//! The processes of the coordinators: each drives a raft node, writes to its disk with a delay, may die at any time and
//! restarts with the finished writes. The committed entries of all coordinators are compared.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use feedline_cluster::records::Record;
use feedline_cluster::{Input, Reply, RequestId};
use feedline_data::checkpoint::Position;
use feedline_data::ids::{JobId, Millis};
use feedline_data::manifest::Manifest;
use feedline_data::messages::{JobStatus, ServiceError, ServiceErrorKind, source_key};
use feedline_raft::{
    self as replica, Effects, LogWrite, MemberId, Members, MembershipChange, Message, MonotonicTime,
    PersistedState, RaftNode, Role, ServingChange,
};

use super::Fault;
use super::dice::Dice;
use super::kept::{Kept, TakenBack};
use super::members::{Answered, Step};
use super::messages::{Peer, Request};
use super::scenario::Machines;

/// Maximum wait for another leader during a shutdown.
const LEADER_TRANSFER_MS: Millis = 1_000;
/// Maximum wait for writes during a shutdown.
const GRACE_MS: Millis = 10_000;

/// Time without a message after which a member is replaced. Most runs are shorter than the default.
const REPLACE_AFTER_MS: Millis = 700;

/// Replies to send.
pub(crate) type Answers = Vec<(Peer, u64, Reply)>;

/// The outcome of an event at a coordinator.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) answers: Answers,
    /// Messages to other coordinators, by place.
    pub(crate) messages: Vec<(usize, Message)>,
    /// Started writes.
    pub(crate) writes: usize,
    /// Jobs with an index to save.
    pub(crate) saves: Vec<JobId>,
    pub(crate) taken_back: TakenBack,
    /// Finished membership changes, with the term.
    pub(crate) changed: Vec<(RequestId, u64)>,
    /// Whether a membership change was rejected permanently.
    pub(crate) is_refused: bool,
}

/// The process and the disk of one coordinator.
struct Node {
    id: MemberId,
    /// The member whose address this is: the member itself, or the member that lost its disk.
    home: MemberId,
    /// `None` while the process is down.
    member: Option<RaftNode>,
    disk: PersistedState,
    /// Writes in progress, in order.
    writes: VecDeque<LogWrite>,
    incarnation: u64,
    /// The rate of its clock in thousandths.
    rate: u64,
    peers: BTreeMap<RequestId, (Peer, u64)>,
    /// Whether the last write failed.
    is_stuck: bool,
    /// The time at which the shutdown began.
    ends_since: Option<Millis>,
}

impl Node {
    fn new(number: u64, rate: u64, disk: PersistedState) -> Self {
        Self {
            id: member_id(number),
            home: member_id(number),
            member: None,
            disk,
            writes: VecDeque::new(),
            incarnation: 0,
            rate,
            peers: BTreeMap::new(),
            is_stuck: false,
            ends_since: None,
        }
    }

    /// The error for all requests while the disk fails.
    fn refusal(&self) -> Option<Reply> {
        let refused = self.is_stuck || self.ends_since.is_some();
        refused.then(|| {
            Reply::Rejected(ServiceError::new(ServiceErrorKind::Unavailable, "it ends, or cannot write"))
        })
    }
}

/// All coordinators.
pub(crate) struct Coordinators {
    nodes: Vec<Node>,
    /// Places of current and future members.
    inside: Vec<usize>,
    /// The last assigned number.
    last_id: u64,
    /// Whether each incarnation has a different address.
    moves: bool,
    settings: replica::RaftSettings,
    kept: Kept,
    manifests: BTreeMap<String, Arc<Manifest>>,
    requests: RequestId,
    /// The leader of each term.
    leaders: BTreeMap<u64, usize>,
    answered: Answered,
    /// The time when the current leader began to serve or the last disk stopped hanging. Dead workers may keep leases for a
    /// while afterwards.
    pub(crate) serving_since: Millis,
    fault: Fault,
}

impl Coordinators {
    pub(crate) fn new(machines: &Machines, fault: Fault) -> Result<Self, String> {
        let settings = replica::RaftSettings {
            compact_bytes: machines.compact_bytes,
            kept_entries: machines.kept_entries,
            replace_after_ms: REPLACE_AFTER_MS,
            fault: fault.of_replica(),
            ..replica::RaftSettings::default()
        };
        let incarnation = u64::from(machines.moves);
        let founders = (1..=machines.coordinators).map(member_id);
        let members = Members(founders.map(|id| (id, url(id, incarnation))).collect());
        let founding = PersistedState::bootstrap(&members);
        let last_id = machines.coordinators + machines.spare;
        let disk = |number| {
            if number <= machines.coordinators { founding.clone() } else { PersistedState::default() }
        };
        let mut all = Self {
            nodes: (1..=last_id)
                .zip(machines.rates)
                .map(|(number, rate)| Node::new(number, rate, disk(number)))
                .collect(),
            inside: (0..machines.coordinators as usize).collect(),
            last_id,
            moves: machines.moves,
            settings,
            kept: Kept::new(),
            manifests: BTreeMap::new(),
            requests: 0,
            leaders: BTreeMap::new(),
            answered: Answered::bootstrap(&members),
            serving_since: 0,
            fault,
        };
        for place in 0..all.inside.len() {
            all.start(place)?;
        }
        Ok(all)
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Places of current and future members.
    pub(crate) fn inside(&self) -> &[usize] {
        &self.inside
    }

    /// Returns a place without a member.
    pub(crate) fn outside(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|place| !self.inside.contains(place))
    }

    pub(crate) fn is_up(&self, place: usize) -> bool {
        self.nodes[place].member.is_some()
    }

    pub(crate) fn incarnation(&self, place: usize) -> u64 {
        self.nodes[place].incarnation
    }

    /// The true time between two ticks of a coordinator with a fast or slow clock.
    pub(crate) fn tick_ms(&self, place: usize) -> Millis {
        self.settings.tick_ms * 1_000 / self.nodes[place].rate
    }

    /// The serving leader of the latest term.
    pub(crate) fn leader(&self) -> Option<usize> {
        let serving = |place: &usize| {
            let member = self.nodes[*place].member.as_ref();
            member.is_some_and(|member| member.role() == Role::Leader { serving: true })
        };
        let term = |place: &usize| self.nodes[*place].member.as_ref().map(RaftNode::term);
        (0..self.nodes.len()).filter(serving).max_by_key(term)
    }

    /// Returns the index of the coordinator that has or had an address.
    pub(crate) fn at(&self, url: &str) -> Option<usize> {
        let (id, _) = url.strip_prefix("sim://")?.split_once('.')?;
        self.nodes.iter().position(|node| node.home.to_string() == id)
    }

    fn now(&self, place: usize, now: Millis) -> MonotonicTime {
        let real = now * self.nodes[place].rate / 1_000;
        MonotonicTime { cluster: real, real }
    }

    /// Describes the state for the error message of a failed run.
    pub(crate) fn describe(&self) -> String {
        let describe = |place: usize| {
            let Node { id, member, writes, is_stuck, ends_since, .. } = &self.nodes[place];
            let is_inside = self.inside.contains(&place);
            let member = member.as_ref().map(|it| {
                let members: Vec<String> = it.members().ids().map(|id| id.to_string()).collect();
                (it.role(), it.term(), it.voters(), it.pending_entries(), members)
            });
            let writes = writes.len();
            format!(
                "{place}: {id}, inside {is_inside}, {member:?}, {writes} writes, stuck {is_stuck}, ends {ends_since:?}"
            )
        };
        (0..self.nodes.len()).map(describe).collect::<Vec<_>>().join("\n")
    }

    fn url(&self, place: usize) -> String {
        let node = &self.nodes[place];
        url(node.home, if self.moves { node.incarnation } else { 0 })
    }

    /// Starts a coordinator from the state on its disk.
    pub(crate) fn start(&mut self, place: usize) -> Result<(), String> {
        self.nodes[place].incarnation += 1;
        let settings = replica::RaftSettings { url: self.url(place), ..self.settings.clone() };
        let node = &mut self.nodes[place];
        (node.is_stuck, node.ends_since) = (false, None);
        // An incarnation is larger only than earlier incarnations of the same coordinator.
        let seed = 1 + node.incarnation * 7 + place as u64;
        let member = RaftNode::new(node.id, node.disk.clone(), settings, seed);
        node.member = Some(member.map_err(|error| format!("coordinator {place} cannot start: {error}"))?);
        Ok(())
    }

    /// Adds a coordinator with an empty disk.
    pub(crate) fn bring_in(&mut self, place: usize) -> Result<(), String> {
        self.inside.push(place);
        self.start(place)
    }

    /// Stops a removed coordinator and empties its disk. Its next start is another member.
    pub(crate) fn take_out(&mut self, place: usize) {
        self.last_id += 1;
        self.inside.retain(|other| *other != place);
        let node = &mut self.nodes[place];
        let (incarnation, rate) = (node.incarnation + 1, node.rate);
        *node = Node { incarnation, ..Node::new(self.last_id, rate, PersistedState::default()) };
    }

    /// Whether a majority remains without the disk of a coordinator: the leader has the expected voters and no learner.
    pub(crate) fn may_lose_disk(&self, place: usize) -> bool {
        let Some(leader) = self.leader().and_then(|leader| self.nodes[leader].member.as_ref()) else {
            return false;
        };
        let inside = |id: MemberId| self.inside.iter().any(|place| self.nodes[*place].id == id);
        let members = leader.members();
        let is_expected = members.ids().all(inside) && members.0.len() == self.inside.len();
        // A coordinator with another address after each start would not replace its former self.
        !self.moves
            && self.inside.contains(&place)
            && self.inside.len() > 2
            && is_expected
            && leader.voters() == self.inside.len()
    }

    /// Replaces a coordinator by one with an empty disk at the same address. Returns the id of the lost member.
    pub(crate) fn lose_disk(&mut self, place: usize) -> Result<MemberId, String> {
        self.last_id += 1;
        let node = &mut self.nodes[place];
        let (lost, home, incarnation, rate) = (node.id, node.home, node.incarnation + 1, node.rate);
        *node = Node { home, incarnation, ..Node::new(self.last_id, rate, PersistedState::default()) };
        self.answered.on_lost(lost);
        self.start(place)?;
        Ok(lost)
    }

    /// Sends the request of a coordinator without a state to another coordinator.
    pub(crate) fn join(&mut self, at: usize, now: Millis, place: usize) -> Result<Outcome, String> {
        let (id, url) = (self.nodes[place].id, self.url(place));
        self.with(at, now, |member, time| {
            // The coordinator repeats its request.
            let _ = member.join(time, id, &url);
        })
    }

    /// Whether the leader has replaced a lost member by the coordinator at a place.
    pub(crate) fn has_replaced(&mut self, lost: MemberId, place: usize) -> bool {
        let new = self.nodes[place].id;
        let Some(leader) = self.leader().and_then(|leader| self.nodes[leader].member.as_ref()) else {
            return false;
        };
        let is_replaced = leader.members().url(lost).is_none() && leader.members().url(new).is_some();
        if is_replaced {
            self.answered.on_replaced(leader.term(), lost, new);
        }
        is_replaced
    }

    /// Kills a coordinator: some writes in progress finish, and no reply is sent.
    pub(crate) fn crash(&mut self, place: usize, dice: &mut Dice) {
        let node = &mut self.nodes[place];
        node.member = None;
        node.peers.clear();
        for _ in 0..dice.range(0, node.writes.len() as u64) {
            node.writes.pop_front().into_iter().for_each(|write| node.disk.apply(write));
        }
        node.writes.clear();
    }

    /// Calls a function of a raft node and carries out the effects.
    pub(crate) fn with(
        &mut self,
        place: usize,
        now: Millis,
        tell: impl FnOnce(&mut RaftNode, MonotonicTime),
    ) -> Result<Outcome, String> {
        let time = self.now(place, now);
        let mut outcome = Outcome::default();
        let Some(member) = &mut self.nodes[place].member else { return Ok(outcome) };
        tell(member, time);
        self.pass_on(place, now, &mut outcome)?;
        Ok(outcome)
    }

    fn pass_on(&mut self, place: usize, now: Millis, outcome: &mut Outcome) -> Result<(), String> {
        loop {
            let Some(member) = &mut self.nodes[place].member else { return Ok(()) };
            let effects = member.effects().map_err(|error| format!("coordinator {place}: {error}"))?;
            self.compare(place, outcome)?;
            let early = self.take_effects(place, now, effects, outcome)?;
            let time = self.now(place, now);
            match (early, &mut self.nodes[place].member) {
                (Some(number), Some(member)) => member.on_written(time, Some(number)),
                _ => return Ok(()),
            }
        }
    }

    /// The number of a write that an injected fault counts as durable.
    fn take_effects(
        &mut self,
        place: usize,
        now: Millis,
        effects: Effects,
        outcome: &mut Outcome,
    ) -> Result<Option<u64>, String> {
        let to = |message: &Message| self.nodes.iter().position(|node| node.id.get() == message.to);
        outcome.messages.extend(effects.messages.into_iter().filter_map(|it| Some((to(&it)?, it))));
        let early = effects.writes.iter().rev().find_map(LogWrite::number);
        outcome.writes += effects.writes.len();
        let node = &mut self.nodes[place];
        let term = node.member.as_ref().map_or(0, RaftNode::term);
        for (request, changed) in effects.membership_results {
            match changed {
                Ok(_) => outcome.changed.push((request, term)),
                Err(refusal) => outcome.is_refused |= refusal.kind == ServiceErrorKind::Invalid,
            }
        }
        node.writes.extend(effects.writes);
        let addressed = |(id, reply)| node.peers.remove(&id).map(|(peer, call)| (peer, call, reply));
        outcome.answers.extend(effects.replies.into_iter().filter_map(addressed));
        for (job, key, manifest) in effects.manifests {
            self.manifests.insert(key, manifest);
            outcome.saves.push(job);
        }
        if let Some(ServingChange::Started { preparing, .. }) = effects.serving_change {
            self.begin_serving(place, now, &preparing)?;
        }
        Ok(early.filter(|_| self.fault == Fault::EarlyWrite))
    }

    fn begin_serving(
        &mut self,
        place: usize,
        now: Millis,
        preparing: &[(JobId, String)],
    ) -> Result<(), String> {
        self.serving_since = self.serving_since.max(now);
        let Some(member) = &mut self.nodes[place].member else { return Ok(()) };
        if let Some(other) = self.leaders.insert(member.term(), place).filter(|other| *other != place) {
            return Err(format!("{other} and {place} have both led in term {}", member.term()));
        }
        self.answered.check(member.term(), member.members())?;
        if let Some(cluster) = member.cluster_mut() {
            for (job, key) in preparing {
                if let Some(saved) = self.manifests.get(key) {
                    cluster.set_saved_index(*job, Arc::clone(saved));
                }
            }
        }
        Ok(())
    }

    /// Compares the applied entries of a coordinator with the entries of the other coordinators.
    fn compare(&mut self, place: usize, outcome: &mut Outcome) -> Result<(), String> {
        let Some(member) = &mut self.nodes[place].member else { return Ok(()) };
        for (index, records) in member.take_applied() {
            outcome.taken_back.extend(self.kept.take(place, index, records)?);
        }
        Ok(())
    }

    /// Finishes the oldest write of a coordinator.
    pub(crate) fn on_written(&mut self, place: usize, now: Millis) -> Result<Outcome, String> {
        let node = &mut self.nodes[place];
        let Some(write) = node.writes.pop_front() else { return Ok(Outcome::default()) };
        let number = write.number();
        node.disk.apply(write);
        node.is_stuck = false;
        self.with(place, now, |member, time| member.on_written(time, number))
    }

    /// Fails the oldest write of a coordinator, which is retried, and rejects the waiting requests.
    pub(crate) fn on_write_failed(&mut self, place: usize, now: Millis) -> Result<Outcome, String> {
        let mut outcome = self.with(place, now, RaftNode::on_write_failed)?;
        let node = &mut self.nodes[place];
        node.is_stuck = true;
        if let Some(refused) = node.refusal() {
            let waiting = std::mem::take(&mut node.peers).into_values();
            outcome.answers.extend(waiting.map(|(peer, call)| (peer, call, refused.clone())));
        }
        Ok(outcome)
    }

    /// Transfers leadership away from a coordinator.
    pub(crate) fn hand_over(&mut self, place: usize, now: Millis) -> Result<Outcome, String> {
        self.with(place, now, |member, time| {
            member.transfer_to_follower(time);
        })
    }

    /// Begins the shutdown of a coordinator.
    pub(crate) fn end(&mut self, place: usize, now: Millis) -> Result<Outcome, String> {
        let node = &mut self.nodes[place];
        node.ends_since = node.ends_since.or(Some(now));
        self.with(place, now, |member, time| {
            member.retire(time);
        })
    }

    /// Whether the shutdown of a coordinator is complete.
    pub(crate) fn has_ended(&self, place: usize, now: Millis) -> bool {
        let node = &self.nodes[place];
        let (Some(since), Some(member)) = (node.ends_since, &node.member) else { return false };
        let leads = matches!(member.role(), Role::Leader { .. });
        let hands_over = leads && member.voters() > 1 && now < since + LEADER_TRANSFER_MS;
        let writes = !node.writes.is_empty() && now < since + GRACE_MS;
        node.is_stuck || !hands_over && !writes
    }

    /// Requests a membership change. Returns the request and the outcome.
    pub(crate) fn change(
        &mut self,
        place: usize,
        now: Millis,
        step: Step,
    ) -> Result<(RequestId, Outcome), String> {
        self.requests += 1;
        let request = self.requests;
        let change = match step {
            Step::Add(who) => MembershipChange::Add { id: self.nodes[who].id, url: self.url(who) },
            Step::Remove(who) => MembershipChange::Remove { id: self.nodes[who].id },
        };
        self.answered.on_asked(&change);
        let outcome = self.with(place, now, |member, time| member.change_members(time, request, change))?;
        Ok((request, outcome))
    }

    /// Records a membership change that was answered in this term.
    pub(crate) fn on_changed(&mut self, term: u64, step: Step) {
        let (Step::Add(place) | Step::Remove(place)) = step;
        self.answered.on_done(term, self.nodes[place].id, step);
    }

    /// Delivers a request to a coordinator.
    pub(crate) fn on_request(
        &mut self,
        place: usize,
        now: Millis,
        (peer, call): (Peer, u64),
        request: Request,
    ) -> Result<Outcome, String> {
        if !self.is_up(place) {
            return Ok(Outcome::default());
        }
        if let Some(refused) = self.nodes[place].refusal() {
            return Ok(Outcome { answers: vec![(peer, call, refused)], ..Outcome::default() });
        }
        self.requests += 1;
        let id = self.requests;
        self.nodes[place].peers.insert(id, (peer, call));
        if peer == Peer::Observer {
            self.kept.on_asked(call);
        }
        let input = match request {
            Request::Open(spec) => {
                let saved = self.manifests.get(&source_key(&spec.tenant, &spec.pipeline.source)).cloned();
                Input::OpenJob { request: id, spec, saved_index: saved }
            }
            Request::Worker(report) => Input::Worker { request: id, report },
            Request::Consumer(report) => Input::Consumer { request: id, report },
            Request::Details(job) => Input::JobDetails { request: id, job },
            Request::Status => Input::JobStatus { request: id, job: None },
        };
        self.with(place, now, |member, time| {
            member.take_input(time, input);
            member.decide(time);
        })
    }

    /// Checks that a status reply is not older than the state that was committed when the observer sent its request.
    pub(crate) fn check_status(&mut self, call: u64, status: &[JobStatus]) -> Result<(), String> {
        self.kept.check_status(call, status)
    }

    /// The position of a job.
    pub(crate) fn position(&self, job: JobId) -> Option<Position> {
        self.kept.position(job)
    }

    /// The records that rebuild the committed state.
    pub(crate) fn snapshot(&self) -> Vec<Record> {
        self.kept.snapshot()
    }

    /// Checks that the committed records rebuild the state of the leader, if no entry is in progress.
    pub(crate) fn check_replay(&self) -> Result<(), String> {
        let Some(place) = self.leader() else { return Ok(()) };
        let Some(member) = self.nodes[place].member.as_ref() else { return Ok(()) };
        // A leader decides nothing during a transfer.
        let is_settled = member.is_settled() && !member.is_transferring();
        let (Some(cluster), true) = (member.cluster(), is_settled) else { return Ok(()) };
        if member.snapshot() != cluster.snapshot() {
            return Err(format!("the log rebuilds {:?} and not {:?}", member.snapshot(), cluster.snapshot()));
        }
        Ok(())
    }
}

fn member_id(number: u64) -> MemberId {
    MemberId::new(number).expect("numbers begin with 1")
}

/// The address of a coordinator.
fn url(id: MemberId, incarnation: u64) -> String {
    format!("sim://{id}.{incarnation}")
}
