//! Computes the retry delay for a busy service: the delay that the service requests, plus jitter, so that clients do
//! not retry simultaneously.

use std::time::Duration;

use feedline_common::backoff::{Backoff, spread};
use feedline_data::messages::ServiceError;

/// Pauses between retries while the coordinator is unavailable. A new leader is elected within a second.
pub(crate) const COORDINATOR_BACKOFF: Backoff = Backoff::from_millis(50, 250);
/// Delay if the service requests no delay.
const DEFAULT_DELAY: Duration = Duration::from_millis(500);
/// Minimum delay that a service can request.
const MIN_DELAY: Duration = Duration::from_millis(10);
/// Maximum delay that a service can request.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Returns the delay before a retry: the requested delay, and at most half of it in addition.
pub(crate) fn retry_delay(error: &ServiceError) -> Duration {
    let requested = error.retry_after_ms.map_or(DEFAULT_DELAY, Duration::from_millis);
    spread(requested.clamp(MIN_DELAY, MAX_DELAY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_is_bounded() {
        assert!(retry_delay(&ServiceError::busy("full", 0)) >= MIN_DELAY);
        assert!(retry_delay(&ServiceError::busy("full", u64::MAX)) <= MAX_DELAY.mul_f64(1.5));
        let delay = retry_delay(&ServiceError::busy("full", 200)).as_millis();
        assert!((200..=300).contains(&delay), "{delay} ms");
    }
}
