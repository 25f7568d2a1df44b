//! The report of a run: cost, fed fractions, the delay of scaling, and an audit of rows.

use serde::Serialize;

use super::scaling_rule::ScalingRule;

/// The report of one run with one rule. Sums do not include the warm-up of the scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SimulationReport {
    /// The scenario.
    pub scenario: String,
    /// The rule.
    pub rule: ScalingRule,
    /// Seconds of all workers, each from the decision to start it until it left.
    pub worker_seconds: f64,
    /// Seconds that consumers waited for rows, over all consumers.
    pub stall_seconds: f64,
    /// The smallest fed fraction of a job: the share of the time for which its consumers did not wait.
    pub smallest_fed: f64,
    /// The mean fed fraction over all jobs and seconds.
    pub mean_fed: f64,
    /// Decisions that changed the number of workers.
    pub actions: u32,
    /// Decisions within 300 s after the last change of demand that reversed the previous decision.
    pub oscillations: u32,
    /// Changes of demand.
    pub steps: Vec<DemandChange>,
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
    /// The share of the time for which the job's consumers did not wait.
    pub fed: f64,
    /// The mean planned fed fraction; `None` if no plan contained the job.
    pub planned_fed: Option<f64>,
}

/// One second of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SimulatedSecond {
    /// The end of the second, in seconds since the start.
    pub at_s: u32,
    /// Paid workers.
    pub workers: u32,
    /// Workers that the plan wants.
    pub wanted: u32,
    /// Rows per second that all consumers could take.
    pub demand_rows_per_s: f64,
    /// Rows delivered.
    pub rows: u64,
    /// The smallest fed fraction of a job: the share of the time in which its consumers did not wait.
    pub smallest_fed: f64,
    /// The mean fed fraction over all jobs.
    pub mean_fed: f64,
}

/// A change of the demand of all jobs together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DemandChange {
    /// The time of the change, in seconds since the start.
    pub at_s: u32,
    /// The demand before, in rows per second.
    pub from_rows_per_s: f64,
    /// The demand after, in rows per second.
    pub to_rows_per_s: f64,
    /// Seconds until each job had at least the fed fraction [`DemandChange::FED`] until the next change; `None` if
    /// that did not happen.
    pub fed_after_s: Option<u32>,
    /// Seconds until the last worker left before the next change; `None` if no worker left.
    pub released_after_s: Option<u32>,
    /// Workers before the next change.
    pub workers: u32,
}

impl DemandChange {
    /// The fed fraction from which a job counts as fed.
    pub const FED: f64 = 0.95;

    /// Whether the demand increased.
    pub fn is_up(&self) -> bool {
        self.to_rows_per_s > self.from_rows_per_s
    }
}

/// A decision that changed the number of workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScalingChange {
    /// The time of the decision, in seconds since the start.
    pub at_s: u32,
    /// Workers that ran or started before the decision.
    pub from: u32,
    /// Wanted workers.
    pub to: u32,
    /// The reason, as text for users.
    pub why: String,
}

/// The audit of delivered rows against positions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SimulatedAudit {
    /// Audited streams.
    pub streams: u32,
    /// Rows that consumers took.
    pub rows: u64,
    /// Rows that workers computed. The number is larger than `rows` by rows in flight and rows that were computed
    /// twice.
    pub computed_rows: u64,
    /// Streams whose position differs from the number of rows taken: rows were lost or delivered twice.
    pub broken_streams: u32,
    /// Streams for which the coordinator's position differs from the consumer's after its last report.
    pub unacknowledged_streams: u32,
}

impl SimulatedAudit {
    /// Whether each row was delivered exactly once.
    pub fn is_clean(&self) -> bool {
        self.rows > 0 && self.broken_streams == 0 && self.unacknowledged_streams == 0
    }
}
