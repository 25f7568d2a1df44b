//! Waiting for room: as long as whoever refused says, and a little longer, each asker by another share, so that those who
//! were refused together do not come back together.

use feedline_data::messages::ServiceError;
use feedline_data::random::mix64;
use tokio::time::{Duration, Instant};

/// Where nothing was said of the time.
const USUAL: Duration = Duration::from_millis(500);
/// Nobody is trusted with a shorter wait, or a longer one.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(60);

/// How long to wait before asking again: up to half as long again as was said. `draw` is any number that differs from
/// asker to asker.
pub(crate) fn pause(refusal: &ServiceError, draw: u64) -> Duration {
    let said = refusal.retry_after_ms.map_or(USUAL, Duration::from_millis).clamp(SHORTEST, LONGEST);
    let share = (mix64(draw) >> 11) as f64 / (1u64 << 53) as f64;
    said + said.mul_f64(share / 2.0)
}

/// A number that differs from asker to asker: how many nanoseconds their request took.
pub(crate) fn draw(asked: Instant) -> u64 {
    asked.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_pause_is_what_was_said_and_up_to_half_more() {
        let refusal = ServiceError::busy("full", 200);
        let pauses: BTreeSet<Duration> = (0..1000).map(|draw| pause(&refusal, draw)).collect();
        assert!(pauses.len() > 990, "they differ");
        assert!(pauses.iter().all(|pause| (200..300).contains(&pause.as_millis())));
        let early = pauses.iter().filter(|pause| pause.as_millis() < 250).count();
        assert!((400..600).contains(&early), "{early} in the first half");
    }

    #[test]
    fn no_wait_is_too_short_or_too_long() {
        assert!(pause(&ServiceError::busy("full", 0), 7) >= SHORTEST);
        assert!(pause(&ServiceError::busy("full", u64::MAX), 7) <= LONGEST.mul_f64(1.5));
    }
}
