//! The clock of the state machine, which stops while the coordinator cannot process reports.

use feedline_data::ids::Millis;
use tokio::time::{Duration, Instant};

/// A clock that stops while the coordinator cannot process reports: during a slow write, with a full disk or in a suspended
/// process. Otherwise, all workers would expire afterwards.
#[derive(Debug)]
pub(crate) struct PausableClock {
    last_reading: Instant,
    counted_time: Duration,
    /// Maximum advance between two readings.
    longest_step: Duration,
}

impl PausableClock {
    /// Creates a clock. The caller must read the clock at least every `tick_ms` milliseconds.
    pub(crate) fn new(tick_ms: u64) -> Self {
        Self {
            last_reading: Instant::now(),
            counted_time: Duration::ZERO,
            longest_step: Duration::from_millis(4 * tick_ms),
        }
    }

    /// Reads the clock.
    pub(crate) fn advance(&mut self) -> Millis {
        let now = Instant::now();
        self.counted_time += (now - self.last_reading).min(self.longest_step);
        self.last_reading = now;
        self.counted_time.as_millis() as Millis
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
