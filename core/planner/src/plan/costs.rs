//! The resources that one row per second of a job needs, for each option of caching, and the capacities of the
//! cluster.

use feedline_data::pipeline::CacheTier;

use super::problem::{CachePolicy, JobProblem, Problem};

/// Indexes of the resources of a worker.
pub(super) const CORES: usize = 0;
pub(super) const NIC: usize = 1;
pub(super) const MEMORY: usize = 2;
pub(super) const MEMORY_READ: usize = 3;
pub(super) const DISK_READ: usize = 4;
pub(super) const RESOURCES: usize = 5;

/// The amount of each resource of a worker.
pub(super) type ResourceAmounts = [f64; RESOURCES];

/// A cache point of a job in a tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CachePlacement {
    /// The index in [`JobProblem::cache_points`].
    pub(super) point: usize,
    pub(super) tier: CacheTier,
    pub(super) key: u64,
    pub(super) bytes: f64,
}

/// One way to run a job: with or without a cache.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ExecutionOption {
    pub(super) cache: Option<CachePlacement>,
    /// The resources of a worker that one row per second needs, by worker type.
    pub(super) per_row: Vec<ResourceAmounts>,
    /// The largest number of rows per second that one worker can compute because of operator limits, by worker type.
    pub(super) max_per_worker: Vec<f64>,
    /// The index of the store in [`Costs::stores`].
    pub(super) store: usize,
    /// Bytes read from the store per row.
    pub(super) store_bytes: f64,
    /// The quota of cores of the job's tenant; infinite without a quota.
    pub(super) quota: f64,
}

/// The problem as numbers.
#[derive(Debug, Clone)]
pub(super) struct Costs {
    /// The number of workers of each type.
    pub(super) counts: Vec<f64>,
    /// The capacity of a worker of each type; infinite if unknown.
    pub(super) capacity: Vec<ResourceAmounts>,
    /// The bandwidth of each store in bytes per second.
    pub(super) stores: Vec<f64>,
    /// The capacity of each tier, in the order of [`CacheTier::ALL`], over the whole cluster.
    pub(super) tier_bytes: [f64; 3],
    /// The quota of cores of each tenant, and its quota of cached bytes; infinite without a quota.
    pub(super) quotas: Vec<f64>,
    pub(super) tenant_cache_bytes: Vec<f64>,
    /// The index of each job's tenant in the quotas.
    pub(super) tenants: Vec<Option<usize>>,
    /// The number of copies by which the sizes of cache points are multiplied.
    pub(super) copies: f64,
    /// The price of a core-hour of each type.
    pub(super) core_hour: Vec<f64>,
    /// The price of a byte-hour of each tier.
    pub(super) byte_hour: [f64; 3],
    /// The weight of each job. The largest weight is 1.
    pub(super) weights: Vec<f64>,
    /// The demand of each job in rows per second.
    pub(super) demand: Vec<f64>,
    /// Whether the cluster is known to be too small to feed all jobs.
    pub(super) is_short: bool,
    /// The options of each job. The first option caches nothing, unless the pipeline has a cache.
    pub(super) options: Vec<Vec<ExecutionOption>>,
}

impl Costs {
    pub(super) fn new(problem: &Problem) -> Self {
        let settings = &problem.settings;
        let types = &problem.worker_types;
        let counts: Vec<f64> = problem.counts().into_iter().map(f64::from).collect();
        let over_types = |bytes: &dyn Fn(usize) -> f64| (0..types.len()).map(|w| counts[w] * bytes(w)).sum();
        let heaviest = problem.jobs.iter().map(|job| job.weight).fold(f64::MIN_POSITIVE, f64::max);
        let mut costs = Self {
            capacity: types
                .iter()
                .map(|kind| {
                    let in_flight = kind.memory_bytes * (1.0 - settings.cache_memory_share);
                    [
                        kind.cores,
                        finite_or_unlimited(kind.nic_bytes_per_s),
                        finite_or_unlimited(in_flight),
                        finite_or_unlimited(kind.memory_read_bytes_per_s),
                        finite_or_unlimited(kind.disk_read_bytes_per_s),
                    ]
                })
                .collect(),
            stores: problem.stores.iter().copied().map(finite_or_unlimited).collect(),
            tier_bytes: [
                over_types(&|w| types[w].memory_bytes * settings.cache_memory_share),
                over_types(&|w| types[w].disk_bytes),
                problem.store_cache_bytes,
            ],
            quotas: problem.tenants.iter().map(|tenant| tenant.cores.unwrap_or(f64::INFINITY)).collect(),
            tenant_cache_bytes: problem
                .tenants
                .iter()
                .map(|tenant| tenant.cache_bytes.unwrap_or(f64::INFINITY))
                .collect(),
            tenants: problem.jobs.iter().map(|job| job.tenant).collect(),
            copies: problem.copies.max(1.0),
            core_hour: types
                .iter()
                .map(|kind| if kind.core_hour > 0.0 { kind.core_hour } else { settings.prices.core_hour })
                .collect(),
            byte_hour: CacheTier::ALL.map(|tier| settings.prices.gb_hour(tier) / 1e9),
            weights: problem.jobs.iter().map(|job| job.weight / heaviest).collect(),
            demand: Vec::new(),
            is_short: false,
            options: problem.jobs.iter().map(|job| job_options(problem, job)).collect(),
            counts,
        };
        costs.demand = (0..problem.jobs.len()).map(|j| costs.job_demand(j, &problem.jobs[j])).collect();
        costs
    }

    pub(super) fn jobs(&self) -> usize {
        self.options.len()
    }

    pub(super) fn types(&self) -> usize {
        self.counts.len()
    }

    fn job_demand(&self, job: usize, given: &JobProblem) -> f64 {
        let known = given.demand_rows_per_s.filter(|demand| demand.is_finite() && *demand >= 0.0);
        let alone = || self.options[job].iter().map(|option| self.rate_alone(option)).fold(0.0, f64::max);
        known.unwrap_or_else(alone)
    }

    /// Rows per second if the job had the cluster for itself.
    pub(super) fn rate_alone(&self, option: &ExecutionOption) -> f64 {
        let on_type = |w: usize| {
            if self.counts[w] > 0.0 { self.counts[w] * self.rate_on_one_worker(option, w) } else { 0.0 }
        };
        let rate = match option.quota.is_finite() {
            true => self.within_quota(option),
            false => (0..self.types()).map(on_type).sum(),
        };
        rate.min(ratio(self.store_bandwidth(option), option.store_bytes))
    }

    /// Rows per second within the tenant's quota of cores. Types on which a row needs the fewest cores are used
    /// first.
    fn within_quota(&self, option: &ExecutionOption) -> f64 {
        let mut types: Vec<usize> = (0..self.types()).filter(|w| self.counts[*w] > 0.0).collect();
        types.sort_by(|a, b| option.per_row[*a][CORES].total_cmp(&option.per_row[*b][CORES]));
        let (mut cores, mut rows) = (option.quota, 0.0);
        for w in types {
            let needed = option.per_row[w][CORES];
            let rate = (self.counts[w] * self.rate_on_one_worker(option, w)).min(ratio(cores, needed));
            rows += rate;
            // Rows that need no cores use nothing of the quota.
            cores = if needed > 0.0 { (cores - rate * needed).max(0.0) } else { cores };
        }
        rows
    }

    /// The used share of each tenant's quota of cores.
    pub(super) fn tenant_loads(&self, cores: impl Iterator<Item = (usize, f64)>) -> Vec<f64> {
        let mut loads = vec![0.0; self.quotas.len()];
        for (job, cores) in cores {
            if let Some(tenant) = self.tenants[job] {
                loads[tenant] += cores;
            }
        }
        loads.iter().zip(&self.quotas).map(|(used, quota)| used / quota).collect()
    }

    /// The jobs of each tenant.
    pub(super) fn jobs_of_tenants(&self) -> Vec<Vec<usize>> {
        let mut jobs = vec![Vec::new(); self.quotas.len()];
        for (job, tenant) in self.tenants.iter().enumerate() {
            if let Some(tenant) = tenant {
                jobs[*tenant].push(job);
            }
        }
        jobs
    }

    /// The problem of some jobs of a tenant, each with the given option, as if the tenant were alone in the cluster.
    pub(super) fn for_tenant(&self, tenant: usize, jobs: &[usize], options: &[&ExecutionOption]) -> Self {
        Self {
            counts: self.counts.clone(),
            capacity: self.capacity.clone(),
            stores: self.stores.clone(),
            tier_bytes: self.tier_bytes,
            quotas: vec![self.quotas[tenant]],
            tenant_cache_bytes: vec![self.tenant_cache_bytes[tenant]],
            tenants: vec![Some(0); jobs.len()],
            copies: self.copies,
            core_hour: self.core_hour.clone(),
            byte_hour: self.byte_hour,
            weights: jobs.iter().map(|j| self.weights[*j]).collect(),
            demand: jobs.iter().map(|j| self.demand[*j]).collect(),
            is_short: self.is_short,
            options: jobs.iter().map(|j| vec![options[*j].clone()]).collect(),
        }
    }

    /// The real size of cached bytes: the store has one copy for all workers.
    pub(super) fn stored_bytes(&self, tier: CacheTier, bytes: f64) -> f64 {
        if tier == CacheTier::Store { bytes / self.copies } else { bytes }
    }

    /// The cores that a job needs for the given rates by worker type.
    pub(super) fn needed_cores(&self, option: &ExecutionOption, by_type: &[f64]) -> f64 {
        by_type.iter().zip(&option.per_row).map(|(rate, takes)| rate * takes[CORES]).sum()
    }

    /// The bandwidth of the store that a job reads.
    pub(super) fn store_bandwidth(&self, option: &ExecutionOption) -> f64 {
        self.stores.get(option.store).copied().unwrap_or(f64::INFINITY)
    }

    /// The used share of each store's bandwidth.
    pub(super) fn store_loads(&self, taken: impl Iterator<Item = (usize, f64)>) -> Vec<f64> {
        let mut loads = vec![0.0; self.stores.len()];
        for (store, bytes_per_s) in taken {
            if let Some(load) = loads.get_mut(store) {
                *load += bytes_per_s;
            }
        }
        loads.iter().zip(&self.stores).map(|(used, bandwidth)| used / bandwidth).collect()
    }

    /// Rows per second if the job had one worker of this type for itself.
    pub(super) fn rate_on_one_worker(&self, option: &ExecutionOption, worker_type: usize) -> f64 {
        let amounts = self.capacity[worker_type].iter().zip(&option.per_row[worker_type]);
        amounts
            .map(|(capacity, needed)| ratio(*capacity, *needed))
            .fold(option.max_per_worker[worker_type], f64::min)
    }

    /// The fed fraction if the job had the cluster for itself.
    pub(super) fn fed_fraction_alone(&self, job: usize, option: &ExecutionOption) -> f64 {
        if self.demand[job] <= 0.0 { 1.0 } else { (self.rate_alone(option) / self.demand[job]).min(1.0) }
    }
}

fn job_options(problem: &Problem, job: &JobProblem) -> Vec<ExecutionOption> {
    match job.cache {
        CachePolicy::Never => vec![execution_option(problem, job, None)],
        CachePolicy::Pinned { point, tier } => vec![execution_option(problem, job, Some((point, tier)))],
        CachePolicy::Free => {
            let tiers = |point| CacheTier::ALL.into_iter().map(move |tier| Some((point, tier)));
            let caches = (0..job.cache_points.len()).flat_map(tiers);
            let has_tier = |cache: &Option<(usize, CacheTier)>| match cache {
                Some((_, CacheTier::Disk)) => problem.worker_types.iter().any(|kind| kind.disk_bytes > 0.0),
                Some((_, CacheTier::Store)) => problem.store_cache_bytes > 0.0,
                _ => true,
            };
            [None]
                .into_iter()
                .chain(caches.filter(has_tier))
                .map(|cache| execution_option(problem, job, cache))
                .collect()
        }
    }
}

fn execution_option(
    problem: &Problem,
    job: &JobProblem,
    cache: Option<(usize, CacheTier)>,
) -> ExecutionOption {
    let point = cache.map(|(point, tier)| (point, &job.cache_points[point], tier));
    let first = point.map_or(0, |(_, point, _)| point.after + 1);
    let read_bytes = |tier: CacheTier| {
        point.filter(|(_, _, at)| *at == tier).map_or(0.0, |(_, point, _)| point.bytes_per_row)
    };
    let per_byte = problem.settings.cache_read_cpu_s_per_byte;
    let find_cpu_s =
        point.map_or(0.0, |(_, _, tier)| problem.settings.cache_read_cpu_s_per_row[tier as usize]);
    let read_cpu_s: f64 = find_cpu_s
        + CacheTier::ALL.iter().zip(per_byte).map(|(tier, cpu_s)| read_bytes(*tier) * cpu_s).sum::<f64>();
    let from_cache_store = read_bytes(CacheTier::Store);
    let from_dataset = if point.is_none() { job.store_bytes } else { 0.0 };
    let store_bytes = from_dataset + from_cache_store;
    let running = || job.operators.iter().skip(first);
    let per_row = |w: usize| {
        // The encoding changes the CPU time of the operator after the cache point.
        let next =
            point.and_then(|(_, point, _)| Some(running().next()?.cpu_s[w] * (1.0 - point.next_cpu_share)));
        let operators = running().map(|operator| operator.cpu_s[w]).sum::<f64>() - next.unwrap_or(0.0);
        let cpu_s = read_cpu_s + job.overhead_cpu_s[w] + operators;
        let mut amounts = [0.0; RESOURCES];
        amounts[CORES] = cpu_s;
        amounts[NIC] = job.locality.network_bytes(from_dataset, from_cache_store, job.delivered_bytes);
        amounts[MEMORY] = cpu_s * job.held_bytes_per_core;
        amounts[MEMORY_READ] = read_bytes(CacheTier::Memory);
        amounts[DISK_READ] = read_bytes(CacheTier::Disk);
        amounts
    };
    let max_rate = |w: usize| {
        let limited = running().filter_map(|operator| {
            let service_s = operator.cpu_s[w] + operator.latency_s;
            operator.limit.map(|limit| ratio(f64::from(limit), service_s))
        });
        limited.fold(f64::INFINITY, f64::min)
    };
    let types = problem.worker_types.len();
    ExecutionOption {
        cache: point.map(|(index, point, tier)| CachePlacement {
            point: index,
            tier,
            key: point.key,
            bytes: point.bytes,
        }),
        per_row: (0..types).map(per_row).collect(),
        max_per_worker: (0..types).map(max_rate).collect(),
        store: job.store,
        store_bytes,
        quota: job.tenant.and_then(|tenant| problem.tenants[tenant].cores).unwrap_or(f64::INFINITY),
    }
}

/// A capacity over the amount that one row per second needs; infinite if it needs nothing.
pub(super) fn ratio(capacity: f64, needed: f64) -> f64 {
    if needed > 0.0 { capacity / needed } else { f64::INFINITY }
}

/// A limit; 0 means that no limit is known.
fn finite_or_unlimited(limit: f64) -> f64 {
    if limit > 0.0 { limit } else { f64::INFINITY }
}
