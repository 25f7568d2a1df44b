//! The definition of a simulation: workers, jobs with their demand over time, and scaling.

use std::collections::BTreeMap;

use feedline_data::tenants::{Quota, Tenants};
use serde::{Deserialize, Serialize};

use super::scaling_rule::ScalingRule;

/// A simulation. Times are in seconds of simulated time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name shown in reports.
    pub name: String,
    /// The seed of the times of first reports.
    #[serde(default)]
    pub seed: u64,
    /// The length of the run.
    pub duration_s: u32,
    /// Seconds from the start that the sums of the report do not include, while jobs open and first rows arrive.
    #[serde(default = "default_warm_up")]
    pub warm_up_s: u32,
    /// The types of workers. Workers that are started during the run have the first type.
    pub worker_types: Vec<ScenarioWorkerType>,
    /// Jobs.
    pub jobs: Vec<ScenarioJob>,
    /// The bandwidth of the store in bytes per second, for all workers together; 0 for no limit.
    #[serde(default)]
    pub store_bytes_per_s: f64,
    /// The quotas of tenants. A missing tenant has no quota.
    #[serde(default)]
    pub tenants: BTreeMap<String, Quota>,
    /// Scaling of workers.
    #[serde(default)]
    pub scaling: ScenarioScaling,
    /// The intervals of reports, and the numbers of splits ahead.
    #[serde(default)]
    pub control: ScenarioControl,
}

/// A type of worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioWorkerType {
    /// Name.
    pub name: String,
    /// CPU cores.
    pub cores: u32,
    /// The speed of a core relative to the core of the jobs' CPU seconds.
    #[serde(default = "default_factor")]
    pub speed: f64,
    /// Memory budget in GiB.
    #[serde(default = "default_memory")]
    pub memory_gib: f64,
    /// Workers of this type at the start.
    #[serde(default)]
    pub at_start: u32,
}

/// One job, or several equal jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioJob {
    /// The name. Several jobs have numbers after the name.
    pub name: String,
    /// The tenant of the jobs.
    #[serde(default)]
    pub tenant: String,
    /// The number of jobs.
    #[serde(default = "default_count")]
    pub count: u32,
    /// Operators between source and batch, in order.
    pub operators: Vec<ScenarioOperator>,
    /// Rows of a batch.
    #[serde(default = "default_batch")]
    pub batch_rows: u32,
    /// Rows of the dataset.
    #[serde(default = "default_rows")]
    pub dataset_rows: u64,
    /// Shards of the dataset.
    #[serde(default = "default_shards")]
    pub shards: u32,
    /// Passes over the dataset: many, so that no job ends during a run.
    #[serde(default = "default_epochs")]
    pub epochs: u32,
    /// Bytes read from the store for each row.
    #[serde(default = "default_row_bytes")]
    pub store_bytes_per_row: u64,
    /// Bytes of a delivered row.
    #[serde(default = "default_row_bytes")]
    pub delivered_bytes_per_row: u64,
    /// Consumers, with one stream each.
    #[serde(default = "default_count")]
    pub consumers: u32,
    /// The weight of the job while resources are short.
    #[serde(default = "default_factor")]
    pub weight: f64,
    /// The demand of all consumers together over time.
    pub demand: Vec<ScenarioDemand>,
}

/// An operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioOperator {
    /// Name, unique in the job.
    pub name: String,
    /// CPU seconds per row on a core of speed 1.
    pub cpu_s: f64,
}

/// The demand of a job's consumers from a time on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioDemand {
    /// The time from which this demand applies.
    pub at_s: u32,
    /// Rows per second of all consumers together.
    pub rows_per_s: f64,
}

/// Scaling of workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScenarioScaling {
    /// The scaling rule.
    pub rule: ScalingRule,
    /// The smallest number of workers.
    pub min_workers: u32,
    /// The largest number of workers.
    pub max_workers: u32,
    /// Seconds from the decision to start a worker until its first report.
    pub start_s: u32,
    /// Seconds for which fewer workers must have been enough before workers are removed; for the rule `plan`.
    pub shrink_after_s: u32,
    /// Seconds between two decisions of the rule `climb`.
    pub climb_every_s: u32,
    /// The relative change of the time per batch that counts; for the rule `climb`.
    pub climb_threshold: f64,
}

impl Default for ScenarioScaling {
    fn default() -> Self {
        Self {
            rule: ScalingRule::Plan,
            min_workers: 1,
            max_workers: 100,
            start_s: 5,
            shrink_after_s: 30,
            climb_every_s: 10,
            climb_threshold: 0.05,
        }
    }
}

/// The intervals of reports, and the numbers of splits ahead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScenarioControl {
    /// Milliseconds of one time step of the simulation.
    pub tick_ms: u64,
    /// Milliseconds for which the coordinator holds an unchanged plan: the longest time between two reports of a
    /// worker.
    pub hold_ms: u64,
    /// The shortest time between two reports of a worker in milliseconds; at least one time step.
    pub worker_report_ms: u64,
    /// The longest time between two reports of a consumer in milliseconds.
    pub consumer_report_ms: u64,
    /// The shortest time between two reports of a consumer in milliseconds; at least one time step.
    pub consumer_gap_ms: u64,
    /// Milliseconds between two plans.
    pub plan_ms: u64,
    /// Splits of a job that a worker holds and has not computed.
    pub leases_ahead: u32,
    /// Splits that a consumer fetches ahead.
    pub splits_ahead: u32,
    /// Whether workers and leases follow the plan. Otherwise jobs share all workers evenly.
    pub follow_plan: bool,
}

impl Default for ScenarioControl {
    fn default() -> Self {
        Self {
            tick_ms: 100,
            hold_ms: 500,
            worker_report_ms: 100,
            consumer_report_ms: 200,
            consumer_gap_ms: 100,
            plan_ms: 1_000,
            leases_ahead: 3,
            splits_ahead: 4,
            follow_plan: true,
        }
    }
}

impl Scenario {
    /// Reads a scenario from YAML and checks it.
    ///
    /// # Errors
    /// Returns a message with the line if known.
    pub fn from_yaml(text: &str) -> Result<Self, String> {
        let scenario: Self = serde_yaml_ng::from_str(text).map_err(|error| error.to_string())?;
        scenario.check()?;
        Ok(scenario)
    }

    /// A scenario with one job for each ten workers and one consumer for each two. Each worker of 8 cores computes at
    /// most 1,000 rows per second, and the mean demand is 70 % of that.
    pub fn of_size(workers: u32, duration_s: u32) -> Self {
        let jobs = (workers / 10).max(1);
        let kinds = jobs.min(5);
        let job = |kind: u32| {
            let count = jobs / kinds + u32::from(kind < jobs % kinds);
            let share = 0.7 + 0.15 * (f64::from(kind) - f64::from(kinds - 1) / 2.0);
            let operators = [("decode", 0.005), ("crop", 0.002), ("normalize", 0.001)];
            ScenarioJob {
                name: format!("kind{kind}-"),
                tenant: String::new(),
                count,
                operators: operators
                    .map(|(name, cpu_s)| ScenarioOperator { name: name.to_owned(), cpu_s })
                    .to_vec(),
                batch_rows: 128,
                dataset_rows: 10_000_000,
                shards: 64,
                epochs: default_epochs(),
                store_bytes_per_row: 60_000,
                delivered_bytes_per_row: 150_000,
                consumers: 5,
                weight: 1.0,
                demand: vec![ScenarioDemand { at_s: 0, rows_per_s: 10_000.0 * share }],
            }
        };
        Self {
            name: format!("{workers} workers"),
            seed: 1,
            duration_s,
            warm_up_s: default_warm_up().min(duration_s / 2),
            worker_types: vec![ScenarioWorkerType {
                name: "standard".to_owned(),
                cores: 8,
                speed: 1.0,
                memory_gib: 16.0,
                at_start: workers,
            }],
            jobs: (0..kinds).map(job).collect(),
            store_bytes_per_s: 0.0,
            tenants: BTreeMap::new(),
            scaling: ScenarioScaling {
                rule: ScalingRule::None,
                max_workers: workers,
                ..ScenarioScaling::default()
            },
            control: ScenarioControl {
                hold_ms: 500,
                worker_report_ms: 500,
                consumer_report_ms: 500,
                consumer_gap_ms: 500,
                ..ScenarioControl::default()
            },
        }
    }

    /// Checks the scenario.
    ///
    /// # Errors
    /// Returns a message that names the invalid value.
    pub fn check(&self) -> Result<(), String> {
        let positive = |value: f64| value > 0.0 && value.is_finite();
        if self.worker_types.is_empty() {
            return Err("the scenario has no worker_types: add at least one".to_owned());
        }
        for kind in &self.worker_types {
            if kind.cores == 0 || !positive(kind.speed) || !positive(kind.memory_gib) {
                return Err(format!("worker type `{}` needs cores, speed and memory_gib above 0", kind.name));
            }
        }
        if self.jobs.iter().all(|job| job.count == 0) {
            return Err("the scenario has no jobs: add at least one".to_owned());
        }
        for job in &self.jobs {
            job.check()?;
        }
        self.quotas().check()?;
        let control = &self.control;
        if control.tick_ms == 0 || !1000u64.is_multiple_of(control.tick_ms) {
            return Err(format!(
                "invalid tick_ms {}: expected a number that divides 1000, such as 100",
                control.tick_ms
            ));
        }
        if control.plan_ms == 0 || control.leases_ahead == 0 || control.splits_ahead == 0 {
            return Err("plan_ms, leases_ahead and splits_ahead must be 1 or more".to_owned());
        }
        let scaling = &self.scaling;
        if scaling.min_workers > scaling.max_workers || scaling.climb_every_s == 0 {
            return Err(
                "scaling needs min_workers of at most max_workers, and climb_every_s of 1 or more".to_owned()
            );
        }
        if self.store_bytes_per_s < 0.0 || !self.store_bytes_per_s.is_finite() {
            return Err(
                "store_bytes_per_s must be a finite number of at least 0; 0 means no limit".to_owned()
            );
        }
        Ok(())
    }
}

impl Scenario {
    /// The quotas of all tenants.
    pub(super) fn quotas(&self) -> Tenants {
        Tenants { tenants: self.tenants.clone(), ..Tenants::default() }
    }
}

impl ScenarioJob {
    fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if self.consumers == 0 || self.batch_rows == 0 || self.shards == 0 || self.epochs == 0 {
            return Err(format!("job `{name}` needs consumers, batch_rows, shards and epochs of 1 or more"));
        }
        if self.dataset_rows < u64::from(self.shards.max(self.consumers)) {
            return Err(format!(
                "job `{name}` has {} rows: expected at least one for each shard and each consumer",
                self.dataset_rows
            ));
        }
        let cpu_s: f64 = self.operators.iter().map(|operator| operator.cpu_s).sum();
        let is_sound = |operator: &ScenarioOperator| operator.cpu_s >= 0.0 && operator.cpu_s.is_finite();
        if !self.operators.iter().all(is_sound) || cpu_s <= 0.0 {
            return Err(format!("job `{name}` needs operators with CPU seconds, cpu_s, above 0 in all"));
        }
        let in_order = self.demand.is_sorted_by(|a, b| a.at_s < b.at_s);
        if self.demand.first().is_none_or(|first| first.at_s > 0) || !in_order {
            return Err(format!("the demand of job `{name}` needs steps in order of at_s, the first at 0"));
        }
        if self.demand.iter().any(|step| step.rows_per_s < 0.0 || !step.rows_per_s.is_finite()) {
            return Err(format!("job `{name}` has an invalid demand: expected rows_per_s of 0 or more"));
        }
        Ok(())
    }
}

fn default_factor() -> f64 {
    1.0
}

fn default_count() -> u32 {
    1
}

fn default_warm_up() -> u32 {
    30
}

fn default_memory() -> f64 {
    16.0
}

fn default_batch() -> u32 {
    128
}

fn default_rows() -> u64 {
    1_281_167
}

fn default_shards() -> u32 {
    64
}

fn default_epochs() -> u32 {
    1_000_000
}

fn default_row_bytes() -> u64 {
    100_000
}
