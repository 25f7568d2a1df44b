//! The processes of the coordinators: each drives a raft node, writes to its disk with a delay, may die at any time and
//! restarts with the finished writes. The committed entries of all coordinators are compared.

#[path = "effects.rs"]
mod effects;
#[path = "lifetime.rs"]
mod lifetime;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use feedline_cluster::records::Record;
use feedline_cluster::{Input, Reply, RequestId};
use feedline_data::checkpoint::Position;
use feedline_data::ids::{JobId, Millis};
use feedline_data::manifest::Manifest;
use feedline_data::messages::{JobStatus, ServiceError, ServiceErrorKind, source_key};
use feedline_raft::{
    self as replica, LogWrite, MemberId, Members, MembershipChange, Message, MonotonicTime, PersistedState,
    RaftNode, Role,
};

use super::Fault;
use super::kept::{Kept, TakenBack};
use super::members::{Answered, Step};
use super::messages::{Peer, Request};
use super::scenario::Machines;

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
            collect_applied: true,
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

    /// The number of times that another leader has started to serve.
    pub(crate) fn failovers(&self) -> usize {
        self.leaders.len().saturating_sub(1)
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
                Input::OpenJob { request: id, spec, saved_index: saved.into() }
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
