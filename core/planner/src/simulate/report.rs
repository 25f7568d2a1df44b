//! The report of a simulation run: cost, fed fractions, the delay of scaling, and an audit of rows.

use serde::Serialize;

use super::scaling_rule::ScalingRule;

/// The report of a simulation run with one scaling rule. Totals exclude the warm-up of the scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SimulationReport {
    /// The name of the scenario.
    pub scenario: String,
    /// The scaling rule.
    pub rule: ScalingRule,
    /// Total seconds of all workers, from the decision to start a worker until it leaves.
    pub worker_seconds: f64,
    /// Total seconds that consumers waited for rows.
    pub stall_seconds: f64,
    /// The smallest fed fraction of any job in any second. The fed fraction is the share of the time that consumers did
    /// not wait.
    pub smallest_fed: f64,
    /// The mean fed fraction over all jobs and seconds.
    pub mean_fed: f64,
    /// The number of decisions that changed the number of workers.
    #[serde(rename = "actions")]
    pub decision_count: u32,
    /// The number of decisions that reversed the previous decision within 300 s after the last change of demand.
    pub oscillations: u32,
    /// Changes of the total demand, with their effects.
    #[serde(rename = "steps")]
    pub demand_changes: Vec<DemandChange>,
    /// Decisions that changed the number of workers, with their reasons.
    pub decisions: Vec<ScalingChange>,
    /// The audit of delivered rows.
    pub audit: SimulatedAudit,
    /// The outcome of each job.
    pub jobs: Vec<JobOutcome>,
    /// All seconds of the run.
    pub seconds: Vec<SimulatedSecond>,
}

/// The fed fractions of one job after the warm-up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobOutcome {
    /// The job's name.
    pub name: String,
    /// The share of the time that the job's consumers did not wait.
    #[serde(rename = "fed")]
    pub fed_fraction: f64,
    /// The mean planned fed fraction; `None` if no plan contained the job.
    pub planned_fed: Option<f64>,
}

/// One second of a simulation run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SimulatedSecond {
    /// The end of the second, in seconds since the start.
    pub at_s: u32,
    /// The number of paid workers.
    pub workers: u32,
    /// The number of workers that the plan wants.
    pub wanted: u32,
    /// Rows per second that all consumers could process.
    pub demand_rows_per_s: f64,
    /// Rows delivered in this second.
    pub rows: u64,
    /// Rows of jobs with `arrival` that have arrived and are not delivered.
    pub lag_rows: u64,
    /// The smallest fed fraction of any job in this second. The fed fraction is the share of the time that consumers
    /// did not wait.
    pub smallest_fed: f64,
    /// The mean fed fraction over all jobs.
    pub mean_fed: f64,
}

/// A change of the total demand of all jobs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DemandChange {
    /// The time of the change, in seconds since the start.
    pub at_s: u32,
    /// The demand before the change, in rows per second.
    pub from_rows_per_s: f64,
    /// The demand after the change, in rows per second.
    pub to_rows_per_s: f64,
    /// Seconds after which all jobs stayed at or above [`DemandChange::FED_THRESHOLD`] until the next change; `None` if
    /// a job did not.
    pub fed_after_s: Option<u32>,
    /// Seconds until the number of workers decreased for the last time before the next change; `None` without a decrease.
    pub released_after_s: Option<u32>,
    /// The number of workers just before the next change.
    pub workers: u32,
}

impl DemandChange {
    /// Jobs with at least this fed fraction count as fed.
    pub const FED_THRESHOLD: f64 = 0.95;

    /// Whether the demand increased.
    pub fn is_increase(&self) -> bool {
        self.to_rows_per_s > self.from_rows_per_s
    }
}

/// A decision that changed the number of workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScalingChange {
    /// The time of the decision, in seconds since the start.
    pub at_s: u32,
    /// The number of running and starting workers before the decision.
    #[serde(rename = "from")]
    pub from_workers: u32,
    /// The number of workers after the decision.
    #[serde(rename = "to")]
    pub to_workers: u32,
    /// The reason, as text for users.
    #[serde(rename = "why")]
    pub explanation: String,
}

/// The result of comparing delivered rows with positions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SimulatedAudit {
    /// The number of audited streams.
    pub streams: u32,
    /// Number of rows that consumers received in batches.
    pub rows: u64,
    /// Number of rows that workers computed. Includes rows in flight, and counts a recomputed row each time.
    pub computed_rows: u64,
    /// The number of streams whose position differs from the number of delivered rows: rows were lost or delivered twice.
    pub broken_streams: u32,
    /// The number of streams whose position at the coordinator differs from the consumer's position after its last
    /// report.
    pub unacknowledged_streams: u32,
}

impl SimulatedAudit {
    /// Whether each row was delivered exactly once.
    pub fn is_clean(&self) -> bool {
        self.rows > 0 && self.broken_streams == 0 && self.unacknowledged_streams == 0
    }
}
