//! A job as the planner sees it: costs per delivered row, sizes at every cut, and what its consumers could take.

use std::collections::BTreeMap;

use feedline_data::messages::{EncodingStats, saturating_sum};
use feedline_data::pipeline::CacheEncoding;
use serde::{Deserialize, Serialize};

use super::aligned::{aligned, names};
use super::bandwidth::{Bandwidth, Observation};
use super::samples::{JobConsumerSample, JobWorkerSample, OperatorSample, StoreSample};
use super::visits::visits;

#[cfg(test)]
pub(super) mod tests;

/// What is known of a job at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobObservation {
    /// What each worker did within the last seconds.
    pub recent: Vec<JobWorkerSample>,
    /// What each worker did since the job began: sizes are estimated from as many rows as there are. Empty: `recent`.
    pub total: Vec<JobWorkerSample>,
    /// What each consumer took within the last seconds.
    pub consumers: Vec<JobConsumerSample>,
    /// The store's bandwidth against requests in flight, over all workers, as seen at several times.
    pub store_seen: Vec<Observation>,
    /// The operator whose waits held the job up within the last seconds, while no thread, limit or store did.
    pub waits_for: Option<String>,
    /// What forms of kept rows cost, over all workers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forms: Vec<EncodingStats>,
}

/// A job's costs. "Per row" means per row delivered to a consumer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobModel {
    /// Rows delivered per second.
    pub rows_per_s: f64,
    /// Operators in order, the source first.
    pub operators: Vec<OperatorModel>,
    /// CPU seconds per row that no operator accounts for, by worker type: transport and the engine itself.
    pub overhead_cpu_s: BTreeMap<String, f64>,
    /// Where rows could be kept, in order; see [`CachePointModel::is_cacheable`].
    pub cuts: Vec<CachePointModel>,
    /// Bytes sent to consumers per row.
    pub delivered_bytes: f64,
    /// Bytes read from the store per row.
    pub store_bytes: f64,
    /// Requests to the store per row.
    pub store_requests: f64,
    /// Time of requests to the store per row, in seconds.
    pub store_wait_s: f64,
    /// Requests in flight, mean over time, over all workers.
    pub store_concurrency: f64,
    /// The store's bandwidth against requests in flight.
    pub bandwidth: Bandwidth,
    /// Memory that the job's rows hold over all workers, in bytes.
    pub held_bytes: f64,
    /// Share of the time in which work was ready but memory was full.
    pub memory_wait_share: f64,
    /// Rows per second that the consumers would take if they never waited; `None` where no step was seen.
    pub demand_rows_per_s: Option<f64>,
}

/// One operator's costs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperatorModel {
    /// Name.
    pub name: String,
    /// Rows that come to the operator per row delivered: the visit ratio of operational analysis (Denning and Buzen,
    /// 1978), which Plumber takes over. Above 1 before a filter, below 1 before an operator that makes rows.
    pub visit_ratio: f64,
    /// CPU seconds per row by worker type. Its reciprocal is Plumber's resource-accounted rate R: rows per CPU second.
    pub cpu_s: BTreeMap<String, f64>,
    /// Seconds per row that executions wait without CPU.
    pub latency_s: f64,
    /// Executions going on at once, mean over time, summed over workers: busy time over time (Little's law).
    pub mean_active: f64,
    /// Executions that wait for their turn, mean over time, summed over workers; 0 where it is not known.
    pub mean_waiting: f64,
    /// Share of the job's CPU time.
    pub cpu_share: f64,
    /// Bytes given per row.
    pub bytes_out: f64,
    /// Limit of concurrent executions on each worker that the user wrote.
    pub parallelism: Option<u32>,
    /// Executions at a time on each worker, mean, where its waits alone held the job up: the engine has no more under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub under_way: Option<f64>,
    /// Whether it runs one execution at a time on a worker.
    pub is_sequential: bool,
    /// Whether it draws anew in each pass.
    pub is_random: bool,
}

/// The output of an operator, kept for the whole dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CachePointModel {
    /// Place of the operator in [`JobModel::operators`] whose output is kept.
    pub after: usize,
    /// Its name.
    pub operator: String,
    /// Rows of the whole dataset there.
    pub rows: f64,
    /// Bytes of the whole dataset there.
    pub bytes: f64,
    /// Bytes there per row delivered.
    pub bytes_per_row: f64,
    /// Whether the rows are the same in each pass: false for the first random operator and all after it.
    pub is_cacheable: bool,
    /// In which form rows are kept.
    pub form: CacheEncoding,
    /// What the next operator takes of rows in this form, over what it takes of them as they are.
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
            form: CacheEncoding::AsIs,
            next_cpu_share: 1.0,
        }
    }
}

impl OperatorModel {
    /// Executions that may go on at once on a worker; `None` without a limit.
    pub fn limit(&self) -> Option<u32> {
        if self.is_sequential { Some(1) } else { self.parallelism.map(|limit| limit.max(1)) }
    }

    /// CPU seconds per row on a type of worker; on one that was never seen, the mean of the others.
    pub fn cpu_s_on(&self, worker_type: &str) -> f64 {
        self.cpu_s.get(worker_type).copied().unwrap_or_else(|| mean_of(&self.cpu_s))
    }

    /// Seconds that one execution takes per row where nothing hinders it: CPU and latency. Wall time is not used, since
    /// it grows where threads share cores.
    pub fn service_s_on(&self, worker_type: &str) -> f64 {
        self.cpu_s_on(worker_type) + self.latency_s
    }
}

impl JobModel {
    /// The model of what was seen; `None` before the first row was delivered.
    pub fn build(seen: &JobObservation) -> Option<Self> {
        let names = names(&seen.recent);
        let (recent, total) = (aligned(&seen.recent, &names), aligned(&seen.total, &names));
        let recent: Vec<&JobWorkerSample> = recent.iter().map(AsRef::as_ref).collect();
        let total: Vec<&JobWorkerSample> = total.iter().map(AsRef::as_ref).collect();
        let count = recent.first()?.operators.len();
        let delivered = sum(&recent, |worker| worker.operators[count - 1].rows_out);
        if delivered <= 0.0 {
            return None;
        }
        let visits = visits(&recent);
        // Reads are ahead of what is delivered, so what a row takes of them is told by the rows that they brought.
        let read = sum(&recent, |worker| worker.operators[0].rows_out);
        let rows_read = if read > 0.0 { read / visits[0] } else { delivered };
        let store = |field: fn(&StoreSample) -> u64| sum(&recent, |worker| field(&worker.store)) / rows_read;
        let per_second = |value: fn(&JobWorkerSample) -> f64| -> f64 {
            recent.iter().map(|worker| value(worker) / seconds(worker.elapsed_ns.max(1))).sum()
        };
        let mut model = Self {
            rows_per_s: per_second(|worker| worker.operators.last().map_or(0.0, |last| last.rows_out as f64)),
            operators: (0..count).map(|place| operator(&recent, place, visits[place])).collect(),
            overhead_cpu_s: overhead(&recent),
            cuts: Vec::new(),
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
            model.bandwidth =
                Bandwidth::fit(&[Observation { concurrency: model.store_concurrency, bytes_per_s }]);
        }
        for operator in &mut model.operators {
            let waits = seen.waits_for.as_ref() == Some(&operator.name);
            operator.under_way = waits.then_some(operator.mean_active / recent.len() as f64);
        }
        let total_cpu: f64 = model.operators.iter().map(|operator| operator.cpu_share).sum();
        for operator in &mut model.operators {
            operator.cpu_share /= if total_cpu > 0.0 { total_cpu } else { 1.0 };
        }
        model.cuts = cuts(&model, if total.is_empty() { &recent } else { &total });
        let forms = seen.forms.iter().filter_map(|form| in_form(&model, form));
        let forms: Vec<CachePointModel> = forms.collect();
        model.cuts.extend(forms);
        Some(model)
    }

    /// CPU seconds per row on a type of worker, from the operator at `from` on, with what no operator accounts for.
    pub fn cpu_s_from(&self, from: usize, worker_type: &str) -> f64 {
        let known = self.overhead_cpu_s.get(worker_type).copied();
        let overhead = known.unwrap_or_else(|| mean_of(&self.overhead_cpu_s));
        let operators = self.operators.iter().skip(from);
        overhead + operators.map(|operator| operator.cpu_s_on(worker_type)).sum::<f64>()
    }
}

/// Share of CPU is filled with CPU seconds here, and normalised by the caller.
fn operator(workers: &[&JobWorkerSample], place: usize, visit_ratio: f64) -> OperatorModel {
    let of = |worker: &JobWorkerSample| worker.operators[place].clone();
    let count = |field: fn(&OperatorSample) -> u64| sum(workers, |worker| field(&worker.operators[place]));
    // A source takes no rows: what it gives is its work.
    let taken = |sample: &OperatorSample| if sample.rows_in > 0 { sample.rows_in } else { sample.rows_out };
    let rows = sum(workers, |worker| taken(&worker.operators[place]));
    let per_row = |total: f64| if rows > 0.0 { total / rows * visit_ratio } else { 0.0 };
    let mut by_type: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for worker in workers {
        let sample = of(worker);
        let (cpu_s, rows) = by_type.entry(worker.worker_type.clone()).or_default();
        *cpu_s += seconds(sample.cpu_ns);
        *rows += taken(&sample) as f64;
    }
    by_type.retain(|_, (_, rows)| *rows > 0.0);
    let sample = of(workers[0]);
    let per_second = |field: fn(&OperatorSample) -> u64| -> f64 {
        workers
            .iter()
            .map(|worker| field(&worker.operators[place]) as f64 / worker.elapsed_ns.max(1) as f64)
            .sum()
    };
    OperatorModel {
        name: sample.name,
        visit_ratio,
        cpu_s: by_type.into_iter().map(|(name, (cpu_s, rows))| (name, cpu_s / rows * visit_ratio)).collect(),
        latency_s: per_row(count(|sample| sample.latency_ns) / 1e9),
        mean_active: per_second(|sample| sample.busy_ns),
        mean_waiting: per_second(|sample| sample.wait_input_ns),
        cpu_share: count(|sample| sample.cpu_ns) / 1e9,
        bytes_out: per_row(count(|sample| sample.bytes_out)),
        parallelism: sample.parallelism,
        under_way: None,
        is_sequential: sample.is_sequential,
        is_random: sample.is_random,
    }
}

fn overhead(workers: &[&JobWorkerSample]) -> BTreeMap<String, f64> {
    let mut by_type: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for worker in workers {
        let accounted = saturating_sum(worker.operators.iter().map(|operator| operator.cpu_ns));
        let (cpu_s, rows) = by_type.entry(worker.worker_type.clone()).or_default();
        *cpu_s += seconds(worker.process_cpu_ns.saturating_sub(accounted));
        *rows += worker.operators.last().map_or(0.0, |last| last.rows_out as f64);
    }
    by_type.retain(|_, (_, rows)| *rows > 0.0);
    by_type.into_iter().map(|(name, (cpu_s, rows))| (name, cpu_s / rows)).collect()
}

/// Rows of a cut are those of the dataset times what the operators before it make of one; bytes follow from the mean
/// size there (Plumber, section 4.3).
fn cuts(model: &JobModel, workers: &[&JobWorkerSample]) -> Vec<CachePointModel> {
    let source_rows = sum(workers, |worker| worker.operators[0].rows_out);
    let dataset_rows = dataset_rows(workers);
    let mut is_cacheable = true;
    let mut cuts = Vec::new();
    for (place, operator) in model.operators.iter().enumerate() {
        is_cacheable &= !operator.is_random;
        // Batches are made of rows wherever these come from.
        if operator.name == "batch" || source_rows <= 0.0 {
            continue;
        }
        let scale = dataset_rows / source_rows;
        cuts.push(CachePointModel {
            after: place,
            operator: operator.name.clone(),
            rows: scale * sum(workers, |worker| worker.operators[place].rows_out),
            bytes: scale * sum(workers, |worker| worker.operators[place].bytes_out),
            bytes_per_row: operator.bytes_out,
            is_cacheable,
            ..CachePointModel::default()
        });
    }
    cuts
}

/// A cut with its rows in another form: sizes and costs are those of the rows that were tried, in proportion.
fn in_form(model: &JobModel, tried: &EncodingStats) -> Option<CachePointModel> {
    let plain = model.cuts.iter().find(|cut| cut.after == tried.after as usize)?;
    if tried.plain_bytes == 0 || tried.plain_ns == 0 {
        return None;
    }
    let size = tried.bytes as f64 / tried.plain_bytes as f64;
    Some(CachePointModel {
        bytes: plain.bytes * size,
        bytes_per_row: plain.bytes_per_row * size,
        form: tried.form,
        next_cpu_share: tried.use_ns as f64 / tried.plain_ns as f64,
        ..plain.clone()
    })
}

/// The manifest's count where there is one; else rows seen times the share of the dataset that they are, by the size of
/// shards (Plumber, section 4.3).
fn dataset_rows(workers: &[&JobWorkerSample]) -> f64 {
    let counted = workers.iter().map(|worker| worker.store.total_rows).max().unwrap_or(0);
    if counted > 0 {
        return counted as f64;
    }
    let rows = sum(workers, |worker| worker.store.distinct_rows);
    let bytes = sum(workers, |worker| worker.store.distinct_shard_bytes);
    let total = workers.iter().map(|worker| worker.store.total_bytes).max().unwrap_or(0) as f64;
    if bytes > 0.0 && total > 0.0 { rows * (total / bytes).max(1.0) } else { rows }
}

/// A consumer whose own work takes less than this part of the time takes what comes: nobody can tell how much that is.
const LEAST_STEP_SHARE: f64 = 0.02;

/// Each consumer's rows over the time in which it did not wait, summed: what it would take if it were always fed. `None`
/// where one takes whatever comes.
fn demand(consumers: &[JobConsumerSample]) -> Option<f64> {
    let mut rates = Vec::new();
    for consumer in consumers.iter().filter(|consumer| consumer.rows > 0) {
        let waited = consumer.elapsed_ns.saturating_sub(consumer.stall_ns);
        let step_ns = if consumer.step_ns > 0 { consumer.step_ns } else { waited };
        if step_ns as f64 <= LEAST_STEP_SHARE * consumer.elapsed_ns as f64 {
            return None;
        }
        rates.push(consumer.rows as f64 / seconds(step_ns));
    }
    // Consumers that have not taken a batch yet will take as much as the others.
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
