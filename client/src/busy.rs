//! Computes the retry delay for a busy service: the delay that the service requests, plus jitter, so that clients do
//! not retry simultaneously.

use feedline_common::backoff::Backoff;
use feedline_data::messages::ServiceError;
use feedline_data::random::mix64;
use tokio::time::{Duration, Instant};

/// Pauses between retries while the coordinator is unavailable. A new leader is elected within a second.
pub(crate) const COORDINATOR_BACKOFF: Backoff = Backoff::from_millis(50, 250);
/// Delay if the service requests no delay.
const DEFAULT_DELAY: Duration = Duration::from_millis(500);
/// Minimum delay that a service can request.
const MIN_DELAY: Duration = Duration::from_millis(10);
/// Maximum delay that a service can request.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Returns the delay before a retry. The jitter is at most half of the requested delay. `seed` must differ between clients.
pub(crate) fn retry_delay(error: &ServiceError, seed: u64) -> Duration {
    let requested = error.retry_after_ms.map_or(DEFAULT_DELAY, Duration::from_millis);
    let requested = requested.clamp(MIN_DELAY, MAX_DELAY);
    let jitter = (mix64(seed) >> 11) as f64 / (1u64 << 53) as f64;
    requested + requested.mul_f64(jitter / 2.0)
}

/// Returns a jitter seed that differs between clients, which is the duration of a request in nanoseconds.
pub(crate) fn jitter_seed(started: Instant) -> u64 {
    started.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn jitter_adds_up_to_half_of_the_requested_delay() {
        let error = ServiceError::busy("full", 200);
        let delays: BTreeSet<Duration> = (0..1000).map(|seed| retry_delay(&error, seed)).collect();
        assert!(delays.len() > 990, "delays differ");
        assert!(delays.iter().all(|delay| (200..300).contains(&delay.as_millis())));
        let early = delays.iter().filter(|delay| delay.as_millis() < 250).count();
        assert!((400..600).contains(&early), "{early} delays in the first half");
    }

    #[test]
    fn the_delay_is_bounded() {
        assert!(retry_delay(&ServiceError::busy("full", 0), 7) >= MIN_DELAY);
        assert!(retry_delay(&ServiceError::busy("full", u64::MAX), 7) <= MAX_DELAY.mul_f64(1.5));
    }
}
