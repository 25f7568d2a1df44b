//! Measures for how long other processes have rejected a client because of its protocol version.

use tokio::time::{Duration, Instant};

/// A rejection after a longer pause starts a new measurement. Clients retry more often.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The time since the first of several consecutive rejections.
#[derive(Debug, Default)]
pub(crate) struct MismatchTimer {
    /// Times of the first and of the last rejection.
    rejections: Option<(Instant, Instant)>,
}

impl MismatchTimer {
    /// Records a rejection. Returns the time since the first rejection.
    pub(crate) fn record(&mut self, now: Instant) -> Duration {
        let (first, last) = self.rejections.unwrap_or((now, now));
        let first = if now.saturating_duration_since(last) > MAX_PAUSE { now } else { first };
        self.rejections = Some((first, now));
        now.saturating_duration_since(first)
    }

    /// Records that a request was not rejected. Returns whether an earlier request was rejected.
    pub(crate) fn reset(&mut self) -> bool {
        self.rejections.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_consecutive_rejections_are_measured() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut timer = MismatchTimer::default();
        let mut record = |seconds| timer.record(at(seconds)).as_secs();
        assert_eq!([0, 30, 90].map(&mut record), [0, 30, 90]);
        assert_eq!([151, 160].map(&mut record), [0, 9], "after a pause of more than a minute");
        assert!(timer.reset() && !timer.reset());
        assert_eq!(timer.record(at(170)), Duration::ZERO);
    }
}
