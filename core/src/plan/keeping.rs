//! Which cuts running jobs keep although their pipelines name no `cache`.
//!
//! A plan counts what jobs take now. What a cache would save is decided beside it, once for each job: when its costs have been
//! seen for a while and rows will be asked for again. From then on the job is reckoned with as it was before anything was
//! kept, so that jobs that come later choose beside it, and what several jobs read is paid for once.

use std::collections::BTreeMap;

use super::problem::{CachePolicy, JobProblem, Settings};
use super::solve::{Deadline, solve};
use crate::cluster::messages::Keep;
use crate::ids::{JobId, Millis};
use crate::observe::Observer;

#[cfg(test)]
mod tests;

/// A job for which nothing was worth keeping is looked at again after so long: others end, workers come.
const AGAIN_MS: Millis = 30_000;

/// What was decided so far.
#[derive(Debug, Clone, Default)]
pub struct Keeping {
    decided: BTreeMap<JobId, Decision>,
}

#[derive(Debug, Clone)]
struct Decision {
    at: Millis,
    /// What is kept, and the job as it was before.
    kept: Option<Kept>,
}

#[derive(Debug, Clone)]
struct Kept {
    keep: Keep,
    /// With the cut that is kept pinned.
    job: JobProblem,
}

impl Keeping {
    /// What jobs shall keep, as seen at `now`.
    pub fn decide(
        &mut self,
        now: Millis,
        observer: &Observer,
        settings: Settings,
        deadline: &dyn Deadline,
    ) -> BTreeMap<JobId, Keep> {
        self.decided.retain(|job, _| observer.observation(*job).is_some());
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

    fn keeps(&self) -> BTreeMap<JobId, Keep> {
        let keep = |(job, decision): (&JobId, &Decision)| Some((*job, decision.kept.as_ref()?.keep));
        self.decided.iter().filter_map(keep).collect()
    }

    fn choose(
        &mut self,
        now: Millis,
        open: &[JobId],
        observer: &Observer,
        settings: Settings,
        deadline: &dyn Deadline,
    ) {
        let mut problem = observer.problem(settings, CachePolicy::Never);
        for job in &mut problem.jobs {
            if let Some(kept) = self.decided.get(&job.id).and_then(|decision| decision.kept.as_ref()) {
                *job = JobProblem { demand_rows_per_s: job.demand_rows_per_s, ..kept.job.clone() };
            } else if open.contains(&job.id) {
                job.cache = CachePolicy::Free;
            }
        }
        let Ok(plan) = solve(&problem, None, deadline) else { return };
        if plan.is_fallback {
            return;
        }
        for (job, planned) in problem.jobs.iter().zip(&plan.jobs).filter(|(job, _)| open.contains(&job.id)) {
            let kept = planned.kept.and_then(|kept| {
                let cut = job.cuts.iter().position(|cut| cut.key == kept.key)?;
                let keep = Keep { after: kept.after as u32, tier: kept.tier, form: kept.form };
                let cache = CachePolicy::Pinned { cut, tier: kept.tier };
                Some(Kept { keep, job: JobProblem { cache, ..job.clone() } })
            });
            self.decided.insert(job.id, Decision { at: now, kept });
        }
    }
}
