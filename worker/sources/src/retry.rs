//! The retry budget of requests to object stores. `requests.rs` retries failed requests, since the clients of stores do not, and
//! the reader retries incomplete responses. Both have the same budget, so that every request to an unresponsive store, such as a
//! read, a HEAD request or one page of a listing, fails after at most [`max_duration`], without the time in queues.

use std::time::Duration;

use object_store::{BackoffConfig, RetryConfig};

/// Default time limit for retrying a failing request.
pub const DEFAULT_RETRY_BUDGET: Duration = Duration::from_secs(60);
/// Pause before the first retry. The pause doubles with each retry, up to [`MAX_BACKOFF`].
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(50);
pub(crate) const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// Longest time for which requests wait because a store asks for it.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
/// Timeout for one request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of retries. It is never reached, because the retry budget ends first.
const MAX_RETRIES: usize = 1 << 20;

/// Maximum duration of a request and its retries: the retry budget, plus the last pause and the last request.
pub(crate) fn max_duration(budget: Duration) -> Duration {
    budget.saturating_add(MAX_BACKOFF).saturating_add(REQUEST_TIMEOUT)
}

/// The reason for the error of a request that has exceeded its limit, without the fix.
pub(crate) fn no_response_reason(limit: Duration) -> String {
    let seconds = limit.as_secs();
    format!("the store did not respond for {seconds} s")
}

/// The settings of a client that does not retry, because the governor of the store decides when a request is sent again.
pub(crate) fn no_client_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
}

/// The retry settings of the client that fetches credentials.
pub(crate) fn client_retries(budget: Duration) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig { init_backoff: FIRST_BACKOFF, max_backoff: MAX_BACKOFF, base: 2.0 },
        max_retries: MAX_RETRIES,
        retry_timeout: budget,
    }
}
