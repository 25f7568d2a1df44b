//! The planner's problem: jobs with their costs, workers, stores, tenants and prices.

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::memory::CACHE_MEMORY_SHARE;
use feedline_data::pipeline::{CacheEncoding, CacheTier};
use serde::{Deserialize, Serialize};

use crate::model::{JobModel, Locality};

/// The complete input of the planner.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Problem {
    /// Jobs to plan.
    pub jobs: Vec<JobProblem>,
    /// Worker types. All lists by worker type are in this order.
    pub worker_types: Vec<WorkerType>,
    /// All workers.
    pub workers: Vec<WorkerSlot>,
    /// The pools whose sizes a scaler sets, in the order of preference. With pools, the number of workers of any other
    /// pool is fixed. Without pools, only [`WorkerType::max_workers`] limits the wanted numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolProblem>,
    /// The bandwidth of each store in bytes per second, for the whole cluster; 0 if unknown.
    #[serde(rename = "stores")]
    pub store_bytes_per_s: Vec<f64>,
    /// Capacity for caches in the object store, in bytes; 0 disables these caches.
    pub store_cache_bytes: f64,
    /// Tenants with quotas.
    pub tenants: Vec<TenantProblem>,
    /// The number of workers that store a copy of cached rows. The sizes of cache points and the capacity of the object
    /// store are multiplied by this number, although the object store stores only one copy. 0 is treated as 1.
    #[serde(rename = "copies")]
    pub cache_copies: f64,
    /// Settings of the planner.
    pub settings: PlannerSettings,
}

/// The quotas of a tenant. `None` means no limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantProblem {
    /// The name.
    pub name: String,
    /// Maximum number of CPU cores, over all workers.
    pub cores: Option<f64>,
    /// Maximum size of cached rows in bytes, over all tiers. Rows that jobs of several tenants read are counted for
    /// each of these tenants.
    pub cache_bytes: Option<f64>,
}

/// A pool of workers, whose size a scaler sets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolProblem {
    /// The name; empty for workers without a pool.
    pub name: String,
    /// Minimum number of workers of all types of the pool.
    pub min_workers: u32,
    /// Maximum number of workers of all types of the pool.
    pub max_workers: u32,
}

/// A type of worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerType {
    /// Name.
    pub name: String,
    /// The pool of all workers of this type; empty without a pool.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pool: String,
    /// CPU cores.
    pub cores: f64,
    /// Memory budget in bytes.
    pub memory_bytes: f64,
    /// Capacity for caches on disk in bytes; 0 without a disk.
    pub disk_bytes: f64,
    /// Network bandwidth in bytes per second in each direction; 0 if unknown.
    pub nic_bytes_per_s: f64,
    /// Bandwidth of the memory cache in bytes per second; 0 if unknown.
    pub memory_read_bytes_per_s: f64,
    /// Bandwidth of the disk cache in bytes per second; 0 if unknown.
    pub disk_read_bytes_per_s: f64,
    /// Price of one core-hour; 0 means [`Prices::core_hour`].
    pub core_hour: f64,
    /// Maximum number of workers of this type; 0 if the number is fixed.
    pub max_workers: u32,
}

/// A worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSlot {
    /// The worker.
    pub id: WorkerId,
    /// The index of the worker's type in [`Problem::worker_types`].
    pub worker_type: usize,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobProblem {
    /// The job.
    pub id: JobId,
    /// The job's name.
    pub name: String,
    /// The index of the job's tenant in [`Problem::tenants`]; `None` without a quota.
    pub tenant: Option<usize>,
    /// The job's weight. If resources are scarce, fed fractions are proportional to the weights of jobs.
    pub weight: f64,
    /// The demand of the job in rows per second, as in [`JobModel::demand_rows_per_s`]. If unknown, the planner uses the rate that
    /// the job could reach alone in the cluster.
    pub demand_rows_per_s: Option<f64>,
    /// The rate in rows per second above which more workers would not end the job earlier, such as workers that would still load
    /// its graph. It limits the demand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub useful_rows_per_s: Option<f64>,
    /// The workers that hold or load the graph of the job. The job uses them before workers that would still load it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub graph_holders: Vec<WorkerId>,
    /// Operators in order, the source first.
    pub operators: Vec<OperatorProblem>,
    /// CPU seconds per delivered row outside operators, by worker type.
    pub overhead_cpu_s: Vec<f64>,
    /// Bytes per delivered row that consumers receive.
    #[serde(rename = "delivered_bytes")]
    pub delivered_bytes_per_row: f64,
    /// The traffic that does not cross the workers' network.
    pub locality: Locality,
    /// The index of the job's store in [`Problem::stores`]. If the index is out of range, the bandwidth is unknown.
    /// Reads of rows cached in the object store count as reads from this store.
    pub store: usize,
    /// Bytes per delivered row that are read from the store.
    #[serde(rename = "store_bytes")]
    pub store_bytes_per_row: f64,
    /// Total duration of store requests per delivered row, in seconds, while the store is not saturated.
    #[serde(rename = "store_wait_s")]
    pub store_wait_s_per_row: f64,
    /// Memory that rows in flight occupy per active core, in bytes.
    pub held_bytes_per_core: f64,
    /// Cache points that the planner may choose.
    pub cache_points: Vec<CachePointProblem>,
    /// The user's cache policy for this job.
    pub cache: CachePolicy,
}

impl Default for JobProblem {
    fn default() -> Self {
        Self {
            id: JobId(0),
            name: String::new(),
            tenant: None,
            weight: 1.0,
            demand_rows_per_s: None,
            useful_rows_per_s: None,
            graph_holders: Vec::new(),
            operators: Vec::new(),
            overhead_cpu_s: Vec::new(),
            delivered_bytes_per_row: 0.0,
            locality: Locality::default(),
            store: 0,
            store_bytes_per_row: 0.0,
            store_wait_s_per_row: 0.0,
            held_bytes_per_core: 0.0,
            cache_points: Vec::new(),
            cache: CachePolicy::default(),
        }
    }
}

/// An operator of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OperatorProblem {
    /// Name.
    pub name: String,
    /// CPU seconds per delivered row, by worker type.
    pub cpu_s: Vec<f64>,
    /// Time that the operator waits without using the CPU, in seconds per delivered row.
    pub latency_s: f64,
    /// Maximum number of concurrent executions on a worker, if pinned in the pipeline.
    pub limit: Option<u32>,
}

/// A point before all random operators, at which rows could be cached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CachePointProblem {
    /// The index of the operator whose output is cached.
    #[serde(rename = "after")]
    pub operator_index: usize,
    /// The size of the whole dataset at this point, in bytes.
    pub bytes: f64,
    /// Bytes at this point per delivered row.
    pub bytes_per_row: f64,
    /// A hash of the dataset and of the operators up to this point. Jobs with the same key share cached rows.
    pub key: u64,
    /// The encoding of the cached rows.
    pub encoding: CacheEncoding,
    /// The next operator's CPU time on rows in this encoding, divided by its CPU time on rows without encoding.
    pub next_cpu_share: f64,
}

impl Default for CachePointProblem {
    fn default() -> Self {
        Self {
            operator_index: 0,
            bytes: 0.0,
            bytes_per_row: 0.0,
            key: 0,
            encoding: CacheEncoding::AsIs,
            next_cpu_share: 1.0,
        }
    }
}

/// The user's policy for caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachePolicy {
    /// The planner chooses cache points.
    #[default]
    Free,
    /// No rows are cached.
    Never,
    /// Rows are cached at this point, even if this is not worthwhile.
    Pinned {
        /// The index in [`JobProblem::cache_points`].
        point: usize,
        /// The tier.
        tier: CacheTier,
    },
}

/// Settings of the planner: prices, capacity shares and search limits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlannerSettings {
    /// Prices of resources.
    pub prices: Prices,
    /// The fraction of a worker's memory that caches may use, from 0 to 1.
    pub cache_memory_share: f64,
    /// CPU seconds to read, verify and decode one cached byte, by tier in the order of [`CacheTier::ALL`].
    pub cache_read_cpu_s_per_byte: [f64; 3],
    /// CPU seconds to look up one row in a cache, by tier.
    pub cache_read_cpu_s_per_row: [f64; 3],
    /// Minimum relative improvement of the objective for which a new plan replaces the previous plan.
    #[serde(rename = "gain_to_change")]
    pub min_gain_to_change: f64,
    /// Ratio of allocated to needed cores, if enough cores are available.
    pub headroom: f64,
    /// The target utilisation of workers. It determines the wanted number of workers.
    pub target_utilisation: f64,
    /// Maximum number of cache combinations for an exhaustive search. A heuristic search is used if there are more.
    #[serde(rename = "enumerate_at_most")]
    pub max_exhaustive_combinations: u64,
    /// Maximum number of linear problems that one search for caches solves.
    #[serde(rename = "search_solves")]
    pub max_search_solves: u32,
}

impl Default for PlannerSettings {
    fn default() -> Self {
        Self {
            prices: Prices::default(),
            cache_memory_share: CACHE_MEMORY_SHARE,
            cache_read_cpu_s_per_byte: [2.5e-10, 1e-9, 1.5e-9],
            cache_read_cpu_s_per_row: [1e-6, 3e-6, 1e-5],
            min_gain_to_change: 0.03,
            headroom: 1.15,
            target_utilisation: 0.9,
            max_exhaustive_combinations: 64,
            max_search_solves: 200,
        }
    }
}

impl PlannerSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// Returns a message that names the invalid setting.
    pub fn check(&self) -> Result<(), String> {
        let share = self.cache_memory_share;
        ensure!(
            (0.0..=1.0).contains(&share),
            "invalid cache_memory_share {share}: expected a number from 0 to 1"
        );
        let Prices { core_hour, memory_gb_hour, disk_gb_hour, store_gb_hour } = self.prices;
        for (name, number) in [
            ("prices.core_hour", core_hour),
            ("prices.memory_gb_hour", memory_gb_hour),
            ("prices.disk_gb_hour", disk_gb_hour),
            ("prices.store_gb_hour", store_gb_hour),
            ("gain_to_change", self.min_gain_to_change),
            ("headroom", self.headroom),
            ("target_utilisation", self.target_utilisation),
        ] {
            ensure!(
                number >= 0.0 && number.is_finite(),
                "invalid {name} {number}: expected a finite number of at least 0"
            );
        }
        Ok(())
    }
}

/// Prices per hour, in any currency. The defaults are typical prices of large cloud providers in US dollars.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prices {
    /// One core.
    pub core_hour: f64,
    /// One gigabyte of memory.
    pub memory_gb_hour: f64,
    /// One gigabyte of disk.
    pub disk_gb_hour: f64,
    /// One gigabyte in the object store.
    pub store_gb_hour: f64,
}

impl Default for Prices {
    fn default() -> Self {
        Self { core_hour: 0.04, memory_gb_hour: 0.004, disk_gb_hour: 0.0001, store_gb_hour: 0.00003 }
    }
}

impl Prices {
    /// Returns the price of one gigabyte-hour in a tier.
    pub fn gb_hour(&self, tier: CacheTier) -> f64 {
        match tier {
            CacheTier::Memory => self.memory_gb_hour,
            CacheTier::Disk => self.disk_gb_hour,
            CacheTier::Store => self.store_gb_hour,
        }
    }
}

impl Problem {
    /// Returns a hash of the problem.
    pub fn fingerprint(&self) -> u64 {
        let text = serde_json::to_vec(self).expect("a problem is plain data");
        xxhash_rust::xxh3::xxh3_64(&text)
    }

    /// Returns the number of workers of each type.
    pub fn worker_counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.worker_types.len()];
        for worker in &self.workers {
            counts[worker.worker_type] += 1;
        }
        counts
    }

    /// Checks that the problem is consistent. Returns a message that names the inconsistency.
    pub fn check(&self) -> Result<(), String> {
        let types = self.worker_types.len();
        for WorkerSlot { id, worker_type } in &self.workers {
            ensure!(
                *worker_type < types,
                "worker {id} has worker type index {worker_type}, but the problem has only {types} worker types"
            );
        }
        for WorkerType { name, cores, .. } in &self.worker_types {
            ensure!(
                *cores > 0.0 && cores.is_finite(),
                "worker type `{name}` has {cores} cores: expected a number above 0"
            );
        }
        for PoolProblem { name, min_workers, max_workers } in &self.pools {
            ensure!(
                min_workers <= max_workers,
                "pool `{name}` has a minimum of {min_workers} workers: expected at most its maximum of {max_workers}"
            );
        }
        for TenantProblem { name, cores, .. } in &self.tenants {
            let cores = cores.unwrap_or(1.0);
            ensure!(
                cores > 0.0 && cores.is_finite(),
                "tenant `{name}` has a quota of {cores} cores: expected a number above 0"
            );
        }
        self.jobs.iter().try_for_each(|job| job.check(types, self.tenants.len()))
    }
}

impl JobProblem {
    fn check(&self, types: usize, tenants: usize) -> Result<(), String> {
        let Self { name, weight, operators, cache_points, .. } = self;
        ensure!(
            self.tenant.is_none_or(|tenant| tenant < tenants),
            "job `{name}` has a tenant index that is out of range"
        );
        for number in self.costs_and_sizes() {
            ensure!(
                number >= 0.0 && number.is_finite(),
                "job `{name}` has an invalid cost or size {number}: expected a finite number of at least 0"
            );
        }
        let mut costs = operators.iter().map(|operator| &operator.cpu_s).chain([&self.overhead_cpu_s]);
        ensure!(
            costs.all(|by_type| by_type.len() == types),
            "job `{name}` has an operator without CPU times for all {types} worker types"
        );
        ensure!(
            cache_points.iter().all(|point| point.operator_index < operators.len()),
            "job `{name}` has a cache point after an operator that does not exist"
        );
        ensure!(
            !matches!(self.cache, CachePolicy::Pinned { point, .. } if point >= cache_points.len()),
            "job `{name}` is pinned to a cache point that does not exist"
        );
        ensure!(
            *weight > 0.0 && weight.is_finite(),
            "job `{name}` has the weight {weight}: expected a number above 0"
        );
        Ok(())
    }

    /// Returns all costs and sizes of the job.
    fn costs_and_sizes(&self) -> impl Iterator<Item = f64> {
        let of_operator = |operator: &OperatorProblem| {
            operator.cpu_s.iter().copied().chain([operator.latency_s]).collect::<Vec<f64>>()
        };
        let sizes = [
            self.delivered_bytes_per_row,
            self.store_bytes_per_row,
            self.store_wait_s_per_row,
            self.held_bytes_per_core,
        ];
        let points = self
            .cache_points
            .iter()
            .flat_map(|point| [point.bytes, point.bytes_per_row, point.next_cpu_share]);
        let costs = self.operators.iter().flat_map(of_operator).chain(self.overhead_cpu_s.iter().copied());
        costs.chain(sizes).chain(points)
    }

    /// Builds the problem of a measured job. `keys` contains the keys of [`JobModel::cache_points`], in order. Omits cache
    /// points after a random operator.
    pub fn from_model(id: JobId, name: &str, model: &JobModel, types: &[WorkerType], keys: &[u64]) -> Self {
        let operator = |operator: &crate::model::OperatorModel| OperatorProblem {
            name: operator.name.clone(),
            cpu_s: types.iter().map(|kind| operator.cpu_s_on(&kind.name)).collect(),
            latency_s: operator.latency_s,
            limit: operator.limit(),
        };
        let past_the_end = model.operators.len();
        let points =
            model.cache_points.iter().zip(keys).filter(|(point, _)| point.is_cacheable && point.bytes > 0.0);
        Self {
            id,
            name: name.to_owned(),
            demand_rows_per_s: model.demand_rows_per_s,
            operators: model.operators.iter().map(operator).collect(),
            overhead_cpu_s: types.iter().map(|kind| model.cpu_s_from(past_the_end, &kind.name)).collect(),
            delivered_bytes_per_row: model.delivered_bytes_per_row,
            store_bytes_per_row: model.store_bytes_per_row,
            store_wait_s_per_row: unsaturated_wait_s(model),
            held_bytes_per_core: held_bytes_per_core(model),
            cache_points: points
                .map(|(point, key)| CachePointProblem {
                    operator_index: point.operator_index,
                    bytes: point.bytes,
                    bytes_per_row: point.bytes_per_row,
                    key: *key,
                    encoding: point.encoding,
                    next_cpu_share: point.next_cpu_share,
                })
                .collect(),
            ..Self::default()
        }
    }
}

/// Returns the request time per row according to the fitted bandwidth, or the measured time if the bandwidth is unknown.
fn unsaturated_wait_s(model: &JobModel) -> f64 {
    let by_law = model.bandwidth.seconds_per_byte().map(|seconds| seconds * model.store_bytes_per_row);
    by_law.filter(|wait_s| wait_s.is_finite()).unwrap_or(model.store_wait_s_per_row)
}

/// Returns the bytes of rows in flight per active core.
fn held_bytes_per_core(model: &JobModel) -> f64 {
    let cpu_s: f64 = model.operators.iter().map(|operator| operator.cpu_s_on("")).sum();
    let cores = model.rows_per_s * cpu_s;
    // Assume at least one active core, because the quotient would otherwise be too large.
    model.held_bytes / cores.max(1.0)
}
