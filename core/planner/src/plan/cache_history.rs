//! Which cuts running jobs keep although their pipelines name no `cache`.
//!
//! A plan counts what jobs take now. What a cache would save is decided beside it, once for each job: when its costs have been
//! seen for a while and rows will be asked for again. From then on the job is reckoned with as it was before anything was
//! kept, so that jobs that come later choose beside it, and what several jobs read is paid for once.
//!
//! Until then rows are kept in memory where most of the work is likely to lie before: behind the last operator that is the same
//! in each pass. If that is what is chosen, no row of the first pass was lost.

use std::collections::{BTreeMap, BTreeSet};

use feedline_cluster::initial_cache_decision;
use feedline_data::ids::{JobId, Millis};
use feedline_data::messages::CacheDecision;

use super::problem::{CachePolicy, JobProblem, PlannerSettings};
use super::solve::{Deadline, solve};

use crate::observe::Observer;

#[cfg(test)]
mod tests;

/// A job for which nothing was worth keeping is looked at again after so long: others end, workers come.
const AGAIN_MS: Millis = 30_000;

/// CPU seconds that keeping a row takes: for the row, and for each of its bytes.
const KEEP_S_PER_ROW: f64 = 1e-6;
const KEEP_S_PER_BYTE: f64 = 1e-10;
/// Keeping may take this part of a job's CPU time, so that the pass that fills a cache is hardly slower.
const KEEP_SHARE: f64 = 0.05;
/// What was decided so far.
#[derive(Debug, Clone, Default)]
pub struct CacheHistory {
    decided: BTreeMap<JobId, Decision>,
    /// What is kept of each job until then.
    first: BTreeMap<JobId, Option<CacheDecision>>,
}

#[derive(Debug, Clone)]
struct Decision {
    at: Millis,
    /// What is kept, and the job as it was before.
    kept: Option<Kept>,
}

#[derive(Debug, Clone)]
struct Kept {
    keep: CacheDecision,
    /// With the cut that is kept pinned.
    job: JobProblem,
}

impl CacheHistory {
    /// What jobs shall keep, as seen at `now`; jobs that are not named keep what their pipelines say.
    pub fn decide(
        &mut self,
        now: Millis,
        observer: &Observer,
        settings: PlannerSettings,
        deadline: &dyn Deadline,
    ) -> BTreeMap<JobId, Option<CacheDecision>> {
        self.decided.retain(|job, _| observer.knows(*job));
        self.first.retain(|job, _| observer.knows(*job));
        for facts in observer.facts().filter(|facts| facts.pipeline.cached_prefix().is_none()) {
            let keep =
                || initial_cache_decision(&facts.pipeline, &facts.dataset, facts.passes_left, &facts.quota);
            self.first.entry(facts.job).or_insert_with(keep);
        }
        let is_due = |job: &JobId| {
            let decision = self.decided.get(job);
            decision.is_none_or(|decision| decision.kept.is_none() && now >= decision.at + AGAIN_MS)
        };
        let open: Vec<JobId> = observer.could_keep(now).into_iter().filter(is_due).collect();
        if !open.is_empty() {
            self.choose(now, &open, observer, settings, deadline);
        }
        self.keeps()
    }

    fn keeps(&self) -> BTreeMap<JobId, Option<CacheDecision>> {
        let decided = |(job, first): (&JobId, &Option<CacheDecision>)| {
            let decision = self.decided.get(job);
            (*job, decision.map_or(*first, |decision| decision.kept.as_ref().map(|kept| kept.keep)))
        };
        self.first.iter().map(decided).collect()
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
        // Any worker may get any row, and each keeps its own copies but for those in the store.
        let copies = problem.workers.len().max(1) as f64;
        problem.store_cache_bytes *= copies;
        problem.copies = copies;
        let mut asked = BTreeSet::new();
        for job in &mut problem.jobs {
            if let Some(kept) = self.decided.get(&job.id).and_then(|decision| decision.kept.as_ref()) {
                let (demand_rows_per_s, store) = (job.demand_rows_per_s, job.store);
                let (tenant, weight) = (job.tenant, job.weight);
                *job = JobProblem { demand_rows_per_s, store, tenant, weight, ..kept.job.clone() };
            } else if open.contains(&job.id)
                // One that has found all its rows, kept by others, says nothing of what they cost: it goes on so.
                && let Some(unkept) = observer.unkept(job.id, &types).filter(|job| !job.cuts.is_empty())
            {
                asked.insert(job.id);
                let (store, tenant, weight) = (job.store, job.tenant, job.weight);
                *job = JobProblem { cache: CachePolicy::Free, store, tenant, weight, ..unkept };
                let cpu_s = mean(&job.overhead_cpu_s)
                    + job.operators.iter().map(|operator| mean(&operator.cpu_s)).sum::<f64>();
                job.cuts
                    .retain(|cut| KEEP_S_PER_ROW + KEEP_S_PER_BYTE * cut.bytes_per_row <= KEEP_SHARE * cpu_s);
                job.cuts.iter_mut().for_each(|cut| cut.bytes *= copies);
            }
        }
        let Ok(plan) = solve(&problem, None, deadline) else { return };
        if plan.is_fallback {
            return;
        }
        for (job, planned) in problem.jobs.iter().zip(&plan.jobs).filter(|(job, _)| asked.contains(&job.id)) {
            let kept = planned.kept.and_then(|kept| {
                let cut = job.cuts.iter().position(|cut| cut.key == kept.key)?;
                let keep = CacheDecision { after: kept.after as u32, tier: kept.tier, form: kept.form };
                let cache = CachePolicy::Pinned { cut, tier: kept.tier };
                Some(Kept { keep, job: JobProblem { cache, ..job.clone() } })
            });
            self.decided.insert(job.id, Decision { at: now, kept });
        }
    }
}

fn mean(by_type: &[f64]) -> f64 {
    by_type.iter().sum::<f64>() / by_type.len().max(1) as f64
}
