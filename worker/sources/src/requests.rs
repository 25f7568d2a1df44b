//! Sends governed requests to a store, and repeats those that fail.
//!
//! The clients of stores do not retry. A request that the store rejects because of its load goes back to the governor's queue,
//! and fails only if the store rejects all requests of the worker for the retry budget. Other failures are retried with
//! exponential backoff. The time in the queue does not count towards the time limit of a request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feedline_common::backoff::Backoff;
use feedline_data::ids::JobId;
use object_store::{Error, Result};
use tokio::time::{Instant, sleep, timeout_at};

use crate::causes;
use crate::governor::{Demand, Permit, StoreGovernor};
use crate::guard::find_guard_error;
use crate::hub::hub_error::find_error;
use crate::identity::may_be_renewed;
use crate::merged_reads::MergedRead;
use crate::responses::ResponseError;
use crate::retry::{FIRST_BACKOFF, MAX_BACKOFF, MAX_RETRY_AFTER, REQUEST_TIMEOUT, no_response_reason};
use crate::throttling::is_throttled;

tokio::task_local! {
    /// The exchange of the request that the current task sends.
    static EXCHANGE: Arc<Exchange>;
}

/// What the HTTP client observed of a request.
#[derive(Debug, Default)]
struct Exchange(Mutex<Response>);

#[derive(Debug, Clone, Copy, Default)]
struct Response {
    /// `None` without a response.
    status: Option<u16>,
    retry_after: Option<Duration>,
}

/// Records the response to the request that the current task sends.
pub(crate) fn record_response(status: Option<u16>, retry_after: Option<Duration>) {
    // Requests for credentials are not governed.
    let _ = EXCHANGE.try_with(|exchange| {
        *exchange.0.lock().unwrap_or_else(PoisonError::into_inner) = Response { status, retry_after };
    });
}

/// Parses the header `Retry-After`, which contains seconds or a date. A date is compared with the `Date` header of the response,
/// because clocks differ. `None` also for a time that has passed: the request is then repeated after a backoff.
pub(crate) fn parse_retry_after(value: &str, date: Option<&str>) -> Option<Duration> {
    /// A longer time is not waited for.
    const MAX_SECONDS: f64 = 86_400.0;
    let parse_date = |text: &str| chrono::DateTime::parse_from_rfc2822(text.trim()).ok();
    let seconds = match value.trim().parse::<f64>() {
        Ok(seconds) => seconds,
        Err(_) => (parse_date(value)? - parse_date(date?)?).num_seconds() as f64,
    };
    (seconds > 0.0).then(|| Duration::from_secs_f64(seconds.min(MAX_SECONDS)))
}

/// The time that a request has spent in queues, and when its last attempt was sent.
#[derive(Debug, Default)]
pub(crate) struct QueueClock(Mutex<QueueTime>);

#[derive(Debug, Default)]
struct QueueTime {
    past: Duration,
    waiting_since: Option<Instant>,
    /// When the attempt that is in flight was sent.
    sent_at: Option<Instant>,
    /// Whether the retry budget of the request is used up.
    has_given_up: bool,
}

impl QueueClock {
    fn lock(&self) -> MutexGuard<'_, QueueTime> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) {
        let mut time = self.lock();
        (time.waiting_since, time.sent_at) = (Some(Instant::now()), None);
    }

    fn stop(&self) {
        let mut time = self.lock();
        if let Some(since) = time.waiting_since.take() {
            time.past += since.elapsed();
        }
        time.sent_at = Some(Instant::now());
    }

    /// How long an attempt has been in flight; `None` while the request waits.
    pub(crate) fn in_flight_for(&self) -> Option<Duration> {
        self.lock().sent_at.map(|sent_at| sent_at.elapsed())
    }

    pub(crate) fn total(&self) -> Duration {
        let time = self.lock();
        time.past + time.waiting_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether a further attempt of the caller would exceed the retry budget.
    pub(crate) fn has_given_up(&self) -> bool {
        self.lock().has_given_up
    }
}

/// Who sends a request, and how long it has waited. An extension of the options of a store's methods.
#[derive(Debug, Clone)]
pub(crate) struct RequestTag {
    pub(crate) job: JobId,
    pub(crate) clock: Arc<QueueClock>,
    /// The read that determines the range when the request is sent.
    pub(crate) merged: Option<Arc<MergedRead>>,
}

impl Default for RequestTag {
    fn default() -> Self {
        Self { job: JobId(0), clock: Arc::default(), merged: None }
    }
}

/// Waits for a future for at most `limit`, without the time in queues. `None` after the limit.
pub(crate) async fn within_active<T>(
    limit: Duration,
    clock: &QueueClock,
    future: impl Future<Output = T>,
) -> Option<T> {
    let start = Instant::now();
    let already_queued = clock.total();
    tokio::pin!(future);
    loop {
        let deadline = start + limit + clock.total().saturating_sub(already_queued);
        if let Ok(output) = timeout_at(deadline, &mut future).await {
            return Some(output);
        }
        if start + limit + clock.total().saturating_sub(already_queued) <= Instant::now() {
            return None;
        }
    }
}

/// The limits of the requests to one store.
#[derive(Debug, Clone)]
pub(crate) struct GovernedRequests {
    pub(crate) governor: Arc<StoreGovernor>,
    pub(crate) retry_budget: Duration,
    /// Maximum duration of a request and its retries.
    pub(crate) limit: Duration,
}

/// Why a request has failed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RequestFailure {
    Throttled { retry_after: Option<Duration> },
    Retryable,
    Permanent,
}

impl GovernedRequests {
    /// Sends a request until it succeeds, fails permanently, or the retry budget is used up. Returns the permit, because the
    /// request is in flight until the body of the response is read.
    pub(crate) async fn send<T, F: Future<Output = Result<T>>>(
        &self,
        tag: &RequestTag,
        bytes: u64,
        request: impl Fn() -> F,
    ) -> Result<(T, Permit)> {
        let sent = within_active(self.limit, &tag.clock, self.send_with_retries(tag, bytes, request)).await;
        sent.unwrap_or_else(|| {
            Err(Error::Generic { store: "bounded store", source: no_response_reason(self.limit).into() })
        })
    }

    async fn send_with_retries<T, F: Future<Output = Result<T>>>(
        &self,
        tag: &RequestTag,
        bytes: u64,
        request: impl Fn() -> F,
    ) -> Result<(T, Permit)> {
        let mut demand = Demand { job: tag.job, bytes, is_repeated: false };
        let mut backoff = Backoff::new(FIRST_BACKOFF, MAX_BACKOFF);
        let (start, already_queued) = (Instant::now(), tag.clock.total());
        loop {
            let mut permit = self.acquire(tag, demand).await;
            if let Some(merged) = &tag.merged {
                permit.set_bytes(merged.send());
            }
            let sent_at = Instant::now();
            let (error, failure) = match Self::attempt(permit, &request).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            tag.clock.lock().sent_at = None;
            match failure {
                RequestFailure::Throttled { retry_after: Some(time) } if time > MAX_RETRY_AFTER => {
                    tag.clock.lock().has_given_up = true;
                    return Err(too_long(time, &error));
                }
                RequestFailure::Throttled { retry_after } => {
                    demand.is_repeated = true;
                    if self.governor.rejecting_for().is_some_and(|time| time >= self.retry_budget) {
                        tag.clock.lock().has_given_up = true;
                        return Err(error);
                    }
                    if retry_after.is_none() {
                        sleep(backoff.next_pause()).await;
                    }
                }
                RequestFailure::Retryable => {
                    let spent = start.elapsed().saturating_sub(tag.clock.total() - already_queued);
                    // A store that does not respond is tried until the limit, which is the better message.
                    if spent >= self.retry_budget && sent_at.elapsed() < REQUEST_TIMEOUT {
                        tag.clock.lock().has_given_up = true;
                        return Err(error);
                    }
                    sleep(backoff.next_pause()).await;
                }
                RequestFailure::Permanent => return Err(error),
            }
        }
    }

    /// Sends a request once.
    pub(crate) async fn attempt<T, F: Future<Output = Result<T>>>(
        permit: Permit,
        request: &impl Fn() -> F,
    ) -> std::result::Result<(T, Permit), (Error, RequestFailure)> {
        let exchange = Arc::new(Exchange::default());
        let error = match EXCHANGE.scope(Arc::clone(&exchange), request()).await {
            Ok(value) => return Ok((value, permit)),
            Err(error) => error,
        };
        let failure = exchange.classify(&error);
        match failure {
            // The request fails, and others find out for themselves whether the store still rejects them.
            RequestFailure::Throttled { retry_after } => {
                permit.reject(retry_after.filter(|time| *time <= MAX_RETRY_AFTER))
            }
            RequestFailure::Retryable | RequestFailure::Permanent => permit.fail(),
        }
        Err((error, failure))
    }

    async fn acquire(&self, tag: &RequestTag, demand: Demand) -> Permit {
        tag.clock.start();
        let permit = self.governor.acquire(demand).await;
        tag.clock.stop();
        permit
    }
}

impl Exchange {
    fn classify(&self, error: &Error) -> RequestFailure {
        let Response { status, retry_after } = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match status {
            Some(status) if is_throttled(status) => RequestFailure::Throttled { retry_after },
            // The store does not implement the request.
            Some(501) => RequestFailure::Permanent,
            Some(408 | 500..) => RequestFailure::Retryable,
            // The provider renews the credentials.
            Some(400 | 401 | 403) if may_be_renewed(error) => RequestFailure::Retryable,
            // The response was incomplete or could not be parsed.
            Some(200..300) | None if is_transport_error(error) => RequestFailure::Retryable,
            _ => RequestFailure::Permanent,
        }
    }
}

/// Whether the connection failed. Errors of the guard and of the credentials are permanent, and so are responses that violate the
/// protocol.
fn is_transport_error(error: &Error) -> bool {
    matches!(error, Error::Generic { .. })
        && find_guard_error(error).is_none()
        && causes::find::<ResponseError>(error).is_none()
        && find_error(error).is_none_or(|error| error.retryable)
}

/// Returns the error of a store that asks for a longer pause than requests wait for.
fn too_long(retry_after: Duration, error: &Error) -> Error {
    let reason = format!(
        "the store asks to wait for {} s before the next request, and the limit is {} s: {error}",
        retry_after.as_secs(),
        MAX_RETRY_AFTER.as_secs()
    );
    Error::Generic { store: "throttled store", source: reason.into() }
}

#[cfg(test)]
mod tests;
