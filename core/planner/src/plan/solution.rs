//! The planner's solution.

use std::collections::BTreeMap;

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::JobAllocation;
use feedline_data::pipeline::{CacheEncoding, CacheTier};
use feedline_data::view::WantedWorkers;
use serde::{Deserialize, Serialize};

/// A plan for all jobs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The hash of the problem: [`super::Problem::fingerprint`].
    pub fingerprint: u64,
    /// The plan of each job, in the problem's order.
    pub jobs: Vec<JobPlan>,
    /// The planned caches.
    pub caches: Vec<CachePlan>,
    /// The number of workers that would feed all jobs, by type in the problem's order.
    pub wanted: Vec<WantedWorkers>,
    /// The objective that the plan reaches.
    pub objective: Objective,
    /// The upper bound of the objective: the linear problem in which each job uses the smallest amount of each
    /// resource among its options, and caches need no capacity. The cost does not include caches.
    pub bound: Objective,
    /// The largest possible distance of the plan from the best plan, as a share: of the smallest fed fraction, or of
    /// the total if the smallest fed fraction reaches its bound.
    pub gap: f64,
    /// Whether the deadline passed before the linear problem was solved.
    pub is_fallback: bool,
    /// Sentences that explain the decisions.
    pub reasons: Vec<String>,
}

/// The objective of a plan. Values are compared from the first to the last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// The smallest fed fraction over weight, where the largest weight is 1.
    pub smallest_fed: f64,
    /// The sum of fed fractions times weights. Fed fractions of different jobs can be added, while rates cannot.
    pub total_fed: f64,
    /// The price of the used cores and bytes, per hour.
    pub cost_per_hour: f64,
}

impl JobPlan {
    /// Cores of the job over all workers.
    pub fn cores(&self) -> f64 {
        self.allocations.values().map(|allocation| allocation.cores).sum()
    }
}

impl Objective {
    /// Whether this objective is better by more than a share of the other's value, in the first value that differs by
    /// this much.
    pub fn is_better(&self, other: &Self, share: f64) -> bool {
        let pairs = [
            (self.smallest_fed, other.smallest_fed),
            (self.total_fed, other.total_fed),
            (-self.cost_per_hour, -other.cost_per_hour),
        ];
        for (mine, others) in pairs {
            let margin = share * others.abs() + 1e-9;
            if mine > others + margin {
                return true;
            }
            if mine < others - margin {
                return false;
            }
        }
        false
    }
}

/// The plan of one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobPlan {
    /// The job.
    pub job: JobId,
    /// The job's name.
    pub name: String,
    /// The planned rows per second.
    pub rows_per_s: f64,
    /// Rows per second that the job's consumers could take.
    pub demand_rows_per_s: f64,
    /// The planned rate over the demand.
    pub fed_fraction: f64,
    /// Cores on each worker type, in the problem's order.
    pub cores_by_type: Vec<f64>,
    /// The job's allocation on each worker. The cores are not rounded.
    pub allocations: BTreeMap<WorkerId, JobAllocation>,
    /// The limit of each operator on each worker, in the order of operators.
    pub limits: Vec<OperatorLimit>,
    /// The planned cache point.
    pub cache: Option<PlannedCachePoint>,
    /// The resource that bounds the job, as text for users.
    pub why: String,
}

/// The largest number of concurrent executions of an operator on each worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorLimit {
    /// The operator.
    pub operator: String,
    /// The limit.
    pub limit: u32,
    /// Whether the pipeline pins the limit.
    pub is_pinned: bool,
}

/// A cache point of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedCachePoint {
    /// The index of the operator whose output is cached.
    pub after: usize,
    /// The tier.
    pub tier: CacheTier,
    /// The encoding of the cached rows.
    pub encoding: CacheEncoding,
    /// The key of the cached rows: see [`super::CachePointProblem::key`].
    pub key: u64,
}

/// Cached rows of one or several jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachePlan {
    /// The key of the cached rows: see [`super::CachePointProblem::key`].
    pub key: u64,
    /// The tier.
    pub tier: CacheTier,
    /// The size in bytes.
    pub bytes: f64,
    /// The jobs that read the rows.
    pub jobs: Vec<JobId>,
}
