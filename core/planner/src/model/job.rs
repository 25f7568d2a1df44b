//! The model of a job: costs per delivered row, sizes at every cache point, and the demand of its consumers.

use std::collections::BTreeMap;

use feedline_data::messages::{EncodingStats, OperatorStats, StoreStats, saturating_sum};
use feedline_data::pipeline::CacheEncoding;
use serde::{Deserialize, Serialize};

use super::aligned::{align, longest_operator_list};
use super::bandwidth::{Bandwidth, Observation};
use super::samples::{JobConsumerSample, JobWorkerSample};
use super::visits::visits;

#[cfg(test)]
pub(super) mod tests;

/// A consumer whose own work takes a smaller share of the time has an unknown demand: it takes rows as fast as they arrive.
const MIN_STEP_SHARE: f64 = 0.02;

/// Everything that was observed of a job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobObservation {
    /// The counters of each worker over the last seconds.
    pub recent: Vec<JobWorkerSample>,
    /// The counters of each worker since the job began, for sizes, which are more exact with more rows. Empty means
    /// `recent`.
    pub total: Vec<JobWorkerSample>,
    /// The counters of each consumer over the last seconds.
    pub consumers: Vec<JobConsumerSample>,
    /// The store's bandwidth at several numbers of requests in flight, over all workers.
    pub store_seen: Vec<Observation>,
    /// The operator whose waits limited the job over the last seconds, if no thread, limit or store did.
    pub waits_for: Option<String>,
    /// The costs of cache encodings, over all workers.
    pub encodings: Vec<EncodingStats>,
    /// Rows of the dataset.
    pub dataset_rows: u64,
    /// The names of operators whose output differs in each pass.
    pub random_operators: Vec<String>,
}

/// The costs of a job. "Per row" means per row delivered to a consumer. Saved traces contain this struct, so the serialized
/// names are fixed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobModel {
    /// Rows delivered per second.
    pub rows_per_s: f64,
    /// Operators in order, the source first.
    pub operators: Vec<OperatorModel>,
    /// CPU seconds per row outside operators, by worker type: transport and the engine itself.
    pub overhead_cpu_s: BTreeMap<String, f64>,
    /// The points at which rows could be cached, in order. See [`CachePointModel::is_cacheable`].
    #[serde(rename = "cuts")]
    pub cache_points: Vec<CachePointModel>,
    /// Bytes sent to consumers per row.
    pub delivered_bytes: f64,
    /// Bytes read from the store per row.
    pub store_bytes: f64,
    /// Requests to the store per row.
    pub store_requests: f64,
    /// Duration of requests to the store per row, in seconds.
    pub store_wait_s: f64,
    /// The mean number of requests in flight, over all workers.
    pub store_concurrency: f64,
    /// The store's bandwidth against the number of requests in flight.
    pub bandwidth: Bandwidth,
    /// Memory that the job's rows hold, over all workers, in bytes.
    pub held_bytes: f64,
    /// The share of the time for which a group was ready but did not fit the memory budget.
    pub memory_wait_share: f64,
    /// Rows per second that consumers would take if they never waited; `None` if unknown.
    pub demand_rows_per_s: Option<f64>,
}

/// The costs of one operator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperatorModel {
    /// The operator's name.
    pub name: String,
    /// Rows that enter the operator for one delivered row: the visit ratio of operational analysis (Denning and Buzen, 1978),
    /// which Plumber uses as well. The ratio is above 1 before a filter, and below 1 before an operator that adds rows.
    pub visit_ratio: f64,
    /// CPU seconds per row by worker type. The reciprocal is Plumber's resource-accounted rate: rows per CPU second.
    pub cpu_s: BTreeMap<String, f64>,
    /// Seconds per row that executions wait without CPU.
    pub latency_s: f64,
    /// The mean number of concurrent executions, summed over workers: busy time over elapsed time (Little's law).
    pub mean_active: f64,
    /// The mean number of executions that wait for a permit, summed over workers; 0 if unknown.
    pub mean_waiting: f64,
    /// The operator's share of the job's CPU time.
    pub cpu_share: f64,
    /// Output bytes per row.
    pub bytes_out: f64,
    /// The number of concurrent executions on each worker that the pipeline pins.
    pub parallelism: Option<u32>,
    /// The mean number of concurrent executions on each worker, if only the operator's waits limited the job: then the engine
    /// has no more executions to start.
    #[serde(rename = "under_way", skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<f64>,
    /// Whether the output differs in each pass.
    pub is_random: bool,
}

/// The output of an operator, cached for the whole dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CachePointModel {
    /// The index of the operator in [`JobModel::operators`].
    pub after: usize,
    /// The operator's name.
    pub operator: String,
    /// Rows of the whole dataset at this point.
    pub rows: f64,
    /// Bytes of the whole dataset at this point.
    pub bytes: f64,
    /// Bytes at this point per delivered row.
    pub bytes_per_row: f64,
    /// Whether the rows are the same in each pass: `false` for the first random operator and all operators after it.
    pub is_cacheable: bool,
    /// The encoding of the cached rows.
    #[serde(rename = "form")]
    pub encoding: CacheEncoding,
    /// CPU time of the next operator on rows in this encoding, over its CPU time on rows without encoding.
    pub next_cpu_share: f64,
}

impl Default for CachePointModel {
    fn default() -> Self {
        Self {
            after: 0,
            operator: String::new(),
            rows: 0.0,
            bytes: 0.0,
            bytes_per_row: 0.0,
            is_cacheable: false,
            encoding: CacheEncoding::AsIs,
            next_cpu_share: 1.0,
        }
    }
}

impl OperatorModel {
    /// The pinned number of concurrent executions on each worker; `None` without a limit.
    pub fn limit(&self) -> Option<u32> {
        self.parallelism.map(|limit| limit.max(1))
    }

    /// CPU seconds per row on a worker type. For an unknown type, the mean of the known types.
    pub fn cpu_s_on(&self, worker_type: &str) -> f64 {
        self.cpu_s.get(worker_type).copied().unwrap_or_else(|| mean_of(&self.cpu_s))
    }

    /// Seconds that an undisturbed execution takes per row: CPU time and latency. Wall time would be wrong, since it grows
    /// where threads share cores.
    pub fn service_s_on(&self, worker_type: &str) -> f64 {
        self.cpu_s_on(worker_type) + self.latency_s
    }
}

impl JobModel {
    /// Builds the model of an observed job; `None` before the first row was delivered.
    pub fn build(seen: &JobObservation) -> Option<Self> {
        let names = longest_operator_list(&seen.recent);
        let (recent, total) = (align(&seen.recent, &names), align(&seen.total, &names));
        let recent: Vec<&JobWorkerSample> = recent.iter().map(AsRef::as_ref).collect();
        let total: Vec<&JobWorkerSample> = total.iter().map(AsRef::as_ref).collect();
        let count = recent.first()?.operators.len();
        let delivered = sum(&recent, |worker| worker.operators[count - 1].rows_out);
        if delivered <= 0.0 {
            return None;
        }
        let visits = visits(&recent);
        // Reads are ahead of delivery, so the cost of reading a row follows from the rows that were read.
        let read = sum(&recent, |worker| worker.operators[0].rows_out);
        let rows_read = if read > 0.0 { read / visits[0] } else { delivered };
        let store = |field: fn(&StoreStats) -> u64| sum(&recent, |worker| field(&worker.store)) / rows_read;
        let per_second = |value: fn(&JobWorkerSample) -> f64| -> f64 {
            recent.iter().map(|worker| value(worker) / seconds(worker.elapsed_ns.max(1))).sum()
        };
        let mut model = Self {
            rows_per_s: per_second(|worker| worker.operators.last().map_or(0.0, |last| last.rows_out as f64)),
            operators: (0..count).map(|place| operator(&recent, place, visits[place])).collect(),
            overhead_cpu_s: overhead(&recent),
            cache_points: Vec::new(),
            delivered_bytes: sum(&recent, |worker| worker.operators[count - 1].bytes_out) / delivered,
            store_bytes: store(|store| store.bytes),
            store_requests: store(|store| store.requests),
            store_wait_s: store(|store| store.wait_ns) / 1e9,
            store_concurrency: per_second(|worker| seconds(worker.store.wait_ns)),
            bandwidth: Bandwidth::fit(&seen.store_seen),
            held_bytes: sum(&recent, |worker| worker.held_bytes),
            memory_wait_share: per_second(|worker| seconds(worker.memory_wait_ns)) / recent.len() as f64,
            demand_rows_per_s: demand(&seen.consumers),
        };
        if model.bandwidth == Bandwidth::Unknown {
            let bytes_per_s = per_second(|worker| worker.store.bytes as f64);
            let observation = Observation { concurrency: model.store_concurrency, bytes_per_s };
            model.bandwidth = Bandwidth::fit(&[observation]);
        }
        let total_cpu: f64 = model.operators.iter().map(|operator| operator.cpu_share).sum();
        for operator in &mut model.operators {
            let waits = seen.waits_for.as_ref() == Some(&operator.name);
            operator.in_flight = waits.then_some(operator.mean_active / recent.len() as f64);
            operator.cpu_share /= if total_cpu > 0.0 { total_cpu } else { 1.0 };
            operator.is_random = seen.random_operators.contains(&operator.name);
        }
        let counted = if total.is_empty() { &recent } else { &total };
        model.cache_points = cache_points(&model, counted, seen.dataset_rows);
        let encoded = seen.encodings.iter().filter_map(|tried| with_encoding(&model, tried));
        let encoded: Vec<CachePointModel> = encoded.collect();
        model.cache_points.extend(encoded);
        Some(model)
    }

    /// CPU seconds per row on a worker type: of the operators from index `from` on, and outside operators.
    pub fn cpu_s_from(&self, from: usize, worker_type: &str) -> f64 {
        let known = self.overhead_cpu_s.get(worker_type).copied();
        let overhead = known.unwrap_or_else(|| mean_of(&self.overhead_cpu_s));
        let operators = self.operators.iter().skip(from);
        overhead + operators.map(|operator| operator.cpu_s_on(worker_type)).sum::<f64>()
    }
}

/// The model of one operator, with CPU seconds as its CPU share, which the caller normalises.
fn operator(workers: &[&JobWorkerSample], place: usize, visit_ratio: f64) -> OperatorModel {
    let of = |worker: &JobWorkerSample| worker.operators[place].clone();
    let count = |field: fn(&OperatorStats) -> u64| sum(workers, |worker| field(&worker.operators[place]));
    // No rows enter a source, so its output counts.
    let handled = |stats: &OperatorStats| if stats.rows_in > 0 { stats.rows_in } else { stats.rows_out };
    let rows = sum(workers, |worker| handled(&worker.operators[place]));
    let per_row = |total: f64| if rows > 0.0 { total / rows * visit_ratio } else { 0.0 };
    let cpu_s = cpu_s_by_type(workers, |worker| {
        (seconds(worker.operators[place].cpu_ns), handled(&worker.operators[place]) as f64)
    });
    let sample = of(workers[0]);
    let per_second = |field: fn(&OperatorStats) -> u64| -> f64 {
        workers
            .iter()
            .map(|worker| field(&worker.operators[place]) as f64 / worker.elapsed_ns.max(1) as f64)
            .sum()
    };
    OperatorModel {
        name: sample.name,
        visit_ratio,
        cpu_s: cpu_s.into_iter().map(|(name, cpu_s)| (name, cpu_s * visit_ratio)).collect(),
        latency_s: per_row(count(|stats| stats.latency_ns) / 1e9),
        mean_active: per_second(|stats| stats.busy_ns),
        mean_waiting: per_second(|stats| stats.wait_input_ns),
        cpu_share: count(|stats| stats.cpu_ns) / 1e9,
        bytes_out: per_row(count(|stats| stats.bytes_out)),
        parallelism: sample.parallelism,
        in_flight: None,
        is_random: false,
    }
}

/// CPU seconds outside operators, by worker type.
fn overhead(workers: &[&JobWorkerSample]) -> BTreeMap<String, f64> {
    cpu_s_by_type(workers, |worker| {
        let in_operators = saturating_sum(worker.operators.iter().map(|operator| operator.cpu_ns));
        let rows = worker.operators.last().map_or(0.0, |last| last.rows_out as f64);
        (seconds(worker.process_cpu_ns.saturating_sub(in_operators)), rows)
    })
}

/// CPU seconds per row by worker type, from the CPU seconds and the rows of each worker. Omits types without rows.
fn cpu_s_by_type(
    workers: &[&JobWorkerSample],
    counts: impl Fn(&JobWorkerSample) -> (f64, f64),
) -> BTreeMap<String, f64> {
    let mut by_type: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for worker in workers {
        let (cpu_s, rows) = counts(worker);
        let sum = by_type.entry(worker.worker_type.clone()).or_default();
        *sum = (sum.0 + cpu_s, sum.1 + rows);
    }
    by_type.retain(|_, (_, rows)| *rows > 0.0);
    by_type.into_iter().map(|(name, (cpu_s, rows))| (name, cpu_s / rows)).collect()
}

/// The cache points without encodings. Rows at a point are the rows of the dataset times the output of the operators before
/// the point for one row; bytes follow from the mean size (Plumber, section 4.3).
fn cache_points(model: &JobModel, workers: &[&JobWorkerSample], dataset_rows: u64) -> Vec<CachePointModel> {
    let source_rows = sum(workers, |worker| worker.operators[0].rows_out);
    let mut is_cacheable = true;
    let mut points = Vec::new();
    for (place, operator) in model.operators.iter().enumerate() {
        is_cacheable &= !operator.is_random;
        // Batches cannot be cached, since a later pass groups other rows.
        if operator.name == "batch" || source_rows <= 0.0 {
            continue;
        }
        let scale = dataset_rows as f64 / source_rows;
        points.push(CachePointModel {
            after: place,
            operator: operator.name.clone(),
            rows: scale * sum(workers, |worker| worker.operators[place].rows_out),
            bytes: scale * sum(workers, |worker| worker.operators[place].bytes_out),
            bytes_per_row: operator.bytes_out,
            is_cacheable,
            ..CachePointModel::default()
        });
    }
    points
}

/// A cache point with rows in another encoding. Sizes and costs are in proportion to those of the rows that were tried.
fn with_encoding(model: &JobModel, tried: &EncodingStats) -> Option<CachePointModel> {
    let plain = model.cache_points.iter().find(|point| point.after == tried.operators_before as usize)?;
    if tried.plain_bytes == 0 || tried.plain_ns == 0 {
        return None;
    }
    let size = tried.encoded_bytes as f64 / tried.plain_bytes as f64;
    Some(CachePointModel {
        bytes: plain.bytes * size,
        bytes_per_row: plain.bytes_per_row * size,
        encoding: tried.encoding,
        next_cpu_share: tried.encoded_ns as f64 / tried.plain_ns as f64,
        ..plain.clone()
    })
}

/// The sum of each consumer's rows over the time for which it did not wait: the rate that the consumers would reach if rows
/// were always ready. `None` if a consumer takes rows as fast as they arrive.
fn demand(consumers: &[JobConsumerSample]) -> Option<f64> {
    let mut rates = Vec::new();
    for consumer in consumers.iter().filter(|consumer| consumer.stats.rows > 0) {
        let stats = &consumer.stats;
        let step_ns = if stats.step_ns > 0 {
            stats.step_ns
        } else {
            consumer.elapsed_ns.saturating_sub(stats.stall_ns)
        };
        if step_ns as f64 <= MIN_STEP_SHARE * consumer.elapsed_ns as f64 {
            return None;
        }
        rates.push(stats.rows as f64 / seconds(step_ns));
    }
    // A consumer without a batch counts as an average consumer.
    (!rates.is_empty()).then(|| rates.iter().sum::<f64>() * consumers.len() as f64 / rates.len() as f64)
}

fn mean_of(by_type: &BTreeMap<String, f64>) -> f64 {
    if by_type.is_empty() { 0.0 } else { by_type.values().sum::<f64>() / by_type.len() as f64 }
}

fn sum(workers: &[&JobWorkerSample], field: impl Fn(&JobWorkerSample) -> u64) -> f64 {
    workers.iter().map(|worker| field(worker) as f64).sum()
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
