//! Computes the operator limits and the read concurrency of each job on each worker with Little's law: the mean number
//! of concurrent executions is the rate times the duration of one execution.

use feedline_data::messages::JobAllocation;

use super::assign::JobPlacement;
use super::problem::{JobProblem, OperatorProblem, WorkerSlot};
use super::solution::OperatorLimit;

#[cfg(test)]
mod tests;

/// Ratio of limits to the mean concurrency. Limits are higher, because rates vary.
const CONCURRENCY_MARGIN: f64 = 1.5;
/// Bounds of the read concurrency of a job on a worker.
const READ_CONCURRENCY_RANGE: std::ops::RangeInclusive<u32> = 2..=256;
/// Minimum limit of an operator that waits without using the CPU.
const MIN_WAITING_LIMIT: u32 = 8;

/// Returns the allocation of a job on one worker. `limits` apply on each of its workers.
pub(super) fn allocation(
    job: &JobProblem,
    store_bytes_per_row: f64,
    placement: &JobPlacement,
    limits: &[OperatorLimit],
) -> JobAllocation {
    let wait_s = if store_bytes_per_row > 0.0 { job.store_wait_s_per_row } else { 0.0 };
    let reads = CONCURRENCY_MARGIN * placement.rows_per_s * wait_s;
    JobAllocation {
        cores: placement.cores,
        operator_limits: waiting_limits(job, limits),
        read_concurrency: (reads.ceil() as u32 + 1)
            .clamp(*READ_CONCURRENCY_RANGE.start(), *READ_CONCURRENCY_RANGE.end()),
        ..JobAllocation::unlimited(job.id)
    }
}

/// Returns the limits that a worker enforces: the limits of unpinned operators that wait without using the CPU. All
/// other operators run in one task and share the cores of the job, so a limit would only split this task.
fn waiting_limits(job: &JobProblem, limits: &[OperatorLimit]) -> Vec<(String, u32)> {
    let is_enforced =
        |(operator, limit): &(&OperatorProblem, &OperatorLimit)| operator.latency_s > 0.0 && !limit.is_pinned;
    let enforced = job.operators.iter().zip(limits).filter(is_enforced);
    let rounded = |limit: u32| (2 * limit).next_power_of_two().max(MIN_WAITING_LIMIT);
    enforced.map(|(operator, limit)| (operator.name.clone(), rounded(limit.limit))).collect()
}

/// Returns the limit of each operator on the busiest worker: the pinned limit, if any, or the number of executions that
/// use all cores and cover the waits.
pub(super) fn limits(
    job: &JobProblem,
    slots: &[WorkerSlot],
    placements: &[JobPlacement],
) -> Vec<OperatorLimit> {
    let limit = |operator: &OperatorProblem| {
        let executions = |placement: &JobPlacement| {
            let cpu_s = operator.cpu_s[slots[placement.worker].worker_type];
            // Executions that compute may use all cores of the job.
            let computing = placement.cores.max(placement.rows_per_s * cpu_s);
            computing + CONCURRENCY_MARGIN * placement.rows_per_s * operator.latency_s
        };
        let wanted = placements.iter().map(executions).fold(1.0, f64::max).ceil() as u32;
        let limit = operator.limit.unwrap_or(wanted);
        OperatorLimit { operator: operator.name.clone(), limit, is_pinned: operator.limit.is_some() }
    };
    job.operators.iter().map(limit).collect()
}
