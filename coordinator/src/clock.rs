//! The state machine's time: milliseconds in which the coordinator was able to listen.

use feedline_data::ids::Millis;
use tokio::time::{Duration, Instant};

/// A clock that stands still while the coordinator could not take reports: during a slow write, a full disk or a
/// suspended process. Otherwise every worker would count as lost afterwards for a silence that was the coordinator's.
#[derive(Debug)]
pub(crate) struct PausableClock {
    last: Instant,
    counted: Duration,
    /// More time than this between two looks is not counted.
    longest_step: Duration,
}

impl PausableClock {
    /// A clock that is looked at every `tick_ms` milliseconds or more often.
    pub(crate) fn new(tick_ms: u64) -> Self {
        Self {
            last: Instant::now(),
            counted: Duration::ZERO,
            longest_step: Duration::from_millis(4 * tick_ms),
        }
    }

    /// The present time.
    pub(crate) fn advance(&mut self) -> Millis {
        let now = Instant::now();
        self.counted += (now - self.last).min(self.longest_step);
        self.last = now;
        self.counted.as_millis() as Millis
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn counts_time_but_not_an_interruption() {
        let mut clock = PausableClock::new(50);
        for _ in 0..10 {
            tokio::time::advance(Duration::from_millis(50)).await;
            clock.advance();
        }
        assert_eq!(clock.advance(), 500);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(clock.advance(), 700);
    }
}
