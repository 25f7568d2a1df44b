//! The result of the planner.

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
    /// The plan of each job, in the order of the problem.
    pub jobs: Vec<JobPlan>,
    /// The planned caches.
    pub caches: Vec<CachePlan>,
    /// The number of workers of each type that would feed all jobs, in the order of the problem.
    #[serde(rename = "wanted")]
    pub wanted_workers: Vec<WantedWorkers>,
    /// The objective of the plan.
    pub objective: Objective,
    /// The upper bound on the objective of any plan: the solution of the linear problem if each job needs the smallest
    /// amount of each resource among its options, and caches need no capacity. The cost does not include caches.
    #[serde(rename = "bound")]
    pub objective_bound: Objective,
    /// The relative distance of the objective from its upper bound. Compares the smallest fed fractions, or the sums of
    /// fed fractions if the smallest fed fraction reaches its bound.
    pub gap: f64,
    /// Whether the deadline passed before the linear problem was solved.
    pub is_fallback: bool,
    /// Sentences that explain the decisions.
    pub reasons: Vec<String>,
}

/// The objective of a plan. Objectives are compared lexicographically.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// The smallest ratio of fed fraction to weight over all jobs. The largest weight is 1.
    pub smallest_fed: f64,
    /// The weighted sum of fed fractions.
    pub total_fed: f64,
    /// The price of the used cores and cached bytes, per hour.
    pub cost_per_hour: f64,
}

impl JobPlan {
    /// Returns the cores of the job over all workers.
    pub fn cores(&self) -> f64 {
        self.allocations.values().map(|allocation| allocation.cores).sum()
    }
}

impl Objective {
    /// Whether this objective is better than `other`. Values whose relative difference is at most `share` are
    /// considered equal.
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
    /// The demand of the job in rows per second.
    pub demand_rows_per_s: f64,
    /// The planned rate divided by the demand.
    pub fed_fraction: f64,
    /// Cores on each worker type, in the order of the problem.
    pub cores_by_type: Vec<f64>,
    /// The job's allocation on each worker, with unrounded cores.
    pub allocations: BTreeMap<WorkerId, JobAllocation>,
    /// The limit of each operator on each worker, in the order of the operators.
    #[serde(rename = "limits")]
    pub operator_limits: Vec<OperatorLimit>,
    /// The planned cache point.
    pub cache: Option<PlannedCachePoint>,
    /// The resource that limits the job, as text for users.
    #[serde(rename = "why")]
    pub explanation: String,
}

/// Maximum number of concurrent executions of an operator on each worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorLimit {
    /// The operator.
    pub operator: String,
    /// The limit.
    pub limit: u32,
    /// Whether the pipeline pins the limit.
    pub is_pinned: bool,
}

/// The cache point that the plan chose for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedCachePoint {
    /// The index of the operator whose output is cached.
    #[serde(rename = "after")]
    pub operator_index: usize,
    /// The tier.
    pub tier: CacheTier,
    /// The encoding of the cached rows.
    pub encoding: CacheEncoding,
    /// The key of the cached rows: see [`super::CachePointProblem::key`].
    pub key: u64,
}

/// Cached rows, which one or more jobs read.
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
