//! Whether a store is far or slow: a job that waits for it reads more at a time in the second half of its trace. Where that
//! brings more rows, it is how the job runs once it is planned.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::JobAllocation;
use feedline_data::messages::WorkerAllocations;
use feedline_data::messages::samples::{Samples, WorkerReportSample};
use feedline_planner::model::JobObservation;
use feedline_planner::observe::Observer;
use feedline_planner::plan;
use feedline_planner::plan::{CachePolicy, PlannerSettings};

/// Reads at a time on each worker: as many as the plan would have, and no fewer than this.
const READS: u32 = 128;
/// Longest that the planner may take for them: meanwhile no batch is taken.
const PLANNING: Duration = Duration::from_millis(100);
/// More reads take so long to show: a far store answers late.
const SETTLING: Duration = Duration::from_millis(750);
/// A job that runs so many times as fast with more reads is one that a plan would let read more.
const FASTER: f64 = 1.1;

/// Rows that came from one arrival of a batch to another.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ArrivalWindow {
    first: Option<(Instant, u64)>,
    last: Option<(Instant, u64)>,
    batches: u32,
}

impl ArrivalWindow {
    /// A batch has come; so many rows have by now.
    pub(super) fn note(&mut self, now: Instant, rows: u64) {
        self.first.get_or_insert((now, rows));
        self.last = Some((now, rows));
        self.batches += 1;
    }

    /// Rows per second; `None` before the second batch.
    pub(super) fn rate(&self) -> Option<f64> {
        let ((start, before), (end, after)) = (self.first?, self.last?);
        let seconds = (end - start).as_secs_f64();
        (seconds > 0.0).then(|| (after - before) as f64 / seconds)
    }

    /// Whether this is faster than `before`, by more than one batch more or less in the time would make it.
    fn is_faster_than(&self, before: &Self) -> bool {
        let (Some(now), Some(then)) = (self.rate(), before.rate()) else { return false };
        let one_less = f64::from(self.batches.saturating_sub(2)) / f64::from((self.batches - 1).max(1));
        now * one_less > FASTER * then
    }
}

/// The second half of a trace.
#[derive(Debug)]
pub(super) struct ProbePhase {
    /// When it is due, counted from the first batch; `None` once that was looked at, or where the trace is too short.
    due: Option<Duration>,
    settled_at: Option<Instant>,
    /// What was known of the job before.
    before: Option<(JobObservation, ArrivalWindow)>,
}

impl ProbePhase {
    /// In the middle of a trace of this time that begins so long after the first batch, looked at as often as each `look`.
    pub(super) fn new(begin: Duration, time: Duration, look: Duration) -> Self {
        let is_long_enough = time / 2 > SETTLING + 2 * look;
        Self { due: is_long_enough.then(|| begin + time / 2), settled_at: None, before: None }
    }

    /// What workers are to be told, where it is time and the job waits for its store. `since` is the time since the first
    /// batch.
    pub(super) fn begin(
        &mut self,
        since: Duration,
        (observer, samples): (&Observer, &Samples),
        job: JobId,
        counted: &ArrivalWindow,
    ) -> Option<BTreeMap<WorkerId, WorkerAllocations>> {
        self.due.take_if(|due| since > *due)?;
        if !observer.waits_for_store(job) {
            return None;
        }
        self.before = observer.observation(job).map(|seen| (seen, *counted));
        self.settled_at = Some(Instant::now() + SETTLING);
        Some(more_reads(observer, samples, job))
    }

    /// Whether more reads have yet to show.
    pub(super) fn is_settling(&self) -> bool {
        self.settled_at.is_some_and(|at| Instant::now() < at)
    }

    /// Whether they have from now on.
    pub(super) fn has_settled(&mut self) -> bool {
        self.settled_at.take().is_some()
    }

    /// What was known before, unless the job is faster since.
    pub(super) fn end(self, counted: &ArrivalWindow) -> Option<(JobObservation, ArrivalWindow)> {
        self.before.filter(|(_, before)| !counted.is_faster_than(before))
    }
}

fn more_reads(observer: &Observer, samples: &Samples, job: JobId) -> BTreeMap<WorkerId, WorkerAllocations> {
    let problem = observer.problem(PlannerSettings::default(), CachePolicy::Never);
    let started = Instant::now();
    let plan = plan::solve(&problem, None, &|| started.elapsed() > PLANNING).unwrap_or_default();
    let planned = plan::shares(&plan, &problem, &BTreeMap::new());
    let reads = |worker: &WorkerReportSample| {
        let allotments = planned.get(&worker.worker).map_or(&[][..], |share| &share.allotments);
        allotments.iter().map(|allotment| allotment.read_concurrency).fold(READS, u32::max)
    };
    let share = |worker: &WorkerReportSample| {
        let allotment = JobAllocation { read_concurrency: reads(worker), ..JobAllocation::unlimited(job) };
        (worker.worker, WorkerAllocations { cores: 0, allotments: vec![allotment] })
    };
    samples.workers.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of 32 rows, each so many milliseconds after the one before.
    fn counted(batches: u64, every_ms: u64) -> ArrivalWindow {
        let begun = Instant::now();
        let mut counted = ArrivalWindow::default();
        for batch in 0..batches {
            counted.note(begun + Duration::from_millis(batch * every_ms), 32 * (batch + 1));
        }
        counted
    }

    #[test]
    fn a_rate_is_that_between_two_arrivals() {
        assert_eq!(counted(1, 100).rate(), None);
        assert_eq!(counted(11, 100).rate(), Some(320.0));
    }

    #[test]
    fn one_batch_more_does_not_make_a_job_faster() {
        let before = counted(10, 250);
        assert!(!counted(7, 220).is_faster_than(&before), "by 14 %, and one of seven is as much");
        assert!(counted(7, 120).is_faster_than(&before));
        assert!(counted(70, 220).is_faster_than(&before), "of many, by as much");
        assert!(!counted(1, 1).is_faster_than(&before) && !ArrivalWindow::default().is_faster_than(&before));
    }

    #[test]
    fn a_short_trace_is_not_probed() {
        let (begin, look) = (Duration::from_millis(500), Duration::from_millis(250));
        let due = |seconds| ProbePhase::new(begin, Duration::from_secs(seconds), look).due;
        assert_eq!((due(2), due(3)), (None, Some(Duration::from_secs(2))));
    }
}
