//! What a run tells: cost, how well jobs were fed, how quickly workers came and went, and that no row was lost.

use serde::Serialize;

use super::rules::ScalingRule;

/// A run by one rule. Sums leave the scenario's warm-up out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SimulationReport {
    /// The scenario.
    pub scenario: String,
    /// The rule.
    pub rule: ScalingRule,
    /// Seconds of all workers from the decision to start each until it left.
    pub worker_seconds: f64,
    /// Seconds that consumers waited for rows, summed over them.
    pub stall_seconds: f64,
    /// The smallest fed fraction of any job in any second.
    pub smallest_fed: f64,
    /// The mean over seconds of all jobs' mean fed fraction.
    pub mean_fed: f64,
    /// Decisions that changed the number of workers.
    pub actions: u32,
    /// Decisions within five minutes after the last step of demand that went the other way than the one before.
    pub oscillations: u32,
    /// Steps of demand.
    pub steps: Vec<DemandChange>,
    /// Decisions that changed something, with their reasons.
    pub decisions: Vec<ScalingChange>,
    /// Whether each row was delivered once.
    pub audit: SimulatedAudit,
    /// Each job.
    pub jobs: Vec<JobOutcome>,
    /// Each second of the run.
    pub seconds: Vec<SimulatedSecond>,
}

/// How well a job was fed, after the warm-up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Its name.
    pub name: String,
    /// The share of the time in which its consumers did not wait.
    pub fed: f64,
    /// The mean fed fraction that the plans gave it; `None` where no plan knew it.
    pub planned_fed: Option<f64>,
}

/// A second of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SimulatedSecond {
    /// The second, from the start; what it tells is of the time up to then.
    pub at_s: u32,
    /// Workers that cost.
    pub workers: u32,
    /// Workers that the plan wants.
    pub wanted: u32,
    /// Rows per second that all consumers could take.
    pub demand_rows_per_s: f64,
    /// Rows delivered.
    pub rows: u64,
    /// The smallest fed fraction of a job: the share of the time in which its consumers did not wait.
    pub smallest_fed: f64,
    /// The mean over jobs.
    pub mean_fed: f64,
}

/// A step of demand, of all jobs together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DemandChange {
    /// When.
    pub at_s: u32,
    /// Rows per second before.
    pub from_rows_per_s: f64,
    /// And after.
    pub to_rows_per_s: f64,
    /// Seconds until each job was fed to [`DemandChange::FED`], and stayed so until the next step; `None` where that did not
    /// come.
    pub fed_after_s: Option<u32>,
    /// Seconds until the last worker left, up to the next step; `None` where none did.
    pub released_after_s: Option<u32>,
    /// Workers at the end of the step.
    pub workers: u32,
}

impl DemandChange {
    /// The fed fraction that counts as fed.
    pub const FED: f64 = 0.95;

    /// Whether more is wanted than before.
    pub fn is_up(&self) -> bool {
        self.to_rows_per_s > self.from_rows_per_s
    }
}

/// A decision that changed the number of workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScalingChange {
    /// When.
    pub at_s: u32,
    /// Workers that there were, or were on their way.
    pub from: u32,
    /// Workers that there shall be.
    pub to: u32,
    /// One sentence.
    pub why: String,
}

/// Rows against positions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SimulatedAudit {
    /// Streams looked at.
    pub streams: u32,
    /// Rows that consumers took.
    pub rows: u64,
    /// Rows that workers computed; above the rows taken by those on their way, and those computed twice.
    pub computed_rows: u64,
    /// Streams whose position does not follow from the rows taken: some were lost or came twice.
    pub broken_streams: u32,
    /// Streams for which the coordinator's position is not the consumer's after its last report.
    pub unacknowledged_streams: u32,
}

impl SimulatedAudit {
    /// Whether each row was delivered once.
    pub fn is_clean(&self) -> bool {
        self.rows > 0 && self.broken_streams == 0 && self.unacknowledged_streams == 0
    }
}
