//! Prints to standard error why a run receives no rows.

use std::time::{Duration, Instant};

use feedline_client::Job;

/// Time without rows after which the reason is printed, in addition to the time of a training step.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the request for the job's status.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Detects stalls from the number of received rows.
#[derive(Debug)]
pub(super) struct StallWatch {
    step: Duration,
    /// Time at which the number of rows last changed.
    last_change: Instant,
    rows: u64,
    is_reported: bool,
}

impl StallWatch {
    /// Creates a watch without rows. `step` is the time that a consumer spends on a batch.
    pub(super) fn new(now: Instant, step: Duration) -> Self {
        Self { step, last_change: now, rows: 0, is_reported: false }
    }

    /// Whether a stall should be reported now. `rows` is the number of rows received so far.
    fn is_due(&mut self, now: Instant, rows: u64) -> bool {
        if rows != self.rows {
            *self = Self { step: self.step, last_change: now, rows, is_reported: false };
        }
        let due = !self.is_reported && now - self.last_change >= STALL_TIMEOUT + self.step;
        self.is_reported |= due;
        due
    }

    /// Prints the reason for each stall once.
    pub(super) async fn watch(&mut self, job: &Job, rows: u64) {
        if self.is_due(Instant::now(), rows) {
            let status = tokio::time::timeout(STATUS_TIMEOUT, job.status()).await;
            let workers = status.ok().and_then(Result::ok).map(|status| status.workers);
            eprintln!("feedline: {}", stall_reason(workers));
        }
    }
}

/// Returns the reason and a fix. `workers` is the number of workers; `None` if the coordinator does not answer.
fn stall_reason(workers: Option<u32>) -> String {
    let seconds = STALL_TIMEOUT.as_secs();
    match workers {
        None => format!("no rows for {seconds} s: the coordinator is not responding; retrying"),
        Some(0) => format!(
            "no rows for {seconds} s: no worker is connected to the coordinator; start one with `feedline worker --coordinator URL`"
        ),
        Some(1) => format!("no rows for {seconds} s from the only worker; see its log"),
        Some(workers) => {
            format!("no rows for {seconds} s from {workers} workers; see their logs")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_reported_once_until_rows_arrive_again() {
        let start = Instant::now();
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut watch = StallWatch::new(start, Duration::ZERO);
        let due = [(4, 0), (5, 0), (9, 0), (10, 1), (14, 1), (15, 1), (30, 1)];
        let due = due.map(|(seconds, rows)| watch.is_due(after(seconds), rows));
        assert_eq!(due, [false, true, false, false, false, true, false]);
    }

    #[test]
    fn the_reason_names_a_fix() {
        assert!(stall_reason(Some(0)).ends_with("start one with `feedline worker --coordinator URL`"));
        assert!(stall_reason(None).contains("not responding"));
    }
}
