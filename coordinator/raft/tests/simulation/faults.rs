//! The faults and membership changes of a run.

use std::rc::Rc;

use feedline_cluster::RequestId;
use feedline_data::ids::{Millis, WorkerId};

use super::World;
use crate::members::{ASK_MS, Step};
use crate::network::Event;
use crate::worker::Worker;

/// Time after which a failed write is retried.
const RETRY_MS: Millis = 50;

impl World {
    pub(super) fn plan_faults(&mut self) {
        let faults = self.scenario.faults.clone();
        let armed = self.dice.chance(700);
        let kinds = [
            (faults.coordinator_crashes, Event::CrashCoordinator { armed }),
            (faults.coordinator_cuts, Event::CutOff),
            (faults.coordinator_stalls, Event::SuspendCoordinator),
            (faults.hand_overs / 2, Event::HandOver { ends: false }),
            (faults.hand_overs.div_ceil(2), Event::HandOver { ends: true }),
            (faults.disk_failures, Event::FailDisk),
            (faults.disk_hangs, Event::HangDisk),
            (faults.member_changes, Event::ChangeMembers),
            (if faults.until > 0 { self.scenario.machines.disk_losses } else { 0 }, Event::LoseDisk),
            (faults.worker_crashes, Event::CrashWorker),
            (faults.worker_stalls, Event::StallWorker),
            (faults.consumer_crashes, Event::CrashConsumer),
        ];
        // Many jobs are short, so most faults are early.
        let horizon = self.dice.pick(&[1_500, 4_000, faults.until]).min(faults.until);
        for (count, event) in kinds {
            for _ in 0..count {
                let at = self.dice.range(1, horizon);
                self.queue.push(at, event.clone());
            }
        }
    }

    pub(super) fn on_fault(&mut self, fault: Event) -> Result<(), String> {
        match fault {
            Event::RestartCoordinator(place) => {
                // The coordinator may have been replaced in the meantime.
                if self.coordinators.inside().contains(&place) && !self.coordinators.is_up(place) {
                    self.coordinators.start(place)?;
                    self.begin_ticks(place);
                }
            }
            Event::AskForChange => self.ask_for_change()?,
            Event::AskToJoin(place) => self.ask_to_join(place)?,
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
                if self.coordinators.leader() == Some(place) {
                    // The coordinator then receives messages from processes that have died in the meantime.
                    self.forgive(self.suspended_until[place]);
                }
            }
            Event::HandOver { ends } => {
                let place = self.a_coordinator();
                self.hand_over(place, ends)?;
            }
            Event::FailDisk => {
                let place = self.a_coordinator();
                self.refuses_until[place] = self.now + self.dice.range(50, 5_000);
                self.forgive(self.refuses_until[place] + RETRY_MS);
            }
            Event::HangDisk => {
                let place = self.a_coordinator();
                let begins = self.written_at[place].max(self.now);
                self.written_at[place] = begins + self.dice.range(500, 8_000);
                self.forgive(self.written_at[place]);
            }
            Event::LoseDisk => self.lose_disk()?,
            Event::ChangeMembers => self.change_members()?,
            Event::CrashWorker => self.crash_worker(),
            Event::StallWorker => {
                let ids: Vec<WorkerId> = self.workers.keys().copied().collect();
                if !ids.is_empty() {
                    let id = self.dice.pick(&ids);
                    let until = self.now + self.dice.range(200, 6_000);
                    self.workers.get_mut(&id).expect("picked from the keys").stalled_until = until;
                    self.silenced_workers += 1;
                }
            }
            Event::CrashConsumer => self.crash_consumer(),
            other => return Err(format!("not a fault: {other:?}")),
        }
        Ok(())
    }

    /// Dead workers may keep leases until a leader has made decisions for a while.
    fn forgive(&mut self, until: Millis) {
        self.coordinators.serving_since = self.coordinators.serving_since.max(until);
    }

    /// Selects a coordinator, usually the leader.
    fn a_coordinator(&mut self) -> usize {
        let any = self.dice.pick(self.coordinators.inside());
        let prefers_leader = self.dice.chance(600);
        self.coordinators.leader().filter(|_| prefers_leader).unwrap_or(any)
    }

    fn begin_ticks(&mut self, place: usize) {
        let incarnation = self.coordinators.incarnation(place);
        self.queue.push(self.now, Event::TickCoordinator { place, incarnation });
    }

    pub(super) fn crash_coordinator(&mut self, place: usize) {
        self.crash_armed = false;
        self.stop_coordinator(place);
    }

    /// Kills a coordinator for a while.
    pub(super) fn stop_coordinator(&mut self, place: usize) {
        if self.coordinators.is_up(place) {
            self.coordinators.crash(place, &mut self.dice);
            self.suspended_until[place] = 0;
            self.written_at[place] = 0;
            let delay = self.dice.pick(&[1, 200, 1_000, 5_000]);
            self.queue.push(self.now + delay, Event::RestartCoordinator(place));
        }
    }

    /// Transfers leadership away from a coordinator, and optionally shuts it down.
    fn hand_over(&mut self, place: usize, ends: bool) -> Result<(), String> {
        if self.now < self.suspended_until[place] || !self.coordinators.is_up(place) {
            return Ok(());
        }
        self.forgive(self.now);
        let told = if ends {
            self.coordinators.end(place, self.now)?
        } else {
            self.coordinators.hand_over(place, self.now)?
        };
        self.after(place, told)
    }

    /// Fails the oldest write of a coordinator.
    pub(super) fn refuse_write(&mut self, place: usize, incarnation: u64) -> Result<(), String> {
        if incarnation != self.coordinators.incarnation(place) || !self.coordinators.is_up(place) {
            return Ok(());
        }
        self.queue.push(self.refuses_until[place] + RETRY_MS, Event::Written { place, incarnation });
        let told = self.coordinators.on_write_failed(place, self.now)?;
        self.after(place, told)
    }

    /// Deletes the disk of a coordinator, which restarts as another member, unless the loss could cost the majority.
    fn lose_disk(&mut self) -> Result<(), String> {
        let place = self.a_coordinator();
        if !self.operator.knows_members() || self.lost.is_some() || !self.coordinators.may_lose_disk(place) {
            return Ok(());
        }
        self.forgive(self.now);
        self.lost = Some(self.coordinators.lose_disk(place)?);
        self.suspended_until[place] = 0;
        self.written_at[place] = 0;
        self.refuses_until[place] = 0;
        self.begin_ticks(place);
        self.queue.push(self.now, Event::AskToJoin(place));
        Ok(())
    }

    fn ask_to_join(&mut self, place: usize) -> Result<(), String> {
        let Some(lost) = self.lost else { return Ok(()) };
        if self.coordinators.has_replaced(lost, place) {
            self.lost = None;
            return Ok(());
        }
        self.queue.push(self.now + ASK_MS, Event::AskToJoin(place));
        // The request may also reach a deposed leader.
        let any = self.dice.pick(self.coordinators.inside());
        let at = self.coordinators.leader().unwrap_or(any);
        if self.now < self.suspended_until[at] {
            return Ok(());
        }
        let told = self.coordinators.join(at, self.now, place)?;
        self.after(at, told)
    }

    /// Adds or removes a coordinator, unless another change is in progress.
    fn change_members(&mut self) -> Result<(), String> {
        if self.operator.is_busy() || self.lost.is_some() {
            return Ok(());
        }
        let adds = self.coordinators.inside().len() == 1 || self.dice.chance(500);
        let step = match self.coordinators.outside().filter(|_| adds) {
            Some(place) => {
                self.coordinators.bring_in(place)?;
                self.begin_ticks(place);
                Step::Add(place)
            }
            None => Step::Remove(self.dice.pick(self.coordinators.inside())),
        };
        let patience_ms = self.dice.pick(&[300, 3_000, 20_000]);
        self.operator.begin(self.now, step, patience_ms);
        self.queue.push(self.now, Event::AskForChange);
        Ok(())
    }

    fn ask_for_change(&mut self) -> Result<(), String> {
        let Some(step) = self.operator.next(self.now) else { return Ok(()) };
        self.queue.push(self.now + ASK_MS, Event::AskForChange);
        // The request may also reach a deposed leader.
        let any = self.dice.pick(self.coordinators.inside());
        let asks_any = self.dice.chance(200);
        let place = self.coordinators.leader().filter(|_| !asks_any).unwrap_or(any);
        if self.now < self.suspended_until[place] {
            return Ok(());
        }
        let (request, told) = self.coordinators.change(place, self.now, step)?;
        self.operator.on_asked(request);
        self.after(place, told)
    }

    /// Handles a membership change that was answered in this term.
    pub(super) fn on_changed(&mut self, request: RequestId, term: u64) {
        let Some(step) = self.operator.on_done(request) else { return };
        self.coordinators.on_changed(term, step);
        if let Step::Remove(place) = step {
            self.coordinators.take_out(place);
            self.suspended_until[place] = 0;
            self.written_at[place] = 0;
            self.refuses_until[place] = 0;
        }
    }

    /// Handles a permanent rejection: a leader must shut down before it can be removed.
    pub(super) fn on_change_refused(&mut self, place: usize) -> Result<(), String> {
        if self.operator.removes(place) { self.hand_over(place, true) } else { Ok(()) }
    }

    fn start_worker(&mut self) {
        let id = WorkerId(self.next_worker);
        self.next_worker += 1;
        let known = self.scenario.jobs.iter().map(Rc::clone).collect();
        let worker = Worker::new(id, known, self.scenario.planted, &mut self.dice);
        self.workers.insert(id, worker);
        self.queue.push(self.now, Event::WakeWorker(id));
    }

    fn crash_worker(&mut self) {
        let ids: Vec<WorkerId> = self.workers.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = self.dice.pick(&ids);
        self.lose_worker(id, false);
    }

    /// Removes a worker. Sometimes the worker is not replaced, if another worker remains.
    pub(super) fn lose_worker(&mut self, id: WorkerId, is_replaced: bool) {
        self.silenced_workers += 1;
        self.workers.remove(&id);
        self.died.insert(id, self.now);
        if is_replaced || self.workers.is_empty() || self.dice.chance(700) {
            let delay = self.dice.range(1, 4_000);
            self.queue.push(self.now + delay, Event::StartWorker);
        }
    }

    fn crash_consumer(&mut self) {
        let number = self.dice.range(0, self.consumers.len() as u64 - 1) as u32;
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
