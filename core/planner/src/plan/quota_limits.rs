//! Upper limits of cores, from the quotas of tenants.
//!
//! The whole quota of a tenant is divided among the allocations of its jobs, in proportion to their cores. If the plan is wrong
//! about what one job needs, the job may therefore use cores of the quota that the plan left unused.

use std::collections::BTreeMap;

use feedline_data::ids::{JobId, WorkerId};

use super::problem::Problem;
use super::solution::{JobPlan, Plan};

#[cfg(test)]
mod tests;

/// The precision of a limit, and the smallest limit.
const UNIT: f64 = 1e-3;

/// The quota of one tenant, and what the plan allocates to the tenant's jobs.
struct TenantAllocations {
    quota: Option<f64>,
    cores: f64,
    count: f64,
}

/// The largest number of cores that each job of a tenant with a quota may use on each worker.
pub(super) fn max_cores(plan: &Plan, problem: &Problem) -> BTreeMap<(JobId, WorkerId), f64> {
    let tenant_of: BTreeMap<JobId, usize> =
        problem.jobs.iter().filter_map(|job| Some((job.id, job.tenant?))).collect();
    let empty = |quota| TenantAllocations { quota, cores: 0.0, count: 0.0 };
    let mut tenants: Vec<TenantAllocations> =
        problem.tenants.iter().map(|tenant| empty(tenant.cores)).collect();
    for job in &plan.jobs {
        if let Some(tenant) = tenant_of.get(&job.job).and_then(|tenant| tenants.get_mut(*tenant)) {
            tenant.cores += job.cores();
            tenant.count += job.allocations.len() as f64;
        }
    }
    let of_job = |job: &JobPlan| {
        let tenant = tenants.get(*tenant_of.get(&job.job)?)?;
        Some((job.job, tenant.quota?, tenant))
    };
    let mut limits = BTreeMap::new();
    for (planned, (job, quota, tenant)) in plan.jobs.iter().filter_map(|job| Some((job, of_job(job)?))) {
        for (worker, allocation) in &planned.allocations {
            let share = if tenant.cores > 0.0 { allocation.cores / tenant.cores } else { 1.0 / tenant.count };
            let units = (quota * share / UNIT + 1e-6).floor().max(1.0);
            limits.insert((job, *worker), units * UNIT);
        }
    }
    limits
}
