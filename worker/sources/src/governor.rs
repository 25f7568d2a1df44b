//! Admits the requests of a worker to one store: the asynchronous side of `feedline_governor::pacer`.
//!
//! All jobs of the worker share the governor of a store. A request waits in the pacer's fair queue until its turn. One of the
//! waiting requests, the *timer*, wakes up when the next request may be sent; no task runs in the background.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feedline_data::ids::JobId;
use feedline_data::messages::{StoreReport, StoreShare};
use feedline_governor::pacer::{NextRequest, PacedRequest, Pacer};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::throttling::{StoreKind, count_queued};

/// The control laws run at least this often while requests wait.
const TICK: Duration = Duration::from_millis(250);

/// The governor of one endpoint, bucket and identity of credentials.
pub(crate) struct StoreGovernor {
    /// See [`StoreReport::key`].
    key: String,
    /// The scheme and the bucket or host of the store.
    name: String,
    kind: StoreKind,
    /// The start of the worker.
    started: Instant,
    state: Mutex<State>,
    /// Wakes up one waiting request, which becomes the timer.
    timer: Notify,
    /// Notified after a rejection.
    rejected: Arc<Notify>,
}

struct State {
    pacer: Pacer,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    next_id: u64,
    /// When a request was last added.
    used_at: Instant,
    /// The waiting request that wakes up when the next request may be sent, and when.
    timer: Option<(u64, Instant)>,
}

impl std::fmt::Debug for StoreGovernor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreGovernor").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A request of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    /// The job; 0 for requests without a job.
    pub(crate) job: JobId,
    /// The number of requested bytes; 0 if unknown.
    pub(crate) bytes: u64,
    /// Whether the store has rejected the request before.
    pub(crate) is_repeated: bool,
}

impl StoreGovernor {
    pub(crate) fn new(
        key: String,
        name: String,
        kind: StoreKind,
        started: Instant,
        rejected: Arc<Notify>,
    ) -> Self {
        let pacer = Pacer::new(RandomState::new().hash_one(&key));
        let state = State { pacer, waiting: BTreeMap::new(), next_id: 0, used_at: started, timer: None };
        Self { key, name, kind, started, state: Mutex::new(state), timer: Notify::new(), rejected }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until the request may be sent.
    pub(crate) async fn acquire(self: &Arc<Self>, demand: Demand) -> Permit {
        let (granted, mut grant) = oneshot::channel();
        let mut waiting = self.enqueue(demand, granted);
        let queued_at = Instant::now();
        loop {
            let next = self.pump();
            if grant.try_recv().is_ok() {
                break;
            }
            let deadline = self.next_deadline(waiting.request.id, next);
            tokio::select! {
                biased;
                _ = &mut grant => break,
                () = self.timer.notified() => self.lock().timer = None,
                () = sleep_until(deadline) => {}
            }
        }
        waiting.is_granted = true;
        count_queued(self.kind, queued_at.elapsed());
        Permit {
            governor: Arc::clone(self),
            request: waiting.request,
            sent_at: Instant::now(),
            is_finished: false,
        }
    }

    fn enqueue(self: &Arc<Self>, demand: Demand, granted: oneshot::Sender<()>) -> Waiting {
        let now = self.now();
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.used_at = Instant::now();
        let request = PacedRequest { id, job: demand.job, bytes: demand.bytes };
        state.pacer.push(now, request, demand.is_repeated);
        state.waiting.insert(id, granted);
        Waiting { governor: Arc::clone(self), request, is_granted: false }
    }

    /// When a waiting request must call `pump` again. Only the timer does so when the next request may be sent. The others
    /// look from time to time whether the timer does, because a future may wait without being polled.
    fn next_deadline(&self, id: u64, next: Option<Duration>) -> Instant {
        let now = Instant::now();
        let latest = now + TICK;
        let mut state = self.lock();
        match state.timer {
            Some((timer, deadline)) if timer != id && deadline >= now => latest,
            _ => {
                let deadline = next.map_or(latest, |next| latest.min(self.started + next));
                state.timer = Some((id, deadline));
                deadline
            }
        }
    }

    /// Grants the requests that may be sent now. Returns when the next one may be sent, if only time is missing.
    fn pump(&self) -> Option<Duration> {
        let now = self.now();
        let mut state = self.lock();
        state.pacer.tick(now);
        loop {
            match state.pacer.next(now) {
                NextRequest::Send(request) => {
                    let granted = state.waiting.remove(&request.id).map(|granted| granted.send(()));
                    if granted != Some(Ok(())) {
                        state.pacer.on_cancel(request);
                    }
                }
                NextRequest::At(time) => return Some(time),
                NextRequest::Blocked => return None,
            }
        }
    }

    /// Grants requests after a change, and lets one of those that still wait set its timer again.
    fn on_change(&self) {
        self.pump();
        if !self.lock().waiting.is_empty() {
            self.timer.notify_one();
        }
    }

    /// The time after which a read of this number of bytes is slow; `None` while too few reads are known.
    pub(crate) fn slow_after(&self, bytes: u64) -> Option<Duration> {
        self.lock().pacer.slow_after(bytes)
    }

    /// Whether a slow read may be sent a second time now.
    pub(crate) fn try_hedge(&self) -> bool {
        let now = self.now();
        self.lock().pacer.try_hedge(now)
    }

    /// A read was cancelled after `latency`, because its second request was faster.
    pub(crate) fn record_hedge_won(&self, bytes: u64, latency: Duration) {
        self.lock().pacer.on_hedge_won(bytes, latency);
    }

    pub(crate) fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Sets the worker's part of the budget.
    pub(crate) fn set_share(&self, share: &StoreShare) {
        let now = self.now();
        self.lock().pacer.set_share(now, share);
        self.on_change();
    }

    /// How long the store has rejected all requests of this worker.
    pub(crate) fn rejecting_for(&self) -> Option<Duration> {
        let now = self.now();
        self.lock().pacer.rejecting_for(now)
    }

    /// Whether requests were added within this time, or wait.
    pub(crate) fn is_used(&self, within: Duration) -> bool {
        let state = self.lock();
        !state.waiting.is_empty() || state.used_at.elapsed() < within
    }

    /// Whether the worker limits its requests.
    pub(crate) fn is_limited(&self) -> bool {
        self.lock().pacer.is_limited()
    }

    pub(crate) fn report(&self) -> StoreReport {
        let report = self.lock().pacer.report(self.now());
        StoreReport { key: self.key.clone(), name: self.name.clone(), ..report }
    }
}

/// A request in the queue. If the caller stops waiting, the request leaves the queue.
struct Waiting {
    governor: Arc<StoreGovernor>,
    request: PacedRequest,
    is_granted: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let was_timer = {
            let mut state = self.governor.lock();
            if !self.is_granted {
                // A request that has just been granted is no longer in the queue.
                match state.waiting.remove(&self.request.id) {
                    Some(_) => state.pacer.remove(self.request),
                    None => state.pacer.on_cancel(self.request),
                }
            }
            let was_timer = state.timer.is_some_and(|(timer, _)| timer == self.request.id);
            state.timer = state.timer.filter(|_| !was_timer);
            was_timer
        };
        if was_timer || !self.is_granted {
            self.governor.on_change();
        }
    }
}

/// The permission to send one request. The request is in flight until the permit is finished or dropped.
pub(crate) struct Permit {
    governor: Arc<StoreGovernor>,
    request: PacedRequest,
    sent_at: Instant,
    is_finished: bool,
}

impl Permit {
    /// Sets the range that the request asks for, after other reads have joined it.
    pub(crate) fn set_bytes(&mut self, range: Range<u64>) {
        self.governor.lock().pacer.set_bytes(&mut self.request, range.end - range.start);
    }

    /// The last byte of the response has arrived.
    pub(crate) fn succeed(mut self, bytes: u64) {
        let latency = self.sent_at.elapsed();
        self.finish(|pacer, request| pacer.on_success(request, bytes, latency));
    }

    /// The request has failed, but not because of the store's load.
    pub(crate) fn fail(mut self) {
        self.finish(Pacer::on_failure);
    }

    /// The store rejected the request because of its load.
    pub(crate) fn reject(mut self, retry_after: Option<Duration>) {
        let now = self.governor.now();
        self.finish(|pacer, request| pacer.on_rejection(now, request, retry_after));
        self.governor.rejected.notify_one();
    }

    fn finish(&mut self, record: impl FnOnce(&mut Pacer, PacedRequest)) {
        self.is_finished = true;
        record(&mut self.governor.lock().pacer, self.request);
        self.governor.on_change();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.is_finished {
            self.finish(Pacer::on_cancel);
        }
    }
}

#[cfg(test)]
mod tests;
