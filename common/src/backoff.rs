//! Exponential backoff: the pauses between the attempts of an operation that fails.

use std::time::Duration;

/// A sequence of pauses. Each one is twice as long as the one before, up to a maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// A sequence that starts with `first` and never exceeds `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// A sequence in milliseconds.
    pub const fn from_millis(first_ms: u64, longest_ms: u64) -> Self {
        Self::new(Duration::from_millis(first_ms), Duration::from_millis(longest_ms))
    }

    /// Returns the pause after a failed attempt and doubles the following one.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }

    /// Restarts the sequence after a successful attempt.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_restart_after_a_success() {
        let mut backoff = Backoff::from_millis(50, 250);
        let mut pauses = || [(); 4].map(|()| backoff.next_pause().as_millis());
        assert_eq!(pauses(), [50, 100, 200, 250]);
        assert_eq!(pauses(), [250; 4]);
        backoff.reset();
        assert_eq!(backoff.next_pause().as_millis(), 50);
    }
}
