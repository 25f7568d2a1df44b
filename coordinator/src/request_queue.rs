//! Where requests wait for the driver: bounded, and in turn. What finds no room is refused at once with a time to come back,
//! instead of waiting without end; and one who asks for too much waits for itself only.

mod fair_queue;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feedline_cluster::Reply;
use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::ServiceError;
use feedline_proto::Caller;
use tokio::sync::{Notify, oneshot};

use self::fair_queue::{EnqueueOutcome, FairQueue, QueueBounds, RequestPriority};
use crate::request::{Request, shutting_down};

#[cfg(test)]
mod tests;

/// Reports that wait. A worker has one on its way and a consumer four, so this is a cluster's worth of them.
const REPORTS: QueueBounds = QueueBounds { all: 16_384, of_one: 4_096 };
/// Other requests that wait. A turn takes 256 at most, so the last of them waits for some turns.
const OTHERS: QueueBounds = QueueBounds { all: 1_024, of_one: 256 };
/// A few turns of the driver.
const RETRY_MS: u64 = 200;

/// A request, and who waits for its answer.
pub(crate) struct QueuedRequest {
    pub(crate) request: Request,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// Who asks: whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Asker {
    /// A connection from another process, whatever it asks for.
    Caller(Caller),
    // In this process, who says who it is.
    Worker(WorkerId),
    Consumer(JobId, u32),
    Nobody,
}

/// Where requests wait.
pub(crate) struct RequestQueue {
    state: Mutex<State>,
    /// Something may wait, or nothing more will.
    news: Notify,
}

struct State {
    lanes: FairQueue<Asker, QueuedRequest>,
    closed: bool,
}

impl RequestQueue {
    pub(crate) fn new() -> Arc<Self> {
        let state = State { lanes: FairQueue::new(REPORTS, OTHERS), closed: false };
        Arc::new(Self { state: Mutex::new(state), news: Notify::new() })
    }

    /// Puts a request in the line of whoever asks.
    ///
    /// # Errors
    /// When there is no room, or the driver has ended.
    pub(crate) fn put(&self, request: Request) -> Result<oneshot::Receiver<Reply>, ServiceError> {
        let (reply, answer) = oneshot::channel();
        let (urgency, asker) = (urgency(&request), asker(&request));
        let mut state = self.lock();
        if state.closed {
            return Err(shutting_down());
        }
        let put = state.lanes.put(urgency, asker, QueuedRequest { request, reply });
        drop(state);
        let displaced = match put {
            EnqueueOutcome::Full(_) => return Err(full()),
            EnqueueOutcome::Instead(other) => Some(other),
            EnqueueOutcome::Waits => None,
        };
        if let Some(QueuedRequest { reply, .. }) = displaced {
            // Who no longer waits needs no answer.
            let _ = reply.send(Reply::Refused(full()));
        }
        self.news.notify_one();
        Ok(answer)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The driver's side of the desk. Once it is dropped nothing waits any more.
pub(crate) struct RequestReceiver(Arc<RequestQueue>);

impl RequestReceiver {
    pub(crate) fn new(desk: Arc<RequestQueue>) -> Self {
        Self(desk)
    }

    /// Returns once something waits. Can be dropped and called again.
    pub(crate) async fn news(&self) {
        while self.is_empty() {
            self.0.news.notified().await;
        }
    }

    /// What to answer next, up to so much. Who no longer waits for an answer gets none.
    pub(crate) fn take(&self, most: usize) -> Vec<QueuedRequest> {
        let taken = self.0.lock().lanes.take(most);
        taken.into_iter().filter(|ask| !ask.reply.is_closed()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting() == 0
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.0.lock().lanes.len()
    }

    /// Takes nothing more; what waits still does.
    pub(crate) fn close(&self) {
        self.0.lock().closed = true;
    }
}

impl Drop for RequestReceiver {
    fn drop(&mut self) {
        self.close();
        // Whoever still waits hears that the coordinator has ended, since nobody holds the other end.
        while !self.is_empty() {
            drop(self.take(REPORTS.all));
        }
    }
}

fn urgency(request: &Request) -> RequestPriority {
    match request {
        Request::Worker(_) | Request::Consumer(_) => RequestPriority::Report,
        _ => RequestPriority::Other,
    }
}

fn asker(request: &Request) -> Asker {
    match (Caller::current(), request) {
        (Some(caller), _) => Asker::Caller(caller),
        (None, Request::Worker(report)) => Asker::Worker(report.worker),
        (None, Request::Consumer(report)) => Asker::Consumer(report.job, report.consumer),
        (None, _) => Asker::Nobody,
    }
}

fn full() -> ServiceError {
    ServiceError::busy(
        "more is asked of the coordinator than it can answer; ask again later, and less at a time",
        RETRY_MS,
    )
}
