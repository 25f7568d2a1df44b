//! The coordinator's process: drives the state machine, persists in order with a delay, and may die at any point of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use feedline_core::cluster::messages::source_key;
use feedline_core::cluster::records::Record;
use feedline_core::cluster::{Cluster, Input, Ready, Reply, RequestId, Settings};
use feedline_core::ids::Millis;
use feedline_core::layout::SplitRef;
use feedline_core::manifest::Manifest;

use super::Plant;
use super::dice::Dice;
use super::messages::{Peer, Request};

/// What was persisted that the rest of the simulation must know: splits taken back from a consumer, with the offset
/// that counts.
pub(crate) type TakenBack = Vec<(u32, SplitRef, u32)>;

#[derive(Debug)]
pub(crate) struct Server {
    cluster: Option<Cluster>,
    pub(crate) life: u64,
    pub(crate) up_since: Millis,
    log: Vec<Record>,
    manifests: BTreeMap<String, Arc<Manifest>>,
    /// Steps that are not persisted yet, in order.
    writes: VecDeque<Ready>,
    peers: BTreeMap<RequestId, (Peer, u64)>,
    requests: RequestId,
    /// Offsets acknowledged in the log.
    acknowledged: BTreeMap<SplitRef, u32>,
    /// Consumers that splits are assigned to in the log.
    holders: BTreeMap<SplitRef, u32>,
    plant: Plant,
}

/// Answers on their way out.
pub(crate) type Answers = Vec<(Peer, u64, Reply)>;

impl Server {
    pub(crate) fn new(plant: Plant) -> Self {
        Self {
            cluster: Some(Cluster::new(Settings::default(), 1)),
            life: 1,
            up_since: 0,
            log: Vec::new(),
            manifests: BTreeMap::new(),
            writes: VecDeque::new(),
            peers: BTreeMap::new(),
            requests: 0,
            acknowledged: BTreeMap::new(),
            holders: BTreeMap::new(),
            plant,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.cluster.is_some()
    }

    /// Steps on a request; whether something is to be persisted, or the answers that need not wait.
    pub(crate) fn on_request(
        &mut self,
        now: Millis,
        peer: Peer,
        call: u64,
        request: Request,
    ) -> (bool, Answers) {
        self.requests += 1;
        let request_id = self.requests;
        self.peers.insert(request_id, (peer, call));
        let input = match request {
            Request::Open(spec) => {
                let saved = self.manifests.get(&source_key(&spec.pipeline.source)).cloned();
                Input::OpenJob { request: request_id, spec, saved }
            }
            Request::Worker(report) => Input::Worker { request: request_id, report },
            Request::Consumer(report) => Input::Consumer { request: request_id, report },
            Request::Details(job) => Input::JobDetails { request: request_id, job },
            Request::Status => Input::JobStatus { request: request_id, job: None },
        };
        self.step(now, input)
    }

    pub(crate) fn step(&mut self, now: Millis, input: Input) -> (bool, Answers) {
        let mut ready = Ready::default();
        let Some(cluster) = &mut self.cluster else { return (false, Vec::new()) };
        cluster.step(now, input, &mut ready);
        let early = self.plant == Plant::EarlyReply;
        let idle = ready.records.is_empty() && ready.manifests.is_empty() && self.writes.is_empty();
        let mut answers = Vec::new();
        if idle || early {
            answers = self.address(std::mem::take(&mut ready.replies));
        }
        let nothing = ready.records.is_empty() && ready.manifests.is_empty() && ready.replies.is_empty();
        let writes = !idle && !nothing;
        if writes {
            self.writes.push_back(ready);
        }
        (writes, answers)
    }

    /// The oldest write is done.
    pub(crate) fn on_persisted(&mut self) -> (Answers, TakenBack) {
        let Some(ready) = self.writes.pop_front() else { return (Vec::new(), Vec::new()) };
        self.manifests.extend(ready.manifests);
        let taken_back = self.append(ready.records);
        (self.address(ready.replies), taken_back)
    }

    fn append(&mut self, records: Vec<Record>) -> TakenBack {
        let mut taken_back = Vec::new();
        for record in records {
            if let Record::Advanced { splits, .. } = &record {
                self.acknowledged.extend(splits.iter().copied());
            }
            if let Record::Assigned { consumer, splits, .. } = &record {
                for split in splits {
                    let offset = self.acknowledged.get(split).copied().unwrap_or_default();
                    let before = self.holders.remove(split);
                    taken_back.extend(before.map(|holder| (holder, *split, offset)));
                    if let Some(consumer) = consumer {
                        self.holders.insert(*split, *consumer);
                    }
                }
            }
            let forgotten = self.plant == Plant::ForgetAssigned && matches!(record, Record::Assigned { .. });
            if !forgotten {
                self.log.push(record);
            }
        }
        taken_back
    }

    fn address(&mut self, replies: Vec<(RequestId, Reply)>) -> Answers {
        let peers = &mut self.peers;
        replies
            .into_iter()
            .filter_map(|(id, reply)| peers.remove(&id).map(|(peer, call)| (peer, call, reply)))
            .collect()
    }

    /// Dies: of the writes under way some are persisted, the last of them perhaps in part; no answer leaves.
    pub(crate) fn crash(&mut self, dice: &mut Dice) -> TakenBack {
        self.cluster = None;
        self.peers.clear();
        let mut taken_back = Vec::new();
        for _ in 0..dice.range(0, self.writes.len() as u64) {
            let Some(ready) = self.writes.pop_front() else { break };
            self.manifests.extend(ready.manifests);
            taken_back.extend(self.append(ready.records));
        }
        if let Some(mut ready) = self.writes.pop_front().filter(|_| dice.chance(300)) {
            self.manifests.extend(ready.manifests);
            ready.records.truncate(dice.range(0, ready.records.len() as u64) as usize);
            taken_back.extend(self.append(ready.records));
        }
        self.writes.clear();
        taken_back
    }

    /// Starts anew from what was persisted, sometimes compacting it.
    pub(crate) fn restart(&mut self, now: Millis, dice: &mut Dice) -> Result<(), String> {
        self.life += 1;
        self.up_since = now;
        let mut cluster = Cluster::restore(Settings::default(), self.life, now, self.log.iter().cloned());
        if dice.chance(400) {
            let compact = cluster.snapshot();
            cluster = Cluster::restore(Settings::default(), self.life, now, compact.iter().cloned());
            if cluster.snapshot() != compact {
                return Err(format!("a snapshot replayed differs: {compact:?}"));
            }
            self.log = compact;
        }
        for (job, key) in cluster.preparing() {
            if let Some(saved) = self.manifests.get(&key) {
                cluster.set_saved(job, Arc::clone(saved));
            }
        }
        self.cluster = Some(cluster);
        Ok(())
    }

    /// The durable state as records.
    pub(crate) fn snapshot(&self) -> Vec<Record> {
        self.cluster.as_ref().map(Cluster::snapshot).unwrap_or_default()
    }

    /// Checks that the log rebuilds exactly the state that the live machine has.
    pub(crate) fn check_replay(&self) -> Result<(), String> {
        let Some(cluster) = self.cluster.as_ref().filter(|_| self.writes.is_empty()) else { return Ok(()) };
        let replayed = Cluster::restore(Settings::default(), 0, 0, self.log.iter().cloned()).snapshot();
        if replayed != cluster.snapshot() {
            return Err(format!("the log rebuilds {replayed:?} and not {:?}", cluster.snapshot()));
        }
        Ok(())
    }
}
