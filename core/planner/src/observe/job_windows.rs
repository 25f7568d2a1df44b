//! The counters of the last seconds of one job.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use feedline_data::ids::{Millis, WorkerId};
use feedline_data::messages::samples::{ConsumerReportSample, JobProperties};
use feedline_data::messages::{ConsumerStats, EncodingStats, saturating_sum};
use feedline_data::pipeline::CacheEncoding;

use super::saturation::{is_at_limit, longest_wait};
use super::terms::{has_equal_work, random_operators, reads_local_files};

use crate::model::bandwidth::Observation;
use crate::model::job::JobObservation;
use crate::model::{JobConsumerSample, JobWorkerSample, Locality, SampleWindow};

/// The time over which rates are computed, in milliseconds.
pub const RECENT_MS: Millis = 5_000;
/// A consumer whose rate changed by more than this share is observed over [`FRESH_MS`] instead of [`RECENT_MS`], so that a
/// step of demand is not averaged with the time before the step.
const CHANGED: f64 = 0.25;
const FRESH_MS: Millis = 2_000;
/// The number of batches that is enough for a rate. The error is at most one batch.
const FRESH_BATCHES: u64 = 8;
/// The span of a window of samples.
const SPAN_MS: Millis = 8_000;
/// The number of observations of the store's bandwidth that are stored for each job.
const STORE_OBSERVATIONS: usize = 32;
/// Consumers that wait for more than this share of the time are short of rows.
const STARVED: f64 = 0.5;

/// Everything that is known of one job.
#[derive(Debug, Clone)]
pub(super) struct JobWindows {
    pub(super) facts: JobProperties,
    /// When the first delivered rows were reported.
    pub(super) first_rows_at: Option<Millis>,
    /// The names of operators whose output differs in each pass.
    random_operators: Vec<String>,
    pub(super) workers: BTreeMap<WorkerId, SampleWindow<JobWorkerSample>>,
    pub(super) consumers: BTreeMap<u32, SampleWindow<JobConsumerSample>>,
    store_seen: VecDeque<Observation>,
    /// Whether only the store limits the job.
    pub(super) waits_for_store: bool,
    /// The operator whose waits limit the job.
    waits_for: Option<String>,
    /// The costs of cache encodings, over all workers.
    pub(super) encodings: BTreeMap<(u32, CacheEncoding), EncodingStats>,
}

impl JobWindows {
    pub(super) fn new(facts: JobProperties) -> Self {
        Self {
            first_rows_at: None,
            random_operators: random_operators(&facts.pipeline),
            workers: BTreeMap::new(),
            consumers: BTreeMap::new(),
            store_seen: VecDeque::new(),
            waits_for_store: false,
            waits_for: None,
            encodings: BTreeMap::new(),
            facts,
        }
    }

    pub(super) fn push_worker(&mut self, now: Millis, sample: JobWorkerSample, encodings: &[EncodingStats]) {
        for tried in encodings {
            let EncodingStats { operators_before: after, encoding, .. } = *tried;
            let empty = EncodingStats { operators_before: after, encoding, ..EncodingStats::default() };
            self.encodings.entry((after, encoding)).or_insert(empty).add(tried);
        }
        if sample.operators.last().is_some_and(|last| last.rows_out > 0) {
            self.first_rows_at.get_or_insert(now);
        }
        let window = self.workers.entry(sample.worker).or_insert_with(|| SampleWindow::new(SPAN_MS));
        let was_idle = window.is_idle();
        window.push(now, sample);
        // A worker continues to report jobs that moved to other workers.
        if window.is_unchanged(was_idle, has_equal_work) {
            window.set_idle();
        }
    }

    pub(super) fn push_consumers(&mut self, now: Millis, sessions: Vec<&ConsumerReportSample>) {
        // Each session of a consumer counts from 0, so the sum over sessions never decreases.
        let mut sums: BTreeMap<u32, ConsumerStats> = BTreeMap::new();
        for session in sessions {
            sums.entry(session.consumer).or_default().add(&session.stats);
        }
        for (consumer, stats) in sums {
            let elapsed_ns = stats.stall_ns.saturating_add(stats.step_ns);
            let sample = JobConsumerSample { consumer, stats, elapsed_ns };
            self.consumers.entry(consumer).or_insert_with(|| SampleWindow::new(SPAN_MS)).push(now, sample);
        }
    }

    /// Finds out whether the store or an operator's waits limit the job, given the workers whose threads are busy. Stores an
    /// observation of the store's bandwidth if only the store limits the job: otherwise the job requests less than the store
    /// can deliver, and the observation would say nothing about the store's limit.
    pub(super) fn find_waits(&mut self, busy: &BTreeSet<WorkerId>) {
        (self.waits_for_store, self.waits_for) = (false, None);
        let consumers: Vec<JobConsumerSample> = self.recent_consumers();
        let stalled_ns = saturating_sum(consumers.iter().map(|consumer| consumer.stats.stall_ns));
        let elapsed_ns = saturating_sum(consumers.iter().map(|consumer| consumer.elapsed_ns));
        if stalled_ns as f64 <= STARVED * elapsed_ns as f64 {
            return;
        }
        let recent = self.recent_workers();
        let busy = recent.iter().filter(|sample| busy.contains(&sample.worker)).count();
        if 2 * busy > recent.len() || recent.iter().any(is_at_limit) {
            return;
        }
        self.waits_for = longest_wait(&recent);
        self.waits_for_store = self.waits_for.is_none();
        if self.waits_for_store {
            self.observe_store(&recent);
        }
    }

    fn observe_store(&mut self, recent: &[JobWorkerSample]) {
        let (mut concurrency, mut bytes_per_s) = (0.0, 0.0);
        for sample in recent {
            concurrency += sample.store.wait_ns as f64 / sample.elapsed_ns as f64;
            bytes_per_s += 1e9 * sample.store.bytes as f64 / sample.elapsed_ns as f64;
        }
        if bytes_per_s > 0.0 && concurrency > 0.0 {
            let now = Observation { concurrency, bytes_per_s };
            self.store_seen.retain(|before| !now.contradicts(before));
            if self.store_seen.len() == STORE_OBSERVATIONS {
                self.store_seen.pop_front();
            }
            self.store_seen.push_back(now);
        }
    }

    /// The share of the job's bytes that recently stayed on the hosts of workers.
    pub(super) fn locality(&self) -> Locality {
        let recent = self.recent_consumers();
        let taken = saturating_sum(recent.iter().map(|consumer| consumer.stats.bytes));
        let received = saturating_sum(recent.iter().map(|consumer| consumer.stats.network_bytes));
        // A consumer receives bytes before it takes them.
        let over_network = if taken > 0 { (received as f64 / taken as f64).min(1.0) } else { 1.0 };
        let store_is_local = reads_local_files(&self.facts.pipeline);
        Locality { store_is_local, consumers_share: 1.0 - over_network }
    }

    /// The observation of the job as it would be without a planned cache. The cost of an operator for one row does not depend
    /// on the number of rows that a cache has, so removing the `cache` operator is enough.
    pub(super) fn observation_without_cache(&self) -> JobObservation {
        let mut seen = self.observation();
        for sample in &mut seen.total {
            sample.operators.retain(|operator| operator.name != "cache");
        }
        JobObservation { recent: seen.total.clone(), ..seen }
    }

    pub(super) fn observation(&self) -> JobObservation {
        JobObservation {
            recent: self.recent_workers(),
            total: self.workers.values().filter_map(|window| window.total().cloned()).collect(),
            consumers: self.recent_consumers(),
            store_seen: self.store_seen.iter().copied().collect(),
            waits_for: self.waits_for.clone(),
            encodings: self.encodings.values().copied().collect(),
            dataset_rows: self.facts.dataset.rows,
            random_operators: self.random_operators.clone(),
        }
    }

    fn recent_workers(&self) -> Vec<JobWorkerSample> {
        self.workers.values().filter_map(recent_of_worker).collect()
    }

    fn recent_consumers(&self) -> Vec<JobConsumerSample> {
        self.consumers.values().filter_map(recent_of_consumer).collect()
    }
}

/// The recent counters of a worker, by the worker's own clock; `None` without a new report.
pub(super) fn recent_of_worker(window: &SampleWindow<JobWorkerSample>) -> Option<JobWorkerSample> {
    window.recent(RECENT_MS).map(|(_, sample)| sample).filter(|sample| sample.elapsed_ns > 0)
}

/// The counters of a consumer that recently waited all the time, so that its demand is unknown. Adds its earlier steps, for at
/// most a quarter of the time, so that the consumer still counts as waiting.
fn with_earlier_steps(recent: JobConsumerSample, total: &ConsumerStats) -> JobConsumerSample {
    let step_ns = total.step_ns.min(recent.elapsed_ns / 4);
    let earlier_rows = total.rows as f64 * step_ns as f64 / total.step_ns.max(1) as f64;
    let stats = ConsumerStats { rows: recent.stats.rows.max(earlier_rows as u64), step_ns, ..recent.stats };
    JobConsumerSample { stats, elapsed_ns: recent.elapsed_ns.saturating_add(step_ns), ..recent }
}

/// The recent counters of a consumer; `None` for a consumer that has left.
fn recent_of_consumer(window: &SampleWindow<JobConsumerSample>) -> Option<JobConsumerSample> {
    let within = |span_ms| window.recent(span_ms).map(|(_, sample)| sample);
    let recent = within(RECENT_MS).filter(|sample| sample.elapsed_ns > 0)?;
    if recent.stats.step_ns == 0
        && let Some(total) = window.total()
    {
        return Some(with_earlier_steps(recent, &total.stats));
    }
    let rate = |sample: &JobConsumerSample| sample.stats.rows as f64 / sample.stats.step_ns.max(1) as f64;
    let has_changed = |fresh: &JobConsumerSample| {
        let change = rate(fresh) / rate(&recent).max(f64::MIN_POSITIVE) - 1.0;
        fresh.stats.batches >= FRESH_BATCHES && change.abs() > CHANGED
    };
    Some(within(FRESH_MS).filter(has_changed).unwrap_or(recent))
}
