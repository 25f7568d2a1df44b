//! Builds the planner's problem from traces and a cluster file.

use std::collections::BTreeSet;

use feedline_data::ids::JobId;
use feedline_planner::model::Locality;
use feedline_planner::plan::{CachePolicy, JobProblem, Problem};

use super::cluster_file::{CacheOverride, ClusterFile, JobOverride, WorkerTypeEntry};
use crate::tenants_file::QuotaEntry;
use crate::trace_file::SavedTrace;

/// Builds the problem of all jobs on the workers in the cluster file. Job ids start at 1.
pub(super) fn build_problem(
    cluster: &ClusterFile,
    traces: &[SavedTrace],
    file: &str,
) -> Result<Problem, String> {
    let mut names = BTreeSet::new();
    if let Some(duplicate) = traces.iter().find(|trace| !names.insert(trace.name.as_str())) {
        return Err(format!(
            "two jobs have the name `{}`: give each pipeline a different name",
            duplicate.name
        ));
    }
    if let Some(unknown) = cluster.jobs.keys().find(|name| !names.contains(name.as_str())) {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        return Err(format!(
            "{file}: jobs.{unknown} does not name a planned job ({}): correct or remove it",
            names.join(", ")
        ));
    }
    let mut problem = cluster.problem();
    for (trace, number) in traces.iter().zip(1..) {
        let overrides = cluster.jobs.get(&trace.name).cloned().unwrap_or_default();
        let job = JobProblem::from_model(
            JobId(number),
            &trace.name,
            &trace.model,
            &problem.worker_types,
            &trace.cache_point_keys,
        );
        let tenant = overrides
            .tenant
            .as_ref()
            .and_then(|name| cluster.tenants.keys().position(|known| known.0 == *name));
        let priority =
            tenant.and_then(|index| cluster.tenants.values().nth(index)).map_or(1.0, QuotaEntry::priority);
        let overrides = JobOverride { weight: overrides.weight * priority, ..overrides };
        let store_is_local = overrides.store_is_local.map_or_else(|| trace.reads_local_files(), Ok)?;
        let locality = Locality { store_is_local, consumers_share: overrides.consumers_share };
        let job = JobProblem { tenant, locality, ..scale_cpu_times(job, &cluster.worker_types) };
        let job = apply_overrides(job, overrides);
        problem.jobs.push(job.map_err(|sentence| format!("{file}: jobs.{}.{sentence}", trace.name))?);
    }
    Ok(problem)
}

/// Converts CPU times on the traced machine to CPU times on each worker type.
fn scale_cpu_times(mut job: JobProblem, kinds: &[WorkerTypeEntry]) -> JobProblem {
    let costs = job.operators.iter_mut().map(|operator| &mut operator.cpu_s).chain([&mut job.overhead_cpu_s]);
    for by_type in costs {
        for (cpu_s, kind) in by_type.iter_mut().zip(kinds) {
            *cpu_s /= kind.speed;
        }
    }
    job
}

fn apply_overrides(job: JobProblem, overrides: JobOverride) -> Result<JobProblem, String> {
    let cache = match overrides.cache {
        CacheOverride::Free => CachePolicy::Free,
        CacheOverride::Never => CachePolicy::Never,
        CacheOverride::Pinned(pinned) => {
            let name = |index: usize| job.operators.get(index).map_or("", |operator| operator.name.as_str());
            let point = job
                .cache_points
                .iter()
                .position(|point| name(point.operator_index) == pinned.after)
                .ok_or_else(|| {
                    let names: Vec<String> = job
                        .cache_points
                        .iter()
                        .map(|point| format!("`{}`", name(point.operator_index)))
                        .collect();
                    format!(
                        "cache.operator_index: rows cannot be cached after `{}`; possible operators: {}",
                        pinned.after,
                        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
                    )
                })?;
            CachePolicy::Pinned { point, tier: pinned.tier }
        }
    };
    let demand_rows_per_s = overrides.demand_rows_per_s.or(job.demand_rows_per_s);
    Ok(JobProblem { weight: overrides.weight, demand_rows_per_s, cache, ..job })
}

#[cfg(test)]
mod tests;
