//! What holds up a job whose consumers wait: threads and limits, an operator's waits, or else the store.

use std::collections::BTreeMap;

use feedline_data::messages::saturating_sum;

use crate::model::{JobWorkerSample, OperatorSample};

/// What is in use for more than this part of the time may be what holds a job up.
pub(super) const BUSY: f64 = 0.75;

/// Threads of a worker's pool that a job had at work, on average. Wall time counts, not CPU time: a thread that another
/// process keeps from its core is no thread that waits for the store.
pub(super) fn cores_at_work(worker: &JobWorkerSample) -> f64 {
    let at_work = |operator: &OperatorSample| operator.busy_ns.saturating_sub(operator.latency_ns) as f64;
    // The source runs beside the pool.
    let pool: f64 = worker.operators.iter().skip(1).map(at_work).sum();
    pool / worker.elapsed_ns.max(1) as f64
}

/// Whether the executions that a limit allows an operator were in use nearly all the time.
pub(super) fn is_at_limit(worker: &JobWorkerSample) -> bool {
    let elapsed = worker.elapsed_ns as f64;
    worker.operators.iter().any(|operator| {
        operator.parallelism.is_some_and(|limit| operator.busy_ns as f64 > BUSY * f64::from(limit) * elapsed)
    })
}

/// The operator that waits for longer than any other, where that is longer than all reads together.
pub(super) fn longest_waits(workers: &[JobWorkerSample]) -> Option<String> {
    let mut waits: BTreeMap<&str, u64> = BTreeMap::new();
    for operator in workers.iter().flat_map(|worker| &worker.operators) {
        let wait = waits.entry(&operator.name).or_default();
        *wait = wait.saturating_add(operator.latency_ns);
    }
    let reads = saturating_sum(workers.iter().map(|worker| worker.store.wait_ns));
    let longest = waits.into_iter().max_by_key(|(_, wait)| *wait)?;
    (longest.1 > reads).then(|| longest.0.to_owned())
}
