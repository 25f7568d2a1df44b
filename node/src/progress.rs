//! The progress line on a terminal.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use feedline_data::messages::{ConsumerStats, JobState};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::size::format_bytes;

/// Time over which rates are averaged.
const RATE_WINDOW: Duration = Duration::from_secs(3);

/// A progress line on standard error, shown only on a terminal. Dropping this value clears the line.
#[derive(Debug)]
pub(crate) struct Progress {
    line: ProgressBar,
    started: Instant,
}

impl Progress {
    /// Shows an empty line.
    pub(crate) fn start() -> Self {
        let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            line.set_style(style);
        }
        line.enable_steady_tick(Duration::from_millis(200));
        Self { line, started: Instant::now() }
    }

    /// Shows why a job delivers no rows yet.
    pub(crate) fn show_state(&self, state: &JobState) {
        self.line.set_message(match state {
            JobState::Preparing { workers: 0, .. } => "waiting for a worker".to_owned(),
            JobState::Preparing { shards: 0, .. } => "listing the dataset".to_owned(),
            JobState::Preparing { indexed, shards, read_bytes, total_bytes, .. } => format!(
                "indexing: {indexed} of {shards} shards, {} of {}",
                format_bytes(*read_bytes as f64),
                format_bytes(*total_bytes as f64)
            ),
            _ => "waiting for the first batch".to_owned(),
        });
    }

    /// Replaces the text of the line.
    pub(crate) fn show(&self, line: String) {
        self.line.set_message(line);
    }

    /// Shows the delivery rates over the last few seconds.
    pub(crate) fn show_rates(&self, rates: &mut DeliveryRates, total: &ConsumerStats, consumers: u32) {
        self.line.set_message(rates.line(self.started.elapsed(), total, consumers));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.line.finish_and_clear();
    }
}

/// The deliveries in the last few seconds.
#[derive(Debug, Default)]
pub(crate) struct DeliveryRates {
    samples: VecDeque<(Duration, ConsumerStats)>,
}

impl DeliveryRates {
    /// Formats the line at time `now`. `total` counts all deliveries to `consumers` consumers.
    fn line(&mut self, now: Duration, total: &ConsumerStats, consumers: u32) -> String {
        self.samples.push_back((now, *total));
        while self.samples.len() > 2 && now - self.samples[1].0 >= RATE_WINDOW {
            self.samples.pop_front();
        }
        let (since, first) = self.samples[0];
        let seconds = (now - since).as_secs_f64();
        let rate =
            |new: u64, old: u64| if seconds > 0.0 { new.saturating_sub(old) as f64 / seconds } else { 0.0 };
        let stall = rate(total.stall_ns, first.stall_ns) / 1e9 / f64::from(consumers.max(1));
        format!(
            "{} rows, {} batches, {:.0} rows/s, {}/s, stalled {:.0} %",
            total.rows,
            total.batches,
            rate(total.rows, first.rows),
            format_bytes(rate(total.bytes, first.bytes)),
            stall.min(1.0) * 100.0,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_averaged_over_the_last_seconds() {
        let mut rates = DeliveryRates::default();
        let total = |rows: u64, stall_ms: u64| ConsumerStats {
            rows,
            batches: rows / 10,
            bytes: rows * 1000,
            stall_ns: stall_ms * 1_000_000,
            ..ConsumerStats::default()
        };
        let second = Duration::from_secs(1);
        assert_eq!(
            rates.line(Duration::ZERO, &total(0, 0), 2),
            "0 rows, 0 batches, 0 rows/s, 0 B/s, stalled 0 %"
        );
        assert_eq!(
            rates.line(second, &total(500, 1000), 2),
            "500 rows, 50 batches, 500 rows/s, 500.0 kB/s, stalled 50 %"
        );
        for passed in 2..20 {
            rates.line(second * passed, &total(500 + 10 * u64::from(passed), 1000), 2);
        }
        assert_eq!(
            rates.line(second * 20, &total(700, 1000), 2),
            "700 rows, 70 batches, 10 rows/s, 10.0 kB/s, stalled 0 %"
        );
    }
}
