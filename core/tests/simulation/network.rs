//! The queue of what will happen, and a network that delays, drops, duplicates and reorders.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use feedline_core::cluster::Reply;
use feedline_core::ids::{Millis, SessionId, WorkerId};

use super::dice::Dice;
use super::messages::{Fetch, Outcome, Peer, Request};
use super::scenario::Faults;

/// What happens at a time.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Request(Peer, u64, Request),
    Answer(Peer, u64, Reply),
    Fetch(Fetch),
    Fetched(Fetch, Outcome),
    WakeWorker(WorkerId),
    WakeConsumer(u32, SessionId),
    Persisted { life: u64 },
    Tick,
    CrashCoordinator { armed: bool },
    RestartCoordinator,
    CrashWorker,
    StartWorker,
    StallWorker,
    CrashConsumer,
    RestartConsumer(u32),
}

/// Events in order of time.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<(Millis, u64)>>,
    events: BTreeMap<u64, Event>,
    count: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, at: Millis, event: Event) {
        self.count += 1;
        self.heap.push(Reverse((at, self.count)));
        self.events.insert(self.count, event);
    }

    pub(crate) fn pop(&mut self) -> Option<(Millis, Event)> {
        let Reverse((at, number)) = self.heap.pop()?;
        self.events.remove(&number).map(|event| (at, event))
    }

    /// Sends something over the network.
    pub(crate) fn send(&mut self, now: Millis, faults: &Faults, dice: &mut Dice, event: Event) {
        let faulty = now < faults.until;
        if faulty && dice.chance(faults.drop_per_mille) {
            return;
        }
        let copies = if faulty && dice.chance(faults.duplicate_per_mille) { 2 } else { 1 };
        for _ in 0..copies {
            let slow = faulty && dice.chance(faults.slow_per_mille);
            let delay = if slow { dice.range(20, 3_000) } else { dice.range(1, 15) };
            self.push(now + delay, event.clone());
        }
    }
}
