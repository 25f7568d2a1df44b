//! The cluster file of `feedline plan`: which workers there are or could be, the store, prices, and what is known of
//! single jobs. Errors name file and field.

mod values;

use std::collections::BTreeMap;
use std::path::Path;

use feedline_data::ids::WorkerId;
use feedline_data::tenants::Quota;
use feedline_planner::plan::{PlannerSettings, Problem, TenantProblem, WorkerSlot, WorkerType};
use serde::Deserialize;

pub(super) use self::values::CacheChoice;
use crate::failure::Failure;
use crate::tenants_file::{QuotaEntry, TenantName};
use crate::yaml;

#[cfg(test)]
pub(super) mod tests;

/// Workers of one type that a file may name.
const MOST_WORKERS: u32 = 100_000;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClusterFile {
    /// Kinds of workers.
    pub(super) worker_types: Vec<WorkerKind>,
    /// The object store; without limits by default.
    #[serde(default)]
    store: Store,
    /// How to weigh things, prices among them.
    #[serde(default)]
    settings: PlannerSettings,
    /// What the jobs of tenants may take together.
    #[serde(default)]
    pub(super) tenants: BTreeMap<TenantName, QuotaEntry>,
    /// What is known of jobs, by the name of their pipeline.
    #[serde(default)]
    pub(super) jobs: BTreeMap<String, JobOverride>,
}

/// A kind of worker.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkerKind {
    /// Name.
    pub(super) name: String,
    /// CPU cores.
    cores: f64,
    /// Memory budget.
    #[serde(deserialize_with = "yaml::values::bytes")]
    memory: f64,
    /// Disk for caches.
    #[serde(default, deserialize_with = "yaml::values::bytes")]
    disk: f64,
    /// Network in bytes per second and direction; 0: not known to bind.
    #[serde(default, deserialize_with = "yaml::values::bytes")]
    nic_bytes_per_s: f64,
    /// What a memory cache gives in bytes per second; 0: not known to bind.
    #[serde(default, deserialize_with = "yaml::values::bytes")]
    memory_read_bytes_per_s: f64,
    /// What a disk cache gives in bytes per second; 0: not known to bind.
    #[serde(default, deserialize_with = "yaml::values::bytes")]
    disk_read_bytes_per_s: f64,
    /// How fast a core is, where one of the machine that traced has 1.
    #[serde(default = "one")]
    pub(super) speed: f64,
    /// Price of a core for an hour; by default that of the settings.
    #[serde(default)]
    core_hour: f64,
    /// Workers at hand.
    count: u32,
    /// Workers that there could be; by default those at hand.
    #[serde(default)]
    max: Option<u32>,
}

/// The object store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Store {
    /// What it gives to all workers together in bytes per second; 0: no limit is known.
    #[serde(deserialize_with = "yaml::values::bytes")]
    bytes_per_s: f64,
    /// Room for caches.
    #[serde(deserialize_with = "yaml::values::bytes")]
    cache: f64,
}

/// What is known of a job beside its trace.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct JobOverride {
    /// Whose it is: one of `tenants`.
    pub(super) tenant: Option<String>,
    /// Its claim while resources are short.
    pub(super) weight: f64,
    /// Rows per second that its consumers could take; by default those of the trace.
    pub(super) demand_rows_per_s: Option<f64>,
    /// What may be kept.
    pub(super) cache: CacheChoice,
    /// Whether workers read its data from their own disks; by default where the trace's pipeline names no store.
    pub(super) store_is_local: Option<bool>,
    /// Share of the bytes for its consumers, from 0 to 1, that are taken on the worker's own host.
    pub(super) consumers_share: f64,
}

impl Default for JobOverride {
    fn default() -> Self {
        Self {
            tenant: None,
            weight: 1.0,
            demand_rows_per_s: None,
            cache: CacheChoice::Free,
            store_is_local: None,
            consumers_share: 0.0,
        }
    }
}

fn one() -> f64 {
    1.0
}

impl ClusterFile {
    /// Reads and checks a file.
    pub(super) fn load(path: &Path) -> Result<Self, Failure> {
        yaml::load(path, "a cluster file", Self::parse)
    }

    /// Reads and checks a file's text; one sentence on what is wrong with it.
    fn parse(text: &str, file: &str) -> Result<Self, String> {
        let found: Self = yaml::read(text, file)?;
        found.check().map_err(|sentence| format!("{file}: {sentence}"))?;
        Ok(found)
    }

    fn check(&self) -> Result<(), String> {
        if self.worker_types.is_empty() {
            return Err("worker_types is empty; name at least one, with its cores, memory and count".into());
        }
        for (place, kind) in self.worker_types.iter().enumerate() {
            kind.check().map_err(|sentence| format!("worker_types[{place}].{sentence}"))?;
            if self.worker_types[..place].iter().any(|before| before.name == kind.name) {
                return Err(format!("worker_types[{place}].name: `{}` is there twice", kind.name));
            }
        }
        for (name, job) in &self.jobs {
            let is_known = |tenant: &&String| self.tenants.keys().any(|known| known.0 == **tenant);
            if let Some(tenant) = job.tenant.as_ref().filter(|tenant| !is_known(tenant)) {
                return Err(format!(
                    "jobs.{name}.tenant: `{tenant}` is none of tenants; name it there, or leave it out"
                ));
            }
            let at_least_0 = |number: &f64| number.is_finite() && *number >= 0.0;
            if !(job.weight > 0.0 && job.weight.is_finite()) {
                return Err(format!(
                    "jobs.{name}.weight: {} is no weight; give a number above 0",
                    job.weight
                ));
            }
            if let Some(demand) = job.demand_rows_per_s.filter(|demand| !at_least_0(demand)) {
                return Err(format!(
                    "jobs.{name}.demand_rows_per_s: {demand} is no rate; leave it out or give one"
                ));
            }
            if !(0.0..=1.0).contains(&job.consumers_share) {
                return Err(format!(
                    "jobs.{name}.consumers_share: {} is no share; give a number from 0 to 1",
                    job.consumers_share
                ));
            }
        }
        self.settings.check().map_err(|sentence| format!("settings.{sentence}"))
    }

    /// The problem without its jobs.
    pub(super) fn problem(&self) -> Problem {
        let types = || self.worker_types.iter();
        let slots = types().enumerate().flat_map(|(place, kind)| (0..kind.count).map(move |_| place));
        Problem {
            jobs: Vec::new(),
            worker_types: types().map(WorkerKind::worker_type).collect(),
            workers: slots
                .zip(1..)
                .map(|(worker_type, id)| WorkerSlot { id: WorkerId(id), worker_type })
                .collect(),
            stores: vec![self.store.bytes_per_s],
            store_cache_bytes: self.store.cache,
            tenants: self.tenants.iter().map(|(name, entry)| tenant(name, entry)).collect(),
            copies: 1.0,
            settings: self.settings,
        }
    }
}

fn tenant(name: &TenantName, entry: &QuotaEntry) -> TenantProblem {
    let Quota { cores, cache_bytes, .. } = entry.into();
    TenantProblem { name: name.0.clone(), cores, cache_bytes }
}

impl WorkerKind {
    fn check(&self) -> Result<(), String> {
        let above_0 = |number: f64| number > 0.0 && number.is_finite();
        if !above_0(self.cores) {
            return Err(format!("cores: {} are too few; give a number above 0", self.cores));
        }
        if !above_0(self.memory) {
            return Err(format!("memory: {} is too little; give a size such as 64GiB", self.memory));
        }
        if !above_0(self.speed) {
            return Err(format!("speed: {} is too slow; 1 is that of the machine that traced", self.speed));
        }
        if !(self.core_hour >= 0.0 && self.core_hour.is_finite()) {
            return Err(format!("core_hour: {} is no price; give a number", self.core_hour));
        }
        if self.count > MOST_WORKERS {
            return Err(format!("count: {} are too many; at most {MOST_WORKERS} are planned", self.count));
        }
        if let Some(max) = self.max.filter(|max| *max < self.count) {
            return Err(format!("max: {max} are fewer than the {} of count; raise it", self.count));
        }
        Ok(())
    }

    fn worker_type(&self) -> WorkerType {
        WorkerType {
            name: self.name.clone(),
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
