//! Computes upper limits on cores from the tenant quotas.
//!
//! The whole quota of a tenant is divided among the allocations of its jobs, in proportion to their cores. Therefore, a
//! job that needs more cores than planned can use the part of the quota that the plan leaves unused.

use std::collections::BTreeMap;

use feedline_data::ids::{JobId, WorkerId};

use super::problem::Problem;
use super::solution::{JobPlan, Plan};

#[cfg(test)]
mod tests;

/// Limits are multiples of this number of cores, and at least equal to it.
const CORE_LIMIT_UNIT: f64 = 1e-3;

/// The core quota of one tenant, and the allocations of the tenant's jobs.
struct TenantAllocations {
    core_quota: Option<f64>,
    allocated_cores: f64,
    allocation_count: f64,
}

/// Returns the maximum number of cores that each job of a tenant with a quota may use on each worker.
pub(super) fn max_cores(plan: &Plan, problem: &Problem) -> BTreeMap<(JobId, WorkerId), f64> {
    let tenant_of: BTreeMap<JobId, usize> =
        problem.jobs.iter().filter_map(|job| Some((job.id, job.tenant?))).collect();
    let empty = |core_quota| TenantAllocations { core_quota, allocated_cores: 0.0, allocation_count: 0.0 };
    let mut tenants: Vec<TenantAllocations> =
        problem.tenants.iter().map(|tenant| empty(tenant.cores)).collect();
    for job in &plan.jobs {
        if let Some(tenant) = tenant_of.get(&job.job).and_then(|tenant| tenants.get_mut(*tenant)) {
            tenant.allocated_cores += job.cores();
            tenant.allocation_count += job.allocations.len() as f64;
        }
    }
    let of_job = |job: &JobPlan| {
        let tenant = tenants.get(*tenant_of.get(&job.job)?)?;
        Some((job.job, tenant.core_quota?, tenant))
    };
    let mut limits = BTreeMap::new();
    for (planned, (job, quota, tenant)) in plan.jobs.iter().filter_map(|job| Some((job, of_job(job)?))) {
        for (worker, allocation) in &planned.allocations {
            let planned_cores = tenant.allocated_cores;
            let share = if planned_cores > 0.0 {
                allocation.cores / planned_cores
            } else {
                1.0 / tenant.allocation_count
            };
            let units = (quota * share / CORE_LIMIT_UNIT + 1e-6).floor().max(1.0);
            limits.insert((job, *worker), units * CORE_LIMIT_UNIT);
        }
    }
    limits
}
