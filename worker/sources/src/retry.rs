//! The retry budget of reads from object stores. The store's client retries failed requests, and a read retries incomplete
//! responses. Both use the same budget, so a read from an unresponsive store fails within [`max_duration`].

use std::time::Duration;

use object_store::{BackoffConfig, RetryConfig};

/// The default time for which a failing request is retried.
pub const DEFAULT_RETRY_BUDGET: Duration = Duration::from_secs(60);
/// The delay before the first retry. Each later delay is at most twice as long, up to [`MAX_BACKOFF`].
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(50);
pub(crate) const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// The timeout of one request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Practically unlimited: the retry budget limits the number of attempts.
const MAX_RETRIES: usize = 1 << 20;

/// The maximum duration of a read from an unresponsive store: the budget, plus the last backoff and the last request.
pub(crate) fn max_duration(budget: Duration) -> Duration {
    budget.saturating_add(MAX_BACKOFF).saturating_add(REQUEST_TIMEOUT)
}

/// The retry settings of a store's client.
pub(crate) fn client_retries(budget: Duration) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig { init_backoff: FIRST_BACKOFF, max_backoff: MAX_BACKOFF, base: 2.0 },
        max_retries: MAX_RETRIES,
        retry_timeout: budget,
    }
}
