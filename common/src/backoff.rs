//! Exponential backoff: the pauses between attempts of a failing operation.

use std::time::Duration;

/// A sequence of pauses. Each pause is twice as long as the previous pause, up to a maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    next_pause: Duration,
}

impl Backoff {
    /// Creates a sequence that starts with `first` and never exceeds `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next_pause: first }
    }

    /// Creates a sequence from durations in milliseconds.
    pub const fn from_millis(first_ms: u64, max_ms: u64) -> Self {
        Self::new(Duration::from_millis(first_ms), Duration::from_millis(max_ms))
    }

    /// Returns the pause after a failed attempt and doubles the next pause.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next_pause;
        self.next_pause = (pause * 2).min(self.max);
        pause
    }

    /// Restarts the sequence after a successful attempt.
    pub fn reset(&mut self) {
        self.next_pause = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum_and_restart_after_a_success() {
        let mut backoff = Backoff::from_millis(50, 250);
        let mut pauses = || [(); 4].map(|()| backoff.next_pause().as_millis());
        assert_eq!(pauses(), [50, 100, 200, 250]);
        assert_eq!(pauses(), [250; 4]);
        backoff.reset();
        assert_eq!(backoff.next_pause().as_millis(), 50);
    }
}
