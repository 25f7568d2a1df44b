//! The limits of the proxy: a token bucket for requests, and a rate of bytes.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket, which is full at the start.
#[derive(Debug)]
pub(super) struct Limits {
    /// Requests per second; 0 allows all.
    rate: f64,
    burst: f64,
    tokens: f64,
    at: Option<Instant>,
    started: Option<Instant>,
}

impl Limits {
    pub(super) fn new(rate: f64, burst: f64) -> Self {
        Self { rate, burst: burst.max(1.0), tokens: burst.max(1.0), at: None, started: None }
    }

    pub(super) fn start(&mut self, now: Instant) {
        self.at = Some(now);
        self.started = Some(now);
    }

    pub(super) fn halve(&mut self, now: Instant) {
        self.refill(now);
        self.rate /= 2.0;
    }

    /// Seconds since the limits began; `None` before.
    pub(super) fn elapsed(&self, now: Instant) -> Option<f64> {
        self.started.map(|started| now.duration_since(started).as_secs_f64())
    }

    fn refill(&mut self, now: Instant) {
        if let Some(at) = self.at {
            self.tokens = (self.tokens + self.rate * now.duration_since(at).as_secs_f64()).min(self.burst);
            self.at = Some(now);
        }
    }

    /// Whether a request is accepted.
    pub(super) fn accept(&mut self, now: Instant) -> bool {
        if self.rate <= 0.0 || self.started.is_none() {
            return true;
        }
        self.refill(now);
        let is_accepted = self.tokens >= 1.0;
        self.tokens -= f64::from(u8::from(is_accepted));
        is_accepted
    }
}

/// Sends the chunks of all responses one after the other.
#[derive(Debug)]
pub(super) struct BandwidthCap {
    bytes_per_s: f64,
    free_at: Option<Instant>,
}

impl BandwidthCap {
    pub(super) fn new(bytes_per_s: f64) -> Self {
        Self { bytes_per_s, free_at: None }
    }

    /// Returns when a chunk of `bytes` is sent.
    pub(super) fn reserve(&mut self, now: Instant, bytes: usize) -> Instant {
        if self.bytes_per_s <= 0.0 {
            return now;
        }
        let begin = self.free_at.map_or(now, |free_at| free_at.max(now));
        let end = begin + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        self.free_at = Some(end);
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_accepts_its_rate_and_its_burst() {
        let start = Instant::now();
        let mut limits = Limits::new(100.0, 10.0);
        assert!((0..1000).all(|_| limits.accept(start)), "the limits have not begun");
        limits.start(start);
        let mut accepted = |from_ms: u64, to_ms: u64| {
            (from_ms..to_ms).filter(|ms| limits.accept(start + Duration::from_millis(*ms))).count()
        };
        assert_eq!(accepted(0, 1000), 109);
        assert_eq!(accepted(1000, 2000), 100);
        limits.halve(start + Duration::from_secs(2));
        let mut accepted = |from_ms: u64, to_ms: u64| {
            (from_ms..to_ms).filter(|ms| limits.accept(start + Duration::from_millis(*ms))).count()
        };
        assert_eq!(accepted(2000, 3000), 50);
    }

    #[test]
    fn bytes_are_sent_one_after_the_other() {
        let now = Instant::now();
        let mut bandwidth = BandwidthCap::new(1000.0);
        assert_eq!(bandwidth.reserve(now, 500) - now, Duration::from_millis(500));
        assert_eq!(bandwidth.reserve(now, 500) - now, Duration::from_secs(1));
        let later = now + Duration::from_secs(9);
        assert_eq!(bandwidth.reserve(later, 100) - later, Duration::from_millis(100));
        assert_eq!(BandwidthCap::new(0.0).reserve(now, 100), now);
    }
}
