//! Many tenants with quotas on one fleet.

use feedline_planner::plan::{CachePolicy, Problem, TenantProblem};

use super::fleet::fleet;

/// The quota of cores of each tenant.
pub(crate) const CORES: f64 = 16.0;

/// A problem with `jobs` jobs of `tenants` tenants on `workers` workers, whose demand exceeds the quotas.
pub(crate) fn tenants_over_quota(tenants: usize, jobs: u64, workers: u64) -> Problem {
    let mut problem = fleet(jobs, workers, 3.0, 1);
    for (place, job) in problem.jobs.iter_mut().enumerate() {
        job.tenant = Some(place % tenants);
        job.cache = CachePolicy::Never;
    }
    let tenant = |place: usize| TenantProblem {
        name: format!("tenant{place}"),
        cores: Some(CORES),
        cache_bytes: None,
    };
    problem.tenants = (0..tenants).map(tenant).collect();
    problem
}
