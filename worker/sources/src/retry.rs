//! How long requests to object stores are retried. The client of a store repeats a request that fails; a read repeats an
//! answer that the client accepts but that is not what was requested. Both spend the same budget, so a store that does not
//! answer fails a read within [`bound`].

use std::time::Duration;

use object_store::{BackoffConfig, RetryConfig};

/// Time for which a failing request is retried, unless a worker sets another.
pub const DEFAULT_RETRY_BUDGET: Duration = Duration::from_secs(60);
/// Pauses between attempts: from this on, each at most twice as long as the one before.
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(50);
pub(crate) const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// The longest that one request takes.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time alone limits attempts: with these pauses a minute has about a hundred.
const MOST_RETRIES: usize = 1 << 20;

/// The time after which a read of a store that does not answer has failed: when the budget is spent, the last pause and
/// the last request may still be under way.
pub(crate) fn bound(budget: Duration) -> Duration {
    budget.saturating_add(LONGEST_BACKOFF).saturating_add(REQUEST_TIMEOUT)
}

/// The retries of a store's client.
pub(crate) fn client_retries(budget: Duration) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig { init_backoff: FIRST_BACKOFF, max_backoff: LONGEST_BACKOFF, base: 2.0 },
        max_retries: MOST_RETRIES,
        retry_timeout: budget,
    }
}
