//! What workers report, in the model's terms.

use feedline_data::messages::{OperatorStats, WorkerJobStats, samples, saturating_sum};
use feedline_data::pipeline::{CacheEncoding, Pipeline};
use xxhash_rust::xxh3::xxh3_64;

use super::{JobWindows, Observer};

use crate::model::{CachePointModel, JobModel, JobWorkerSample, OperatorSample, StoreSample};

/// Whether a worker had done as much for a job before.
pub(super) fn has_done_as_much(before: &JobWorkerSample, after: &JobWorkerSample) -> bool {
    let work = |sample: &JobWorkerSample| -> (u64, u64) {
        let busy_ns = saturating_sum(sample.operators.iter().map(|operator| operator.busy_ns));
        (busy_ns, sample.store.wait_ns)
    };
    before.operators.len() == after.operators.len() && work(before) == work(after)
}

/// One worker's counts for one job, in the model's terms. Transport's CPU time is the job's in proportion to what its
/// operators took of `operators_ns`, that of all jobs, and the worker's in proportion to the process's workers.
pub(super) fn worker_sample(
    worker: &samples::WorkerReportSample,
    stats: &WorkerJobStats,
    windows: &JobWindows,
    operators_ns: u64,
    workers: usize,
) -> JobWorkerSample {
    let own_ns = operators_cpu_ns(stats);
    let share = own_ns as f64 / (operators_ns as f64).max(1.0) / workers.max(1) as f64;
    let kind = Observer::type_of(worker);
    JobWorkerSample {
        worker: worker.worker,
        worker_type: kind.name,
        cores: kind.cores,
        memory_bytes: worker.memory_bytes,
        disk_bytes: 0,
        nic_bytes_per_s: kind.nic_bytes_per_s,
        elapsed_ns: stats.elapsed_ns,
        process_cpu_ns: own_ns.saturating_add((stats.cpu.transport_ns as f64 * share) as u64),
        held_bytes: saturating_sum(stats.operators.iter().map(|operator| operator.queue_bytes)),
        memory_wait_ns: stats.memory_wait_ns,
        operators: stats
            .operators
            .iter()
            .map(|operator| operator_sample(operator, &windows.random))
            .collect(),
        store: StoreSample {
            requests: stats.store.requests,
            bytes: stats.store.bytes,
            wait_ns: stats.store.wait_ns,
            concurrency_limit: 0,
            distinct_shards: stats.store.distinct_shards,
            distinct_shard_bytes: stats.store.distinct_shard_bytes,
            distinct_rows: 0,
            total_shards: windows.facts.dataset.shards,
            total_bytes: windows.facts.dataset.bytes,
            total_rows: windows.facts.dataset.rows,
        },
    }
}

fn operator_sample(stats: &OperatorStats, random: &[String]) -> OperatorSample {
    let is_source = stats.name == "source";
    OperatorSample {
        name: stats.name.clone(),
        rows_in: stats.rows_in,
        rows_out: stats.rows_out,
        bytes_in: stats.bytes_in,
        bytes_out: stats.bytes_out,
        cpu_ns: stats.cpu_ns,
        busy_ns: stats.busy_ns,
        wait_input_ns: stats.wait_input_ns,
        wait_output_ns: stats.wait_output_ns,
        // What the source waits for is in the store's counts.
        latency_ns: if is_source { 0 } else { stats.latency_ns },
        queue_bytes: stats.queue_bytes,
        parallelism: stats.parallelism,
        is_random: random.contains(&stats.name),
        is_sequential: false,
    }
}

/// What [`store_of`] calls files.
pub(super) const LOCAL_STORE: &str = "file";

/// Names the store that a pipeline reads: scheme and host or bucket of its first URL, which all of it shares.
pub(super) fn store_of(pipeline: &Pipeline) -> String {
    let datasets = pipeline.source.datasets();
    let url = datasets.first().and_then(|source| source.url.first()).map_or("", String::as_str);
    match url.split_once("://") {
        Some(("file", _)) | None => LOCAL_STORE.to_owned(),
        Some((scheme, rest)) => format!("{scheme}://{}", rest.split('/').next().unwrap_or_default()),
    }
}

pub(super) fn random_operators(pipeline: &Pipeline) -> Vec<String> {
    let operators = pipeline.operator_names().into_iter().zip(&pipeline.operators);
    operators.filter(|(_, operator)| operator.kind.is_random()).map(|(name, _)| name).collect()
}

pub(super) fn operators_cpu_ns(stats: &WorkerJobStats) -> u64 {
    saturating_sum(stats.operators.iter().map(|operator| operator.cpu_ns))
}

/// Names what is kept at each of the model's cuts: the source and the operators up to there.
pub fn cut_keys(pipeline: &Pipeline, model: &JobModel) -> Vec<u64> {
    let names = pipeline.operator_names();
    let key = |cut: &CachePointModel| {
        let end = names.iter().position(|name| *name == cut.operator).map_or(0, |place| place + 1);
        let before = pipeline.operators[..end].iter().filter(|operator| !operator.kind.is_engine_operator());
        let kinds: Vec<_> = before.map(|operator| &operator.kind).collect();
        // What images are kept as is for the operator behind.
        let mut behind = pipeline.operators[end..].iter().map(|operator| &operator.kind);
        let next = behind.find(|kind| !kind.is_engine_operator()).filter(|_| cut.form != CacheEncoding::AsIs);
        let text = serde_json::to_vec(&(&pipeline.source, pipeline.on_error, kinds, cut.form, next));
        xxh3_64(&text.expect("a pipeline is plain data"))
    };
    model.cuts.iter().map(key).collect()
}
