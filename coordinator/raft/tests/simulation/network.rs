//! The event queue, and a network that delays, drops, duplicates and reorders messages.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;

use feedline_cluster::Reply;
use feedline_data::ids::{JobId, Millis, SessionId, WorkerId};
use feedline_raft::{MemberId, Message};

use super::dice::Dice;
use super::messages::{Fetch, Outcome, Peer, Request};
use super::scenario::Faults;

/// An event.
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
    /// A coordinator receives the outcome of a snapshot that it has sent.
    SnapshotSent {
        place: usize,
        incarnation: u64,
        to: MemberId,
        arrived: bool,
    },
    /// The oldest write of a coordinator finishes.
    Written {
        place: usize,
        incarnation: u64,
    },
    /// An index is saved by a majority.
    Saved(JobId),
    Tick,
    /// A coordinator's clock ticks.
    TickCoordinator {
        place: usize,
        incarnation: u64,
    },
    CrashCoordinator {
        armed: bool,
    },
    RestartCoordinator(usize),
    /// The messages of a coordinator to others, from others, or both are lost until a time.
    CutOff,
    /// A coordinator is suspended for a while.
    SuspendCoordinator,
    /// A coordinator transfers leadership, and optionally shuts down.
    HandOver {
        ends: bool,
    },
    /// A coordinator's disk fails all writes for a while.
    FailDisk,
    /// A coordinator's disk hangs for a while.
    HangDisk,
    /// A coordinator loses its disk and restarts as another member at the same address.
    LoseDisk,
    /// A coordinator without a state asks to join, or repeats its request.
    AskToJoin(usize),
    /// The operator begins a membership change.
    ChangeMembers,
    /// The operator sends or repeats its request.
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

    /// Sends a message. Returns whether it will arrive.
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
