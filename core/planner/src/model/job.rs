//! The model of a job: costs per delivered row, sizes at every cache point, and the demand of its consumers.

use std::collections::BTreeMap;

use feedline_data::messages::{EncodingStats, OperatorStats, StoreStats, saturating_sum};
use feedline_data::pipeline::CacheEncoding;
use serde::{Deserialize, Serialize};

use super::aligned::{align, longest_operator_list};
use super::bandwidth::{Bandwidth, BandwidthObservation};
use super::graph_costs::{GraphExpectation, GraphModel};
use super::samples::{JobConsumerSample, JobWorkerSample};
use super::visits::visit_ratios;

#[cfg(test)]
pub(super) mod tests;

/// If the steps of a consumer take less than this share of its time, it processes rows as fast as they arrive, so its
/// demand is unknown.
const MIN_STEP_SHARE: f64 = 0.02;

/// The observed counters and properties of a job. [`JobModel::build`] builds the model from them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobObservation {
    /// The counters of each worker over the last few seconds.
    pub recent: Vec<JobWorkerSample>,
    /// The counters of each worker since the job started. Sizes are computed from these counters, because more rows
    /// give more accurate sizes. If this list is empty, sizes are computed from `recent`.
    pub total: Vec<JobWorkerSample>,
    /// The counters of each consumer over the last few seconds.
    pub consumers: Vec<JobConsumerSample>,
    /// The store's bandwidth at different numbers of requests in flight, over all workers.
    pub bandwidth_observations: Vec<BandwidthObservation>,
    /// The operator whose waits limited the job over the last few seconds; `None` if threads, an operator limit or the
    /// store limited the job.
    pub waiting_operator: Option<String>,
    /// Measured sizes and CPU times of cache encodings, over all workers.
    pub encodings: Vec<EncodingStats>,
    /// The number of rows in the dataset.
    pub dataset_rows: u64,
    /// Names of the operators whose output differs in each pass.
    pub random_operators: Vec<String>,
    /// Rows per second that bound the lag of an unbounded job; `None` for other jobs.
    pub topic_rows_per_s: Option<f64>,
    /// Whether consumers wait for records that have not arrived in the topics yet.
    pub waits_for_records: bool,
    /// The expected batch of a job that samples a graph; `None` for other jobs.
    pub graph: Option<GraphExpectation>,
}

impl JobObservation {
    /// The counters from which sizes are computed.
    pub(super) fn counted_workers(&self) -> &[JobWorkerSample] {
        if self.total.is_empty() { &self.recent } else { &self.total }
    }
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
    /// Bytes sent to consumers, per row.
    #[serde(rename = "delivered_bytes")]
    pub delivered_bytes_per_row: f64,
    /// Bytes read from the store, per row.
    #[serde(rename = "store_bytes")]
    pub store_bytes_per_row: f64,
    /// Number of requests to the store, per row.
    #[serde(rename = "store_requests")]
    pub store_requests_per_row: f64,
    /// Total duration of requests to the store, in seconds per row.
    #[serde(rename = "store_wait_s")]
    pub store_wait_s_per_row: f64,
    /// The mean number of requests in flight, over all workers.
    pub store_concurrency: f64,
    /// The store's bandwidth as a function of the number of requests in flight.
    pub bandwidth: Bandwidth,
    /// Memory that the job's rows occupy, over all workers, in bytes.
    pub held_bytes: f64,
    /// The share of the time during which a group was ready but did not fit into the memory budget.
    pub memory_wait_share: f64,
    /// Rows per second that the consumers would process if they never waited for rows, but in an unbounded job at most the rate
    /// that bounds its lag. `None` if neither is known.
    pub demand_rows_per_s: Option<f64>,
    /// The sampled graphs; `None` if the job samples no graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph: Option<GraphModel>,
}

/// The costs of one operator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperatorModel {
    /// The operator's name.
    pub name: String,
    /// Input rows of the operator per delivered row: the visit ratio of operational analysis (Denning and Buzen, 1978),
    /// which Plumber also uses. The ratio is above 1 before a filter, and below 1 before an operator that adds rows.
    pub visit_ratio: f64,
    /// CPU seconds per row, by worker type. The reciprocal is Plumber's resource-accounted rate: rows per CPU second.
    pub cpu_s: BTreeMap<String, f64>,
    /// Time that executions wait without using the CPU, in seconds per row.
    pub latency_s: f64,
    /// The mean number of concurrent executions, summed over workers: busy time over elapsed time (Little's law).
    pub mean_active: f64,
    /// The mean number of executions that wait for a permit, summed over workers; 0 if unknown.
    pub mean_waiting: f64,
    /// The operator's share of the job's CPU time.
    pub cpu_share: f64,
    /// Output bytes per row.
    pub bytes_out: f64,
    /// The number of concurrent executions on each worker, if the pipeline pins this number.
    pub parallelism: Option<u32>,
    /// The mean number of concurrent executions on each worker, if the waits of this operator were the only limit on
    /// the rate of the job. In this case, the engine cannot start more executions.
    #[serde(rename = "under_way", skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<f64>,
    /// Whether the output differs in each pass.
    pub is_random: bool,
}

/// A point at which rows could be cached, with the size of the cached dataset and its effect on costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CachePointModel {
    /// The index of the operator in [`JobModel::operators`].
    #[serde(rename = "after")]
    pub operator_index: usize,
    /// The operator's name.
    pub operator: String,
    /// Number of rows of the whole dataset at this point.
    pub rows: f64,
    /// Size of the whole dataset at this point, in bytes.
    pub bytes: f64,
    /// Bytes at this point per delivered row.
    pub bytes_per_row: f64,
    /// Whether the rows are the same in each pass: `false` for the first random operator and all operators after it.
    pub is_cacheable: bool,
    /// The encoding of the cached rows.
    #[serde(rename = "form")]
    pub encoding: CacheEncoding,
    /// The next operator's CPU time on rows in this encoding, divided by its CPU time on rows without encoding.
    pub next_cpu_share: f64,
}

impl Default for CachePointModel {
    fn default() -> Self {
        Self {
            operator_index: 0,
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
    /// Returns the pinned number of concurrent executions on each worker; `None` if the pipeline pins none.
    pub fn limit(&self) -> Option<u32> {
        self.parallelism.map(|limit| limit.max(1))
    }

    /// Returns the CPU seconds per row on a worker type. For an unknown type, returns the mean of the known types.
    pub fn cpu_s_on(&self, worker_type: &str) -> f64 {
        self.cpu_s.get(worker_type).copied().unwrap_or_else(|| mean_of(&self.cpu_s))
    }

    /// Returns the seconds per row of an execution that does not share its core: CPU time plus latency. The measured
    /// wall time is larger if threads share cores.
    pub fn service_s_on(&self, worker_type: &str) -> f64 {
        self.cpu_s_on(worker_type) + self.latency_s
    }
}

impl JobModel {
    /// Builds the model of an observed job. Returns `None` before the first row is delivered.
    pub fn build(observation: &JobObservation) -> Option<Self> {
        let names = longest_operator_list(&observation.recent);
        let (recent, total) = (align(&observation.recent, &names), align(&observation.total, &names));
        let recent: Vec<&JobWorkerSample> = recent.iter().map(AsRef::as_ref).collect();
        let total: Vec<&JobWorkerSample> = total.iter().map(AsRef::as_ref).collect();
        let count = recent.first()?.operators.len();
        let delivered = sum(&recent, |worker| worker.operators[count - 1].rows_out);
        if delivered <= 0.0 {
            return None;
        }
        let visits = visit_ratios(&recent);
        // Workers read ahead of delivery, so divide the cost of reading by the number of rows read.
        let read = sum(&recent, |worker| worker.operators[0].rows_out);
        let rows_read = if read > 0.0 { read / visits[0] } else { delivered };
        let store = |field: fn(&StoreStats) -> u64| sum(&recent, |worker| field(&worker.store)) / rows_read;
        let per_second = |value: fn(&JobWorkerSample) -> f64| -> f64 {
            recent.iter().map(|worker| value(worker) / seconds(worker.elapsed_ns.max(1))).sum()
        };
        let mut model = Self {
            rows_per_s: per_second(|worker| worker.operators.last().map_or(0.0, |last| last.rows_out as f64)),
            operators: (0..count).map(|index| operator(&recent, index, visits[index])).collect(),
            overhead_cpu_s: overhead_cpu_s(&recent),
            cache_points: Vec::new(),
            delivered_bytes_per_row: sum(&recent, |worker| worker.operators[count - 1].bytes_out) / delivered,
            store_bytes_per_row: store(|store| store.bytes),
            store_requests_per_row: store(|store| store.requests),
            store_wait_s_per_row: store(|store| store.wait_ns) / 1e9,
            store_concurrency: per_second(|worker| seconds(worker.store.wait_ns)),
            bandwidth: Bandwidth::fit(&observation.bandwidth_observations),
            held_bytes: sum(&recent, |worker| worker.held_bytes),
            memory_wait_share: per_second(|worker| seconds(worker.memory_wait_ns)) / recent.len() as f64,
            demand_rows_per_s: demand(observation),
            graph: observation.graph.map(|graph| GraphModel::build(graph, observation.counted_workers())),
        };
        if model.bandwidth == Bandwidth::Unknown {
            let bytes_per_s = per_second(|worker| worker.store.bytes as f64);
            let observation = BandwidthObservation { concurrency: model.store_concurrency, bytes_per_s };
            model.bandwidth = Bandwidth::fit(&[observation]);
        }
        let total_cpu: f64 = model.operators.iter().map(|operator| operator.cpu_share).sum();
        for operator in &mut model.operators {
            let waits = observation.waiting_operator.as_ref() == Some(&operator.name);
            operator.in_flight = waits.then_some(operator.mean_active / recent.len() as f64);
            operator.cpu_share /= if total_cpu > 0.0 { total_cpu } else { 1.0 };
            operator.is_random = observation.random_operators.contains(&operator.name);
        }
        let counted = if total.is_empty() { &recent } else { &total };
        model.cache_points = cache_points(&model, counted, observation.dataset_rows);
        let encoded = observation.encodings.iter().filter_map(|stats| encoded_cache_point(&model, stats));
        let encoded: Vec<CachePointModel> = encoded.collect();
        model.cache_points.extend(encoded);
        Some(model)
    }

    /// Returns the CPU seconds per row on a worker type, for the operators from index `from` onwards and for the code
    /// outside operators.
    pub fn cpu_s_from(&self, from: usize, worker_type: &str) -> f64 {
        let known = self.overhead_cpu_s.get(worker_type).copied();
        let overhead = known.unwrap_or_else(|| mean_of(&self.overhead_cpu_s));
        let operators = self.operators.iter().skip(from);
        overhead + operators.map(|operator| operator.cpu_s_on(worker_type)).sum::<f64>()
    }
}

/// Builds the model of one operator. Its `cpu_share` contains CPU seconds until the caller normalises it.
fn operator(workers: &[&JobWorkerSample], index: usize, visit_ratio: f64) -> OperatorModel {
    let of = |worker: &JobWorkerSample| worker.operators[index].clone();
    let count = |field: fn(&OperatorStats) -> u64| sum(workers, |worker| field(&worker.operators[index]));
    // A source has no input rows, so count its output rows.
    let handled = |stats: &OperatorStats| if stats.rows_in > 0 { stats.rows_in } else { stats.rows_out };
    let rows = sum(workers, |worker| handled(&worker.operators[index]));
    let per_row = |total: f64| if rows > 0.0 { total / rows * visit_ratio } else { 0.0 };
    let cpu_s = cpu_s_by_type(workers, |worker| {
        (seconds(worker.operators[index].cpu_ns), handled(&worker.operators[index]) as f64)
    });
    let sample = of(workers[0]);
    let per_second = |field: fn(&OperatorStats) -> u64| -> f64 {
        workers
            .iter()
            .map(|worker| field(&worker.operators[index]) as f64 / worker.elapsed_ns.max(1) as f64)
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

/// Returns the CPU seconds per row outside operators, by worker type.
fn overhead_cpu_s(workers: &[&JobWorkerSample]) -> BTreeMap<String, f64> {
    cpu_s_by_type(workers, |worker| {
        let in_operators = saturating_sum(worker.operators.iter().map(|operator| operator.cpu_ns));
        let rows = worker.operators.last().map_or(0.0, |last| last.rows_out as f64);
        (seconds(worker.process_cpu_ns.saturating_sub(in_operators)), rows)
    })
}

/// Returns the CPU seconds per row, by worker type. `counts` returns the CPU seconds and the number of rows of a
/// worker. Omits types without rows.
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

/// Returns the cache points without encodings. The number of rows at a point is the number of dataset rows times the
/// output rows per source row. The size in bytes is this number times the mean size of a row (Plumber, section 4.3).
fn cache_points(model: &JobModel, workers: &[&JobWorkerSample], dataset_rows: u64) -> Vec<CachePointModel> {
    let source_rows = sum(workers, |worker| worker.operators[0].rows_out);
    let mut is_cacheable = true;
    let mut points = Vec::new();
    for (index, operator) in model.operators.iter().enumerate() {
        is_cacheable &= !operator.is_random;
        // Batches cannot be cached, because a later pass groups rows differently.
        if operator.name == "batch" || source_rows <= 0.0 {
            continue;
        }
        let scale = dataset_rows as f64 / source_rows;
        points.push(CachePointModel {
            operator_index: index,
            operator: operator.name.clone(),
            rows: scale * sum(workers, |worker| worker.operators[index].rows_out),
            bytes: scale * sum(workers, |worker| worker.operators[index].bytes_out),
            bytes_per_row: operator.bytes_out,
            is_cacheable,
            ..CachePointModel::default()
        });
    }
    points
}

/// Returns a cache point whose rows are stored in an encoding. Scales sizes and costs by the ratios that were measured
/// on sampled rows.
fn encoded_cache_point(model: &JobModel, stats: &EncodingStats) -> Option<CachePointModel> {
    let plain =
        model.cache_points.iter().find(|point| point.operator_index == stats.operators_before as usize)?;
    if stats.plain_bytes == 0 || stats.plain_ns == 0 {
        return None;
    }
    let size = stats.encoded_bytes as f64 / stats.plain_bytes as f64;
    Some(CachePointModel {
        bytes: plain.bytes * size,
        bytes_per_row: plain.bytes_per_row * size,
        encoding: stats.encoding,
        next_cpu_share: stats.encoded_ns as f64 / stats.plain_ns as f64,
        ..plain.clone()
    })
}

/// Returns the rate at which rows are wanted. Consumers of a topic cannot receive more rows than arrive, and do not need workers for
/// more rows than they can process.
fn demand(observation: &JobObservation) -> Option<f64> {
    let consumers = consumer_demand(&observation.consumers);
    match observation.topic_rows_per_s {
        Some(topic) => Some(consumers.map_or(topic, |consumers| consumers.min(topic))),
        None => consumers,
    }
}

/// Returns the rate that the consumers would reach if rows were always ready: for each consumer, its rows divided by
/// the time that it did not wait. Returns `None` if a consumer processes rows as fast as they arrive.
fn consumer_demand(consumers: &[JobConsumerSample]) -> Option<f64> {
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
    // Assume the mean rate for consumers that have received no batch.
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
