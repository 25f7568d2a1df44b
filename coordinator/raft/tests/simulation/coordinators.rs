//! The coordinators' processes: each drives a member, writes to its disk with a delay, may die at any point of it, and
//! comes back with what was written. What a majority keeps is compared among them.

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

use super::Plant;
use super::dice::Dice;
use super::kept::{Kept, TakenBack};
use super::members::{Answered, Step};
use super::messages::{Peer, Request};
use super::scenario::Machines;

/// Time that another has to take over from one that ends.
const HAND_OVER_MS: Millis = 1_000;
/// Time that one which ends has to write what it was told.
const GRACE_MS: Millis = 10_000;

/// Answers on their way out.
pub(crate) type Answers = Vec<(Peer, u64, Reply)>;

/// What follows from something that a coordinator was told.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) answers: Answers,
    /// Messages to other coordinators, by place.
    pub(crate) messages: Vec<(usize, Message)>,
    /// Writes that were begun.
    pub(crate) writes: usize,
    /// Jobs whose index is to be saved.
    pub(crate) saves: Vec<JobId>,
    pub(crate) taken_back: TakenBack,
    /// Changes of members that are done, with the term.
    pub(crate) changed: Vec<(RequestId, u64)>,
    /// Whether a change was refused for good.
    pub(crate) is_refused: bool,
}

/// One coordinator's process and disk.
struct Node {
    id: MemberId,
    /// `None` while it is down.
    member: Option<RaftNode>,
    disk: PersistedState,
    /// Writes under way, in order.
    writes: VecDeque<LogWrite>,
    life: u64,
    /// Its clock runs so many thousandths of the true time.
    rate: u64,
    peers: BTreeMap<RequestId, (Peer, u64)>,
    /// Whether its disk has refused the last write.
    is_stuck: bool,
    /// Since when it ends.
    ends_since: Option<Millis>,
}

impl Node {
    fn new(number: u64, rate: u64, disk: PersistedState) -> Self {
        Self {
            id: member_id(number),
            member: None,
            disk,
            writes: VecDeque::new(),
            life: 0,
            rate,
            peers: BTreeMap::new(),
            is_stuck: false,
            ends_since: None,
        }
    }

    /// What it says to everything where it cannot keep what would follow.
    fn refusal(&self) -> Option<Reply> {
        let refused = self.is_stuck || self.ends_since.is_some();
        refused.then(|| {
            Reply::Refused(ServiceError::new(ServiceErrorKind::Unavailable, "it ends, or cannot write"))
        })
    }
}

/// All coordinators.
pub(crate) struct Coordinators {
    nodes: Vec<Node>,
    /// Places of those that take part, or shall.
    inside: Vec<usize>,
    /// The last number that was given to one.
    last_id: u64,
    /// Whether each life has another address.
    moves: bool,
    settings: replica::RaftSettings,
    kept: Kept,
    manifests: BTreeMap<String, Arc<Manifest>>,
    requests: RequestId,
    /// Who has led in each term.
    leaders: BTreeMap<u64, usize>,
    answered: Answered,
    /// Since when the present leader serves, or later, where disks hang: until when dead workers may keep leases.
    pub(crate) serving_since: Millis,
    plant: Plant,
}

impl Coordinators {
    pub(crate) fn new(machines: &Machines, plant: Plant) -> Result<Self, String> {
        let settings = replica::RaftSettings {
            compact_bytes: machines.compact_bytes,
            kept_entries: machines.kept_entries,
            plant: plant.of_replica(),
            ..replica::RaftSettings::default()
        };
        let life = u64::from(machines.moves);
        let founders = (1..=machines.coordinators).map(member_id);
        let members = Members(founders.map(|id| (id, url(id, life))).collect());
        let founding = PersistedState::founded_by(&members);
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
            answered: Answered::founded_by(&members),
            serving_since: 0,
            plant,
        };
        for place in 0..all.inside.len() {
            all.start(place)?;
        }
        Ok(all)
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Places of those that take part, or shall.
    pub(crate) fn inside(&self) -> &[usize] {
        &self.inside
    }

    /// A place where none takes part.
    pub(crate) fn outside(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|place| !self.inside.contains(place))
    }

    pub(crate) fn is_up(&self, place: usize) -> bool {
        self.nodes[place].member.is_some()
    }

    pub(crate) fn life(&self, place: usize) -> u64 {
        self.nodes[place].life
    }

    /// True time between two ticks of a coordinator, whose clock may be fast or slow.
    pub(crate) fn tick_ms(&self, place: usize) -> Millis {
        self.settings.tick_ms * 1_000 / self.nodes[place].rate
    }

    /// The one that leads and serves; of two in different terms the later.
    pub(crate) fn leader(&self) -> Option<usize> {
        let serving = |place: &usize| {
            let member = self.nodes[*place].member.as_ref();
            member.is_some_and(|member| member.role() == Role::Leader { serving: true })
        };
        let term = |place: &usize| self.nodes[*place].member.as_ref().map(RaftNode::term);
        (0..self.nodes.len()).filter(serving).max_by_key(term)
    }

    /// Place of the coordinator at an address, whichever of its lives that was.
    pub(crate) fn at(&self, url: &str) -> Option<usize> {
        let (id, _) = url.strip_prefix("sim://")?.split_once('.')?;
        self.nodes.iter().position(|node| node.id.to_string() == id)
    }

    fn now(&self, place: usize, now: Millis) -> MonotonicTime {
        let real = now * self.nodes[place].rate / 1_000;
        MonotonicTime { cluster: real, real }
    }

    /// How they stand, for the message of a failed run.
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
        url(node.id, if self.moves { node.life } else { 0 })
    }

    /// Starts a coordinator from what is on its disk.
    pub(crate) fn start(&mut self, place: usize) -> Result<(), String> {
        self.nodes[place].life += 1;
        let settings = replica::RaftSettings { url: self.url(place), ..self.settings.clone() };
        let node = &mut self.nodes[place];
        (node.is_stuck, node.ends_since) = (false, None);
        // Lives need not be larger than those of others.
        let seed = 1 + node.life * 7 + place as u64;
        let member = RaftNode::new(node.id, node.disk.clone(), settings, seed);
        node.member = Some(member.map_err(|error| format!("coordinator {place} cannot start: {error}"))?);
        Ok(())
    }

    /// One with an empty disk shall take part.
    pub(crate) fn bring_in(&mut self, place: usize) -> Result<(), String> {
        self.inside.push(place);
        self.start(place)
    }

    /// One that takes no part any more is stopped, and its disk emptied: it would be another one from now on.
    pub(crate) fn take_out(&mut self, place: usize) {
        self.last_id += 1;
        self.inside.retain(|other| *other != place);
        let node = &mut self.nodes[place];
        let (life, rate) = (node.life + 1, node.rate);
        *node = Node { life, ..Node::new(self.last_id, rate, PersistedState::default()) };
    }

    /// A coordinator dies: of the writes under way some are done, no answer leaves.
    pub(crate) fn crash(&mut self, place: usize, dice: &mut Dice) {
        let node = &mut self.nodes[place];
        node.member = None;
        node.peers.clear();
        for _ in 0..dice.range(0, node.writes.len() as u64) {
            node.writes.pop_front().into_iter().for_each(|write| node.disk.take(write));
        }
        node.writes.clear();
    }

    /// Has a coordinator do something, and takes what follows.
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

    /// Gives a number that the plant takes for written.
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
        for (request, changed) in effects.changes {
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
        if let Some(ServingChange::Begun { preparing, .. }) = effects.serving {
            self.begin_serving(place, now, &preparing)?;
        }
        Ok(early.filter(|_| self.plant == Plant::EarlyWrite))
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
                    cluster.set_saved(*job, Arc::clone(saved));
                }
            }
        }
        Ok(())
    }

    /// Compares what a coordinator has applied with what others have.
    fn compare(&mut self, place: usize, outcome: &mut Outcome) -> Result<(), String> {
        let Some(member) = &mut self.nodes[place].member else { return Ok(()) };
        for (index, records) in member.take_applied() {
            outcome.taken_back.extend(self.kept.take(place, index, records)?);
        }
        Ok(())
    }

    /// The oldest write of a coordinator is done.
    pub(crate) fn on_written(&mut self, place: usize, now: Millis) -> Result<Outcome, String> {
        let node = &mut self.nodes[place];
        let Some(write) = node.writes.pop_front() else { return Ok(Outcome::default()) };
        let number = write.number();
        node.disk.take(write);
        node.is_stuck = false;
        self.with(place, now, |member, time| member.on_written(time, number))
    }

    /// The oldest write of a coordinator was refused; it is tried again. Who waits is refused, too.
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

    /// A coordinator lets another lead and goes on.
    pub(crate) fn hand_over(&mut self, place: usize, now: Millis) -> Result<Outcome, String> {
        self.with(place, now, |member, time| {
            member.hand_over(time);
        })
    }

    /// A coordinator is told to end.
    pub(crate) fn end(&mut self, place: usize, now: Millis) -> Result<Outcome, String> {
        let node = &mut self.nodes[place];
        node.ends_since = node.ends_since.or(Some(now));
        self.with(place, now, |member, time| {
            member.retire(time);
        })
    }

    /// Whether one that was told to end has done what it can.
    pub(crate) fn has_ended(&self, place: usize, now: Millis) -> bool {
        let node = &self.nodes[place];
        let (Some(since), Some(member)) = (node.ends_since, &node.member) else { return false };
        let leads = matches!(member.role(), Role::Leader { .. });
        let hands_over = leads && member.voters() > 1 && now < since + HAND_OVER_MS;
        let writes = !node.writes.is_empty() && now < since + GRACE_MS;
        node.is_stuck || !hands_over && !writes
    }

    /// Asks a coordinator to change the members; gives the request beside what follows.
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
        let outcome = self.with(place, now, |member, time| member.change(time, request, change))?;
        Ok((request, outcome))
    }

    /// A change of the members was answered in this term.
    pub(crate) fn on_changed(&mut self, term: u64, step: Step) {
        let (Step::Add(place) | Step::Remove(place)) = step;
        self.answered.on_done(term, self.nodes[place].id, step);
    }

    /// A request reaches a coordinator.
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
                Input::OpenJob { request: id, spec, saved }
            }
            Request::Worker(report) => Input::Worker { request: id, report },
            Request::Consumer(report) => Input::Consumer { request: id, report },
            Request::Details(job) => Input::JobDetails { request: id, job },
            Request::Status => Input::JobStatus { request: id, job: None },
        };
        self.with(place, now, |member, time| {
            member.ask(time, input);
            member.decide(time);
        })
    }

    /// Checks that what the observer is told is not older than what was kept when it asked.
    pub(crate) fn check_status(&mut self, call: u64, status: &[JobStatus]) -> Result<(), String> {
        self.kept.check_status(call, status)
    }

    /// Where a job stands.
    pub(crate) fn position(&self, job: JobId) -> Option<Position> {
        self.kept.position(job)
    }

    /// The durable state of what was kept, as records.
    pub(crate) fn snapshot(&self) -> Vec<Record> {
        self.kept.snapshot()
    }

    /// Checks that what was kept rebuilds exactly the state that the leader has, if nothing is on its way.
    pub(crate) fn check_replay(&self) -> Result<(), String> {
        let Some(place) = self.leader() else { return Ok(()) };
        let Some(member) = self.nodes[place].member.as_ref() else { return Ok(()) };
        // What one that hands over hears is not decided on until it leads on.
        let is_settled = member.is_settled() && !member.hands_over();
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

/// Where a coordinator is found.
fn url(id: MemberId, life: u64) -> String {
    format!("sim://{id}.{life}")
}
