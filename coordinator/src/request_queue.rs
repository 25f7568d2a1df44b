//! The queue of requests for the driver: bounded, and fair among clients. When the queue is full, requests are
//! rejected with a retry delay. A client with many requests delays only itself.

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

/// Bounds for reports. A worker has one report in flight and a consumer four, so these bounds suffice for a large cluster.
const REPORT_BOUNDS: QueueBounds = QueueBounds { total: 16_384, per_client: 4_096 };
/// Bounds for other requests. The driver takes at most 256 requests at a time.
const OTHER_BOUNDS: QueueBounds = QueueBounds { total: 1_024, per_client: 256 };
/// Retry delay in milliseconds when the queue is full.
const RETRY_MS: u64 = 200;

/// A request and the channel for its reply.
pub(crate) struct QueuedRequest {
    pub(crate) request: Request,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// A client with its own queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ClientKey {
    /// A connection of another process.
    Caller(Caller),
    // Clients in this process.
    Worker(WorkerId),
    Consumer(JobId, u32),
    Local,
}

/// The queue of requests.
pub(crate) struct RequestQueue {
    state: Mutex<QueueState>,
    /// Notified when a request is queued.
    queued: Notify,
}

struct QueueState {
    queue: FairQueue<ClientKey, QueuedRequest>,
    closed: bool,
}

impl RequestQueue {
    pub(crate) fn new() -> Arc<Self> {
        let state = QueueState { queue: FairQueue::new(REPORT_BOUNDS, OTHER_BOUNDS), closed: false };
        Arc::new(Self { state: Mutex::new(state), queued: Notify::new() })
    }

    /// Queues a request of the current client.
    ///
    /// # Errors
    /// Returns an error if the queue is full or the driver has ended.
    pub(crate) fn push(&self, request: Request) -> Result<oneshot::Receiver<Reply>, ServiceError> {
        let (reply, answer) = oneshot::channel();
        let (priority, client) = (priority(&request), client(&request));
        let mut state = self.lock();
        if state.closed {
            return Err(shutting_down());
        }
        let outcome = state.queue.push(priority, client, QueuedRequest { request, reply });
        drop(state);
        let evicted = match outcome {
            EnqueueOutcome::Rejected(_) => return Err(queue_full()),
            EnqueueOutcome::Evicted(other) => Some(other),
            EnqueueOutcome::Queued => None,
        };
        if let Some(QueuedRequest { reply, .. }) = evicted {
            // The client may have stopped waiting.
            let _ = reply.send(Reply::Rejected(queue_full()));
        }
        self.queued.notify_one();
        Ok(answer)
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The driver's side of the queue. Dropping it rejects all queued requests.
pub(crate) struct RequestReceiver(Arc<RequestQueue>);

impl RequestReceiver {
    pub(crate) fn new(queue: Arc<RequestQueue>) -> Self {
        Self(queue)
    }

    /// Waits for a queued request. Cancel safe.
    pub(crate) async fn ready(&self) {
        while self.is_empty() {
            self.0.queued.notified().await;
        }
    }

    /// Removes and returns at most `max_requests` requests. Drops requests whose clients have stopped waiting.
    pub(crate) fn pop(&self, max_requests: usize) -> Vec<QueuedRequest> {
        let popped = self.0.lock().queue.pop(max_requests);
        popped.into_iter().filter(|request| !request.reply.is_closed()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of queued requests.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().queue.len()
    }

    /// Rejects further requests. Queued requests remain.
    pub(crate) fn close(&self) {
        self.0.lock().closed = true;
    }
}

impl Drop for RequestReceiver {
    fn drop(&mut self) {
        self.close();
        // Dropping a request closes the channel of its client.
        while !self.is_empty() {
            drop(self.pop(REPORT_BOUNDS.total));
        }
    }
}

fn priority(request: &Request) -> RequestPriority {
    match request {
        Request::Worker(_) | Request::Consumer(_) => RequestPriority::Report,
        _ => RequestPriority::Other,
    }
}

fn client(request: &Request) -> ClientKey {
    match (Caller::current(), request) {
        (Some(caller), _) => ClientKey::Caller(caller),
        (None, Request::Worker(report)) => ClientKey::Worker(report.worker),
        (None, Request::Consumer(report)) => ClientKey::Consumer(report.job, report.consumer),
        (None, _) => ClientKey::Local,
    }
}

fn queue_full() -> ServiceError {
    ServiceError::busy(
        "the coordinator's request queue is full; retry later with fewer concurrent requests",
        RETRY_MS,
    )
}
