//! What travels in the simulation, and how a peer keeps its calls apart.

use std::rc::Rc;

use feedline_data::consumer::Piece;
use feedline_data::ids::{JobId, Millis, SessionId, WorkerId};
use feedline_data::layout::SplitRef;
use feedline_data::messages::{ConsumerReport, JobSpec, WorkerReport};

/// The rows that a piece carries.
pub(crate) type Rows = Rc<Vec<u64>>;

/// Who talks to the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Worker(WorkerId),
    /// By its number among all.
    Consumer(u32, SessionId),
    /// The test itself.
    Observer,
}

/// What the coordinator is asked.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Open(Box<JobSpec>),
    Worker(WorkerReport),
    Consumer(ConsumerReport),
    Details(JobId),
    Status,
}

/// A consumer asks a worker for rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fetch {
    pub(crate) worker: WorkerId,
    /// Its number among all.
    pub(crate) consumer: u32,
    pub(crate) session: SessionId,
    pub(crate) call: u64,
    pub(crate) job: JobId,
    pub(crate) split: SplitRef,
    pub(crate) from: u32,
}

/// What comes of a fetch.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    Pieces(Vec<Piece<Rows>>),
    NotHeld,
}

/// What an actor wants sent.
#[derive(Debug)]
pub(crate) enum Send {
    Request(u64, Request),
    Fetch(Fetch),
    Fetched(Fetch, Outcome),
}

/// A peer's calls of one kind: one is awaited at a time, answers to earlier ones are ignored.
#[derive(Debug, Default)]
pub(crate) struct Call {
    number: u64,
    sent_at: Option<Millis>,
}

impl Call {
    /// Whether nothing is awaited, or it was awaited for too long.
    pub(crate) fn may_send(&self, now: Millis, patience_ms: Millis) -> bool {
        self.sent_at.is_none_or(|sent| now - sent >= patience_ms)
    }

    /// Milliseconds since the awaited call was sent.
    pub(crate) fn age(&self, now: Millis) -> Millis {
        self.sent_at.map_or(Millis::MAX, |sent| now - sent)
    }

    /// Starts a call.
    pub(crate) fn send(&mut self, now: Millis) -> u64 {
        self.number += 1;
        self.sent_at = Some(now);
        self.number
    }

    /// Ends the awaited call if it is this one.
    pub(crate) fn take(&mut self, call: u64) -> bool {
        let awaited = self.sent_at.is_some() && self.number == call;
        if awaited {
            self.sent_at = None;
        }
        awaited
    }
}
