//! What the planner answers.

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::pipeline::{CacheEncoding, CacheTier};
use feedline_data::view::WantedWorkers;
use serde::{Deserialize, Serialize};

/// Who works on what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The problem that it answers: [`super::Problem::fingerprint`].
    pub fingerprint: u64,
    /// Jobs, in the problem's order.
    pub jobs: Vec<JobPlan>,
    /// What is kept.
    pub caches: Vec<CachePlan>,
    /// Workers that would feed all jobs, by type in the problem's order.
    pub wanted: Vec<WantedWorkers>,
    /// What the plan reaches.
    pub objective: Objective,
    /// What no plan exceeds: the linear problem where each job takes of each resource what its most sparing way takes, as
    /// if caches needed no room. Its cost leaves caches out.
    pub bound: Objective,
    /// How far the plan may be from the best, as a share: of the smallest fed fraction, or where that is the bound's, of
    /// the total.
    pub gap: f64,
    /// Whether there was no time for the linear problem.
    pub is_fallback: bool,
    /// Sentences on what was decided and why.
    pub reasons: Vec<String>,
}

/// What a plan reaches; compared from the first to the last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// The smallest fed fraction over weight, where the largest weight is 1.
    pub smallest_fed: f64,
    /// Sum of fed fractions times weights: rows of different jobs cannot be added, shares of what each could take can.
    pub total_fed: f64,
    /// Price of the cores and bytes used, per hour.
    pub cost_per_hour: f64,
}

impl Objective {
    /// Whether this is better by more than a share of the other's value, in the first value that differs so much.
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

/// What a job gets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobPlan {
    /// The job.
    pub job: JobId,
    /// Its name.
    pub name: String,
    /// Rows per second that it should get.
    pub rows_per_s: f64,
    /// Rows per second that its consumers could take.
    pub demand_rows_per_s: f64,
    /// Rate over demand.
    pub fed_fraction: f64,
    /// Cores of each worker type, in the problem's order.
    pub cores_by_type: Vec<f64>,
    /// Cores of each worker, by worker.
    pub assignments: Vec<Assignment>,
    /// Limits of its operators on each worker, in order of operators.
    pub limits: Vec<OperatorLimit>,
    /// What it keeps or reads from a cache.
    pub kept: Option<PlannedCachePoint>,
    /// What bounds it: one sentence.
    pub why: String,
}

/// A worker's part in a job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// The worker.
    pub worker: WorkerId,
    /// Cores that the job may use, not always whole: jobs share cores by weight.
    pub cores: f64,
    /// Rows per second that it should give.
    pub rows_per_s: f64,
    /// Requests to the store in flight at most.
    pub read_concurrency: u32,
}

/// Executions of an operator that may go on at once on each worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorLimit {
    /// The operator.
    pub operator: String,
    /// The limit.
    pub limit: u32,
    /// Whether the user or the operator's nature set it.
    pub is_pinned: bool,
}

/// A cut that a job keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedCachePoint {
    /// Place of the operator whose output is kept.
    pub after: usize,
    /// Where.
    pub tier: CacheTier,
    /// In which form.
    pub form: CacheEncoding,
    /// Fingerprint of what is kept.
    pub key: u64,
}

/// Something kept, for one or several jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachePlan {
    /// Fingerprint of dataset and operators up to the cut.
    pub key: u64,
    /// Where.
    pub tier: CacheTier,
    /// Size in bytes.
    pub bytes: f64,
    /// Jobs that read it.
    pub jobs: Vec<JobId>,
}
