//! Recent counters of one job.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::{Millis, WorkerId};
use feedline_data::messages::samples::{ConsumerReportSample, JobProperties};
use feedline_data::messages::{ConsumerStats, EncodingStats, saturating_sum};
use feedline_data::pipeline::CacheEncoding;

use super::arrivals::Arrivals;
use super::bandwidth_history::BandwidthHistory;
use super::saturation::{is_at_operator_limit, longest_waiting_operator};
use super::terms::{is_without_work_between, random_operators, reads_local_files};

use crate::model::bandwidth::BandwidthObservation;
use crate::model::job::JobObservation;
use crate::model::{GraphExpectation, JobConsumerSample, JobModel, JobWorkerSample, Locality, SampleWindow};
use crate::plan::PlannerSettings;

/// Milliseconds over which rates are averaged.
pub const RECENT_MS: Millis = 5_000;
/// If a consumer's rate changes by more than this fraction, its rate is averaged over [`SHORT_WINDOW_MS`] instead of
/// [`RECENT_MS`], so that the average does not mix the rates before and after a change of demand.
const MIN_RATE_CHANGE: f64 = 0.25;
const SHORT_WINDOW_MS: Millis = 2_000;
/// Minimum number of batches for a rate over the short window. The count may be off by one batch.
const SHORT_WINDOW_MIN_BATCHES: u64 = 8;
/// Time span of the samples in each window, in milliseconds.
const SAMPLE_SPAN_MS: Millis = 8_000;
/// Consumers that wait for more than this share of the time are considered starved.
const STARVED_STALL_SHARE: f64 = 0.5;

/// Properties and recent counters of one job.
#[derive(Debug, Clone)]
pub(super) struct JobWindows {
    pub(super) properties: JobProperties,
    /// Time of the first report that contains delivered rows.
    pub(super) first_rows_at: Option<Millis>,
    /// The names of operators whose output differs in each pass.
    random_operators: Vec<String>,
    pub(super) workers: BTreeMap<WorkerId, SampleWindow<JobWorkerSample>>,
    pub(super) consumers: BTreeMap<u32, SampleWindow<JobConsumerSample>>,
    bandwidth: BandwidthHistory,
    /// Whether only the store limits the job.
    pub(super) waits_for_store: bool,
    /// The operator whose waits limit the job, if any.
    waiting_operator: Option<String>,
    /// The rows that arrive in the topics of an unbounded job.
    arrivals: Option<Arrivals>,
    /// The expected batch of a job that samples a graph.
    graph: Option<GraphExpectation>,
    /// Measured costs of cache encodings, over all workers.
    pub(super) encodings: BTreeMap<(u32, CacheEncoding), EncodingStats>,
}

impl JobWindows {
    pub(super) fn new(properties: JobProperties) -> Self {
        Self {
            first_rows_at: None,
            random_operators: random_operators(&properties.pipeline),
            workers: BTreeMap::new(),
            consumers: BTreeMap::new(),
            bandwidth: BandwidthHistory::default(),
            waits_for_store: false,
            waiting_operator: None,
            arrivals: None,
            graph: GraphExpectation::of(&properties.pipeline, &properties.dataset),
            encodings: BTreeMap::new(),
            properties,
        }
    }

    pub(super) fn push_topic(&mut self, now: Millis, properties: &JobProperties) {
        (self.properties.lag_rows, self.properties.topic) = (properties.lag_rows, properties.topic);
        if let Some(sample) = properties.topic {
            self.arrivals.get_or_insert_default().push(now, sample);
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
        let window = self.workers.entry(sample.worker).or_insert_with(|| SampleWindow::new(SAMPLE_SPAN_MS));
        let was_idle = window.is_idle();
        window.push(now, sample);
        // A worker also reports jobs that have moved to other workers.
        if window.is_unchanged(was_idle, is_without_work_between) {
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
            self.consumers
                .entry(consumer)
                .or_insert_with(|| SampleWindow::new(SAMPLE_SPAN_MS))
                .push(now, sample);
        }
    }

    /// Determines whether the store or the waits of an operator limit the job. `busy` contains the workers whose threads are
    /// busy. Records the store's bandwidth only if the store limits the job. Otherwise, the job requests less than the store
    /// can deliver, so the bandwidth is not the store's limit.
    pub(super) fn find_bottleneck(&mut self, now: Millis, busy: &BTreeSet<WorkerId>) {
        (self.waits_for_store, self.waiting_operator) = (false, None);
        // A job that its store no longer limits observes nothing.
        self.bandwidth.expire(now);
        if self.waits_for_records() {
            return;
        }
        let consumers: Vec<JobConsumerSample> = self.recent_consumers();
        let stalled_ns = saturating_sum(consumers.iter().map(|consumer| consumer.stats.stall_ns));
        let elapsed_ns = saturating_sum(consumers.iter().map(|consumer| consumer.elapsed_ns));
        if stalled_ns as f64 <= STARVED_STALL_SHARE * elapsed_ns as f64 {
            return;
        }
        let recent = self.recent_workers();
        let busy = recent.iter().filter(|sample| busy.contains(&sample.worker)).count();
        if 2 * busy > recent.len() || recent.iter().any(is_at_operator_limit) {
            return;
        }
        self.waiting_operator = longest_waiting_operator(&recent);
        self.waits_for_store = self.waiting_operator.is_none();
        if self.waits_for_store {
            self.observe_store(now, &recent);
        }
    }

    fn observe_store(&mut self, now: Millis, recent: &[JobWorkerSample]) {
        let (mut concurrency, mut bytes_per_s) = (0.0, 0.0);
        for sample in recent {
            concurrency += sample.store.wait_ns as f64 / sample.elapsed_ns as f64;
            bytes_per_s += 1e9 * sample.store.bytes as f64 / sample.elapsed_ns as f64;
        }
        if bytes_per_s > 0.0 && concurrency > 0.0 {
            self.bandwidth.push(now, BandwidthObservation { concurrency, bytes_per_s });
        }
    }

    /// Returns the share of the job's recent traffic that stayed on the hosts of its workers.
    pub(super) fn locality(&self) -> Locality {
        let recent = self.recent_consumers();
        let delivered = saturating_sum(recent.iter().map(|consumer| consumer.stats.bytes));
        let received = saturating_sum(recent.iter().map(|consumer| consumer.stats.network_bytes));
        // A consumer receives bytes before it counts them as delivered.
        let over_network = if delivered > 0 { (received as f64 / delivered as f64).min(1.0) } else { 1.0 };
        let store_is_local = reads_local_files(&self.properties.pipeline);
        Locality { store_is_local, consumers_share: 1.0 - over_network }
    }

    /// Returns the observation of the job without the effect of a planned cache. It is enough to remove the `cache`
    /// operator, because the cost of an operator per row does not depend on the number of cached rows.
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
            bandwidth_observations: self.bandwidth.observations(),
            waiting_operator: self.waiting_operator.clone(),
            encodings: self.encodings.values().copied().collect(),
            dataset_rows: self.properties.dataset.rows,
            random_operators: self.random_operators.clone(),
            topic_rows_per_s: self.arrivals.as_ref().and_then(Arrivals::demand_rows_per_s),
            waits_for_records: self.waits_for_records(),
            graph: self.graph,
        }
    }

    /// The rate above which more workers would not end the job earlier, because they would still load its graph. A job keeps the
    /// workers that it has. `None` if the job samples no graph.
    pub(super) fn useful_rows_per_s(&self, model: &JobModel, settings: &PlannerSettings) -> Option<f64> {
        let rows_left = self.properties.passes_left.max(0.0) * self.properties.dataset.rows as f64;
        let useful = model.graph.as_ref()?.useful_rows_per_s(rows_left);
        // The number of workers for this rate is the present number, because workers are not planned to be fully used.
        let current = settings.target_utilisation * model.rows_per_s;
        Some(useful.max(current)).filter(|rate| rate.is_finite())
    }

    fn waits_for_records(&self) -> bool {
        self.arrivals.as_ref().is_some_and(Arrivals::is_caught_up)
    }

    fn recent_workers(&self) -> Vec<JobWorkerSample> {
        self.workers.values().filter_map(recent_worker_sample).collect()
    }

    fn recent_consumers(&self) -> Vec<JobConsumerSample> {
        self.consumers.values().filter_map(recent_consumer_sample).collect()
    }
}

/// Returns the recent counters of a worker, or `None` if it has sent no new report.
pub(super) fn recent_worker_sample(window: &SampleWindow<JobWorkerSample>) -> Option<JobWorkerSample> {
    window.recent(RECENT_MS).map(|(_, sample)| sample).filter(|sample| sample.elapsed_ns > 0)
}

/// Adds earlier steps to the counters of a consumer that recently only waited, because its demand is unknown without
/// steps. The added time is at most a quarter of the recent time, so that the consumer is still classified as waiting.
fn with_earlier_steps(recent: JobConsumerSample, total: &ConsumerStats) -> JobConsumerSample {
    let step_ns = total.step_ns.min(recent.elapsed_ns / 4);
    let earlier_rows = total.rows as f64 * step_ns as f64 / total.step_ns.max(1) as f64;
    let stats = ConsumerStats { rows: recent.stats.rows.max(earlier_rows as u64), step_ns, ..recent.stats };
    JobConsumerSample { stats, elapsed_ns: recent.elapsed_ns.saturating_add(step_ns), ..recent }
}

/// Returns the recent counters of a consumer, or `None` if it has left.
fn recent_consumer_sample(window: &SampleWindow<JobConsumerSample>) -> Option<JobConsumerSample> {
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
        fresh.stats.batches >= SHORT_WINDOW_MIN_BATCHES && change.abs() > MIN_RATE_CHANGE
    };
    Some(within(SHORT_WINDOW_MS).filter(has_changed).unwrap_or(recent))
}
