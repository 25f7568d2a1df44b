//! The coordinators' processes: each drives a member, writes to its disk with a delay, may die at any point of it, and
//! comes back with what was written. What a majority keeps is compared among them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use feedline_core::cluster::messages::{JobStatus, source_key};
use feedline_core::cluster::records::Record;
use feedline_core::cluster::{Input, Reply, RequestId, Settings, Standby};
use feedline_core::ids::{JobId, Millis};
use feedline_core::layout::{SplitRef, StreamPosition};
use feedline_core::manifest::Manifest;
use feedline_core::position::Position;
use feedline_replica::{
    self as replica, Effects, Member, MemberId, Members, Message, Now, Role, Serving, Stored, Write,
};

use super::Plant;
use super::dice::Dice;
use super::messages::{Peer, Request};
use super::scenario::Machines;

/// What was kept that the rest of the simulation must know: splits taken back from a consumer, with the offset that counts.
pub(crate) type TakenBack = Vec<(u32, SplitRef, u32)>;

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
}

/// One coordinator's process and disk.
struct Node {
    /// `None` while it is down.
    member: Option<Member>,
    disk: Stored,
    /// Writes under way, in order.
    writes: VecDeque<Write>,
    life: u64,
    /// Its clock runs so many thousandths of the true time.
    rate: u64,
    peers: BTreeMap<RequestId, (Peer, u64)>,
}

/// What was kept by a majority, as the first that knew of it had it.
struct Kept {
    /// Records of each entry.
    entries: BTreeMap<u64, Vec<Record>>,
    state: Standby,
    /// Offsets acknowledged.
    acknowledged: BTreeMap<SplitRef, u32>,
    /// Consumers that splits are assigned to.
    holders: BTreeMap<SplitRef, u32>,
    /// Where each job stands.
    positions: BTreeMap<JobId, Vec<StreamPosition>>,
}

/// All coordinators.
pub(crate) struct Coordinators {
    nodes: Vec<Node>,
    ids: Vec<MemberId>,
    settings: replica::Settings,
    kept: Kept,
    manifests: BTreeMap<String, Arc<Manifest>>,
    requests: RequestId,
    /// Who has led in each term.
    leaders: BTreeMap<u64, usize>,
    /// Since when the present leader serves.
    pub(crate) serving_since: Millis,
    /// Positions that were kept when the observer asked.
    asked: BTreeMap<u64, BTreeMap<JobId, Vec<StreamPosition>>>,
    plant: Plant,
}

impl Coordinators {
    pub(crate) fn new(machines: &Machines, plant: Plant) -> Result<Self, String> {
        let settings = replica::Settings {
            compact_bytes: machines.compact_bytes,
            kept_entries: machines.kept_entries,
            plant: plant.of_replica(),
            ..replica::Settings::default()
        };
        let ids: Vec<MemberId> = (1..=machines.coordinators).filter_map(MemberId::new).collect();
        let members = Members(ids.iter().map(|id| (*id, format!("sim://{id}"))).collect());
        let founding = Stored::founded_by(&members);
        let node = |rate: &u64| Node {
            member: None,
            disk: founding.clone(),
            writes: VecDeque::new(),
            life: 0,
            rate: *rate,
            peers: BTreeMap::new(),
        };
        let mut all = Self {
            nodes: machines.rates.iter().take(ids.len()).map(node).collect(),
            ids,
            settings,
            kept: Kept::new(),
            manifests: BTreeMap::new(),
            requests: 0,
            leaders: BTreeMap::new(),
            serving_since: 0,
            asked: BTreeMap::new(),
            plant,
        };
        for place in 0..all.nodes.len() {
            all.start(place)?;
        }
        Ok(all)
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
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
        let term = |place: &usize| self.nodes[*place].member.as_ref().map(Member::term);
        (0..self.nodes.len()).filter(serving).max_by_key(term)
    }

    /// Place of the coordinator at an address.
    pub(crate) fn at(&self, url: &str) -> Option<usize> {
        self.ids.iter().position(|id| format!("sim://{id}") == url)
    }

    fn now(&self, place: usize, now: Millis) -> Now {
        let real = now * self.nodes[place].rate / 1_000;
        Now { cluster: real, real }
    }

    /// Starts a coordinator from what is on its disk.
    pub(crate) fn start(&mut self, place: usize) -> Result<(), String> {
        let node = &mut self.nodes[place];
        node.life += 1;
        // Lives need not be larger than those of others.
        let seed = 1 + node.life * 7 + place as u64;
        let member = Member::new(self.ids[place], node.disk.clone(), self.settings.clone(), seed);
        node.member = Some(member.map_err(|error| format!("coordinator {place} cannot start: {error}"))?);
        Ok(())
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
        tell: impl FnOnce(&mut Member, Now),
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
                (Some(number), Some(member)) => member.on_written(time, number),
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
        let to = |message: &Message| self.ids.iter().position(|id| id.get() == message.to);
        outcome.messages.extend(effects.messages.into_iter().filter_map(|it| Some((to(&it)?, it))));
        let early = effects.writes.iter().rev().find_map(Write::number);
        outcome.writes += effects.writes.len();
        let node = &mut self.nodes[place];
        node.writes.extend(effects.writes);
        let addressed = |(id, reply)| node.peers.remove(&id).map(|(peer, call)| (peer, call, reply));
        outcome.answers.extend(effects.replies.into_iter().filter_map(addressed));
        for (job, key, manifest) in effects.manifests {
            self.manifests.insert(key, manifest);
            outcome.saves.push(job);
        }
        if let Some(Serving::Begun { preparing, .. }) = effects.serving {
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
        self.serving_since = now;
        let Some(member) = &mut self.nodes[place].member else { return Ok(()) };
        if let Some(other) = self.leaders.insert(member.term(), place).filter(|other| *other != place) {
            return Err(format!("{other} and {place} have both led in term {}", member.term()));
        }
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
            match self.kept.entries.get(&index) {
                Some(known) if *known != records => {
                    return Err(format!(
                        "entry {index} is {known:?}, and {records:?} at coordinator {place}"
                    ));
                }
                Some(_) => {}
                None => outcome.taken_back.extend(self.kept.take(index, records)),
            }
        }
        Ok(())
    }

    /// The oldest write of a coordinator is done.
    pub(crate) fn on_written(&mut self, place: usize, now: Millis) -> Result<Outcome, String> {
        let node = &mut self.nodes[place];
        let Some(write) = node.writes.pop_front() else { return Ok(Outcome::default()) };
        let number = write.number();
        node.disk.take(write);
        match number {
            Some(number) => self.with(place, now, |member, time| member.on_written(time, number)),
            None => Ok(Outcome::default()),
        }
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
        self.requests += 1;
        let id = self.requests;
        self.nodes[place].peers.insert(id, (peer, call));
        if peer == Peer::Observer {
            self.asked.insert(call, self.kept.positions.clone());
        }
        let input = match request {
            Request::Open(spec) => {
                let saved = self.manifests.get(&source_key(&spec.pipeline.source)).cloned();
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
        let Some(kept) = self.asked.remove(&call) else { return Ok(()) };
        for (job, streams) in kept {
            let told = status.iter().find(|told| told.job == job);
            let position: Option<&Position> = told.and_then(|told| told.position.as_ref());
            let told = position.map(|position| position.streams.as_slice()).unwrap_or_default();
            let older = streams.iter().zip(told).any(|(kept, told)| told < kept);
            if older || told.len() < streams.len() {
                return Err(format!(
                    "job {job} stood at {streams:?} when it was asked for, and {told:?} was told"
                ));
            }
        }
        Ok(())
    }

    /// Where a job stands.
    pub(crate) fn position(&self, job: JobId) -> Option<Position> {
        self.kept.state.position(job)
    }

    /// The durable state of what was kept, as records.
    pub(crate) fn snapshot(&self) -> Vec<Record> {
        self.kept.state.snapshot()
    }

    /// Checks that what was kept rebuilds exactly the state that the leader has, if nothing is on its way.
    pub(crate) fn check_replay(&self) -> Result<(), String> {
        let Some(place) = self.leader() else { return Ok(()) };
        let Some(member) = self.nodes[place].member.as_ref() else { return Ok(()) };
        let (Some(cluster), true) = (member.cluster(), member.is_settled()) else { return Ok(()) };
        if member.snapshot() != cluster.snapshot() {
            return Err(format!("the log rebuilds {:?} and not {:?}", member.snapshot(), cluster.snapshot()));
        }
        Ok(())
    }
}

impl Kept {
    fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            state: Standby::new(Settings::default()),
            acknowledged: BTreeMap::new(),
            holders: BTreeMap::new(),
            positions: BTreeMap::new(),
        }
    }

    /// Takes the next entry.
    fn take(&mut self, index: u64, records: Vec<Record>) -> TakenBack {
        let mut taken_back = Vec::new();
        for record in &records {
            self.state.apply(record);
            match record {
                Record::Advanced { splits, .. } => self.acknowledged.extend(splits.iter().copied()),
                Record::Assigned { consumer, splits, .. } => {
                    for split in splits {
                        let offset = self.acknowledged.get(split).copied().unwrap_or_default();
                        let before = self.holders.remove(split);
                        taken_back.extend(before.map(|holder| (holder, *split, offset)));
                        if let Some(consumer) = consumer {
                            self.holders.insert(*split, *consumer);
                        }
                    }
                }
                _ => {}
            }
            let position = self.state.position(record.job());
            self.positions.extend(position.map(|position| (record.job(), position.streams)));
        }
        self.entries.insert(index, records);
        taken_back
    }
}
