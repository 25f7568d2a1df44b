//! Converts worker reports into samples, worker types and keys of the model.

use feedline_data::messages::samples::WorkerReportSample;
use feedline_data::messages::{OperatorStats, WorkerJobStats, saturating_sum};
use feedline_data::pipeline::{CacheEncoding, CacheTier, Pipeline};
use xxhash_rust::xxh3::xxh3_64;

use crate::model::{CachePointModel, JobModel, JobWorkerSample};
use crate::plan::WorkerType;

/// Maximum number of workers of one type in a plan.
const MAX_WORKERS_PER_TYPE: u32 = 10_000;
/// Assumed read bandwidth of a worker's disk in bytes per second, over all jobs.
const DISK_READ_BYTES_PER_S: f64 = 4e8;
/// The name that [`store_of`] returns for local files.
const LOCAL_STORE: &str = "file";

/// Returns the type of a worker. All workers of a type have the same pool, machine, cores, memory and network bandwidth.
pub fn worker_type(worker: &WorkerReportSample) -> WorkerType {
    let gib = worker.memory_bytes as f64 / f64::from(1 << 30);
    let nic = worker.nic_bytes_per_s as f64;
    let network = if nic > 0.0 { format!(", {:.2} GB/s", nic / 1e9) } else { String::new() };
    let of = if worker.machine.is_empty() { "" } else { " of " };
    let pool = if worker.pool.is_empty() { String::new() } else { format!("{}: ", worker.pool) };
    let disk = worker.caches.iter().find(|tier| tier.tier == CacheTier::Disk);
    WorkerType {
        name: format!("{pool}{} cores{of}{}, {gib:.1} GiB{network}", worker.cores, worker.machine),
        pool: worker.pool.clone(),
        cores: f64::from(worker.cores),
        memory_bytes: worker.memory_bytes as f64,
        nic_bytes_per_s: nic,
        disk_bytes: disk.map_or(0.0, |tier| tier.capacity_bytes as f64),
        disk_read_bytes_per_s: DISK_READ_BYTES_PER_S,
        max_workers: MAX_WORKERS_PER_TYPE,
        ..WorkerType::default()
    }
}

/// Whether a worker did no work for a job between two samples.
pub(super) fn is_without_work_between(before: &JobWorkerSample, after: &JobWorkerSample) -> bool {
    let work = |sample: &JobWorkerSample| -> (u64, u64) {
        let busy_ns = saturating_sum(sample.operators.iter().map(|operator| operator.busy_ns));
        (busy_ns, sample.store.wait_ns)
    };
    before.operators.len() == after.operators.len() && work(before) == work(after)
}

/// Returns the counters of one worker for one job. The transport CPU time is divided evenly among the workers of the
/// process, and among the jobs of a worker in proportion to the CPU time of their operators. `operators_ns` is the sum
/// of the operators' CPU time over all jobs.
pub(super) fn worker_sample(
    worker: &WorkerReportSample,
    stats: &WorkerJobStats,
    operators_ns: u64,
    workers_per_process: usize,
) -> JobWorkerSample {
    let own_ns = operators_cpu_ns(stats);
    let share = own_ns as f64 / (operators_ns as f64).max(1.0) / workers_per_process.max(1) as f64;
    let kind = worker_type(worker);
    let operator = |operator: &OperatorStats| {
        let latency_ns = if operator.name == "source" { 0 } else { operator.latency_ns };
        OperatorStats { latency_ns, ..operator.clone() }
    };
    JobWorkerSample {
        worker: worker.worker,
        worker_type: kind.name,
        cores: kind.cores,
        elapsed_ns: stats.elapsed_ns,
        process_cpu_ns: own_ns.saturating_add((stats.cpu.transport_ns as f64 * share) as u64),
        held_bytes: saturating_sum(stats.operators.iter().map(|operator| operator.queue_bytes)),
        memory_wait_ns: stats.memory_wait_ns,
        operators: stats.operators.iter().map(operator).collect(),
        store: stats.store,
        graph: stats.graph,
    }
}

/// Returns the store that a pipeline reads: the scheme and the host or bucket of its first URL. All URLs of a pipeline
/// are in the same store.
pub(super) fn store_of(pipeline: &Pipeline) -> String {
    let datasets = pipeline.source.datasets();
    let url = datasets.first().and_then(|source| source.url.first()).map_or("", String::as_str);
    match url.split_once("://") {
        Some(("file", _)) | None => LOCAL_STORE.to_owned(),
        Some((scheme, rest)) => format!("{scheme}://{}", rest.split('/').next().unwrap_or_default()),
    }
}

/// Whether workers read the dataset of a pipeline from their own disks.
pub fn reads_local_files(pipeline: &Pipeline) -> bool {
    store_of(pipeline) == LOCAL_STORE
}

/// Returns the names of the operators whose output differs in each pass.
pub(super) fn random_operators(pipeline: &Pipeline) -> Vec<String> {
    let operators = pipeline.operator_names().into_iter().zip(&pipeline.operators);
    operators.filter(|(_, operator)| operator.kind.is_random()).map(|(name, _)| name).collect()
}

/// Returns the CPU time of all operators of a job in nanoseconds.
pub(super) fn operators_cpu_ns(stats: &WorkerJobStats) -> u64 {
    saturating_sum(stats.operators.iter().map(|operator| operator.cpu_ns))
}

/// Returns the key of each cache point of a model, which is a hash of the source and the operators up to the cache point.
pub fn cache_point_keys(pipeline: &Pipeline, model: &JobModel) -> Vec<u64> {
    let names = pipeline.operator_names();
    let key = |point: &CachePointModel| {
        let end = names.iter().position(|name| *name == point.operator).map_or(0, |place| place + 1);
        let before = pipeline.operators[..end].iter().filter(|operator| !operator.kind.is_engine_operator());
        let kinds: Vec<_> = before.map(|operator| &operator.kind).collect();
        // An encoding depends on the operator that decodes it.
        let mut after = pipeline.operators[end..].iter().map(|operator| &operator.kind);
        let next =
            after.find(|kind| !kind.is_engine_operator()).filter(|_| point.encoding != CacheEncoding::AsIs);
        let text = serde_json::to_vec(&(&pipeline.source, pipeline.on_error, kinds, point.encoding, next));
        xxh3_64(&text.expect("a pipeline is plain data"))
    };
    model.cache_points.iter().map(key).collect()
}
