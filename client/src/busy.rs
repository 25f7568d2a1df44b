//! The delay of a retry at a service that is busy: the delay that the service asks for, plus jitter, so that clients that were
//! rejected together do not retry together.

use feedline_common::backoff::Backoff;
use feedline_data::messages::ServiceError;
use feedline_data::random::mix64;
use tokio::time::{Duration, Instant};

/// Pauses between requests to a coordinator that cannot be reached. A new leader is elected within a second.
pub(crate) const COORDINATOR_BACKOFF: Backoff = Backoff::from_millis(50, 250);
/// The delay where the service asks for none.
const DEFAULT_DELAY: Duration = Duration::from_millis(500);
/// Bounds of the delay that a service may ask for.
const MIN_DELAY: Duration = Duration::from_millis(10);
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Returns the delay before a retry: the requested delay plus up to half of it. `seed` differs between clients.
pub(crate) fn retry_delay(error: &ServiceError, seed: u64) -> Duration {
    let requested = error.retry_after_ms.map_or(DEFAULT_DELAY, Duration::from_millis);
    let requested = requested.clamp(MIN_DELAY, MAX_DELAY);
    let jitter = (mix64(seed) >> 11) as f64 / (1u64 << 53) as f64;
    requested + requested.mul_f64(jitter / 2.0)
}

/// Returns a number that differs between clients: the duration of a request in nanoseconds.
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
