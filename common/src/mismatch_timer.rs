//! Measures for how long other processes have rejected a client or a worker because of its protocol version. A rolling upgrade
//! ends such a period, so that callers retry until a limit.

use std::time::{Duration, Instant};

/// A rejection after a longer pause starts a new period. Clients and workers retry more often.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The time since the first of several consecutive rejections.
#[derive(Debug, Default)]
pub struct MismatchTimer {
    /// Times of the first and of the last rejection.
    rejections: Option<(Instant, Instant)>,
    /// Time of the last warning. Periods can alternate quickly if only some processes have another version.
    warned_at: Option<Instant>,
}

/// A rejection in a period of rejections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection {
    /// Time since the first rejection of the period.
    pub lasted: Duration,
    /// Whether a warning is due: at the first rejection of a period, but at most once a minute.
    pub is_warning_due: bool,
}

impl MismatchTimer {
    /// Records a rejection.
    pub fn record(&mut self, now: Instant) -> Rejection {
        let is_recent = |(_, last): &(Instant, Instant)| now.saturating_duration_since(*last) <= MAX_PAUSE;
        let current = self.rejections.filter(is_recent);
        let first = current.map_or(now, |(first, _)| first);
        self.rejections = Some((first, now));
        let is_recent = |at: Instant| now.saturating_duration_since(at) <= MAX_PAUSE;
        let is_warning_due = current.is_none() && !self.warned_at.is_some_and(is_recent);
        if is_warning_due {
            self.warned_at = Some(now);
        }
        Rejection { lasted: now.saturating_duration_since(first), is_warning_due }
    }

    /// Ends the period, because a process with the right version has answered. Returns whether a period has ended.
    pub fn reset(&mut self) -> bool {
        self.rejections.take().is_some()
    }

    /// Returns the time from the first to the last rejection of the period, or `None` outside a period.
    pub fn lasted(&self) -> Option<Duration> {
        self.rejections.map(|(first, last)| last.saturating_duration_since(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_consecutive_rejections_are_measured() {
        let start = Instant::now();
        let mut timer = MismatchTimer::default();
        let mut record = |seconds| {
            let Rejection { lasted, is_warning_due } = timer.record(start + Duration::from_secs(seconds));
            (lasted.as_secs(), is_warning_due)
        };
        assert_eq!([0, 0, 30, 90].map(&mut record), [(0, true), (0, false), (30, false), (90, false)]);
        assert_eq!([151, 160].map(&mut record), [(0, true), (9, false)], "after a pause of over a minute");
        assert_eq!(timer.lasted(), Some(Duration::from_secs(9)));
        assert!(timer.reset() && !timer.reset());
        assert_eq!(timer.lasted(), None);
        for (seconds, is_warning_due) in [(170, false), (220, true)] {
            let after = timer.record(start + Duration::from_secs(seconds));
            assert_eq!(after, Rejection { lasted: Duration::ZERO, is_warning_due }, "{seconds}");
            timer.reset();
        }
    }
}
