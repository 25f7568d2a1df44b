//! Builds the allocations that workers receive for a plan.
//!
//! A worker shares its cores among jobs in proportion to their allocated cores. A job receives leases on the workers
//! where it has an allocation. Other jobs use the cores that a job leaves idle, so an inaccurate plan affects the
//! balance between jobs, but not the throughput. Jobs of tenants with quotas also have upper limits, which
//! `plan/quota_limits.rs` computes. All numbers are rounded, so that small changes in measurements do not change
//! allocations.

use std::collections::BTreeMap;

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::memory::MemoryLimits;
use feedline_data::messages::{CacheDecision, JobAllocation, PlanAllocations};

use super::problem::{Problem, WorkerSlot};
use super::quota_limits::max_cores;
use super::solution::Plan;

#[cfg(test)]
mod tests;

/// Returns the allocations of a plan for `problem`, with the cache decision of each job. Workers and jobs without an
/// allocation have no limits.
pub fn plan_allocations(
    plan: &Plan,
    problem: &Problem,
    caches: &BTreeMap<JobId, Option<CacheDecision>>,
) -> PlanAllocations {
    let memory: BTreeMap<WorkerId, MemoryLimits> = problem
        .workers
        .iter()
        .map(|slot| (slot.id, MemoryLimits::new(problem.worker_types[slot.worker_type].memory_bytes as u64)))
        .collect();
    // A job that is alone uses all cores without an allocation. It may still need a higher read concurrency, or have a
    // quota.
    let is_shared = plan.jobs.len() > 1;
    let max_cores = max_cores(plan, problem);
    let mut total_cores: BTreeMap<WorkerId, f64> = BTreeMap::new();
    for (worker, allocation) in plan.jobs.iter().flat_map(|job| &job.allocations) {
        *total_cores.entry(*worker).or_default() += round_cores(allocation.cores);
    }
    let mut allocations = PlanAllocations::new();
    for job in &plan.jobs {
        for (worker, planned) in &job.allocations {
            let job_max_cores = max_cores.get(&(job.job, *worker)).copied();
            let mut allocation = JobAllocation {
                cores: 0.0,
                max_cores: job_max_cores.unwrap_or(0.0),
                read_concurrency: round_read_concurrency(planned.read_concurrency),
                cache: caches.get(&job.job).copied().flatten(),
                ..planned.clone()
            };
            if is_shared || job_max_cores.is_some() {
                allocation.cores = round_cores(planned.cores);
                let core_share = allocation.cores / total_cores[worker];
                allocation.prefetch_bytes =
                    memory.get(worker).map_or(1, |limits| limits.prefetch_bytes(core_share));
            }
            if allocation != JobAllocation::unlimited(job.job) || caches.contains_key(&job.job) {
                allocations.entry(*worker).or_default().jobs.push(allocation);
            }
        }
    }
    for (id, cache) in caches {
        let planned = plan.jobs.iter().find(|job| job.job == *id);
        let has_quota = max_cores.range((*id, WorkerId(0))..).next().is_some_and(|((job, _), _)| job == id);
        if (is_shared || has_quota) && planned.is_some() {
            continue;
        }
        // If there is only one job, or if the plan does not contain the job, any worker may compute its rows, so all
        // workers cache them.
        let is_missing =
            |slot: &&WorkerSlot| !planned.is_some_and(|job| job.allocations.contains_key(&slot.id));
        for slot in problem.workers.iter().filter(is_missing) {
            let allocation = JobAllocation { cache: *cache, ..JobAllocation::unlimited(*id) };
            allocations.entry(slot.id).or_default().jobs.push(allocation);
        }
    }
    allocations
}

/// Limits how fast the read concurrency grows. Stores the highest read concurrency so far of each job on each worker.
#[derive(Debug, Clone, Default)]
pub struct ReadLimits(BTreeMap<(JobId, WorkerId), u32>);

impl ReadLimits {
    /// Limits the read concurrency in `wanted` to twice the highest previous value. With small steps, the planner
    /// detects a saturated store before many requests queue up. Removes jobs for which `running` returns false.
    pub fn limit(&mut self, mut wanted: PlanAllocations, running: impl Fn(JobId) -> bool) -> PlanAllocations {
        self.0.retain(|(job, _), _| running(*job));
        for (worker, allocations) in &mut wanted {
            for allocation in allocations.jobs.iter_mut().filter(|job| job.read_concurrency > 0) {
                let key = (allocation.job, *worker);
                let largest = self.0.entry(key).or_insert(JobAllocation::DEFAULT_READ_CONCURRENCY);
                allocation.read_concurrency = allocation.read_concurrency.min(2 * *largest);
                *largest = allocation.read_concurrency.max(*largest);
            }
        }
        wanted
    }
}

/// Rounds to a multiple of 0.25 cores, and to at least 0.25.
fn round_cores(cores: f64) -> f64 {
    (cores * 4.0).round().max(1.0) / 4.0
}

/// Rounds up to a power of two. Returns 0 if the worker's default is enough.
fn round_read_concurrency(read_concurrency: u32) -> u32 {
    if read_concurrency <= JobAllocation::DEFAULT_READ_CONCURRENCY {
        0
    } else {
        read_concurrency.next_power_of_two()
    }
}
