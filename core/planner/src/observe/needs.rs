//! Derives the input of a scaling decision from a plan.

use feedline_data::ids::Millis;
use feedline_data::view::BottleneckKind;

use super::Observer;

use crate::model::{JobResources, WorkerTypeResources, bottleneck};
use crate::plan::{JobPlan, Plan, PoolProblem, Problem, ScaleInput};

#[cfg(test)]
mod tests;

/// A job with at least this planned fed fraction does not need more workers.
const SUFFICIENT_FED_FRACTION: f64 = 0.99;

/// The workers that all jobs need, according to the last plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResourceNeeds {
    /// Whether the needs are known. They are unknown while any running job has no rows yet, while all jobs are being
    /// indexed, and while no worker can compute the rows of the jobs.
    pub is_known: bool,
    /// The number of workers that would feed all jobs.
    pub wanted_workers: u32,
    /// The smallest fed fraction.
    pub fed_fraction: f64,
    /// The bottleneck, at the planned cores, of the job with the smallest fed fraction. If more workers would not help
    /// this job but would help another underfed job, the bottleneck of that job.
    pub bottleneck: Option<BottleneckKind>,
    /// The needs of each pool whose size a scaler sets.
    pub pools: Vec<PoolNeeds>,
}

/// The workers of a pool that all jobs need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolNeeds {
    /// The pool.
    pub pool: String,
    /// The number of workers, which exceeds the maximum of the pool if all pools together are too small. `None` while it
    /// is unknown: the needs are unknown, or no worker of the pool has reported.
    pub wanted_workers: Option<u32>,
}

impl ResourceNeeds {
    /// Returns the input of a scaling decision. `current_workers` is the number of running and starting workers. If the
    /// needs are unknown, the input keeps this number.
    pub fn scale_input(&self, now: Millis, current_workers: u32) -> ScaleInput {
        let wanted_workers = if self.is_known { self.wanted_workers } else { current_workers };
        let (fed_fraction, bottleneck) = (self.fed_fraction, self.bottleneck);
        ScaleInput { now, current_workers, wanted_workers, fed_fraction, bottleneck }
    }

    /// Returns the number of wanted workers of a pool, or `None` while it is unknown.
    pub fn wanted_in(&self, pool: &str) -> Option<u32> {
        self.pools.iter().find(|needs| needs.pool == pool)?.wanted_workers
    }

    /// Returns the input of a scaling decision for a pool. `current_workers` is the number of running and starting workers
    /// of the pool. If the needs are unknown, the input keeps this number.
    pub fn pool_scale_input(&self, pool: &str, now: Millis, current_workers: u32) -> ScaleInput {
        let wanted_workers = self.wanted_in(pool).unwrap_or(current_workers);
        ScaleInput { wanted_workers, ..self.scale_input(now, current_workers) }
    }
}

impl Observer {
    /// Returns the needs according to a plan for `problem`, which this observer has built. Without a plan, the needs are
    /// unknown unless there are no jobs.
    pub fn needs(&self, plan: Option<&Plan>, problem: &Problem) -> ResourceNeeds {
        if self.jobs.is_empty() && self.preparing_jobs == 0 {
            let pools = self.pool_needs(|_| Some(0));
            return ResourceNeeds { is_known: true, fed_fraction: 1.0, pools, ..ResourceNeeds::default() };
        }
        let Some(plan) = plan else {
            return ResourceNeeds { pools: self.pool_needs(|_| None), ..ResourceNeeds::default() };
        };
        let wanted_workers: u32 = plan.wanted_workers.iter().map(|kind| kind.wanted).sum();
        let has_all_jobs = problem.jobs.len() == self.jobs.len() && plan.jobs.len() == problem.jobs.len();
        // Without a live worker, a plan does not contain the needs of the jobs.
        let is_known = has_all_jobs && wanted_workers > 0;
        ResourceNeeds {
            is_known,
            pools: self.pool_needs(|pool| wanted_in(plan, problem, pool).filter(|_| is_known)),
            wanted_workers,
            fed_fraction: plan.jobs.iter().map(|job| job.fed_fraction).fold(1.0, f64::min),
            bottleneck: self.limiting_bottleneck(plan, problem),
        }
    }

    fn pool_needs(&self, wanted_workers: impl Fn(&str) -> Option<u32>) -> Vec<PoolNeeds> {
        let needs = |pool: &PoolProblem| PoolNeeds {
            pool: pool.name.clone(),
            wanted_workers: wanted_workers(&pool.name),
        };
        self.pools.iter().map(needs).collect()
    }

    /// Returns the bottleneck of the job with the smallest fed fraction. If more workers would not help this job, returns
    /// the bottleneck of the least fed job that more workers would help.
    fn limiting_bottleneck(&self, plan: &Plan, problem: &Problem) -> Option<BottleneckKind> {
        let mut jobs: Vec<&JobPlan> = plan.jobs.iter().collect();
        jobs.sort_by(|a, b| a.fed_fraction.total_cmp(&b.fed_fraction));
        let least = self.planned_bottleneck(jobs.first()?, problem);
        let is_helped =
            |kind: &BottleneckKind| !matches!(kind, BottleneckKind::Store | BottleneckKind::Consumer);
        let short = jobs.iter().filter(|job| job.fed_fraction < SUFFICIENT_FED_FRACTION);
        short.filter_map(|job| self.planned_bottleneck(job, problem)).find(is_helped).or(least)
    }

    fn planned_bottleneck(&self, job: &JobPlan, problem: &Problem) -> Option<BottleneckKind> {
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

/// Returns the number of workers of a pool that a plan for `problem` wants, or `None` if no worker type of the pool is
/// known.
fn wanted_in(plan: &Plan, problem: &Problem, pool: &str) -> Option<u32> {
    let types = problem.worker_types.iter().zip(&plan.wanted_workers);
    let mut own = types.filter(|(kind, _)| kind.pool == pool).map(|(_, wanted)| wanted.wanted).peekable();
    own.peek()?;
    Some(own.sum())
}
