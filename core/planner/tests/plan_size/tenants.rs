//! Many tenants on a fleet, each with a quota, as the coordinator plans for them: it chooses caches beside the plan.

use feedline_planner::plan::{CachePolicy, Problem, TenantProblem};

use super::fleet::fleet;

/// Cores that the jobs of one tenant may have together.
pub(crate) const CORES: f64 = 16.0;

/// So many jobs, dealt out to so many tenants, on so many workers, that want more than the quotas.
pub(crate) fn crowd(tenants: usize, jobs: u64, workers: u64) -> Problem {
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
