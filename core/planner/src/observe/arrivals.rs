//! The rate at which rows arrive in the topics of an unbounded job, and the demand that bounds its lag.

use std::collections::VecDeque;

use feedline_data::ids::Millis;
use feedline_data::messages::samples::TopicSample;

/// Milliseconds over which the rate is averaged.
const WINDOW_MS: Millis = 10_000;
/// Maximum number of samples in the window.
const MAX_POINTS: usize = 64;
/// Seconds in which the backlog should be delivered.
const CATCH_UP_S: f64 = 15.0;
/// Records that arrived within this number of seconds may still be on their way to the consumers.
const CAUGHT_UP_S: f64 = 2.0;

/// The rows that have arrived over the last seconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Arrivals {
    /// Times and total rows, the oldest first.
    points: VecDeque<(Millis, u64)>,
    backlog_rows: u64,
    step_rows: u64,
}

impl Arrivals {
    /// Adds a sample.
    pub(super) fn push(&mut self, now: Millis, sample: TopicSample) {
        // A new leader or a resumed job counts from another number.
        if self.points.back().is_some_and(|(at, rows)| *at > now || *rows > sample.arrived_rows) {
            self.points.clear();
        }
        self.points.push_back((now, sample.arrived_rows));
        // The newest sample from before the window is its start.
        while self.points.len() > MAX_POINTS
            || self.points.get(1).is_some_and(|(at, _)| at + WINDOW_MS <= now)
        {
            self.points.pop_front();
        }
        (self.backlog_rows, self.step_rows) = (sample.backlog_rows, sample.step_rows);
    }

    /// Returns the rows per second that deliver the arriving rows, and the backlog within a few seconds; `None` before the rate is
    /// known.
    pub(super) fn demand_rows_per_s(&self) -> Option<f64> {
        Some(self.arrived_per_s()? + self.backlog_rows as f64 / CATCH_UP_S)
    }

    /// Whether the records limit the job: without those of the last seconds, the backlog does not suffice for a step.
    pub(super) fn is_caught_up(&self) -> bool {
        let limit = |rate: f64| rate * CAUGHT_UP_S + self.step_rows as f64;
        self.arrived_per_s().is_some_and(|rate| (self.backlog_rows as f64) < limit(rate))
    }

    fn arrived_per_s(&self) -> Option<f64> {
        let ((start, before), (end, rows)) = (self.points.front()?, self.points.back()?);
        (end > start).then(|| 1e3 * (rows - before) as f64 / (end - start) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of rows of a step of 8 consumers with batches of 256 rows.
    const STEP_ROWS: u64 = 2_048;

    fn pushed(samples: &[(Millis, u64, u64)]) -> Arrivals {
        let mut arrivals = Arrivals::default();
        for (now, arrived_rows, backlog_rows) in samples.iter().copied() {
            arrivals.push(now, TopicSample { arrived_rows, backlog_rows, step_rows: STEP_ROWS });
        }
        arrivals
    }

    #[test]
    fn the_demand_is_the_rate_of_arrival_and_a_part_of_the_backlog() {
        assert_eq!(pushed(&[]).demand_rows_per_s(), None);
        assert_eq!(pushed(&[(0, 100, 9)]).demand_rows_per_s(), None, "one sample has no rate");
        assert_eq!(pushed(&[(0, 100, 0), (1_000, 400, 0)]).demand_rows_per_s(), Some(300.0));
        assert_eq!(pushed(&[(0, 100, 0), (1_000, 400, 1_500)]).demand_rows_per_s(), Some(400.0));
        assert_eq!(
            pushed(&[(0, 100, 0), (1_000, 100, 0)]).demand_rows_per_s(),
            Some(0.0),
            "the topic is quiet"
        );
    }

    #[test]
    fn a_job_is_caught_up_if_its_backlog_does_not_suffice_for_a_step() {
        assert!(!pushed(&[(0, 100, 0)]).is_caught_up(), "one sample has no rate");
        let is_caught_up = |rows_per_s: u64, backlog_rows: u64| {
            pushed(&[(0, 100, 0), (1_000, 100 + rows_per_s, backlog_rows)]).is_caught_up()
        };
        for (rows_per_s, limit) in [(0, STEP_ROWS), (300, 600 + STEP_ROWS), (50_000, 100_000 + STEP_ROWS)] {
            assert!(is_caught_up(rows_per_s, 0));
            assert!(is_caught_up(rows_per_s, limit - 1), "{rows_per_s} rows/s");
            assert!(!is_caught_up(rows_per_s, limit), "{rows_per_s} rows/s");
        }
    }

    #[test]
    fn old_samples_do_not_count_and_restarts_begin_again() {
        let mut samples: Vec<(Millis, u64, u64)> =
            (0..60).map(|second| (second * 1_000, second * 10, 0)).collect();
        samples.extend((60..80).map(|second| (second * 1_000, 600 + (second - 60) * 500, 0)));
        let arrivals = pushed(&samples);
        assert_eq!(arrivals.demand_rows_per_s(), Some(500.0));
        assert!(arrivals.points.len() <= 12);
        samples.extend([(80_000, 7, 0), (81_000, 107, 0)]);
        assert_eq!(pushed(&samples).demand_rows_per_s(), Some(100.0));
    }
}
