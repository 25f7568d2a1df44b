//! From a plan to what workers are told of it.
//!
//! A worker serves jobs that have work in proportion to the cores that the plan gives them, and leases follow: a job that
//! has parts somewhere gets leases there. What one job leaves is the others', so that a plan that is wrong costs balance and
//! no throughput. Jobs of tenants with quotas have upper limits besides: `plan/caps.rs`. Numbers are rounded, so that a worker is
//! told of decisions and not of noise.

use std::collections::BTreeMap;

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::{CacheDecision, JobAllocation, WorkerAllocations};

use super::caps::caps;
use super::problem::{Problem, WorkerSlot};
use super::solution::{Assignment, JobPlan, Plan};

#[cfg(test)]
mod tests;

/// Reads at a time that workers allow without being told.
const USUAL_READS: u32 = 16;
/// The part of a worker's memory that groups computed ahead may take, over all jobs.
const AHEAD_SHARE: f64 = 0.5;
/// The least that a job may compute ahead, where its part of the memory has as much.
const LEAST_AHEAD_BYTES: f64 = 16e6;
/// Executions of an operator that waits: never fewer, whatever the plan reckons.
const LEAST_WAITING: u32 = 8;

/// Each worker's part in each job of a plan, by worker, with what jobs keep. Workers and jobs that are not named have no
/// limits.
///
/// Of the plan's limits only those of operators that wait are passed on: the others run in one task, share the cores that
/// the job has there, and a limit of their own would only put a border between them.
pub fn shares(
    plan: &Plan,
    problem: &Problem,
    keeps: &BTreeMap<JobId, Option<CacheDecision>>,
) -> BTreeMap<WorkerId, WorkerAllocations> {
    let memory: BTreeMap<WorkerId, f64> = problem
        .workers
        .iter()
        .map(|slot| (slot.id, problem.worker_types[slot.worker_type].memory_bytes))
        .collect();
    // A job alone needs no share; it may still have to read more at a time than is usual, or have a limit.
    let is_shared = plan.jobs.len() > 1;
    let caps = caps(plan, problem);
    let mut cores: BTreeMap<WorkerId, f64> = BTreeMap::new();
    for part in plan.jobs.iter().flat_map(|job| &job.assignments) {
        *cores.entry(part.worker).or_default() += rounded(part.cores);
    }
    let mut shares: BTreeMap<WorkerId, WorkerAllocations> = BTreeMap::new();
    for (place, job) in plan.jobs.iter().enumerate() {
        let limits = waiting_limits(job, problem, place);
        for part in &job.assignments {
            let mut allotment = JobAllocation {
                operator_limits: limits.clone(),
                read_concurrency: reads(part),
                keep: keeps.get(&job.job).copied().flatten(),
                ..JobAllocation::unlimited(job.job)
            };
            let cap = caps.get(&(job.job, part.worker)).copied();
            allotment.most_cores = cap.unwrap_or(0.0);
            if is_shared || cap.is_some() {
                allotment.cores = rounded(part.cores);
                let share = allotment.cores / cores[&part.worker];
                let memory = memory.get(&part.worker).copied().unwrap_or(0.0);
                let ahead = (AHEAD_SHARE * share * memory).max(LEAST_AHEAD_BYTES.min(share * memory));
                allotment.prefetch_bytes = ahead.max(1.0) as u64;
            }
            if allotment != JobAllocation::unlimited(job.job) || keeps.contains_key(&job.job) {
                shares.entry(part.worker).or_default().allotments.push(allotment);
            }
        }
    }
    // Rows of a job alone, or of one that is not planned yet, may come from any worker.
    for (id, keep) in keeps {
        let planned = plan.jobs.iter().find(|job| job.job == *id);
        let has_limit = caps.range((*id, WorkerId(0))..).next().is_some_and(|((job, _), _)| job == id);
        if (is_shared || has_limit) && planned.is_some() {
            continue;
        }
        let has_part = |slot: &&WorkerSlot| {
            planned.is_some_and(|job| job.assignments.iter().any(|part| part.worker == slot.id))
        };
        for slot in problem.workers.iter().filter(|slot| !has_part(slot)) {
            let allotment = JobAllocation { keep: *keep, ..JobAllocation::unlimited(*id) };
            shares.entry(slot.id).or_default().allotments.push(allotment);
        }
    }
    shares
}

/// How many reads at a time each job has been told of on each worker, at most.
#[derive(Debug, Clone, Default)]
pub struct ReadSteps(BTreeMap<(JobId, WorkerId), u32>);

impl ReadSteps {
    /// What workers are told of the wanted shares: no more than twice the reads of any time before, so that a store that gives
    /// no more is noticed before requests queue there, where they would hold up each other's rows. Jobs that are not
    /// `known` any more are forgotten.
    pub fn next(
        &mut self,
        mut wanted: BTreeMap<WorkerId, WorkerAllocations>,
        known: impl Fn(JobId) -> bool,
    ) -> BTreeMap<WorkerId, WorkerAllocations> {
        self.0.retain(|(job, _), _| known(*job));
        for (worker, share) in &mut wanted {
            for allotment in share.allotments.iter_mut().filter(|one| one.read_concurrency > 0) {
                let most = self.0.entry((allotment.job, *worker)).or_insert(USUAL_READS);
                allotment.read_concurrency = allotment.read_concurrency.min(2 * *most);
                *most = allotment.read_concurrency.max(*most);
            }
        }
        wanted
    }
}

/// Small changes of a mean are no reason to tell a worker anything.
fn rounded(cores: f64) -> f64 {
    (cores * 4.0).round().max(1.0) / 4.0
}

/// 0 where what is usual is enough; else a power of two.
fn reads(part: &Assignment) -> u32 {
    if part.read_concurrency <= USUAL_READS { 0 } else { part.read_concurrency.next_power_of_two() }
}

fn waiting_limits(job: &JobPlan, problem: &Problem, place: usize) -> Vec<(String, u32)> {
    let given = problem.jobs.get(place).filter(|given| given.id == job.job);
    let waits = |name: &str| {
        given.is_some_and(|given| {
            given.operators.iter().any(|operator| operator.name == name && operator.latency_s > 0.0)
        })
    };
    let limits = job.limits.iter().filter(|limit| !limit.is_pinned && waits(&limit.operator));
    limits
        .map(|limit| (limit.operator.clone(), (2 * limit.limit).next_power_of_two().max(LEAST_WAITING)))
        .collect()
}
