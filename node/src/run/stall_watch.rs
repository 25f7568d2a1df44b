//! Says why nothing comes, where a log would otherwise be silent.

use std::time::{Duration, Instant};

use feedline_client::Job;

/// Time without a row after which the reason is told, once until rows flow again; a training step comes on top.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for the coordinator to say how the job stands.
const ANSWER: Duration = Duration::from_secs(2);

/// Watches the rows that arrive.
#[derive(Debug)]
pub(super) struct StallWatch {
    step: Duration,
    since: Instant,
    rows: u64,
    told: bool,
}

impl StallWatch {
    /// Nothing has come by `now`; `step` is the time that a consumer spends on a batch.
    pub(super) fn new(now: Instant, step: Duration) -> Self {
        Self { step, since: now, rows: 0, told: false }
    }

    /// Whether it is time to tell: `rows` have arrived so far.
    fn is_due(&mut self, now: Instant, rows: u64) -> bool {
        if rows != self.rows {
            *self = Self { step: self.step, since: now, rows, told: false };
        }
        let due = !self.told && now - self.since >= PATIENCE + self.step;
        self.told |= due;
        due
    }

    /// Tells on standard error why no rows come, if none have come for a while.
    pub(super) async fn watch(&mut self, job: &Job, rows: u64) {
        if self.is_due(Instant::now(), rows) {
            let status = tokio::time::timeout(ANSWER, job.status()).await;
            let workers = status.ok().and_then(Result::ok).map(|status| status.workers);
            eprintln!("feedline: {}", reason(workers));
        }
    }
}

/// What a user can do about it, given the number of workers; `None` when the coordinator does not say.
fn reason(workers: Option<u32>) -> String {
    let seconds = PATIENCE.as_secs();
    match workers {
        None => format!("no rows for {seconds} s: the coordinator does not answer; trying again"),
        Some(0) => format!(
            "no rows for {seconds} s: no worker is connected to the coordinator; start one with `feedline worker --coordinator URL`"
        ),
        Some(1) => format!("no rows for {seconds} s from the one worker; its log tells what it does"),
        Some(workers) => {
            format!("no rows for {seconds} s from the {workers} workers; their logs tell what they do")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_until_rows_flow_again() {
        let start = Instant::now();
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut silence = StallWatch::new(start, Duration::ZERO);
        let due = [(4, 0), (5, 0), (9, 0), (10, 1), (14, 1), (15, 1), (30, 1)];
        let due = due.map(|(seconds, rows)| silence.is_due(after(seconds), rows));
        assert_eq!(due, [false, true, false, false, false, true, false]);
    }

    #[test]
    fn the_reason_says_what_to_do() {
        assert!(reason(Some(0)).ends_with("start one with `feedline worker --coordinator URL`"));
        assert!(reason(None).contains("does not answer"));
    }
}
