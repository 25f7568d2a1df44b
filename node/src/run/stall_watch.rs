//! Prints to standard error why a run receives no rows.

use std::time::{Duration, Instant};

use feedline_client::Job;
use feedline_data::layout::StreamPosition;
use feedline_data::messages::JobStatus;

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
            if let Some(message) = stall_message(status.ok().and_then(Result::ok).as_ref()) {
                eprintln!("feedline: {message}");
            }
        }
    }
}

/// Describes a stall. Returns `None` for a job that only waits for new records. `status` is `None` if the coordinator does not answer.
fn stall_message(status: Option<&JobStatus>) -> Option<String> {
    let workers = status.map(|status| status.workers);
    match status.and_then(RecordWait::of) {
        Some(RecordWait::NoRecords) if workers != Some(0) => None,
        // The reason states what the job waits for.
        Some(RecordWait::NotRecorded(reason)) => {
            Some(format!("no rows for {} s: {reason}", STALL_TIMEOUT.as_secs()))
        }
        _ => Some(stall_reason(workers)),
    }
}

/// Why a job waits for records, or for its graph.
enum RecordWait {
    /// The recorded rows do not suffice for a step.
    NoRecords,
    /// The job has no rows to compute, for this reason.
    NotRecorded(String),
}

impl RecordWait {
    /// Returns `None` for a job that does not wait.
    fn of(status: &JobStatus) -> Option<Self> {
        if let Some(reason) = &status.source_error {
            return Some(Self::NotRecorded(reason.clone()));
        }
        let (layout, position) = (status.layout.as_ref()?, status.position.as_ref()?);
        let growth = &position.growth.as_ref()?.growth;
        let backlog_rows = growth.rows_after(layout, &position.streams);
        // Operators may drop the rows of the last round, so that they do not suffice for a step.
        let is_in_last_round = |stream: &StreamPosition| stream.row / layout.split_rows + 1 >= growth.rounds;
        let is_waiting =
            backlog_rows < layout.full_step_rows() || position.streams.iter().all(is_in_last_round);
        is_waiting.then_some(Self::NoRecords)
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
    use feedline_data::checkpoint::Position;
    use feedline_data::growth::{Growth, GrowthPosition};
    use feedline_data::ids::JobId;
    use feedline_data::layout::Layout;
    use feedline_data::messages::{ConsumerStats, JobState, StoreStats};
    use feedline_data::pipeline::{OrderMode, Remainder};
    use feedline_data::schema::Schema;
    use feedline_data::segments::{OffsetRange, Segment};

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

    fn layout() -> Layout {
        Layout {
            dataset_rows: 1 << 40,
            passes: 1,
            epochs: 1,
            streams: 1,
            batch_rows: 256,
            remainder: Remainder::Carry,
            changes_rows: true,
            split_rows: 1_024,
            group_rows: 256,
            coordinated: false,
            mix_changes: Vec::new(),
            runs: Default::default(),
            unbounded: true,
            indivisible: false,
        }
    }

    /// An unbounded job with three segments of 600, 20 and 20 rows, each in a round of its own.
    fn unbounded_job(next_row: u64) -> JobStatus {
        let mut growth = Growth { rounds: 3, rows: 640, ..Growth::default() };
        for (first_round, from, to) in [(0, 0, 600), (1, 600, 620), (2, 620, 640)] {
            let ranges = vec![OffsetRange { partition: 0, from, to, row_bytes: 100 }];
            growth.segments.push(Segment { first_round, rounds: 1, first_row_id: from, epoch: 0, ranges });
        }
        let growth = GrowthPosition { growth, columns: Schema::default(), split_rows: 1_024 };
        let position = Position {
            version: 1,
            pipeline: "p".to_owned().into(),
            dataset: "d".to_owned(),
            content: Default::default(),
            order: OrderMode::Deterministic,
            virtual_consumers: 1,
            streams: vec![StreamPosition { epoch: 0, row: next_row }],
            open_ranges: Vec::new(),
            mix: Vec::new(),
            growth: Some(Box::new(growth)),
            ranges: None,
            split_rows: None,
        };
        JobStatus {
            job: JobId(1),
            tenant: String::new(),
            name: "events".to_owned(),
            state: JobState::Running,
            epochs: 1,
            consumers: 1,
            dataset: None,
            layout: Some(layout()),
            position: Some(position),
            operators: Vec::new(),
            store: StoreStats::default(),
            worker_cpu: Vec::new(),
            delivered: ConsumerStats::default(),
            worker_peak_rss_bytes: Vec::new(),
            coordinator_peak_rss_bytes: 0,
            workers: 1,
            settled: true,
            slot_owners: Vec::new(),
            source_error: None,
        }
    }

    #[test]
    fn a_job_waits_for_records_if_the_recorded_rows_do_not_suffice_for_a_step() {
        let waits = |next_row| {
            let wait = RecordWait::of(&unbounded_job(next_row));
            matches!(wait, Some(RecordWait::NoRecords))
        };
        assert!(!waits(0) && !waits(256), "the first round has rows for a batch");
        assert!(waits(512), "88 rows of the first round and 40 later rows are left");
        assert!(waits(2 * 1_024));
    }

    #[test]
    fn a_stall_of_a_job_that_records_no_rows_has_the_reason_of_the_job() {
        for reason in ["the cluster does not answer", "the job waits for its consumers: 9 blocks"] {
            let status = JobStatus { source_error: Some(reason.to_owned()), ..unbounded_job(0) };
            assert_eq!(stall_message(Some(&status)), Some(format!("no rows for 5 s: {reason}")));
        }
        assert_eq!(stall_message(Some(&unbounded_job(2 * 1_024))), None, "it waits for new records");
        let reason = Some("a worker is loading the graph of the job".to_owned());
        let loading = JobStatus { position: None, source_error: reason, ..unbounded_job(0) };
        let message = stall_message(Some(&loading));
        assert_eq!(message.as_deref(), Some("no rows for 5 s: a worker is loading the graph of the job"));
        let without_workers = JobStatus { workers: 0, ..unbounded_job(2 * 1_024) };
        assert_eq!(stall_message(Some(&without_workers)), Some(stall_reason(Some(0))));
        assert_eq!(stall_message(None), Some(stall_reason(None)));
    }

    #[test]
    fn the_reason_names_a_fix() {
        assert!(stall_reason(Some(0)).ends_with("start one with `feedline worker --coordinator URL`"));
        assert!(stall_reason(None).contains("not responding"));
    }
}
