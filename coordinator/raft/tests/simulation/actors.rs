//! Events of the simulated workers and consumers: replies, fetches, and the times at which they act.

use feedline_cluster::Reply;
use feedline_data::ids::{SessionId, WorkerId};
use feedline_data::messages::ServiceErrorKind;

use super::World;
use crate::messages::{Fetch, Outcome, Peer, Send};
use crate::network::Event;

impl World {
    pub(super) fn on_answer(&mut self, peer: Peer, call: u64, reply: Reply) -> Result<(), String> {
        if let Reply::Rejected(refusal) = &reply
            && refusal.kind == ServiceErrorKind::Unavailable
        {
            let known = refusal.leader.as_deref().and_then(|url| self.coordinators.at(url));
            let any = self.dice.pick(self.coordinators.inside());
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

    pub(super) fn on_fetch(&mut self, fetch: Fetch) {
        let mut out = Vec::new();
        match self.workers.get_mut(&fetch.worker) {
            Some(worker) if worker.stalled_until > self.now => {
                self.queue.push(worker.stalled_until, Event::Fetch(fetch));
            }
            Some(worker) => worker.on_fetch(self.now, fetch, &mut out),
            // A fetch from a dead worker fails immediately or times out.
            None if fetch.call.is_multiple_of(2) => out.push(Send::Fetched(fetch, Outcome::NotHeld)),
            None => {}
        }
        self.send_all(Peer::Worker(fetch.worker), out);
    }

    pub(super) fn wake_worker(&mut self, id: WorkerId) {
        let mut out = Vec::new();
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.stalled_until > self.now {
            self.queue.push(worker.stalled_until, Event::WakeWorker(id));
            return;
        }
        worker.on_wake(self.now, &mut self.dice, &mut out);
        if worker.has_crashed {
            self.planted_crashes += 1;
            self.lose_worker(id, true);
            return;
        }
        let delay = self.dice.range(5, 20);
        self.queue.push(self.now + delay, Event::WakeWorker(id));
        self.send_all(Peer::Worker(id), out);
    }

    pub(super) fn wake_consumer(&mut self, number: u32, session: SessionId) {
        let mut out = Vec::new();
        let of = self.consumers[number as usize].seat.of;
        let joined = self.consumers_of(of).all(|consumer| consumer.job.is_some());
        let consumer = &mut self.consumers[number as usize];
        if !consumer.alive || consumer.session != session {
            return;
        }
        // Training begins when all ranks are present: a rank could not join a job that had ended without it.
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
                    // Without a reply, the client occasionally tries another coordinator.
                    let any = self.dice.pick(self.coordinators.inside());
                    let asks_any = self.dice.chance(50);
                    let target = self.targets.entry(target_key(from)).or_insert(any);
                    // A removed host rejects all connections.
                    if asks_any || !self.coordinators.inside().contains(target) {
                        *target = any;
                    }
                    Event::Request(*target, from, call, *request)
                }
                Send::Fetch(fetch) => Event::Fetch(fetch),
                Send::Fetched(fetch, outcome) => Event::Fetched(fetch, outcome),
            };
            self.queue.send(self.now, &self.scenario.faults, &mut self.dice, event);
        }
    }
}

/// The key of a worker or consumer in `targets`.
fn target_key(peer: Peer) -> u64 {
    match peer {
        Peer::Worker(id) => id.0 << 8,
        Peer::Consumer(number, _) => 1 + (u64::from(number) << 8),
        Peer::Observer => 2,
    }
}
