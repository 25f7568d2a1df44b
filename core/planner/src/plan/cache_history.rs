//! Decides which rows running jobs cache if their pipelines have no `cache` operator.
//!
//! A plan uses the current costs of jobs. The savings of a cache are estimated separately, once per job: when the costs
//! of the job are stable and the job will read rows again. Later decisions use the costs of this job without a cache,
//! so that other jobs compete for the capacity on equal terms, and rows that several jobs read need capacity only once.
//!
//! Before this decision, rows are cached in memory after the last operator whose output is the same in each pass, because
//! most of the work is usually before this point. If the decision confirms this choice, the cached rows remain valid.

use std::collections::{BTreeMap, BTreeSet};

use feedline_cluster::initial_cache_decision;
use feedline_data::ids::{JobId, Millis};
use feedline_data::messages::CacheDecision;

use super::deadline::Deadline;
use super::problem::{CachePolicy, JobProblem, PlannerSettings};
use super::solve::solve;

use crate::observe::Observer;

#[cfg(test)]
mod tests;

/// Milliseconds after which a decision against a cache is reconsidered, because jobs may have ended and workers may
/// have joined.
const RECONSIDER_AFTER_MS: Millis = 30_000;

/// CPU seconds to write one row to a cache, in addition to [`FILL_S_PER_BYTE`] for each byte of the row.
const FILL_S_PER_ROW: f64 = 1e-6;
const FILL_S_PER_BYTE: f64 = 1e-10;
/// Maximum share of a job's CPU time that may be used to write rows to a cache, so that the pass that fills the cache
/// is hardly slower.
const MAX_FILL_SHARE: f64 = 0.05;
/// The cache decisions so far.
#[derive(Debug, Clone, Default)]
pub struct CacheHistory {
    decided: BTreeMap<JobId, TimedDecision>,
    /// The cache decision of each job until its costs are stable.
    initial: BTreeMap<JobId, Option<CacheDecision>>,
}

#[derive(Debug, Clone)]
struct TimedDecision {
    decided_at: Millis,
    /// The cache of the job; `None` if it caches no rows.
    cached: Option<CachedJob>,
}

#[derive(Debug, Clone)]
struct CachedJob {
    decision: CacheDecision,
    /// The problem of the job without the effect of the cache. Its cache point is pinned.
    job: JobProblem,
}

impl CacheHistory {
    /// Returns the cache decision of each job at `now`. Jobs without a decision use the `cache` operator of their
    /// pipeline.
    pub fn decide(
        &mut self,
        now: Millis,
        observer: &Observer,
        settings: PlannerSettings,
        deadline: &dyn Deadline,
    ) -> BTreeMap<JobId, Option<CacheDecision>> {
        self.decided.retain(|job, _| observer.has_job(*job));
        self.initial.retain(|job, _| observer.has_job(*job));
        for facts in observer.job_properties().filter(|facts| facts.pipeline.cached_prefix().is_none()) {
            let initial =
                || initial_cache_decision(&facts.pipeline, &facts.dataset, facts.passes_left, &facts.quota);
            self.initial.entry(facts.job).or_insert_with(initial);
        }
        let is_due = |job: &JobId| {
            let decision = self.decided.get(job);
            decision.is_none_or(|decision| {
                decision.cached.is_none() && now >= decision.decided_at + RECONSIDER_AFTER_MS
            })
        };
        let open: Vec<JobId> = observer.cacheable_jobs(now).into_iter().filter(is_due).collect();
        if !open.is_empty() {
            self.choose(now, &open, observer, settings, deadline);
        }
        self.decisions()
    }

    fn decisions(&self) -> BTreeMap<JobId, Option<CacheDecision>> {
        let decided = |(job, initial): (&JobId, &Option<CacheDecision>)| {
            let decision = self.decided.get(job);
            (
                *job,
                decision.map_or(*initial, |decision| decision.cached.as_ref().map(|cached| cached.decision)),
            )
        };
        self.initial.iter().map(decided).collect()
    }

    fn choose(
        &mut self,
        now: Millis,
        open: &[JobId],
        observer: &Observer,
        settings: PlannerSettings,
        deadline: &dyn Deadline,
    ) {
        let mut problem = observer.problem(settings, CachePolicy::Never);
        let types = problem.worker_types.clone();
        // Any worker may compute any row, so each worker stores a copy of all cached rows, except in the object store.
        let copies = problem.workers.len().max(1) as f64;
        problem.store_cache_bytes *= copies;
        problem.cache_copies = copies;
        let mut considered = BTreeSet::new();
        for job in &mut problem.jobs {
            if let Some(cached) = self.decided.get(&job.id).and_then(|decision| decision.cached.as_ref()) {
                let (demand_rows_per_s, store) = (job.demand_rows_per_s, job.store);
                let (tenant, weight) = (job.tenant, job.weight);
                *job = JobProblem { demand_rows_per_s, store, tenant, weight, ..cached.job.clone() };
            } else if open.contains(&job.id)
                // A job that reads all rows from another job's cache has no measured costs, so it keeps its decision.
                && let Some(uncached) = observer.problem_without_cache(job.id, &types).filter(|job| !job.cache_points.is_empty())
            {
                considered.insert(job.id);
                let (store, tenant, weight) = (job.store, job.tenant, job.weight);
                *job = JobProblem { cache: CachePolicy::Free, store, tenant, weight, ..uncached };
                let cpu_s = mean(&job.overhead_cpu_s)
                    + job.operators.iter().map(|operator| mean(&operator.cpu_s)).sum::<f64>();
                job.cache_points.retain(|point| {
                    FILL_S_PER_ROW + FILL_S_PER_BYTE * point.bytes_per_row <= MAX_FILL_SHARE * cpu_s
                });
                job.cache_points.iter_mut().for_each(|point| point.bytes *= copies);
            }
        }
        let Ok(plan) = solve(&problem, None, deadline) else { return };
        if plan.is_fallback {
            return;
        }
        for (job, planned) in
            problem.jobs.iter().zip(&plan.jobs).filter(|(job, _)| considered.contains(&job.id))
        {
            let cached = planned.cache.and_then(|cache| {
                let point = job.cache_points.iter().position(|point| point.key == cache.key)?;
                let decision = CacheDecision {
                    operators_before: cache.operator_index as u32,
                    tier: cache.tier,
                    encoding: cache.encoding,
                };
                let policy = CachePolicy::Pinned { point, tier: cache.tier };
                Some(CachedJob { decision, job: JobProblem { cache: policy, ..job.clone() } })
            });
            self.decided.insert(job.id, TimedDecision { decided_at: now, cached });
        }
    }
}

fn mean(by_type: &[f64]) -> f64 {
    by_type.iter().sum::<f64>() / by_type.len().max(1) as f64
}
