//! Determines the resource that a job's workers wait for: threads, operator limits, the waits of an operator, or the store.

use std::collections::BTreeMap;

use feedline_data::messages::{OperatorStats, saturating_sum};

use crate::model::JobWorkerSample;

/// A resource is saturated if it is in use for more than this share of the time.
pub(super) const BUSY_SHARE: f64 = 0.75;

/// Returns the mean number of pool threads that a job used on a worker. Uses wall time instead of CPU time, because a
/// preempted thread is not waiting for the store.
pub(super) fn active_threads(worker: &JobWorkerSample) -> f64 {
    let active_ns = |operator: &OperatorStats| operator.busy_ns.saturating_sub(operator.latency_ns) as f64;
    // The source runs outside the pool.
    let pool_ns: f64 = worker.operators.iter().skip(1).map(active_ns).sum();
    pool_ns / worker.elapsed_ns.max(1) as f64
}

/// Whether an operator used its pinned number of concurrent executions nearly all the time.
pub(super) fn is_at_operator_limit(worker: &JobWorkerSample) -> bool {
    let elapsed_ns = worker.elapsed_ns as f64;
    worker.operators.iter().any(|operator| {
        let limit = operator.parallelism.map(f64::from);
        limit.is_some_and(|limit| operator.busy_ns as f64 > BUSY_SHARE * limit * elapsed_ns)
    })
}

/// Returns the operator with the longest total wait, if this wait is longer than the total wait of all reads.
pub(super) fn longest_waiting_operator(workers: &[JobWorkerSample]) -> Option<String> {
    let mut waits: BTreeMap<&str, u64> = BTreeMap::new();
    for operator in workers.iter().flat_map(|worker| &worker.operators) {
        let wait_ns = waits.entry(&operator.name).or_default();
        *wait_ns = wait_ns.saturating_add(operator.latency_ns);
    }
    let reads_ns = saturating_sum(workers.iter().map(|worker| worker.store.wait_ns));
    let (name, wait_ns) = waits.into_iter().max_by_key(|(_, wait_ns)| *wait_ns)?;
    (wait_ns > reads_ns).then(|| name.to_owned())
}
