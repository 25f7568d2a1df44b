//! The cluster file of `feedline plan`: existing and possible workers, the store, prices, and properties of jobs. Error
//! messages name the file and the field.

mod values;

use std::collections::BTreeMap;
use std::path::Path;

use feedline_data::ids::WorkerId;
use feedline_data::tenants::Quota;
use feedline_planner::plan::{PlannerSettings, Problem, TenantProblem, WorkerSlot, WorkerType};
use serde::Deserialize;

pub(super) use self::values::CacheOverride;
use crate::failure::Failure;
use crate::tenants_file::{QuotaEntry, TenantName};
use crate::yaml;

#[cfg(test)]
pub(super) mod tests;

/// Maximum number of workers of one type in a file.
const MAX_WORKERS: u32 = 100_000;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClusterFile {
    /// Types of workers.
    pub(super) worker_types: Vec<WorkerTypeEntry>,
    /// The object store [default: unlimited].
    #[serde(default)]
    store: StoreEntry,
    /// Settings of the planner, such as prices.
    #[serde(default)]
    settings: PlannerSettings,
    /// Quotas of tenants.
    #[serde(default)]
    pub(super) tenants: BTreeMap<TenantName, QuotaEntry>,
    /// Properties of jobs, by the name of their pipeline.
    #[serde(default)]
    pub(super) jobs: BTreeMap<String, JobOverride>,
}

/// A type of worker.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkerTypeEntry {
    /// Name of the type.
    pub(super) name: String,
    /// Number of CPU cores.
    cores: f64,
    /// Memory budget in bytes.
    #[serde(deserialize_with = "yaml::values::bytes")]
    memory: f64,
    /// Size of the disk cache in bytes.
    #[serde(default, deserialize_with = "yaml::values::bytes")]
    disk: f64,
    /// Network bandwidth in bytes per second in each direction; 0 means unlimited.
    #[serde(default, deserialize_with = "yaml::values::bytes")]
    nic_bytes_per_s: f64,
    /// Read bandwidth of the memory cache in bytes per second; 0 means unlimited.
    #[serde(default, deserialize_with = "yaml::values::bytes")]
    memory_read_bytes_per_s: f64,
    /// Read bandwidth of the disk cache in bytes per second; 0 means unlimited.
    #[serde(default, deserialize_with = "yaml::values::bytes")]
    disk_read_bytes_per_s: f64,
    /// Speed of a core relative to a core of the traced machine.
    #[serde(default = "one")]
    pub(super) speed: f64,
    /// Price of one core-hour [default: the price in the settings].
    #[serde(default)]
    core_hour: f64,
    /// Number of existing workers.
    count: u32,
    /// Maximum number of workers [default: `count`].
    #[serde(default)]
    max: Option<u32>,
}

/// The object store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct StoreEntry {
    /// Total bandwidth of reads by all workers in bytes per second; 0 means unlimited.
    #[serde(deserialize_with = "yaml::values::bytes")]
    bytes_per_s: f64,
    /// Size of the cache in the store in bytes.
    #[serde(deserialize_with = "yaml::values::bytes")]
    cache: f64,
}

/// Properties of a job in addition to its trace.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct JobOverride {
    /// Tenant of the job: one of `tenants`.
    pub(super) tenant: Option<String>,
    /// Weight of the job when resources are scarce.
    pub(super) weight: f64,
    /// Rows per second that the consumers demand [default: the demand in the trace].
    pub(super) demand_rows_per_s: Option<f64>,
    /// The output that may be cached.
    pub(super) cache: CacheOverride,
    /// Whether workers read the dataset from their own disks [default: true if the traced pipeline reads local files].
    pub(super) store_is_local: Option<bool>,
    /// Fraction of the delivered bytes, from 0 to 1, that go to consumers on the same host as the worker.
    pub(super) consumers_share: f64,
}

impl Default for JobOverride {
    fn default() -> Self {
        Self {
            tenant: None,
            weight: 1.0,
            demand_rows_per_s: None,
            cache: CacheOverride::Free,
            store_is_local: None,
            consumers_share: 0.0,
        }
    }
}

fn one() -> f64 {
    1.0
}

impl ClusterFile {
    /// Loads and validates a file.
    pub(super) fn load(path: &Path) -> Result<Self, Failure> {
        yaml::load(path, "a cluster file", Self::parse)
    }

    /// Parses and validates the text of a file.
    fn parse(text: &str, file: &str) -> Result<Self, String> {
        let parsed: Self = yaml::parse(text, file)?;
        parsed.check().map_err(|sentence| format!("{file}: {sentence}"))?;
        Ok(parsed)
    }

    fn check(&self) -> Result<(), String> {
        if self.worker_types.is_empty() {
            return Err("worker_types is empty: add a type with name, cores, memory and count".into());
        }
        for (index, kind) in self.worker_types.iter().enumerate() {
            kind.check().map_err(|sentence| format!("worker_types[{index}].{sentence}"))?;
            if self.worker_types[..index].iter().any(|other| other.name == kind.name) {
                return Err(format!("worker_types[{index}].name: duplicate name `{}`", kind.name));
            }
        }
        for (name, job) in &self.jobs {
            let is_known = |tenant: &&String| self.tenants.keys().any(|known| known.0 == **tenant);
            if let Some(tenant) = job.tenant.as_ref().filter(|tenant| !is_known(tenant)) {
                return Err(format!(
                    "jobs.{name}.tenant: unknown tenant `{tenant}`: add it to tenants, or remove this key"
                ));
            }
            let is_rate = |number: &f64| number.is_finite() && *number >= 0.0;
            if !(job.weight > 0.0 && job.weight.is_finite()) {
                return Err(format!(
                    "jobs.{name}.weight: invalid weight {}: expected a number above 0",
                    job.weight
                ));
            }
            if let Some(demand) = job.demand_rows_per_s.filter(|demand| !is_rate(demand)) {
                return Err(format!(
                    "jobs.{name}.demand_rows_per_s: invalid rate {demand}: expected a number of at least 0"
                ));
            }
            if !(0.0..=1.0).contains(&job.consumers_share) {
                return Err(format!(
                    "jobs.{name}.consumers_share: invalid fraction {}: expected a number from 0 to 1",
                    job.consumers_share
                ));
            }
        }
        self.settings.check().map_err(|sentence| format!("settings.{sentence}"))
    }

    /// Builds the planner's problem without jobs.
    pub(super) fn problem(&self) -> Problem {
        let types = || self.worker_types.iter();
        let slots = types().enumerate().flat_map(|(index, kind)| (0..kind.count).map(move |_| index));
        Problem {
            jobs: Vec::new(),
            worker_types: types().map(WorkerTypeEntry::worker_type).collect(),
            workers: slots
                .zip(1..)
                .map(|(worker_type, id)| WorkerSlot { id: WorkerId(id), worker_type })
                .collect(),
            pools: Vec::new(),
            store_bytes_per_s: vec![self.store.bytes_per_s],
            store_cache_bytes: self.store.cache,
            tenants: self.tenants.iter().map(|(name, entry)| tenant_problem(name, entry)).collect(),
            cache_copies: 1.0,
            settings: self.settings,
        }
    }
}

fn tenant_problem(name: &TenantName, entry: &QuotaEntry) -> TenantProblem {
    let Quota { cores, cache_bytes, .. } = entry.into();
    TenantProblem { name: name.0.clone(), cores, cache_bytes }
}

impl WorkerTypeEntry {
    fn check(&self) -> Result<(), String> {
        let is_positive = |number: f64| number > 0.0 && number.is_finite();
        if !is_positive(self.cores) {
            return Err(format!("cores: invalid number {}: expected a number above 0", self.cores));
        }
        if !is_positive(self.memory) {
            return Err(format!(
                "memory: invalid size {}: expected a size above 0, such as 64GiB",
                self.memory
            ));
        }
        if !is_positive(self.speed) {
            return Err(format!(
                "speed: invalid speed {}: expected a number above 0; the traced machine has 1",
                self.speed
            ));
        }
        if !(self.core_hour >= 0.0 && self.core_hour.is_finite()) {
            return Err(format!(
                "core_hour: invalid price {}: expected a number of at least 0",
                self.core_hour
            ));
        }
        if self.count > MAX_WORKERS {
            return Err(format!("count: {} is more than the maximum of {MAX_WORKERS}", self.count));
        }
        if let Some(max) = self.max.filter(|max| *max < self.count) {
            return Err(format!("max: {max} is less than count, {}: raise max", self.count));
        }
        Ok(())
    }

    fn worker_type(&self) -> WorkerType {
        WorkerType {
            name: self.name.clone(),
            pool: String::new(),
            cores: self.cores,
            memory_bytes: self.memory,
            disk_bytes: self.disk,
            nic_bytes_per_s: self.nic_bytes_per_s,
            memory_read_bytes_per_s: self.memory_read_bytes_per_s,
            disk_read_bytes_per_s: self.disk_read_bytes_per_s,
            core_hour: self.core_hour,
            max_workers: self.max.unwrap_or(self.count),
        }
    }
}
