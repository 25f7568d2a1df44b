//! A seeded simulation of an elastic job. Ranks join, leave, die, hang and return; messages are lost, repeated and delayed; leaders
//! change. The acknowledged rows of each slot are delivered once and in order.

use std::collections::BTreeMap;

use feedline_data::layout::Layout;
use feedline_data::messages::{SlotGrant, SlotPosition, SlotReport};
use feedline_data::random::mix64;

use super::*;

const LEASE_MS: Millis = 2_000;
const ANSWER_MS: Millis = 400;
const FAULTS_MS: Millis = 12_000;
const END_MS: Millis = 60_000;
const BATCH: u64 = 4;

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = mix64(self.0.wrapping_add(0x9E37_79B9_7F4A_7C15));
        self.0 % end
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }
}

/// An injected fault that the simulation must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Ranks deliver rows of a slot after they have reported that they stopped.
    GoesOn,
    /// Ranks report rows before they deliver them.
    EarlyClaim,
    /// Ranks begin one batch too early.
    BeginsEarly,
    /// Ranks report the newest generation of a slot instead of their own.
    ForgetsGeneration,
}

/// One slot of a rank.
#[derive(Debug, Clone)]
struct Held {
    generation: u64,
    position: StreamPosition,
    is_wanted: bool,
    is_stopped: bool,
}

/// A report: its number, its time, the stopped slots, and whether the rank leaves.
type Asked = (RequestId, Millis, Vec<(u32, u64)>, bool);

/// One session of a rank.
#[derive(Debug)]
struct Rank {
    number: u32,
    session: SessionId,
    is_alive: bool,
    suspended_until: Millis,
    leaving: bool,
    /// Whether the rank has left, was superseded, or knows that the job has ended.
    is_done: bool,
    is_superseded: bool,
    slots: BTreeMap<u32, Held>,
    last: Option<StreamPosition>,
    seen: Revision,
    /// The unanswered report.
    asked: Option<Asked>,
    slot_ns: u64,
}

#[derive(Debug)]
enum Event {
    Report(RequestId, usize, Box<ConsumerReport>),
    Answer(RequestId, usize, Box<Reply>),
}

struct World {
    fault: Fault,
    bench: Bench,
    job: JobId,
    layout: Layout,
    dice: Dice,
    ranks: Vec<Rank>,
    queue: BTreeMap<(Millis, u64), Event>,
    /// The session and the number of each unanswered request.
    asker: BTreeMap<RequestId, (usize, RequestId)>,
    number: u64,
    life: u64,
    /// The rank and the delivered rows of each generation of each slot.
    delivered: Vec<BTreeMap<u64, (usize, StreamPosition, StreamPosition)>>,
    /// The first position of each generation of each slot.
    began: Vec<BTreeMap<u64, StreamPosition>>,
    /// The last report of each session, and whether the session was silent for the lease time.
    heard: BTreeMap<usize, (Millis, bool)>,
}

fn settings() -> ClusterSettings {
    ClusterSettings { consumer_lease_ms: LEASE_MS, ..ClusterSettings::default() }
}

impl World {
    fn new(seed: u64, fault: Fault) -> Self {
        let mut dice = Dice(seed);
        let slots = 1 + dice.below(8) as u32;
        let mut spec = JobSpec { elastic: true, ..spec(BATCH as u32, 1) };
        spec.consumers = 1 + dice.below(u64::from(slots)) as u32;
        spec.virtual_consumers = slots;
        spec.epochs = 1 + dice.below(2) as u32;
        let rows = u64::from(slots) * (100 + dice.below(300)) + dice.below(20);
        let (mut bench, job) = Bench::running(&spec, rows as u32);
        bench.cluster = Cluster::restore(settings(), INCARNATION, bench.now, bench.records.clone());
        let layout = bench.cluster.jobs[&job].layout.clone().expect("it runs");
        let count = slots as usize;
        let mut world = Self {
            fault,
            bench,
            job,
            layout,
            dice,
            ranks: Vec::new(),
            queue: BTreeMap::new(),
            asker: BTreeMap::new(),
            number: 1_000,
            life: INCARNATION,
            delivered: vec![BTreeMap::new(); count],
            began: vec![BTreeMap::new(); count],
            heard: BTreeMap::new(),
        };
        for _ in 0..spec.consumers {
            world.join();
        }
        world
    }

    /// A rank joins with a free number, or with the number of a lost rank.
    fn join(&mut self) {
        let mut number = self.dice.below(6) as u32;
        while self.ranks.iter().any(|rank| rank.number == number && rank.is_alive && !rank.is_done) {
            number += 1;
        }
        self.ranks.push(Rank {
            number,
            session: SessionId(10 + self.ranks.len() as u64),
            is_alive: true,
            suspended_until: 0,
            leaving: false,
            is_done: false,
            is_superseded: false,
            slots: BTreeMap::new(),
            last: None,
            seen: Revision::default(),
            asked: None,
            slot_ns: 1_000 * (1 + self.dice.below(4)),
        });
    }

    fn active(&self) -> Vec<usize> {
        let is_active = |rank: &Rank| rank.is_alive && !rank.is_done;
        (0..self.ranks.len()).filter(|index| is_active(&self.ranks[*index])).collect()
    }

    fn run(mut self) -> Result<[u64; 4], String> {
        let mut counts = [0; 4];
        loop {
            self.bench.now += 20;
            let now = self.bench.now;
            if now < FAULTS_MS {
                self.fail(&mut counts);
            } else if self.active().iter().all(|index| self.ranks[*index].leaving) && !self.is_over() {
                self.join();
            }
            while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= now) {
                let event = entry.remove();
                self.on_event(event)?;
            }
            for index in self.active() {
                if self.ranks[index].suspended_until <= now {
                    self.wake(index);
                }
            }
            self.step(Input::Tick)?;
            if self.is_over() && self.active().is_empty() {
                self.check()?;
                counts[3] = self.began.iter().map(|began| began.len() as u64).sum();
                return Ok(counts);
            }
            if now > END_MS {
                return Err(format!(
                    "it hangs: {:?} {:#?}",
                    self.bench.cluster.jobs[&self.job].slots,
                    self.active().iter().map(|index| &self.ranks[*index]).collect::<Vec<_>>()
                ));
            }
        }
    }

    fn is_over(&self) -> bool {
        self.bench.cluster.jobs[&self.job].is_ended()
    }

    fn fail(&mut self, [deaths, leaves, leaders, _]: &mut [u64; 4]) {
        let active = self.active();
        if active.len() < 6 && (active.is_empty() || self.dice.chance(12)) {
            self.join();
        }
        if let Some(index) = active.get(self.dice.below(active.len().max(1) as u64) as usize).copied() {
            let now = self.bench.now;
            match self.dice.below(400) {
                0 => {
                    self.ranks[index].is_alive = false;
                    *deaths += 1;
                }
                1..=2 => {
                    let rank = &mut self.ranks[index];
                    rank.leaving = true;
                    rank.slots.values_mut().for_each(|slot| slot.is_stopped = true);
                    *leaves += 1;
                }
                3 => self.ranks[index].suspended_until = now + self.dice.below(2 * LEASE_MS),
                _ => {}
            }
        }
        if self.dice.chance(3) {
            self.life += 1;
            let snapshot = self.dice.chance(500);
            let records = if snapshot { self.bench.cluster.snapshot() } else { self.bench.records.clone() };
            self.bench.cluster = Cluster::restore(settings(), self.life, self.bench.now, records);
            self.asker.clear();
            *leaders += 1;
        }
    }

    /// Delivers a batch and reports.
    fn wake(&mut self, index: usize) {
        let now = self.bench.now;
        if self.dice.chance(600) {
            self.deliver(index);
        }
        let rank = &mut self.ranks[index];
        let is_late = rank.asked.as_ref().is_some_and(|(_, sent, ..)| now - sent >= ANSWER_MS);
        // A second report replaces the first report, and the reply to the first report is ignored.
        if rank.asked.is_some() && !is_late && !self.dice.chance(100) {
            return;
        }
        self.number += 1;
        let stopped = rank.slots.iter().filter(|(_, slot)| slot.is_stopped);
        let stopped = stopped.map(|(stream, slot)| (*stream, slot.generation)).collect();
        rank.asked = Some((self.number, now, stopped, rank.leaving));
        let (fault, slots) = (self.fault, self.bench.cluster.jobs[&self.job].slots.as_slice());
        let claim = |(stream, slot): (&u32, &Held)| {
            let forgets = fault == Fault::ForgetsGeneration;
            let ahead = if fault == Fault::EarlyClaim { BATCH } else { 0 };
            SlotPosition {
                stream: *stream,
                generation: if forgets { slots[*stream as usize].generation } else { slot.generation },
                position: StreamPosition { row: slot.position.row + ahead, ..slot.position },
                stopped: slot.is_stopped,
            }
        };
        let claims = rank.slots.iter().map(claim).collect();
        let report = ConsumerReport {
            session: rank.session,
            plan_revision: rank.seen,
            slots: SlotReport { claims, leaving: rank.leaving, slot_ns: rank.slot_ns },
            ..consumer_report(self.job, rank.number)
        };
        for _ in 0..1 + u64::from(self.dice.chance(50)) {
            self.send(Event::Report(self.number, index, Box::new(report.clone())));
        }
    }

    fn deliver(&mut self, index: usize) {
        let (rank, begins_early) = (&mut self.ranks[index], self.fault == Fault::BeginsEarly);
        let open = rank.slots.iter_mut().filter(|(stream, slot)| {
            let goes_on = !slot.is_stopped || self.fault == Fault::GoesOn;
            goes_on && !self.layout.is_end(**stream, slot.position)
        });
        let Some((stream, slot)) = open.min_by_key(|(stream, slot)| (slot.position, **stream)) else {
            return;
        };
        let is_first = !self.delivered[*stream as usize].contains_key(&slot.generation);
        if begins_early && is_first {
            slot.position.row = slot.position.row.saturating_sub(BATCH);
        }
        let (stream, began) = (*stream, slot.position);
        let row = (began.row + BATCH).min(self.layout.stream_rows(stream));
        slot.position = self.layout.normalise(stream, StreamPosition { epoch: began.epoch, row });
        if slot.position == began {
            // The empty step at the end of an epoch.
            slot.position = StreamPosition { epoch: began.epoch + 1, row: 0 };
        }
        let entry = self.delivered[stream as usize].entry(slot.generation).or_insert((index, began, began));
        assert_eq!((entry.0, entry.2), (index, began), "a generation is of one rank, and in order");
        entry.2 = slot.position;
        rank.last = Some(began);
        rank.stop_wanted();
    }

    fn send(&mut self, event: Event) {
        if self.bench.now < FAULTS_MS && self.dice.chance(100) {
            return;
        }
        let delay = if self.dice.chance(100) { self.dice.below(900) } else { self.dice.below(60) };
        self.number += 1;
        self.queue.insert((self.bench.now + delay, self.number), event);
    }

    fn on_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Report(request, index, report) => {
                let (now, heard) =
                    (self.bench.now, self.heard.entry(index).or_insert((self.bench.now, false)));
                heard.1 |= now - heard.0 > LEASE_MS;
                heard.0 = now;
                // Each delivery of a message is a separate request.
                self.bench.request += 1;
                let asked = self.bench.request;
                self.asker.insert(asked, (index, request));
                self.step(Input::Consumer { request: asked, report: *report })
            }
            Event::Answer(sent, index, reply) => {
                let now = self.bench.now;
                let rank = &mut self.ranks[index];
                if !rank.is_alive || rank.is_done || rank.suspended_until > now {
                    return Ok(());
                }
                let Some((_, _, stopped, left)) = rank.asked.take_if(|(asked, ..)| *asked == sent) else {
                    return Ok(());
                };
                rank.on_reply(*reply, &stopped, left)
            }
        }
    }

    /// Passes an input, sends the replies, and records where generations begin.
    fn step(&mut self, input: Input) -> Result<(), String> {
        self.bench.step(input);
        for (request, reply) in std::mem::take(&mut self.bench.answered) {
            if let Some((index, sent)) = self.asker.remove(&request) {
                self.send(Event::Answer(sent, index, Box::new(reply)));
            }
        }
        let job = &self.bench.cluster.jobs[&self.job];
        for (index, slot) in job.slots.as_slice().iter().enumerate() {
            let began = slot.start_positions.last().copied().unwrap_or_default();
            if slot.generation > 0 && *self.began[index].entry(slot.generation).or_insert(began) != began {
                return Err(format!("generation {} of slot {index} began twice", slot.generation));
            }
        }
        Ok(())
    }

    /// Checks that each generation of a slot continues where the previous one ended.
    fn check(&self) -> Result<(), String> {
        for (stream, began) in self.began.iter().enumerate() {
            let end = StreamPosition { epoch: self.layout.epochs, row: 0 };
            let mut next = StreamPosition::default();
            for (generation, start) in began {
                if *start < next {
                    return Err(format!("slot {stream} went back in generation {generation}"));
                }
                next = *start;
                let ends = began.get(&(generation + 1)).copied().unwrap_or(end);
                let Some((rank, from, to)) = self.delivered[stream].get(generation) else {
                    if ends != *start {
                        return Err(format!("nobody delivered generation {generation} of slot {stream}"));
                    }
                    continue;
                };
                let whole = from == start && *to >= ends;
                let who = &self.ranks[*rank];
                let was_lost = !who.is_alive || self.heard[rank].1;
                // A suspended rank learns of the end when it returns.
                let is_told = !who.is_alive || who.is_superseded;
                if !whole || (*to > ends && !(was_lost && is_told)) {
                    return Err(format!(
                        "generation {generation} of slot {stream} is {start:?} to {ends:?} and was delivered from {from:?} to {to:?} by {who:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Rank {
    fn stop_wanted(&mut self) {
        for slot in self.slots.values_mut() {
            slot.is_stopped |= slot.is_wanted && self.last.is_none_or(|last| slot.position > last);
        }
    }

    fn on_reply(&mut self, reply: Reply, stopped: &[(u32, u64)], left: bool) -> Result<(), String> {
        let plan = match reply {
            Reply::Consumer(plan) => plan,
            Reply::Rejected(refusal) if refusal.kind == ServiceErrorKind::Superseded => {
                (self.is_done, self.is_superseded) = (true, true);
                return Ok(());
            }
            other => return Err(format!("not an answer to a rank: {other:?}")),
        };
        self.seen = plan.revision;
        let grants = plan.slots.ok_or("the plan is not that of an elastic job")?;
        if plan.state.is_ended() {
            self.is_done = true;
            return Ok(());
        }
        for (stream, slot) in &mut self.slots {
            let own = |grant: &&SlotGrant| grant.stream == *stream && grant.generation == slot.generation;
            match grants.iter().find(own) {
                Some(grant) => slot.is_wanted |= grant.release,
                None => slot.is_stopped = true,
            }
        }
        self.slots.retain(|stream, slot| {
            let own = |grant: &SlotGrant| grant.stream == *stream && grant.generation == slot.generation;
            grants.iter().any(own) || !stopped.contains(&(*stream, slot.generation))
        });
        for grant in grants {
            self.slots.entry(grant.stream).or_insert(Held {
                generation: grant.generation,
                position: grant.position,
                is_wanted: grant.release,
                is_stopped: self.leaving,
            });
        }
        self.is_done = left && self.slots.is_empty();
        self.stop_wanted();
        Ok(())
    }
}

#[test]
fn the_rows_of_each_slot_are_delivered_once_and_in_order() {
    let mut sum = [0; 4];
    let mut failed = Vec::new();
    for seed in 0..400 {
        match World::new(seed, Fault::None).run() {
            Ok(counts) => (0..4).for_each(|index| sum[index] += counts[index]),
            Err(message) => failed.push((seed, message)),
        }
    }
    assert!(failed.is_empty(), "{} seeds failed, such as {}: {}", failed.len(), failed[0].0, failed[0].1);
    let [deaths, leaves, leaders, moves] = sum;
    assert!(deaths > 100 && leaves > 100 && leaders > 100 && moves > 4_000, "{sum:?}");
}

#[test]
fn injected_faults_are_found() {
    for fault in [Fault::GoesOn, Fault::EarlyClaim, Fault::BeginsEarly, Fault::ForgetsGeneration] {
        let is_found = (0..200).any(|seed| World::new(seed, fault).run().is_err());
        assert!(is_found, "200 seeds do not find {fault:?}");
    }
}
