//! The queue of what will happen, and a network that delays, drops, duplicates and reorders.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;

use feedline_cluster::Reply;
use feedline_data::ids::{JobId, Millis, SessionId, WorkerId};
use feedline_raft::{MemberId, Message};

use super::dice::Dice;
use super::messages::{Fetch, Outcome, Peer, Request};
use super::scenario::Faults;

/// What happens at a time.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A request to the coordinator at a place.
    Request(usize, Peer, u64, Request),
    Answer(Peer, u64, Reply),
    Fetch(Fetch),
    Fetched(Fetch, Outcome),
    WakeWorker(WorkerId),
    WakeConsumer(u32, SessionId),
    /// A message from one coordinator to another.
    Raft(usize, usize, Wired),
    /// A coordinator hears what became of a snapshot that it has sent.
    SnapshotSent {
        place: usize,
        life: u64,
        to: MemberId,
        arrived: bool,
    },
    /// The oldest write of a coordinator's life is done.
    Written {
        place: usize,
        life: u64,
    },
    /// An index is kept by a majority.
    Saved(JobId),
    Tick,
    /// A coordinator's clock ticks.
    TickCoordinator {
        place: usize,
        life: u64,
    },
    CrashCoordinator {
        armed: bool,
    },
    RestartCoordinator(usize),
    /// The messages of a coordinator to others, from others, or both are lost until a time.
    CutOff,
    /// A coordinator is suspended for a while.
    SuspendCoordinator,
    /// A coordinator lets another lead, and ends in order where it shall.
    HandOver {
        ends: bool,
    },
    /// A coordinator's disk refuses every write for a while.
    FailDisk,
    /// A coordinator's disk does nothing for a while.
    HangDisk,
    /// Members begin to be changed.
    ChangeMembers,
    /// Whoever changes members asks, or asks again.
    AskForChange,
    CrashWorker,
    StartWorker,
    StallWorker,
    CrashConsumer,
    RestartConsumer(u32),
}

/// A message between coordinators.
#[derive(Clone)]
pub(crate) struct Wired(pub(crate) Message);

impl fmt::Debug for Wired {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Message { msg_type, term, index, commit, reject, .. } = &self.0;
        write!(out, "{msg_type:?} {term} {index} {commit} {reject} {}", self.0.entries.len())
    }
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

    /// Sends something over the network; gives whether it is on its way.
    pub(crate) fn send(&mut self, now: Millis, faults: &Faults, dice: &mut Dice, event: Event) -> bool {
        let faulty = now < faults.until;
        if faulty && dice.chance(faults.drop_per_mille) {
            return false;
        }
        let copies = if faulty && dice.chance(faults.duplicate_per_mille) { 2 } else { 1 };
        for _ in 0..copies {
            let slow = faulty && dice.chance(faults.slow_per_mille);
            let delay = if slow { dice.range(20, 3_000) } else { dice.range(1, 15) };
            self.push(now + delay, event.clone());
        }
        true
    }
}
