//! Distinguishes between a store with high latency and a store with low bandwidth. If a job waits for its store, the
//! second half of the trace reads with higher concurrency. If the rate increases, the store has high latency, and a
//! planned job would reach the higher rate.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use feedline_data::ids::JobId;
use feedline_data::messages::samples::{Samples, WorkerReportSample};
use feedline_data::messages::{JobAllocation, PlanAllocations, WorkerAllocations};
use feedline_planner::model::JobObservation;
use feedline_planner::observe::Observer;
use feedline_planner::plan;
use feedline_planner::plan::{CachePolicy, PlannerSettings};

/// Minimum number of concurrent reads on each worker in the second half. The plan may allow more.
const MIN_READS: u32 = 128;
/// Time limit for the planner. It is short, because no batch is consumed while the planner runs.
const PLANNING_TIMEOUT: Duration = Duration::from_millis(100);
/// Time until a higher concurrency affects the rate of a store with high latency.
const SETTLING_TIME: Duration = Duration::from_millis(750);
/// Minimum factor by which the rate must increase with more reads for a job to be considered faster.
const MIN_SPEEDUP: f64 = 1.1;

/// Counts the rows between the first and the last arrival of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ArrivalWindow {
    began: Option<Instant>,
    /// The length of the window. `None` before its end.
    time: Option<Duration>,
    first: Option<(Instant, u64)>,
    last: Option<(Instant, u64)>,
    batches: u32,
}

impl ArrivalWindow {
    /// Begins a window.
    pub(super) fn new(now: Instant) -> Self {
        Self { began: Some(now), ..Self::default() }
    }

    /// Returns the window that ends now.
    pub(super) fn until(self, now: Instant) -> Self {
        Self { time: self.began.map(|began| now.saturating_duration_since(began)), ..self }
    }

    /// Records the arrival of a batch. `rows` is the total number of rows so far.
    pub(super) fn record(&mut self, now: Instant, rows: u64) {
        self.first.get_or_insert((now, rows));
        self.last = Some((now, rows));
        self.batches += 1;
    }

    /// Returns the rows per second. `None` before the second batch, and if all batches arrived in less time than passed before or after
    /// them: in such a burst, they were computed for longer than they took to arrive.
    pub(super) fn rate(&self) -> Option<f64> {
        let ((start, before), (end, after)) = (self.first?, self.last?);
        let arrival = end - start;
        let wait = self.began.map_or(Duration::ZERO, |began| start.saturating_duration_since(began));
        let rest = self.time.map_or(Duration::ZERO, |time| time.saturating_sub(wait + arrival));
        (!arrival.is_zero() && arrival >= wait.max(rest))
            .then(|| (after - before) as f64 / arrival.as_secs_f64())
    }

    /// Returns the rows per second of the whole window, also of a burst.
    fn mean_rate(&self) -> Option<f64> {
        let ((_, before), (_, after), time) = (self.first?, self.last?, self.time?);
        (!time.is_zero()).then(|| (after - before) as f64 / time.as_secs_f64())
    }

    /// Whether the rate is higher than the rate of `before` by more than the error of one batch.
    fn is_faster_than(&self, before: &Self) -> bool {
        let rates = self.rate().zip(before.rate()).or_else(|| self.mean_rate().zip(before.mean_rate()));
        let Some((now, then)) = rates else { return false };
        let one_batch_less = f64::from(self.batches.saturating_sub(2)) / f64::from((self.batches - 1).max(1));
        now * one_batch_less > MIN_SPEEDUP * then
    }
}

/// The second half of a trace, with more concurrent reads.
#[derive(Debug)]
pub(super) struct ProbePhase {
    /// Start of the second half, relative to the first batch; `None` if it has begun or the trace is too short.
    begins_after: Option<Duration>,
    settled_at: Option<Instant>,
    /// The observation of the first half.
    first_half: Option<(JobObservation, ArrivalWindow)>,
}

impl ProbePhase {
    /// Plans the second half of a trace of length `time`, which begins `begin` after the first batch and polls reports at
    /// `interval`.
    pub(super) fn new(begin: Duration, time: Duration, interval: Duration) -> Self {
        let is_long_enough = time / 2 > SETTLING_TIME + 2 * interval;
        let begins_after = is_long_enough.then(|| begin + time / 2);
        Self { begins_after, settled_at: None, first_half: None }
    }

    /// Returns new allocations if the second half begins now and the job waits for its store. `elapsed` is the time since
    /// the first batch.
    pub(super) fn begin(
        &mut self,
        elapsed: Duration,
        (observer, samples): (&Observer, &Samples),
        job: JobId,
        counted: &ArrivalWindow,
    ) -> Option<PlanAllocations> {
        self.begins_after.take_if(|begin| elapsed > *begin)?;
        if !observer.waits_for_store(job) {
            return None;
        }
        let counted = counted.until(Instant::now());
        self.first_half = observer.observation(job).map(|observation| (observation, counted));
        self.settled_at = Some(Instant::now() + SETTLING_TIME);
        Some(allocations_with_more_reads(observer, samples, job))
    }

    /// Whether the job is still adapting to the higher concurrency, so that its rate must be ignored.
    pub(super) fn is_settling(&self) -> bool {
        self.settled_at.is_some_and(|at| Instant::now() < at)
    }

    /// Returns true once, after the job has adapted to the higher concurrency.
    pub(super) fn take_settled(&mut self) -> bool {
        self.settled_at.take().is_some()
    }

    /// Returns the observation of the first half, or `None` if the second half is faster.
    pub(super) fn end(self, counted: &ArrivalWindow) -> Option<(JobObservation, ArrivalWindow)> {
        self.first_half.filter(|(_, before)| !counted.is_faster_than(before))
    }
}

fn allocations_with_more_reads(observer: &Observer, samples: &Samples, job: JobId) -> PlanAllocations {
    let problem = observer.problem(PlannerSettings::default(), CachePolicy::Never);
    let started = Instant::now();
    let plan = plan::solve(&problem, None, &|| started.elapsed() > PLANNING_TIMEOUT).unwrap_or_default();
    let planned = plan::plan_allocations(&plan, &problem, &BTreeMap::new());
    let reads = |worker: &WorkerReportSample| {
        let allocations = planned.get(&worker.worker).map_or(&[][..], |own| &own.jobs);
        allocations.iter().map(|job_allocation| job_allocation.read_concurrency).fold(MIN_READS, u32::max)
    };
    let allocation = |worker: &WorkerReportSample| {
        let job_allocation =
            JobAllocation { read_concurrency: reads(worker), ..JobAllocation::unlimited(job) };
        (worker.worker, WorkerAllocations { jobs: vec![job_allocation], ..WorkerAllocations::default() })
    };
    samples.workers.iter().map(allocation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arrivals of batches of 32 rows every `interval_ms` milliseconds.
    fn counted(batches: u64, interval_ms: u64) -> ArrivalWindow {
        let begun = Instant::now();
        let mut counted = ArrivalWindow::default();
        for batch in 0..batches {
            counted.record(begun + Duration::from_millis(batch * interval_ms), 32 * (batch + 1));
        }
        counted
    }

    #[test]
    fn the_rate_is_measured_from_the_first_to_the_last_arrival() {
        assert_eq!(counted(1, 100).rate(), None);
        assert_eq!(counted(11, 100).rate(), Some(320.0));
    }

    #[test]
    fn a_burst_has_no_rate() {
        let begun = Instant::now();
        let mut counted = ArrivalWindow::new(begun);
        for batch in 0..10 {
            counted.record(begun + Duration::from_secs(2) + Duration::from_millis(batch), 32 * batch);
        }
        assert_eq!(counted.until(begun + Duration::from_secs(3)).rate(), None);
        counted.record(begun + Duration::from_millis(4_600), 320);
        assert_eq!(counted.until(begun + Duration::from_secs(5)).rate(), Some(320.0 / 2.6));
    }

    #[test]
    fn a_burst_is_compared_by_its_whole_window() {
        let begun = Instant::now();
        let window = |batches: u64, gap_ms: u64| {
            let mut counted = ArrivalWindow::new(begun);
            for batch in 0..batches {
                counted.record(begun + Duration::from_millis(1_500 + gap_ms * batch), 32 * (batch + 1));
            }
            counted.until(begun + Duration::from_secs(3))
        };
        assert_eq!(window(10, 1).rate(), None);
        assert!(window(40, 1).is_faster_than(&window(10, 1)));
        assert!(window(40, 30).is_faster_than(&window(10, 1)));
        assert!(!window(10, 100).is_faster_than(&window(10, 1)));
        assert!(window(2, 1_500).rate().is_some(), "evenly spaced batches do not arrive in a burst");
    }

    #[test]
    fn one_more_batch_does_not_count_as_a_speedup() {
        let before = counted(10, 250);
        assert!(!counted(7, 220).is_faster_than(&before), "14 % is within the error of one of seven batches");
        assert!(counted(7, 120).is_faster_than(&before));
        assert!(
            counted(70, 220).is_faster_than(&before),
            "14 % is more than the error of one of seventy batches"
        );
        assert!(!counted(1, 1).is_faster_than(&before) && !ArrivalWindow::default().is_faster_than(&before));
    }

    #[test]
    fn a_short_trace_has_no_second_half() {
        let (begin, interval) = (Duration::from_millis(500), Duration::from_millis(250));
        let due = |seconds| ProbePhase::new(begin, Duration::from_secs(seconds), interval).begins_after;
        assert_eq!((due(2), due(3)), (None, Some(Duration::from_secs(2))));
    }
}
