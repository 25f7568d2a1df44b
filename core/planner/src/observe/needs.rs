//! From a plan to what scaling is decided by.

use feedline_data::ids::Millis;
use feedline_data::view::BottleneckKind;

use super::Observer;

use crate::model::{JobResources, WorkerTypeShare, bottleneck};
use crate::plan::{JobPlan, Plan, Problem, ScaleInput};

/// A job that is planned to have this part of what it could take is not short of workers.
const FED: f64 = 0.99;

/// What the jobs need, as the last plan has it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ResourceNeeds {
    /// Whether that is known: a job that has given no rows yet may need anything.
    pub is_known: bool,
    /// Workers that would feed all.
    pub wanted: u32,
    /// The smallest fed fraction.
    pub fed_fraction: f64,
    /// What bounds the least fed job on what the plan gives it; of several that are short, one that more workers would help.
    pub bound: Option<BottleneckKind>,
}

impl ResourceNeeds {
    /// What is decided by, where so many workers are there or on their way. What is not known asks for no change.
    pub fn input(&self, now: Millis, present: u32) -> ScaleInput {
        let wanted = if self.is_known { self.wanted } else { present };
        ScaleInput { now, present, wanted, fed_fraction: self.fed_fraction, bound: self.bound }
    }
}

impl Observer {
    /// What the jobs need by a plan for this problem, which came from this observer; without a plan nothing is known,
    /// unless there is no job.
    pub fn needs(&self, plan: Option<&Plan>, problem: &Problem) -> ResourceNeeds {
        if self.jobs.is_empty() {
            return ResourceNeeds { is_known: true, fed_fraction: 1.0, ..ResourceNeeds::default() };
        }
        let Some(plan) = plan else { return ResourceNeeds::default() };
        ResourceNeeds {
            is_known: problem.jobs.len() == self.jobs.len() && plan.jobs.len() == problem.jobs.len(),
            wanted: plan.wanted.iter().map(|kind| kind.wanted).sum(),
            fed_fraction: plan.jobs.iter().map(|job| job.fed_fraction).fold(1.0, f64::min),
            bound: self.bound(plan, problem),
        }
    }

    /// What bounds the least fed job. Where more workers would not help that one, what bounds the least fed of those that they
    /// would help.
    fn bound(&self, plan: &Plan, problem: &Problem) -> Option<BottleneckKind> {
        let mut jobs: Vec<&JobPlan> = plan.jobs.iter().collect();
        jobs.sort_by(|a, b| a.fed_fraction.total_cmp(&b.fed_fraction));
        let least = self.bound_of(jobs.first()?, problem);
        let is_helped =
            |kind: &BottleneckKind| !matches!(kind, BottleneckKind::Store | BottleneckKind::Consumer);
        let short = jobs.iter().filter(|job| job.fed_fraction < FED);
        short.filter_map(|job| self.bound_of(job, problem)).find(is_helped).or(least)
    }

    fn bound_of(&self, job: &JobPlan, problem: &Problem) -> Option<BottleneckKind> {
        if self.waits_for_store(job.job) {
            return Some(BottleneckKind::Store);
        }
        let model = self.model(job.job)?;
        let types = problem.worker_types.iter().zip(&job.cores_by_type);
        let workers = types.filter(|(_, cores)| **cores > 0.0).map(|(kind, cores)| WorkerTypeShare {
            worker_type: kind.name.clone(),
            count: 1,
            cores: *cores,
            nic_bytes_per_s: kind.nic_bytes_per_s,
        });
        let locality = self.locality(job.job);
        let allocation = JobResources { workers: workers.collect(), locality, ..JobResources::default() };
        bottleneck(&model, &allocation).map(|bound| bound.kind)
    }
}
