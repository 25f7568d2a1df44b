//! Schedules retries of splits, and checks for workers that make no progress.

use std::collections::BTreeSet;

use feedline_data::layout::SplitRef;
use tokio::time::{Duration, Instant};

/// Interval at which the consumer checks for workers that make no progress.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The scheduled retries of splits.
#[derive(Debug, Default)]
pub(super) struct RetryTimer {
    retries: BTreeSet<(Instant, SplitRef)>,
    checked_at: Option<Instant>,
}

impl RetryTimer {
    pub(super) fn insert(&mut self, time: Instant, split: SplitRef) {
        self.retries.insert((time, split));
    }

    /// Removes and returns the splits to fetch again now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<SplitRef> {
        let mut due = Vec::new();
        while let Some(&(time, split)) = self.retries.first()
            && time <= now
        {
            self.retries.pop_first();
            due.push(split);
        }
        due
    }

    /// Whether a check for workers without progress is due. Starts the next interval.
    pub(super) fn is_check_due(&mut self, now: Instant) -> bool {
        let is_due =
            self.checked_at.is_none_or(|checked| now.saturating_duration_since(checked) >= CHECK_INTERVAL);
        if is_due {
            self.checked_at = Some(now);
        }
        is_due
    }
}
