//! What the planner is asked: jobs with their costs, workers, the store, prices.

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::CACHE_MEMORY_SHARE;
use feedline_data::pipeline::{CacheEncoding, CacheTier};
use serde::{Deserialize, Serialize};

use crate::model::{JobModel, Locality};

/// Everything that a plan depends on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Problem {
    /// Jobs that want rows.
    pub jobs: Vec<JobProblem>,
    /// Kinds of workers: costs are given for each, in this order.
    pub worker_types: Vec<WorkerType>,
    /// Workers at hand.
    pub workers: Vec<WorkerSlot>,
    /// Bytes per second that each store gives to the whole cluster; 0 where no limit is known.
    pub stores: Vec<f64>,
    /// Room for caches in the object store in bytes; 0 keeps caches out of it.
    pub store_cache_bytes: f64,
    /// Tenants whose jobs may not take all that there is.
    pub tenants: Vec<TenantProblem>,
    /// Copies that the sizes of cuts, and the room in the object store, are about: one on each worker, where rows are not
    /// divided among them. What is kept in the store is there once all the same. 0 and 1 are one copy.
    pub copies: f64,
    /// How to weigh things.
    pub settings: PlannerSettings,
}

/// What the jobs of a tenant may take together; `None` is no limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantProblem {
    /// Name.
    pub name: String,
    /// CPU cores, over all workers.
    pub cores: Option<f64>,
    /// Bytes of what is kept, over all tiers. What jobs of several tenants read counts for each of them.
    pub cache_bytes: Option<f64>,
}

/// A kind of worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerType {
    /// Name.
    pub name: String,
    /// CPU cores.
    pub cores: f64,
    /// Memory budget in bytes.
    pub memory_bytes: f64,
    /// Disk for caches in bytes; 0 without.
    pub disk_bytes: f64,
    /// Network in bytes per second and direction; 0 where it is not known to bind.
    pub nic_bytes_per_s: f64,
    /// What its memory cache gives in bytes per second; 0 where it is not known to bind.
    pub memory_read_bytes_per_s: f64,
    /// What its disk cache gives in bytes per second; 0 where it is not known to bind.
    pub disk_read_bytes_per_s: f64,
    /// Price of a core for an hour; 0 takes [`Prices::core_hour`].
    pub core_hour: f64,
    /// Workers that the scaler may bring to; 0 where this type is not scaled.
    pub max_workers: u32,
}

/// A worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSlot {
    /// The worker.
    pub id: WorkerId,
    /// Place of its type in [`Problem::worker_types`].
    pub worker_type: usize,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobProblem {
    /// The job.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// Place of its tenant in [`Problem::tenants`]; `None` where nothing limits it.
    pub tenant: Option<usize>,
    /// Its claim: jobs are fed in proportion to their weights while resources are short.
    pub weight: f64,
    /// Rows per second that its consumers could take; without, as many as the cluster could make for it alone.
    pub demand_rows_per_s: Option<f64>,
    /// Operators in order, the source first.
    pub operators: Vec<OperatorProblem>,
    /// CPU seconds per delivered row that no operator accounts for, by worker type.
    pub overhead_cpu_s: Vec<f64>,
    /// Bytes per delivered row that go to consumers.
    pub delivered_bytes: f64,
    /// What of its bytes does not cross the workers' network.
    pub locality: Locality,
    /// Place of its store in [`Problem::stores`]; a store that is not there has no known limit. What is kept in the object
    /// store counts as read from here as well.
    pub store: usize,
    /// Bytes per delivered row that come from the store.
    pub store_bytes: f64,
    /// Time of requests per delivered row in seconds, where the store is not full.
    pub store_wait_s: f64,
    /// Memory that rows in flight take for each core at work, in bytes.
    pub held_bytes_per_core: f64,
    /// Cuts that could be kept.
    pub cuts: Vec<CutProblem>,
    /// What the user said of caches.
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
            operators: Vec::new(),
            overhead_cpu_s: Vec::new(),
            delivered_bytes: 0.0,
            locality: Locality::default(),
            store: 0,
            store_bytes: 0.0,
            store_wait_s: 0.0,
            held_bytes_per_core: 0.0,
            cuts: Vec::new(),
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
    /// Seconds per delivered row that it waits without CPU.
    pub latency_s: f64,
    /// Executions at once on a worker, where the user or its nature limits them.
    pub limit: Option<u32>,
}

/// A place where rows could be kept: above every random operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CutProblem {
    /// Place of the operator whose output is kept.
    pub after: usize,
    /// Size of the whole dataset there, in bytes.
    pub bytes: f64,
    /// Bytes there per delivered row.
    pub bytes_per_row: f64,
    /// Fingerprint of dataset and operators up to here: jobs with the same share what is kept.
    pub key: u64,
    /// In which form rows are kept.
    pub form: CacheEncoding,
    /// What the next operator takes of rows in this form, over what it takes of them as they are.
    pub next_cpu_share: f64,
}

impl Default for CutProblem {
    fn default() -> Self {
        Self {
            after: 0,
            bytes: 0.0,
            bytes_per_row: 0.0,
            key: 0,
            form: CacheEncoding::AsIs,
            next_cpu_share: 1.0,
        }
    }
}

/// What the user said of caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachePolicy {
    /// The planner chooses.
    #[default]
    Free,
    /// Nothing is kept.
    Never,
    /// Kept at this cut, whatever it costs.
    Pinned {
        /// Place in [`JobProblem::cuts`].
        cut: usize,
        /// Where.
        tier: CacheTier,
    },
}

/// How to weigh things.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlannerSettings {
    /// What resources cost.
    pub prices: Prices,
    /// Share of a worker's memory that caches may take.
    pub cache_memory_share: f64,
    /// CPU seconds to read a byte of a cache: copy, check, take apart; by tier in the order of [`CacheTier::ALL`].
    pub cache_read_cpu_s_per_byte: [f64; 3],
    /// CPU seconds to find a row in a cache, by tier.
    pub cache_read_cpu_s_per_row: [f64; 3],
    /// A plan is changed for an improvement of at least this share.
    pub gain_to_change: f64,
    /// Cores given over cores needed, while there are cores to spare.
    pub headroom: f64,
    /// Share of what a worker gives, cores or an operator's limit, that the count of wanted workers is reckoned with.
    pub target_utilisation: f64,
    /// Combinations of caches that are all tried; more are searched.
    pub enumerate_at_most: u64,
    /// Linear problems solved in one search of caches, where the cluster is small.
    pub search_solves: u32,
}

impl Default for PlannerSettings {
    fn default() -> Self {
        Self {
            prices: Prices::default(),
            cache_memory_share: CACHE_MEMORY_SHARE,
            cache_read_cpu_s_per_byte: [2.5e-10, 1e-9, 1.5e-9],
            cache_read_cpu_s_per_row: [1e-6, 3e-6, 1e-5],
            gain_to_change: 0.03,
            headroom: 1.15,
            target_utilisation: 0.9,
            enumerate_at_most: 64,
            search_solves: 200,
        }
    }
}

impl PlannerSettings {
    /// One sentence on what makes no sense in them, if anything does.
    ///
    /// # Errors
    /// That sentence.
    pub fn check(&self) -> Result<(), String> {
        let share = self.cache_memory_share;
        if !(0.0..=1.0).contains(&share) {
            return Err(format!("cache_memory_share: {share} is no share; give one from 0 to 1"));
        }
        let Prices { core_hour, memory_gb_hour, disk_gb_hour, store_gb_hour } = self.prices;
        let named = [
            ("prices.core_hour", core_hour),
            ("prices.memory_gb_hour", memory_gb_hour),
            ("prices.disk_gb_hour", disk_gb_hour),
            ("prices.store_gb_hour", store_gb_hour),
            ("gain_to_change", self.gain_to_change),
            ("headroom", self.headroom),
            ("target_utilisation", self.target_utilisation),
        ];
        let senseless = named.iter().find(|(_, number)| !(*number >= 0.0 && number.is_finite()));
        senseless
            .map_or(Ok(()), |(name, number)| Err(format!("{name}: {number} makes no sense; give 0 or more")))
    }
}

/// Prices per hour, in any currency. The defaults have the proportions of large clouds' lists in dollars.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prices {
    /// A core.
    pub core_hour: f64,
    /// A gigabyte of memory.
    pub memory_gb_hour: f64,
    /// A gigabyte of disk.
    pub disk_gb_hour: f64,
    /// A gigabyte in the object store.
    pub store_gb_hour: f64,
}

impl Default for Prices {
    fn default() -> Self {
        Self { core_hour: 0.04, memory_gb_hour: 0.004, disk_gb_hour: 0.0001, store_gb_hour: 0.00003 }
    }
}

impl Prices {
    /// A gigabyte of this tier for an hour.
    pub fn gb_hour(&self, tier: CacheTier) -> f64 {
        match tier {
            CacheTier::Memory => self.memory_gb_hour,
            CacheTier::Disk => self.disk_gb_hour,
            CacheTier::Store => self.store_gb_hour,
        }
    }
}

impl Problem {
    /// Names this problem: a hash of all of it.
    pub fn fingerprint(&self) -> u64 {
        let text = serde_json::to_vec(self).expect("a problem is plain data");
        xxhash_rust::xxh3::xxh3_64(&text)
    }

    /// Workers of each type.
    pub fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.worker_types.len()];
        for worker in &self.workers {
            counts[worker.worker_type] += 1;
        }
        counts
    }

    /// One sentence on what is wrong with the problem, if anything is.
    pub fn check(&self) -> Result<(), String> {
        let types = self.worker_types.len();
        if let Some(worker) = self.workers.iter().find(|worker| worker.worker_type >= types) {
            return Err(format!("worker {} has type {}, of {types}", worker.id, worker.worker_type));
        }
        if let Some(kind) =
            self.worker_types.iter().find(|kind| !(kind.cores > 0.0 && kind.cores.is_finite()))
        {
            return Err(format!("worker type `{}` has {} cores: give it some", kind.name, kind.cores));
        }
        for tenant in &self.tenants {
            if let Some(cores) = tenant.cores.filter(|cores| !(*cores > 0.0 && cores.is_finite())) {
                return Err(format!("tenant `{}` may have {cores} cores: give it some", tenant.name));
            }
        }
        for job in &self.jobs {
            if job.tenant.is_some_and(|tenant| tenant >= self.tenants.len()) {
                return Err(format!("job `{}` has a tenant of which nothing is said", job.name));
            }
            if let Some(number) = job.numbers().find(|number| !(*number >= 0.0 && number.is_finite())) {
                return Err(format!("job `{}` has {number} among its costs and sizes", job.name));
            }
            let costs = job.operators.iter().map(|operator| &operator.cpu_s).chain([&job.overhead_cpu_s]);
            if costs.into_iter().any(|by_type| by_type.len() != types) {
                return Err(format!(
                    "job `{}` needs its CPU times for each of {types} worker types",
                    job.name
                ));
            }
            let last = job.operators.len();
            if job.cuts.iter().any(|cut| cut.after >= last) {
                return Err(format!("job `{}` has a cut after an operator that it has not", job.name));
            }
            if matches!(job.cache, CachePolicy::Pinned { cut, .. } if cut >= job.cuts.len()) {
                return Err(format!("job `{}` is to be kept at a cut that it has not", job.name));
            }
            if !(job.weight > 0.0 && job.weight.is_finite()) {
                return Err(format!("job `{}` has weight {}: give it one above 0", job.name, job.weight));
            }
        }
        Ok(())
    }
}

impl JobProblem {
    /// All its costs and sizes.
    fn numbers(&self) -> impl Iterator<Item = f64> {
        let of_operator = |operator: &OperatorProblem| {
            operator.cpu_s.iter().copied().chain([operator.latency_s]).collect::<Vec<f64>>()
        };
        let sizes = [self.delivered_bytes, self.store_bytes, self.store_wait_s, self.held_bytes_per_core];
        let cuts = self.cuts.iter().flat_map(|cut| [cut.bytes, cut.bytes_per_row, cut.next_cpu_share]);
        let costs = self.operators.iter().flat_map(of_operator).chain(self.overhead_cpu_s.iter().copied());
        costs.chain(sizes).chain(cuts)
    }

    /// A job as measured. `keys` names the cuts of [`JobModel::cuts`], in order: the fingerprint of the pipeline up to
    /// there. Cuts after a random operator are left out.
    pub fn from_model(id: JobId, name: &str, model: &JobModel, types: &[WorkerType], keys: &[u64]) -> Self {
        let operator = |operator: &crate::model::OperatorModel| OperatorProblem {
            name: operator.name.clone(),
            cpu_s: types.iter().map(|kind| operator.cpu_s_on(&kind.name)).collect(),
            latency_s: operator.latency_s,
            limit: operator.limit(),
        };
        let past_the_end = model.operators.len();
        let cuts = model.cuts.iter().zip(keys).filter(|(cut, _)| cut.is_cacheable && cut.bytes > 0.0);
        Self {
            id,
            name: name.to_owned(),
            demand_rows_per_s: model.demand_rows_per_s,
            operators: model.operators.iter().map(operator).collect(),
            overhead_cpu_s: types.iter().map(|kind| model.cpu_s_from(past_the_end, &kind.name)).collect(),
            delivered_bytes: model.delivered_bytes,
            store_bytes: model.store_bytes,
            store_wait_s: unhindered_wait_s(model),
            held_bytes_per_core: held_bytes_per_core(model),
            cuts: cuts
                .map(|(cut, key)| CutProblem {
                    after: cut.after,
                    bytes: cut.bytes,
                    bytes_per_row: cut.bytes_per_row,
                    key: *key,
                    form: cut.form,
                    next_cpu_share: cut.next_cpu_share,
                })
                .collect(),
            ..Self::default()
        }
    }
}

/// As the law of bandwidth has it; as seen where there is none.
fn unhindered_wait_s(model: &JobModel) -> f64 {
    let by_law = model.bandwidth.seconds_per_byte().map(|seconds| seconds * model.store_bytes);
    by_law.filter(|wait_s| wait_s.is_finite()).unwrap_or(model.store_wait_s)
}

/// Bytes held over cores at work.
fn held_bytes_per_core(model: &JobModel) -> f64 {
    let cpu_s: f64 = model.operators.iter().map(|operator| operator.cpu_s_on("")).sum();
    let cores = model.rows_per_s * cpu_s;
    // Fewer than one core at work says nothing of what one takes.
    model.held_bytes / cores.max(1.0)
}
