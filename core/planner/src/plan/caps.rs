//! Upper limits of jobs on workers, of the quotas of their tenants.
//!
//! A quota is divided among a tenant's jobs and workers in proportion to the plan's parts: all of it, so that a plan that is
//! wrong about what a job needs leaves no core of the quota idle that the job's other workers could use.

use std::collections::BTreeMap;

use feedline_data::ids::{JobId, WorkerId};

use super::problem::Problem;
use super::solution::Plan;

#[cfg(test)]
mod tests;

/// Limits are told in thousandths of a core, and of no less.
const UNIT: f64 = 1e-3;

/// Cores that jobs of tenants with quotas may use at most of workers on which they have a part.
pub(super) fn caps(plan: &Plan, problem: &Problem) -> BTreeMap<(JobId, WorkerId), f64> {
    let tenants: BTreeMap<JobId, usize> =
        problem.jobs.iter().filter_map(|job| Some((job.id, job.tenant?))).collect();
    // Of each tenant its quota, the cores of its parts, and how many they are.
    let mut parts: Vec<(Option<f64>, f64, f64)> =
        problem.tenants.iter().map(|tenant| (tenant.cores, 0.0, 0.0)).collect();
    for job in &plan.jobs {
        let Some(sums) = tenants.get(&job.job).and_then(|tenant| parts.get_mut(*tenant)) else { continue };
        sums.1 += job.assignments.iter().map(|part| part.cores).sum::<f64>();
        sums.2 += job.assignments.len() as f64;
    }
    let mut caps = BTreeMap::new();
    for job in &plan.jobs {
        let sums = tenants.get(&job.job).and_then(|tenant| parts.get(*tenant));
        let Some((Some(quota), cores, count)) = sums else { continue };
        for part in &job.assignments {
            let share = if *cores > 0.0 { part.cores / cores } else { 1.0 / count };
            let units = (quota * share / UNIT + 1e-6).floor().max(1.0);
            caps.insert((job.job, part.worker), units * UNIT);
        }
    }
    caps
}
