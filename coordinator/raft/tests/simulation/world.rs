//! The simulated cluster: coordinators, workers, consumers, virtual time.

#[path = "actors.rs"]
mod actors;
#[path = "end_checks.rs"]
mod end_checks;
#[path = "faults.rs"]
mod faults;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

use feedline_cluster::{Input, Reply};
use feedline_data::checkpoint::Position;
use feedline_data::ids::{JobId, Millis, SessionId, WorkerId};
use feedline_data::messages::JobStatus;
use feedline_raft::{MemberId, has_snapshot};

use super::Fault;
use super::application::Entry;
use super::consumer::{Consumer, Seat};
use super::coordinators::{Coordinators, Outcome as Told};
use super::dice::{Dice, Trace};
use super::kept::TakenBack;
use super::members::Operator;
use super::messages::Peer;
use super::network::{Event, Queue, Wired};
use super::scenario::Scenario;
use super::worker::Worker;

/// Maximum time from the last fault to the end of a run.
const END_MS: Millis = 60_000;

/// Time after which a coordinator receives the outcome of a snapshot.
const ARRIVED_MS: Millis = 20;
const LOST_MS: Millis = 2_000;

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) trace: Trace,
    pub(crate) events: u64,
    /// The virtual time at the end.
    pub(crate) took_ms: Millis,
    /// The entries of each job.
    pub(crate) entries: Vec<Vec<Entry>>,
    /// The position of the first job, if the run was stopped.
    pub(crate) position: Option<Position>,
    pub(crate) consumer_crashes: u64,
    /// Whether each job has failed because it delivered no rows.
    pub(crate) is_empty: Vec<bool>,
    /// Whether each job has failed because several workers were lost while they prepared it.
    pub(crate) is_given_up: Vec<bool>,
    /// The number of workers that the planted split has crashed.
    pub(crate) planted_crashes: u64,
    pub(crate) failovers: usize,
}

pub(crate) struct World {
    scenario: Scenario,
    now: Millis,
    dice: Dice,
    trace: Trace,
    queue: Queue,
    coordinators: Coordinators,
    crash_armed: bool,
    /// The times until which outgoing and incoming messages of a coordinator are lost.
    cut: Vec<(Millis, Millis)>,
    suspended_until: Vec<Millis>,
    /// The time when the last write of each coordinator finishes.
    written_at: Vec<Millis>,
    /// The time until which a coordinator's disk fails.
    refuses_until: Vec<Millis>,
    operator: Operator,
    /// The member that has lost its disk, until it is replaced.
    lost: Option<MemberId>,
    /// The coordinator that each worker and consumer sends requests to.
    targets: BTreeMap<u64, usize>,
    workers: BTreeMap<WorkerId, Worker>,
    died: BTreeMap<WorkerId, Millis>,
    next_worker: u64,
    consumers: Vec<Consumer>,
    consumer_crashes: u64,
    planted_crashes: u64,
    /// The number of workers that crashed or stalled.
    silenced_workers: u64,
    halting: bool,
    status: Vec<JobStatus>,
    status_calls: u64,
}

impl World {
    pub(crate) fn new(scenario: &Scenario, fault: Fault) -> Result<Self, String> {
        let coordinators = Coordinators::new(&scenario.machines, fault)?;
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
            refuses_until: vec![0; count],
            operator: Operator::default(),
            lost: None,
            targets: BTreeMap::new(),
            workers: BTreeMap::new(),
            died: BTreeMap::new(),
            next_worker: 1,
            consumers: Vec::new(),
            consumer_crashes: 0,
            planted_crashes: 0,
            silenced_workers: 0,
            halting: false,
            status: Vec::new(),
            status_calls: 0,
        };
        for (of, data) in scenario.jobs.iter().enumerate() {
            // The second job opens while the first is preparing or running, or has ended.
            let begins = if of == 0 { 1 } else { world.dice.range(1, 3_000) };
            for number in 0..data.spec.consumers {
                let seat = Seat { place: world.consumers.len() as u32, of, number };
                let (wants, checkpoint_every) = (scenario.wants, scenario.checkpoint_every);
                world.consumers.push(Consumer::new(seat, Rc::clone(data), wants, checkpoint_every, fault));
                let at = begins + u64::from(number);
                world.queue.push(at, Event::WakeConsumer(seat.place, SessionId(1)));
            }
        }
        for _ in 0..scenario.workers {
            let at = world.dice.range(1, 500);
            world.queue.push(at, Event::StartWorker);
        }
        world.queue.push(1, Event::Tick);
        for place in world.coordinators.inside().to_vec() {
            let at = world.dice.range(0, 50);
            world.queue.push(
                at,
                Event::TickCoordinator { place, incarnation: world.coordinators.incarnation(place) },
            );
        }
        world.plan_faults();
        Ok(world)
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
            let is_known = || self.consumers.iter().all(Consumer::is_known);
            if halt_at.is_some_and(|at| self.now >= at) && leads && is_known() {
                let position = self.position()?;
                return Ok(self.outcome(events, Some(position)));
            }
            // Each loss of a planted split costs several seconds.
            let end_ms = if self.scenario.planted.is_some() { 4 * END_MS } else { END_MS };
            if self.now > self.scenario.faults.until.max(20_000) + end_ms {
                return Err(format!("it hangs: {}", self.describe()));
            }
        }
        Err("nothing is left to happen".to_owned())
    }

    fn outcome(self, events: u64, position: Option<Position>) -> Outcome {
        let jobs = self.scenario.jobs.len();
        let is_empty = (0..jobs).map(|of| self.is_empty(of)).collect();
        let is_given_up = (0..jobs).map(|of| self.is_given_up(of)).collect();
        let mut entries = vec![Vec::new(); jobs];
        for consumer in self.consumers {
            entries[consumer.seat.of].extend(consumer.app.into_entries());
        }
        Outcome {
            trace: self.trace,
            events,
            took_ms: self.now,
            entries,
            position,
            consumer_crashes: self.consumer_crashes,
            is_empty,
            is_given_up,
            planted_crashes: self.planted_crashes,
            failovers: self.coordinators.failovers(),
        }
    }

    fn describe(&self) -> String {
        let consumers: Vec<String> = self.consumers.iter().map(Consumer::describe).collect();
        let workers: Vec<WorkerId> = self.workers.keys().copied().collect();
        format!(
            "at {} ms\ncoordinators:\n{}\n{:?}\nworkers {workers:?}\n{}",
            self.now,
            self.coordinators.describe(),
            self.coordinators.snapshot(),
            consumers.join("\n")
        )
    }

    /// Consumers of one of the jobs.
    fn consumers_of(&self, of: usize) -> impl Iterator<Item = &Consumer> {
        self.consumers.iter().filter(move |consumer| consumer.seat.of == of)
    }

    fn job(&self, of: usize) -> Option<JobId> {
        self.consumers_of(of).find_map(|consumer| consumer.job)
    }

    /// The position of the first job.
    fn position(&mut self) -> Result<Position, String> {
        let job = self.job(0).ok_or_else(|| "the job does not exist".to_owned())?;
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
                        member.take_input(now, Input::IndexSaved { job, result: Ok(()) });
                        member.decide(now);
                    })?;
                    self.after(place, told)?;
                }
            }
            Event::SnapshotSent { place, incarnation, to, arrived }
                if self.now < self.suspended_until[place] =>
            {
                let event = Event::SnapshotSent { place, incarnation, to, arrived };
                self.queue.push(self.suspended_until[place], event);
            }
            Event::SnapshotSent { place, incarnation, to, arrived } => {
                if incarnation == self.coordinators.incarnation(place) {
                    let told = self
                        .coordinators
                        .with(place, self.now, |member, _| member.on_snapshot_sent(to, arrived))?;
                    self.after(place, told)?;
                }
            }
            Event::TickCoordinator { place, incarnation } => self.tick_coordinator(place, incarnation)?,
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
            Event::Written { place, incarnation } if self.now < self.suspended_until[place] => {
                self.queue.push(self.suspended_until[place], Event::Written { place, incarnation });
            }
            Event::Written { place, incarnation } if self.now < self.refuses_until[place] => {
                self.refuse_write(place, incarnation)?;
            }
            Event::Written { place, incarnation } => {
                if incarnation == self.coordinators.incarnation(place) && self.coordinators.is_up(place) {
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
            let place = self.dice.pick(self.coordinators.inside());
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

    fn tick_coordinator(&mut self, place: usize, incarnation: u64) -> Result<(), String> {
        if incarnation != self.coordinators.incarnation(place) || !self.coordinators.is_up(place) {
            return Ok(());
        }
        let next = self.now + self.coordinators.tick_ms(place);
        let next = next.max(self.suspended_until[place]);
        self.queue.push(next, Event::TickCoordinator { place, incarnation });
        if self.now < self.suspended_until[place] {
            return Ok(());
        }
        let told = self.coordinators.with(place, self.now, |member, now| {
            member.tick(now);
            member.decide(now);
        })?;
        self.after(place, told)?;
        if self.coordinators.has_ended(place, self.now) {
            self.stop_coordinator(place);
        }
        Ok(())
    }

    fn on_raft(&mut self, from: usize, place: usize, message: Wired) -> Result<(), String> {
        if self.now < self.suspended_until[place] {
            self.queue.push(self.suspended_until[place], Event::Raft(from, place, message));
            return Ok(());
        }
        // A cut link loses messages in flight.
        if self.now < self.cut[from].0.max(self.cut[place].1) {
            return Ok(());
        }
        let told = self.coordinators.with(place, self.now, |member, now| member.receive(now, message.0))?;
        self.after(place, told)
    }

    /// Applies the outcome of an event at a coordinator.
    fn after(&mut self, place: usize, told: Told) -> Result<(), String> {
        self.answer(told.answers)?;
        self.take_back(told.taken_back);
        for (request, term) in told.changed {
            self.on_changed(request, term);
        }
        let incarnation = self.coordinators.incarnation(place);
        for (to, message) in told.messages {
            let receiver = MemberId::new(message.to).filter(|_| has_snapshot(&message));
            let event = Event::Raft(place, to, Wired(message));
            let arrived = self.queue.send(self.now, &self.scenario.faults, &mut self.dice, event);
            if let Some(to) = receiver {
                let at = self.now + if arrived { ARRIVED_MS } else { LOST_MS };
                self.queue.push(at, Event::SnapshotSent { place, incarnation, to, arrived });
            }
        }
        for job in told.saves {
            let delay = self.dice.range(0, 100);
            self.queue.push(self.now + delay, Event::Saved(job));
        }
        let slow = if self.now < self.scenario.faults.until { self.scenario.faults.slow_disk_ms } else { 3 };
        for _ in 0..told.writes {
            let delay = self.dice.pick(&[0, 0, 1, 3, slow]);
            // Writes finish in order.
            self.written_at[place] = self.written_at[place].max(self.now + delay);
            self.queue.push(self.written_at[place], Event::Written { place, incarnation });
        }
        let leads = self.coordinators.leader() == Some(place);
        if told.writes > 0 && leads && self.crash_armed && self.now < self.scenario.faults.until {
            self.crash_coordinator(place);
        }
        if told.is_refused {
            self.on_change_refused(place)?;
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

    /// Handles consumers that have lost splits: their entries for these splits do not count, and they restart.
    fn take_back(&mut self, taken_back: TakenBack) {
        for (job, number, split, offset) in taken_back {
            let held = |consumer: &&mut Consumer| consumer.job == Some(job) && consumer.seat.number == number;
            let Some(consumer) = self.consumers.iter_mut().find(held) else { continue };
            consumer.app.roll_back(split, offset);
            if consumer.alive && consumer.ended.is_none() {
                consumer.restart();
                let (place, session) = (consumer.seat.place, consumer.session);
                self.queue.push(self.now + 1, Event::WakeConsumer(place, session));
            }
        }
    }
}
