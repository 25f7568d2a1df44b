//! Limits of operators, read concurrency and prefetch of each worker for each job, by Little's law: what goes on at once
//! is the rate times the time that one takes.

use super::assign::Part;
use super::costs::Costs;
use super::problem::{JobProblem, Settings, WorkerSlot};
use super::solution::{Assignment, OperatorLimit};

#[cfg(test)]
mod tests;

/// Rates vary, so a little more may go on at once than the mean.
const MARGIN: f64 = 1.5;
/// Requests that may be in flight on a worker for a job, whatever the plan reckons.
const READS: std::ops::RangeInclusive<u32> = 2..=256;
/// The least that is read ahead: about two blocks.
const LEAST_PREFETCH_BYTES: f64 = 2e6;
/// The share of a worker's memory that reading ahead may take, over all jobs.
const PREFETCH_SHARE: f64 = 0.25;

/// A worker's part in a job, with what goes with it.
pub(super) fn assignment(
    settings: &Settings,
    costs: &Costs,
    job: &JobProblem,
    store_bytes: f64,
    slot: &WorkerSlot,
    part: &Part,
) -> Assignment {
    let reads = MARGIN * part.rows_per_s * if store_bytes > 0.0 { job.store_wait_s } else { 0.0 };
    let has = costs.has[slot.worker_type];
    let share = if has[super::costs::CORES] > 0.0 { part.cores / has[super::costs::CORES] } else { 1.0 };
    let most = (PREFETCH_SHARE * share * has[super::costs::MEMORY]).max(LEAST_PREFETCH_BYTES);
    let ahead = part.rows_per_s * store_bytes * settings.prefetch_s;
    Assignment {
        worker: slot.id,
        cores: part.cores,
        rows_per_s: part.rows_per_s,
        read_concurrency: (reads.ceil() as u32 + 1).clamp(*READS.start(), *READS.end()),
        prefetch_bytes: ahead.clamp(LEAST_PREFETCH_BYTES, most) as u64,
    }
}

/// A limit for each operator that fits the busiest worker: the user's where there is one, else what cores and waiting
/// call for.
pub(super) fn limits(job: &JobProblem, slots: &[WorkerSlot], parts: &[Part]) -> Vec<OperatorLimit> {
    let limit = |operator: &super::problem::OperatorProblem| {
        let on_part = |part: &Part| {
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
