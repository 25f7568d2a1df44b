//! The definition of a simulation: workers, jobs, demand over time, and scaling.

use std::collections::BTreeMap;

use feedline_data::tenants::{Quota, Tenants};
use serde::{Deserialize, Serialize};

use super::scaling_rule::ScalingRule;

/// A simulation. Times are in seconds of simulated time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name of the scenario in reports.
    pub name: String,
    /// The seed for the random times of the first reports.
    #[serde(default)]
    pub seed: u64,
    /// The duration of the run.
    pub duration_s: u32,
    /// Duration of the warm-up, in which jobs open and the first rows arrive. The totals of the report exclude it.
    #[serde(default = "default_warm_up")]
    pub warm_up_s: u32,
    /// Worker types. Workers that are started during the run have the first type.
    pub worker_types: Vec<ScenarioWorkerType>,
    /// Jobs.
    pub jobs: Vec<ScenarioJob>,
    /// The total bandwidth of the store for all workers, in bytes per second; 0 means no limit.
    #[serde(default)]
    pub store_bytes_per_s: f64,
    /// The quotas of tenants. Tenants without an entry have no quota.
    #[serde(default)]
    pub tenants: BTreeMap<String, Quota>,
    /// Scaling of workers.
    #[serde(default)]
    pub scaling: ScenarioScaling,
    /// Report intervals and prefetching.
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
    /// The speed of a core. The CPU seconds of operators refer to a core of speed 1.
    #[serde(default = "default_factor")]
    pub speed: f64,
    /// Memory budget in GiB.
    #[serde(default = "default_memory")]
    pub memory_gib: f64,
    /// The number of workers of this type at the start.
    #[serde(default, rename = "at_start")]
    pub workers_at_start: u32,
}

/// One job, or several equal jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioJob {
    /// The name. If `count` is above 1, a number is appended.
    pub name: String,
    /// The tenant of the jobs.
    #[serde(default)]
    pub tenant: String,
    /// The number of jobs.
    #[serde(default = "default_count")]
    pub count: u32,
    /// Operators between the source and the batch operator, in order.
    pub operators: Vec<ScenarioOperator>,
    /// Rows per batch.
    #[serde(default = "default_batch")]
    pub batch_rows: u32,
    /// The number of rows in the dataset.
    #[serde(default = "default_rows")]
    pub dataset_rows: u64,
    /// The number of shards in the dataset.
    #[serde(default = "default_shards")]
    pub shards: u32,
    /// Number of passes over the dataset. The default is so large that no job ends during a run.
    #[serde(default = "default_epochs")]
    pub epochs: u32,
    /// Bytes read from the store for each row.
    #[serde(default = "default_row_bytes")]
    pub store_bytes_per_row: u64,
    /// Bytes per delivered row.
    #[serde(default = "default_row_bytes")]
    pub delivered_bytes_per_row: u64,
    /// The number of consumers, with one stream each.
    #[serde(default = "default_count")]
    pub consumers: u32,
    /// The weight of the job. It applies while resources are scarce.
    #[serde(default = "default_factor")]
    pub weight: f64,
    /// The total demand of all consumers over time.
    pub demand: Vec<ScenarioDemand>,
    /// The rows per second that a producer writes over time, as to a Kafka topic. If empty, all rows exist from the start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arrival: Vec<ScenarioDemand>,
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

/// One step of the demand over time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioDemand {
    /// The time at which this demand begins.
    pub at_s: u32,
    /// Total rows per second of all consumers.
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
    /// Seconds for which fewer workers must be enough before workers are removed (rule `plan`).
    pub shrink_after_s: u32,
    /// Seconds between two decisions (rule `climb`).
    pub climb_every_s: u32,
    /// Minimum relative change of the time per batch; smaller changes are ignored (rule `climb`).
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

/// Report intervals and prefetching.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScenarioControl {
    /// The time step of the simulation in milliseconds.
    pub tick_ms: u64,
    /// Milliseconds that the coordinator delays the reply to a worker whose plan is unchanged. This is the longest
    /// interval between two reports of a worker.
    pub hold_ms: u64,
    /// The shortest interval between two reports of a worker in milliseconds; at least one time step.
    pub worker_report_ms: u64,
    /// The longest interval between two reports of a consumer in milliseconds.
    pub consumer_report_ms: u64,
    /// The shortest interval between two reports of a consumer in milliseconds; at least one time step.
    pub consumer_gap_ms: u64,
    /// Milliseconds between two plans.
    pub plan_ms: u64,
    /// Maximum number of uncomputed leases per job on a worker.
    pub leases_ahead: u32,
    /// The number of splits that a consumer prefetches.
    pub splits_ahead: u32,
    /// Whether workers use the planned allocations. Otherwise, jobs share all workers evenly.
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
    /// Reads a scenario from YAML and checks it. `file` is the file name in error messages.
    ///
    /// # Errors
    /// Returns a message such as ``scenario.yaml:2: unknown key `sed`; did you mean `seed`?``.
    pub fn from_yaml(text: &str, file: &str) -> Result<Self, String> {
        let scenario: Self = feedline_data::yaml::parse(text).map_err(|error| error.message(file))?;
        scenario.check().map_err(|sentence| format!("{file}: {sentence}"))?;
        Ok(scenario)
    }

    /// Returns a scenario with one job per ten workers and one consumer per two workers. A worker has 8 cores and
    /// computes at most 1,000 rows per second. The mean demand is 70 % of the maximum rate of all workers.
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
                arrival: Vec::new(),
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
                workers_at_start: workers,
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
        let is_positive = |value: f64| value > 0.0 && value.is_finite();
        ensure!(!self.worker_types.is_empty(), "worker_types is empty: add at least one worker type");
        for kind in &self.worker_types {
            ensure!(
                kind.cores > 0 && is_positive(kind.speed) && is_positive(kind.memory_gib),
                "worker type `{}`: cores, speed and memory_gib must be above 0",
                kind.name
            );
        }
        ensure!(self.jobs.iter().any(|job| job.count > 0), "jobs is empty: add at least one job");
        self.jobs.iter().try_for_each(ScenarioJob::check)?;
        self.quotas().check()?;
        let ScenarioControl { tick_ms, plan_ms, leases_ahead, splits_ahead, .. } = self.control;
        ensure!(
            tick_ms > 0 && 1000u64.is_multiple_of(tick_ms),
            "invalid tick_ms {tick_ms}: expected a divisor of 1000, such as 100"
        );
        ensure!(
            plan_ms > 0 && leases_ahead > 0 && splits_ahead > 0,
            "plan_ms, leases_ahead and splits_ahead must be at least 1"
        );
        let ScenarioScaling { min_workers, max_workers, climb_every_s, .. } = self.scaling;
        ensure!(
            min_workers <= max_workers && climb_every_s > 0,
            "invalid scaling: min_workers must not exceed max_workers, and climb_every_s must be at least 1"
        );
        ensure!(
            self.store_bytes_per_s >= 0.0 && self.store_bytes_per_s.is_finite(),
            "invalid store_bytes_per_s: expected a finite number of at least 0 (0 means no limit)"
        );
        Ok(())
    }
}

impl Scenario {
    /// Returns the quotas of all tenants.
    pub(super) fn quotas(&self) -> Tenants {
        Tenants { tenants: self.tenants.clone(), ..Tenants::default() }
    }
}

impl ScenarioJob {
    fn check(&self) -> Result<(), String> {
        let Self { name, dataset_rows, operators, demand, .. } = self;
        ensure!(
            self.consumers > 0 && self.batch_rows > 0 && self.shards > 0 && self.epochs > 0,
            "job `{name}`: consumers, batch_rows, shards and epochs must be at least 1"
        );
        ensure!(
            *dataset_rows >= u64::from(self.shards.max(self.consumers)),
            "job `{name}`: dataset_rows is {dataset_rows}: expected at least one row per shard and per consumer"
        );
        let is_valid = |number: f64| number >= 0.0 && number.is_finite();
        ensure!(
            operators.iter().all(|operator| is_valid(operator.cpu_s))
                && operators.iter().any(|operator| operator.cpu_s > 0.0),
            "job `{name}`: cpu_s must be at least 0 for each operator, and above 0 in total"
        );
        for (key, steps) in [("demand", demand), ("arrival", &self.arrival)] {
            let is_optional = key == "arrival";
            ensure!(
                steps.first().map_or(is_optional, |first| first.at_s == 0)
                    && steps.is_sorted_by(|a, b| a.at_s < b.at_s),
                "job `{name}`: the {key} steps must be sorted by at_s, starting at 0"
            );
            ensure!(
                steps.iter().all(|step| is_valid(step.rows_per_s)),
                "job `{name}`: rows_per_s of each {key} step must be a number of at least 0"
            );
        }
        Ok(())
    }
}

/// Defines functions that return the default values of missing keys, for serde.
macro_rules! defaults {
    ($($name:ident: $type:ty = $value:expr;)+) => {
        $(fn $name() -> $type { $value })+
    };
}

defaults! {
    default_factor: f64 = 1.0;
    default_count: u32 = 1;
    default_warm_up: u32 = 30;
    default_memory: f64 = 16.0;
    default_batch: u32 = 128;
    default_rows: u64 = 1_281_167;
    default_shards: u32 = 64;
    default_epochs: u32 = 1_000_000;
    default_row_bytes: u64 = 100_000;
}
