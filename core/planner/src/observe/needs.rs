//! From a plan to the input of a scaling decision.

use feedline_data::ids::Millis;
use feedline_data::view::BottleneckKind;

use super::Observer;

use crate::model::{JobResources, WorkerTypeResources, bottleneck};
use crate::plan::{JobPlan, Plan, Problem, ScaleInput};

/// A job with at least this planned fed fraction needs no more workers.
const FED: f64 = 0.99;

/// The needs of all jobs, according to the last plan.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ResourceNeeds {
    /// Whether the needs are known: a job without rows has unknown needs.
    pub is_known: bool,
    /// The number of workers that would feed all jobs.
    pub wanted: u32,
    /// The smallest fed fraction.
    pub fed_fraction: f64,
    /// The bottleneck of the job with the smallest fed fraction, with its planned cores. If several jobs are short of
    /// rows, the bottleneck of one that more workers would help.
    pub bound: Option<BottleneckKind>,
}

impl ResourceNeeds {
    /// The input of a scaling decision, with the number of workers that run or start. Unknown needs request no
    /// change.
    pub fn input(&self, now: Millis, present: u32) -> ScaleInput {
        let wanted = if self.is_known { self.wanted } else { present };
        ScaleInput { now, present, wanted, fed_fraction: self.fed_fraction, bound: self.bound }
    }
}

impl Observer {
    /// The needs according to a plan for `problem`, which this observer made. Without a plan the needs are unknown,
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

    /// The bottleneck of the job with the smallest fed fraction. If more workers would not help this job, the
    /// bottleneck of the least fed job that they would help.
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
        let workers = types.filter(|(_, cores)| **cores > 0.0).map(|(kind, cores)| WorkerTypeResources {
            worker_type: kind.name.clone(),
            count: 1,
            cores: *cores,
            nic_bytes_per_s: kind.nic_bytes_per_s,
        });
        let locality = self.locality(job.job);
        let resources = JobResources { workers: workers.collect(), locality, ..JobResources::default() };
        bottleneck(&model, &resources).map(|bound| bound.kind)
    }
}
