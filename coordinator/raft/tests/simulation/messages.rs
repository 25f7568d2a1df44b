//! The messages of the simulation, and the calls in progress of a peer.

use std::rc::Rc;

use feedline_data::consumer::Piece;
use feedline_data::ids::{JobId, Millis, SessionId, WorkerId};
use feedline_data::layout::SplitRef;
use feedline_data::messages::{ConsumerReport, JobSpec, WorkerReport};

/// The rows of a piece.
pub(crate) type Rows = Rc<Vec<u64>>;

/// A client of the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Worker(WorkerId),
    /// The index of the consumer among all consumers.
    Consumer(u32, SessionId),
    /// The observer of the test.
    Observer,
}

/// A request to the coordinator.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Open(Box<JobSpec>),
    Worker(WorkerReport),
    Consumer(ConsumerReport),
    Details(JobId),
    Status,
}

/// A fetch of a consumer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fetch {
    pub(crate) worker: WorkerId,
    /// The index of the consumer among all consumers.
    pub(crate) consumer: u32,
    pub(crate) session: SessionId,
    pub(crate) call: u64,
    pub(crate) job: JobId,
    pub(crate) split: SplitRef,
    pub(crate) from: u32,
}

/// The reply to a fetch.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    Pieces(Vec<Piece<Rows>>),
    NotHeld,
}

/// An outgoing message of an actor.
#[derive(Debug)]
pub(crate) enum Send {
    Request(u64, Box<Request>),
    Fetch(Fetch),
    Fetched(Fetch, Outcome),
}

/// The calls of one kind. One call is in progress at a time, and replies to earlier calls are ignored.
#[derive(Debug, Default)]
pub(crate) struct Call {
    number: u64,
    sent_at: Option<Millis>,
}

impl Call {
    /// Whether no call is in progress, or the call has timed out.
    pub(crate) fn may_send(&self, now: Millis, patience_ms: Millis) -> bool {
        self.sent_at.is_none_or(|sent| now - sent >= patience_ms)
    }

    /// Milliseconds since the call in progress was sent.
    pub(crate) fn age(&self, now: Millis) -> Millis {
        self.sent_at.map_or(Millis::MAX, |sent| now - sent)
    }

    /// Begins a call.
    pub(crate) fn send(&mut self, now: Millis) -> u64 {
        self.number += 1;
        self.sent_at = Some(now);
        self.number
    }

    /// Ends the call in progress if it has this number.
    pub(crate) fn take(&mut self, call: u64) -> bool {
        let awaited = self.sent_at.is_some() && self.number == call;
        if awaited {
            self.sent_at = None;
        }
        awaited
    }
}
