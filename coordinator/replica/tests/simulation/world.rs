//! The simulated cluster: coordinators, workers, consumers, virtual time.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

use feedline_core::cluster::messages::{JobState, JobStatus, RefusalKind};
use feedline_core::cluster::records::Record;
use feedline_core::cluster::{Input, Reply};
use feedline_core::ids::{JobId, Millis, SessionId, WorkerId};
use feedline_core::layout::SplitRef;
use feedline_core::position::Position;

use super::Plant;
use super::application::Entry;
use super::consumer::Consumer;
use super::coordinators::{Coordinators, Outcome as Told};
use super::dice::{Dice, Trace};
use super::messages::{Peer, Send};
use super::network::{Event, Queue, Wired};
use super::scenario::Scenario;
use super::worker::Worker;

/// Once nothing goes wrong any more, a run must end within this time.
const END_MS: Millis = 60_000;
/// A dead worker's leases are gone after this time: its last report may take 3 s, then the lease time and some ticks.
const LEASE_MS: Millis = 6_500;

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) trace: Trace,
    pub(crate) events: u64,
    /// Virtual time at the end.
    pub(crate) took_ms: Millis,
    pub(crate) entries: Vec<Entry>,
    /// Where the job stood, if the run was stopped before its end.
    pub(crate) position: Option<Position>,
    pub(crate) consumer_crashes: u64,
}

pub(crate) struct World {
    scenario: Scenario,
    now: Millis,
    dice: Dice,
    trace: Trace,
    queue: Queue,
    coordinators: Coordinators,
    crash_armed: bool,
    /// Until when the messages of a coordinator to others, and from others, are lost.
    cut: Vec<(Millis, Millis)>,
    suspended_until: Vec<Millis>,
    /// When the last write of a coordinator is done.
    written_at: Vec<Millis>,
    /// Whom each worker and consumer asks.
    targets: BTreeMap<u64, usize>,
    workers: BTreeMap<WorkerId, Worker>,
    died: BTreeMap<WorkerId, Millis>,
    next_worker: u64,
    consumers: Vec<Consumer>,
    consumer_crashes: u64,
    halting: bool,
    status: Vec<JobStatus>,
    status_calls: u64,
}

impl World {
    pub(crate) fn new(scenario: &Scenario, plant: Plant) -> Result<Self, String> {
        let coordinators = Coordinators::new(&scenario.machines, plant)?;
        let count = coordinators.count();
        let mut world = Self {
            scenario: scenario.clone(),
            now: 0,
            dice: Dice::new(scenario.seed ^ 0xF00D),
            trace: Trace(scenario.seed),
            queue: Queue::default(),
            coordinators,
            crash_armed: false,
            cut: vec![(0, 0); count],
            suspended_until: vec![0; count],
            written_at: vec![0; count],
            targets: BTreeMap::new(),
            workers: BTreeMap::new(),
            died: BTreeMap::new(),
            next_worker: 1,
            consumers: Vec::new(),
            consumer_crashes: 0,
            halting: false,
            status: Vec::new(),
            status_calls: 0,
        };
        for number in 0..scenario.consumers {
            let data = Rc::clone(&scenario.job);
            world.consumers.push(Consumer::new(
                number,
                data,
                scenario.wants,
                scenario.checkpoint_every,
                plant,
            ));
            world.queue.push(1 + u64::from(number), Event::WakeConsumer(number, SessionId(1)));
        }
        for _ in 0..scenario.workers {
            let at = world.dice.range(1, 500);
            world.queue.push(at, Event::StartWorker);
        }
        world.queue.push(1, Event::Tick);
        for place in 0..count {
            let at = world.dice.range(0, 50);
            world.queue.push(at, Event::TickCoordinator { place, life: world.coordinators.life(place) });
        }
        world.plan_faults();
        Ok(world)
    }

    fn plan_faults(&mut self) {
        let faults = self.scenario.faults.clone();
        let armed = self.dice.chance(700);
        let kinds = [
            (faults.coordinator_crashes, Event::CrashCoordinator { armed }),
            (faults.coordinator_cuts, Event::CutOff),
            (faults.coordinator_stalls, Event::SuspendCoordinator),
            (faults.worker_crashes, Event::CrashWorker),
            (faults.worker_stalls, Event::StallWorker),
            (faults.consumer_crashes, Event::CrashConsumer),
        ];
        // Many jobs are short: faults come early more often than late.
        let horizon = self.dice.pick(&[1_500, 4_000, faults.until]).min(faults.until);
        for (count, event) in kinds {
            for _ in 0..count {
                let at = self.dice.range(1, horizon);
                self.queue.push(at, event.clone());
            }
        }
    }

    /// Runs to the job's end, or until `stop` entries were consumed.
    pub(crate) fn run(mut self, stop: Option<usize>) -> Result<Outcome, String> {
        let mut events = 0;
        let mut halt_at = None;
        while let Some((at, event)) = self.queue.pop() {
            events += 1;
            self.now = self.now.max(at);
            write!(self.trace, "{at} {event:?}").expect("a hash takes all");
            self.on_event(event)?;
            if self.is_settled() {
                self.check_end()?;
                return Ok(self.outcome(events, None));
            }
            let consumed: usize = self.consumers.iter().map(|consumer| consumer.app.consumed()).sum();
            if stop.is_some_and(|stop| consumed >= stop) && !self.halting {
                self.halting = true;
                self.scenario.faults.until = 0;
                self.crash_armed = false;
            }
            let leads = self.coordinators.leader().is_some();
            let calm = leads && self.consumers.iter().all(|consumer| consumer.alive);
            if self.halting && calm && halt_at.is_none() {
                halt_at = Some(self.now + 5_000);
            }
            if halt_at.is_some_and(|at| self.now >= at) && leads {
                let position = self.position()?;
                return Ok(self.outcome(events, Some(position)));
            }
            if self.now > self.scenario.faults.until.max(20_000) + END_MS {
                return Err(format!("it hangs: {}", self.describe()));
            }
        }
        Err("nothing is left to happen".to_owned())
    }

    fn outcome(self, events: u64, position: Option<Position>) -> Outcome {
        let entries = self.consumers.into_iter().flat_map(|consumer| consumer.app.into_entries()).collect();
        let consumer_crashes = self.consumer_crashes;
        Outcome { trace: self.trace, events, took_ms: self.now, entries, position, consumer_crashes }
    }

    fn describe(&self) -> String {
        let consumers: Vec<String> = self.consumers.iter().map(Consumer::describe).collect();
        let workers: Vec<WorkerId> = self.workers.keys().copied().collect();
        format!(
            "at {} ms: {:?}\nworkers {workers:?}\n{}",
            self.now,
            self.coordinators.snapshot(),
            consumers.join("\n")
        )
    }

    fn job(&self) -> Option<JobId> {
        self.consumers.iter().find_map(|consumer| consumer.job)
    }

    /// Whether every consumer knows that the job ended, and every live worker's counts are in.
    fn is_settled(&self) -> bool {
        self.consumers.iter().all(|consumer| consumer.alive && consumer.ended.is_some())
            && self
                .status
                .iter()
                .any(|status| Some(status.job) == self.job() && status.settled && status.state.is_ended())
    }

    fn check_end(&self) -> Result<(), String> {
        if let Some(other) =
            self.consumers.iter().find(|consumer| consumer.ended != Some(JobState::Completed))
        {
            return Err(format!("consumer {} was told {:?}", other.number, other.ended));
        }
        let jobs: Vec<Option<JobId>> = self.consumers.iter().map(|consumer| consumer.job).collect();
        if jobs.iter().any(|job| *job != jobs[0]) {
            return Err(format!("the consumers joined different jobs: {jobs:?}"));
        }
        // An opening that arrived late may have opened the job once more.
        let leased = |record: &Record| matches!(record, Record::Granted { job, .. } if Some(*job) == jobs[0]);
        if self.coordinators.snapshot().iter().any(leased) {
            return Err("leases outlive their job".to_owned());
        }
        self.coordinators.check_replay()
    }

    fn position(&mut self) -> Result<Position, String> {
        let job = self.job().ok_or_else(|| "there is no job".to_owned())?;
        let missing = || format!("job {job} has no position: {}", self.describe());
        self.coordinators.position(job).ok_or_else(missing)
    }

    fn on_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Request(place, peer, call, request) => {
                if self.now < self.suspended_until[place] {
                    let until = self.suspended_until[place];
                    self.queue.push(until, Event::Request(place, peer, call, request));
                } else {
                    let told = self.coordinators.on_request(place, self.now, (peer, call), request)?;
                    self.after(place, told)?;
                }
            }
            Event::Raft(from, place, message) => self.on_raft(from, place, message)?,
            Event::Saved(job) => {
                for place in 0..self.coordinators.count() {
                    let told = self.coordinators.with(place, self.now, |member, now| {
                        member.ask(now, Input::IndexSaved { job, saved: Ok(()) });
                        member.decide(now);
                    })?;
                    self.after(place, told)?;
                }
            }
            Event::TickCoordinator { place, life } => self.tick_coordinator(place, life)?,
            Event::Answer(peer, call, reply) => self.on_answer(peer, call, reply)?,
            Event::Fetch(fetch) => self.on_fetch(fetch),
            Event::Fetched(fetch, outcome) => {
                let consumer = &mut self.consumers[fetch.consumer as usize];
                if consumer.alive && consumer.session == fetch.session {
                    consumer.on_fetched(fetch, outcome);
                }
            }
            Event::WakeWorker(id) => self.wake_worker(id),
            Event::WakeConsumer(number, session) => self.wake_consumer(number, session),
            Event::Written { place, life } if self.now < self.suspended_until[place] => {
                self.queue.push(self.suspended_until[place], Event::Written { place, life });
            }
            Event::Written { place, life } => {
                if life == self.coordinators.life(place) && self.coordinators.is_up(place) {
                    let told = self.coordinators.on_written(place, self.now)?;
                    self.after(place, told)?;
                }
            }
            Event::Tick => self.on_tick()?,
            fault => self.on_fault(fault)?,
        }
        Ok(())
    }

    fn on_tick(&mut self) -> Result<(), String> {
        self.queue.push(self.now + 50, Event::Tick);
        let ended = self.consumers.iter().all(|consumer| consumer.ended.is_some());
        if ended || self.dice.chance(100) {
            self.status_calls += 1;
            let place = self.dice.range(0, self.coordinators.count() as u64 - 1) as usize;
            let request =
                Event::Request(place, Peer::Observer, self.status_calls, super::messages::Request::Status);
            self.on_event(request)?;
        }
        if self.dice.chance(50) {
            self.check_leases()?;
            self.coordinators.check_replay()?;
        }
        Ok(())
    }

    fn tick_coordinator(&mut self, place: usize, life: u64) -> Result<(), String> {
        if life != self.coordinators.life(place) || !self.coordinators.is_up(place) {
            return Ok(());
        }
        let next = self.now + self.coordinators.tick_ms(place);
        let next = next.max(self.suspended_until[place]);
        self.queue.push(next, Event::TickCoordinator { place, life });
        if self.now < self.suspended_until[place] {
            return Ok(());
        }
        let told = self.coordinators.with(place, self.now, |member, now| {
            member.tick(now);
            member.decide(now);
        })?;
        self.after(place, told)
    }

    fn on_raft(&mut self, from: usize, place: usize, message: Wired) -> Result<(), String> {
        if self.now < self.suspended_until[place] {
            self.queue.push(self.suspended_until[place], Event::Raft(from, place, message));
            return Ok(());
        }
        // A link that is cut loses what is on it.
        if self.now < self.cut[from].0.max(self.cut[place].1) {
            return Ok(());
        }
        let told = self.coordinators.with(place, self.now, |member, now| member.receive(now, message.0))?;
        self.after(place, told)
    }

    /// What follows from something that a coordinator was told.
    fn after(&mut self, place: usize, told: Told) -> Result<(), String> {
        self.answer(told.answers)?;
        self.take_back(told.taken_back);
        for (to, message) in told.messages {
            let event = Event::Raft(place, to, Wired(message));
            self.queue.send(self.now, &self.scenario.faults, &mut self.dice, event);
        }
        for job in told.saves {
            let delay = self.dice.range(0, 100);
            self.queue.push(self.now + delay, Event::Saved(job));
        }
        let slow = if self.now < self.scenario.faults.until { self.scenario.faults.slow_disk_ms } else { 3 };
        let life = self.coordinators.life(place);
        for _ in 0..told.writes {
            let delay = self.dice.pick(&[0, 0, 1, 3, slow]);
            // Writes are done in their order.
            self.written_at[place] = self.written_at[place].max(self.now + delay);
            self.queue.push(self.written_at[place], Event::Written { place, life });
        }
        let leads = self.coordinators.leader() == Some(place);
        if told.writes > 0 && leads && self.crash_armed && self.now < self.scenario.faults.until {
            self.crash_coordinator(place);
        }
        Ok(())
    }

    fn answer(&mut self, answers: Vec<(Peer, u64, Reply)>) -> Result<(), String> {
        for (peer, call, reply) in answers {
            if let (Peer::Observer, Reply::Status(status)) = (peer, &reply) {
                self.coordinators.check_status(call, status)?;
                self.status.clone_from(status);
                continue;
            }
            self.queue.send(
                self.now,
                &self.scenario.faults,
                &mut self.dice,
                Event::Answer(peer, call, reply),
            );
        }
        Ok(())
    }

    /// Splits were taken from consumers: what those did with them is void, and they begin anew.
    fn take_back(&mut self, taken_back: Vec<(u32, SplitRef, u32)>) {
        for (number, split, offset) in taken_back {
            let consumer = &mut self.consumers[number as usize];
            consumer.app.roll_back(split, offset);
            if consumer.alive && consumer.ended.is_none() {
                consumer.restart();
                let session = consumer.session;
                self.queue.push(self.now + 1, Event::WakeConsumer(number, session));
            }
        }
    }

    /// No lease stays with a worker that died.
    fn check_leases(&self) -> Result<(), String> {
        if self.coordinators.leader().is_none() || self.now < self.coordinators.serving_since + LEASE_MS {
            return Ok(());
        }
        for record in self.coordinators.snapshot() {
            let Record::Granted { worker, .. } = &record else { continue };
            if self.died.get(worker).is_some_and(|died| self.now > died + LEASE_MS) {
                return Err(format!(
                    "a worker dead since {} still has leases at {}: {record:?}",
                    self.died[worker], self.now
                ));
            }
        }
        Ok(())
    }

    fn on_answer(&mut self, peer: Peer, call: u64, reply: Reply) -> Result<(), String> {
        if let Reply::Refused(refusal) = &reply
            && refusal.kind == RefusalKind::Unavailable
        {
            let known = refusal.leader.as_deref().and_then(|url| self.coordinators.at(url));
            let any = self.dice.range(0, self.coordinators.count() as u64 - 1) as usize;
            self.targets.insert(target_key(peer), known.unwrap_or(any));
        }
        match peer {
            Peer::Worker(id) => {
                let Some(worker) = self.workers.get_mut(&id) else { return Ok(()) };
                if worker.stalled_until > self.now {
                    self.queue.push(worker.stalled_until, Event::Answer(peer, call, reply));
                    return Ok(());
                }
                worker.on_reply(call, reply)
            }
            Peer::Consumer(number, session) => {
                let consumer = &mut self.consumers[number as usize];
                if !consumer.alive || consumer.session != session {
                    return Ok(());
                }
                consumer.on_reply(call, reply)
            }
            Peer::Observer => Ok(()),
        }
    }

    fn on_fetch(&mut self, fetch: super::messages::Fetch) {
        let mut out = Vec::new();
        match self.workers.get_mut(&fetch.worker) {
            Some(worker) if worker.stalled_until > self.now => {
                self.queue.push(worker.stalled_until, Event::Fetch(fetch));
            }
            Some(worker) => worker.on_fetch(self.now, fetch, &mut out),
            // A dead worker's host may refuse at once or say nothing.
            None if fetch.call.is_multiple_of(2) => {
                out.push(Send::Fetched(fetch, super::messages::Outcome::NotHeld))
            }
            None => {}
        }
        self.send_all(Peer::Worker(fetch.worker), out);
    }

    fn wake_worker(&mut self, id: WorkerId) {
        let mut out = Vec::new();
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.stalled_until > self.now {
            self.queue.push(worker.stalled_until, Event::WakeWorker(id));
            return;
        }
        worker.on_wake(self.now, &mut self.dice, &mut out);
        let delay = self.dice.range(5, 20);
        self.queue.push(self.now + delay, Event::WakeWorker(id));
        self.send_all(Peer::Worker(id), out);
    }

    fn wake_consumer(&mut self, number: u32, session: SessionId) {
        let mut out = Vec::new();
        let joined = self.consumers.iter().all(|consumer| consumer.job.is_some());
        let consumer = &mut self.consumers[number as usize];
        if !consumer.alive || consumer.session != session {
            return;
        }
        // Training begins when all ranks have met: a job that ended without one of them could not be joined by it.
        if joined || consumer.job.is_none() {
            consumer.on_wake(self.now, self.halting, &mut self.dice, &mut out);
        }
        if consumer.ended.is_none() {
            let delay = self.dice.range(5, 20);
            self.queue.push(self.now + delay, Event::WakeConsumer(number, session));
        }
        self.send_all(Peer::Consumer(number, session), out);
    }

    fn send_all(&mut self, from: Peer, out: Vec<Send>) {
        for send in out {
            let event = match send {
                Send::Request(call, request) => {
                    // One that is not answered asks another now and then.
                    let any = self.dice.range(0, self.coordinators.count() as u64 - 1) as usize;
                    let asks_any = self.dice.chance(50);
                    let target = self.targets.entry(target_key(from)).or_insert(any);
                    if asks_any {
                        *target = any;
                    }
                    Event::Request(*target, from, call, request)
                }
                Send::Fetch(fetch) => Event::Fetch(fetch),
                Send::Fetched(fetch, outcome) => Event::Fetched(fetch, outcome),
            };
            self.queue.send(self.now, &self.scenario.faults, &mut self.dice, event);
        }
    }

    fn on_fault(&mut self, fault: Event) -> Result<(), String> {
        match fault {
            Event::RestartCoordinator(place) => {
                self.coordinators.start(place)?;
                let life = self.coordinators.life(place);
                self.queue.push(self.now, Event::TickCoordinator { place, life });
            }
            Event::StartWorker => self.start_worker(),
            Event::RestartConsumer(number) => {
                self.consumers[number as usize].restart();
                let session = self.consumers[number as usize].session;
                self.queue.push(self.now, Event::WakeConsumer(number, session));
            }
            _ if self.now >= self.scenario.faults.until => {}
            Event::CrashCoordinator { armed: true } => self.crash_armed = true,
            Event::CrashCoordinator { armed: false } => {
                let place = self.a_coordinator();
                self.crash_coordinator(place);
            }
            Event::CutOff => {
                let place = self.a_coordinator();
                let until = self.now + self.dice.range(200, 5_000);
                match self.dice.range(0, 2) {
                    0 => self.cut[place].0 = until,
                    1 => self.cut[place].1 = until,
                    _ => self.cut[place] = (until, until),
                }
            }
            Event::SuspendCoordinator => {
                let place = self.a_coordinator();
                self.suspended_until[place] = self.now + self.dice.range(100, 4_000);
            }
            Event::CrashWorker => self.crash_worker(),
            Event::StallWorker => {
                let ids: Vec<WorkerId> = self.workers.keys().copied().collect();
                if !ids.is_empty() {
                    let id = self.dice.pick(&ids);
                    let until = self.now + self.dice.range(200, 6_000);
                    self.workers.get_mut(&id).expect("picked from the keys").stalled_until = until;
                }
            }
            Event::CrashConsumer => self.crash_consumer(),
            other => return Err(format!("not a fault: {other:?}")),
        }
        Ok(())
    }

    /// The one that leads, more often than not.
    fn a_coordinator(&mut self) -> usize {
        let any = self.dice.range(0, self.coordinators.count() as u64 - 1) as usize;
        let prefers_leader = self.dice.chance(600);
        self.coordinators.leader().filter(|_| prefers_leader).unwrap_or(any)
    }

    fn crash_coordinator(&mut self, place: usize) {
        self.crash_armed = false;
        if self.coordinators.is_up(place) {
            self.coordinators.crash(place, &mut self.dice);
            self.suspended_until[place] = 0;
            self.written_at[place] = 0;
            let delay = self.dice.pick(&[1, 200, 1_000, 5_000]);
            self.queue.push(self.now + delay, Event::RestartCoordinator(place));
        }
    }

    fn start_worker(&mut self) {
        let id = WorkerId(self.next_worker);
        self.next_worker += 1;
        let worker = Worker::new(id, Rc::clone(&self.scenario.job), &mut self.dice);
        self.workers.insert(id, worker);
        self.queue.push(self.now, Event::WakeWorker(id));
    }

    fn crash_worker(&mut self) {
        let ids: Vec<WorkerId> = self.workers.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = self.dice.pick(&ids);
        self.workers.remove(&id);
        self.died.insert(id, self.now);
        // Sometimes no other comes, as long as one is left.
        if self.workers.is_empty() || self.dice.chance(700) {
            let delay = self.dice.range(1, 4_000);
            self.queue.push(self.now + delay, Event::StartWorker);
        }
    }

    fn crash_consumer(&mut self) {
        let number = self.dice.range(0, u64::from(self.scenario.consumers) - 1) as u32;
        let consumer = &mut self.consumers[number as usize];
        if !consumer.alive || consumer.ended.is_some() || consumer.job.is_none() {
            return;
        }
        consumer.crash();
        self.consumer_crashes += 1;
        let long = self.dice.chance(250);
        let delay = if long { self.dice.range(15_500, 20_000) } else { self.dice.range(1, 3_000) };
        self.queue.push(self.now + delay, Event::RestartConsumer(number));
    }
}

/// A worker or consumer among all.
fn target_key(peer: Peer) -> u64 {
    match peer {
        Peer::Worker(id) => id.0 << 8,
        Peer::Consumer(number, _) => 1 + (u64::from(number) << 8),
        Peer::Observer => 2,
    }
}
