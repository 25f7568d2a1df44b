//! Limits of operators and read concurrency of each worker for each job, by Little's law: what goes on at once is the rate
//! times the time that one takes.

use super::assign::JobShare;
use super::problem::{JobProblem, WorkerSlot};
use super::solution::{Assignment, OperatorLimit};

#[cfg(test)]
mod tests;

/// Rates vary, so a little more may go on at once than the mean.
const MARGIN: f64 = 1.5;
/// Requests that may be in flight on a worker for a job, whatever the plan reckons.
const READS: std::ops::RangeInclusive<u32> = 2..=256;

/// A worker's part in a job, with what goes with it.
pub(super) fn assignment(
    job: &JobProblem,
    store_bytes: f64,
    slot: &WorkerSlot,
    part: &JobShare,
) -> Assignment {
    let reads = MARGIN * part.rows_per_s * if store_bytes > 0.0 { job.store_wait_s } else { 0.0 };
    Assignment {
        worker: slot.id,
        cores: part.cores,
        rows_per_s: part.rows_per_s,
        read_concurrency: (reads.ceil() as u32 + 1).clamp(*READS.start(), *READS.end()),
    }
}

/// A limit for each operator that fits the busiest worker: the user's where there is one, else what cores and waiting
/// call for.
pub(super) fn limits(job: &JobProblem, slots: &[WorkerSlot], parts: &[JobShare]) -> Vec<OperatorLimit> {
    let limit = |operator: &super::problem::OperatorProblem| {
        let on_part = |part: &JobShare| {
            let cpu_s = operator.cpu_s[slots[part.worker].worker_type];
            // The part that needs a core may use all that the job has there.
            part.cores.max(part.rows_per_s * cpu_s) + MARGIN * part.rows_per_s * operator.latency_s
        };
        let wanted = parts.iter().map(on_part).fold(1.0, f64::max).ceil() as u32;
        let limit = operator.limit.unwrap_or(wanted);
        OperatorLimit { operator: operator.name.clone(), limit, is_pinned: operator.limit.is_some() }
    };
    job.operators.iter().map(limit).collect()
}
