//! Exponential backoff: the pauses between attempts of a failing operation.

use std::time::Duration;

/// A sequence of pauses with jitter. Each limit of a pause is twice as long as the previous limit, up to a maximum. A pause is
/// a random duration from half of its limit to its limit, so that callers that failed at the same time, for example because
/// a coordinator restarts, do not retry at the same time.
///
/// The formula is "equal jitter" of M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. "Full jitter",
/// from 0 to the limit, spreads the attempts further, but some callers would retry at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    next_limit: Duration,
}

impl Backoff {
    /// Creates a sequence whose first pause is at most `first`. No pause exceeds `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next_limit: first }
    }

    /// Creates a sequence from durations in milliseconds.
    pub const fn from_millis(first_ms: u64, max_ms: u64) -> Self {
        Self::new(Duration::from_millis(first_ms), Duration::from_millis(max_ms))
    }

    /// Returns the pause after a failed attempt and doubles the limit of the next pause.
    pub fn next_pause(&mut self) -> Duration {
        let limit = self.next_limit;
        self.next_limit = (limit * 2).min(self.max);
        limit.mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    /// Restarts the sequence after a successful attempt.
    pub fn reset(&mut self) {
        self.next_limit = self.first;
    }
}

/// Returns a delay that a service requests, or that all callers share, plus a random part of it, at most half, so that the callers do
/// not retry at the same time.
pub fn spread(delay: Duration) -> Duration {
    delay + delay.mul_f64(fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_pauses_double_up_to_the_maximum_and_restart_after_a_success() {
        for _ in 0..1_000 {
            let mut backoff = Backoff::from_millis(50, 250);
            for limit_ms in [50, 100, 200, 250, 250, 250] {
                let pause = backoff.next_pause();
                let limit = Duration::from_millis(limit_ms);
                assert!(limit / 2 <= pause && pause <= limit, "{pause:?} of {limit:?}");
            }
            backoff.reset();
            assert!(backoff.next_pause() <= Duration::from_millis(50));
        }
    }

    #[test]
    fn a_shared_delay_is_spread_over_half_of_it() {
        let shared = Duration::from_millis(200);
        let delays: Vec<Duration> = (0..1_000).map(|_| spread(shared)).collect();
        assert!(delays.iter().all(|delay| (200..=300).contains(&delay.as_millis())));
        let early = delays.iter().filter(|delay| delay.as_millis() < 250).count();
        assert!((400..600).contains(&early), "{early} delays are in the first half");
        assert_eq!(spread(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn callers_do_not_pause_in_step() {
        let mut pauses = [(); 100].map(|()| Backoff::from_millis(1_000, 1_000).next_pause());
        pauses.sort();
        let (shortest, longest) = (pauses[0], pauses[99]);
        assert!(shortest < Duration::from_millis(600) && longest > Duration::from_millis(900), "{pauses:?}");
    }
}
