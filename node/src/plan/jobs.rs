//! From traces and a cluster file to the planner's problem.

use std::collections::BTreeSet;

use feedline_data::ids::JobId;
use feedline_planner::model::Locality;
use feedline_planner::plan::{CachePolicy, JobProblem, Problem};

use super::cluster_file::{CacheChoice, ClusterFile, JobOverride, WorkerKind};
use crate::tenants_file::QuotaEntry;
use crate::trace_file::SavedTrace;

/// The problem of all jobs on the file's workers; jobs are numbered from 1. One sentence on what does not fit together.
pub(super) fn problem(cluster: &ClusterFile, traces: &[SavedTrace], file: &str) -> Result<Problem, String> {
    let mut names = BTreeSet::new();
    if let Some(twice) = traces.iter().find(|trace| !names.insert(trace.name.as_str())) {
        return Err(format!("two jobs have the name `{}`; give each pipeline a name of its own", twice.name));
    }
    if let Some(unknown) = cluster.jobs.keys().find(|name| !names.contains(name.as_str())) {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        return Err(format!(
            "{file}: jobs.{unknown} is none of the jobs that are planned: {}; correct or remove it",
            names.join(", ")
        ));
    }
    let mut problem = cluster.problem();
    for (trace, number) in traces.iter().zip(1..) {
        let known = cluster.jobs.get(&trace.name).cloned().unwrap_or_default();
        let job = JobProblem::from_model(
            JobId(number),
            &trace.name,
            &trace.model,
            &problem.worker_types,
            &trace.cut_keys,
        );
        let tenant =
            known.tenant.as_ref().and_then(|name| cluster.tenants.keys().position(|known| known.0 == *name));
        let priority =
            tenant.and_then(|place| cluster.tenants.values().nth(place)).map_or(1.0, QuotaEntry::priority);
        let known = JobOverride { weight: known.weight * priority, ..known };
        let store_is_local = known.store_is_local.map_or_else(|| trace.reads_local_files(), Ok)?;
        let locality = Locality { store_is_local, consumers_share: known.consumers_share };
        let job = JobProblem { tenant, locality, ..at_speed(job, &cluster.worker_types) };
        let job = overridden(job, known);
        problem.jobs.push(job.map_err(|sentence| format!("{file}: jobs.{}.{sentence}", trace.name))?);
    }
    Ok(problem)
}

/// CPU times on cores of other speeds than those that were traced.
fn at_speed(mut job: JobProblem, kinds: &[WorkerKind]) -> JobProblem {
    let costs = job.operators.iter_mut().map(|operator| &mut operator.cpu_s).chain([&mut job.overhead_cpu_s]);
    for by_type in costs {
        for (cpu_s, kind) in by_type.iter_mut().zip(kinds) {
            *cpu_s /= kind.speed;
        }
    }
    job
}

fn overridden(job: JobProblem, known: JobOverride) -> Result<JobProblem, String> {
    let cache = match known.cache {
        CacheChoice::Free => CachePolicy::Free,
        CacheChoice::Never => CachePolicy::Never,
        CacheChoice::Kept(kept) => {
            let name = |after: usize| job.operators.get(after).map_or("", |operator| operator.name.as_str());
            let cut = job.cuts.iter().position(|cut| name(cut.after) == kept.after).ok_or_else(|| {
                let names: Vec<String> =
                    job.cuts.iter().map(|cut| format!("`{}`", name(cut.after))).collect();
                format!(
                    "cache.after: rows cannot be kept after `{}`; they can after {}",
                    kept.after,
                    if names.is_empty() { "no operator".to_owned() } else { names.join(", ") }
                )
            })?;
            CachePolicy::Pinned { cut, tier: kept.tier }
        }
    };
    let demand_rows_per_s = known.demand_rows_per_s.or(job.demand_rows_per_s);
    Ok(JobProblem { weight: known.weight, demand_rows_per_s, cache, ..job })
}

#[cfg(test)]
mod tests;
