//! The resources that one row per second of a job needs with each cache option, and the capacities of the cluster.

use feedline_data::pipeline::CacheTier;

use super::problem::{CachePolicy, JobProblem, Problem};

// Indexes of a worker's resources in `ResourceAmounts`.
pub(super) const CORES: usize = 0;
pub(super) const NIC: usize = 1;
pub(super) const MEMORY: usize = 2;
pub(super) const MEMORY_READ: usize = 3;
pub(super) const DISK_READ: usize = 4;
pub(super) const RESOURCES: usize = 5;

/// Amounts of all resources of a worker, indexed by the constants above.
pub(super) type ResourceAmounts = [f64; RESOURCES];

/// A cache at one cache point of a job, in one tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CachePlacement {
    /// The index in [`JobProblem::cache_points`].
    pub(super) cache_point: usize,
    pub(super) tier: CacheTier,
    pub(super) key: u64,
    pub(super) bytes: f64,
}

/// One option for running a job: without a cache, or with a given cache.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ExecutionOption {
    pub(super) cache: Option<CachePlacement>,
    /// The resources of a worker that the job needs for one row per second, by worker type.
    pub(super) resources_per_row: Vec<ResourceAmounts>,
    /// Maximum rows per second that the operator limits allow on one worker, by worker type.
    pub(super) max_rate_per_worker: Vec<f64>,
    /// The index of the store in [`Costs::store_bandwidths`].
    pub(super) store: usize,
    /// Bytes read from the store per row.
    pub(super) store_bytes_per_row: f64,
    /// The core quota of the job's tenant; infinite without a quota.
    pub(super) core_quota: f64,
}

/// The costs and capacities of a problem, indexed by job, worker type, tenant and store.
#[derive(Debug, Clone)]
pub(super) struct Costs {
    /// The number of workers of each type.
    pub(super) worker_counts: Vec<f64>,
    /// The capacity of a worker of each type; infinite if unknown.
    pub(super) worker_capacity: Vec<ResourceAmounts>,
    /// The bandwidth of each store in bytes per second.
    pub(super) store_bandwidths: Vec<f64>,
    /// The capacity of each tier, in the order of [`CacheTier::ALL`], over the whole cluster.
    pub(super) tier_bytes: [f64; 3],
    /// The core quota of each tenant; infinite without a quota.
    pub(super) core_quotas: Vec<f64>,
    /// The quota of cached bytes of each tenant; infinite without a quota.
    pub(super) tenant_cache_bytes: Vec<f64>,
    /// The index of each job's tenant; `None` for a tenant without quotas.
    pub(super) job_tenants: Vec<Option<usize>>,
    /// The number of copies of cached rows. The sizes of cache points are multiplied by this number.
    pub(super) cache_copies: f64,
    /// The price of a core-hour on each worker type.
    pub(super) core_hour_prices: Vec<f64>,
    /// The price of a byte-hour in each tier.
    pub(super) byte_hour_prices: [f64; 3],
    /// The weight of each job. The largest weight is 1.
    pub(super) weights: Vec<f64>,
    /// The demand of each job in rows per second.
    pub(super) demands: Vec<f64>,
    /// Whether the cluster is too small to feed all jobs.
    pub(super) is_overloaded: bool,
    /// The options of each job. The first option caches nothing, unless the pipeline has a cache.
    pub(super) options: Vec<Vec<ExecutionOption>>,
}

impl Costs {
    pub(super) fn new(problem: &Problem) -> Self {
        let settings = &problem.settings;
        let types = &problem.worker_types;
        let counts: Vec<f64> = problem.worker_counts().into_iter().map(f64::from).collect();
        let over_types = |bytes: &dyn Fn(usize) -> f64| (0..types.len()).map(|w| counts[w] * bytes(w)).sum();
        let heaviest = problem.jobs.iter().map(|job| job.weight).fold(f64::MIN_POSITIVE, f64::max);
        let mut costs = Self {
            worker_capacity: types
                .iter()
                .map(|kind| {
                    let in_flight = kind.memory_bytes * (1.0 - settings.cache_memory_share);
                    [
                        kind.cores,
                        limit_or_infinity(kind.nic_bytes_per_s),
                        limit_or_infinity(in_flight),
                        limit_or_infinity(kind.memory_read_bytes_per_s),
                        limit_or_infinity(kind.disk_read_bytes_per_s),
                    ]
                })
                .collect(),
            store_bandwidths: problem.store_bytes_per_s.iter().copied().map(limit_or_infinity).collect(),
            tier_bytes: [
                over_types(&|w| types[w].memory_bytes * settings.cache_memory_share),
                over_types(&|w| types[w].disk_bytes),
                problem.store_cache_bytes,
            ],
            core_quotas: problem.tenants.iter().map(|tenant| tenant.cores.unwrap_or(f64::INFINITY)).collect(),
            tenant_cache_bytes: problem
                .tenants
                .iter()
                .map(|tenant| tenant.cache_bytes.unwrap_or(f64::INFINITY))
                .collect(),
            job_tenants: problem.jobs.iter().map(|job| job.tenant).collect(),
            cache_copies: problem.cache_copies.max(1.0),
            core_hour_prices: types
                .iter()
                .map(|kind| if kind.core_hour > 0.0 { kind.core_hour } else { settings.prices.core_hour })
                .collect(),
            byte_hour_prices: CacheTier::ALL.map(|tier| settings.prices.gb_hour(tier) / 1e9),
            weights: problem.jobs.iter().map(|job| job.weight / heaviest).collect(),
            demands: Vec::new(),
            is_overloaded: false,
            options: problem.jobs.iter().map(|job| job_options(problem, job)).collect(),
            worker_counts: counts,
        };
        costs.demands = (0..problem.jobs.len()).map(|j| costs.job_demand(j, &problem.jobs[j])).collect();
        costs
    }

    pub(super) fn job_count(&self) -> usize {
        self.options.len()
    }

    pub(super) fn type_count(&self) -> usize {
        self.worker_counts.len()
    }

    fn job_demand(&self, job: usize, given: &JobProblem) -> f64 {
        let is_valid = |rate: &f64| rate.is_finite() && *rate >= 0.0;
        let known = given.demand_rows_per_s.filter(is_valid);
        let useful = given.useful_rows_per_s.filter(is_valid).unwrap_or(f64::INFINITY);
        let alone = || self.options[job].iter().map(|option| self.rate_alone(option)).fold(0.0, f64::max);
        known.unwrap_or_else(alone).min(useful)
    }

    /// Returns the rate in rows per second that the job could reach alone in the cluster.
    pub(super) fn rate_alone(&self, option: &ExecutionOption) -> f64 {
        let on_type = |w: usize| {
            if self.worker_counts[w] > 0.0 {
                self.worker_counts[w] * self.rate_on_one_worker(option, w)
            } else {
                0.0
            }
        };
        let rate = match option.core_quota.is_finite() {
            true => self.rate_within_quota(option),
            false => (0..self.type_count()).map(on_type).sum(),
        };
        rate.min(ratio(self.store_bandwidth(option), option.store_bytes_per_row))
    }

    /// Returns the rate in rows per second that the tenant's core quota allows. First uses the worker types on which a
    /// row needs the fewest cores.
    fn rate_within_quota(&self, option: &ExecutionOption) -> f64 {
        let mut types: Vec<usize> = (0..self.type_count()).filter(|w| self.worker_counts[*w] > 0.0).collect();
        types.sort_by(|a, b| {
            option.resources_per_row[*a][CORES].total_cmp(&option.resources_per_row[*b][CORES])
        });
        let (mut cores, mut rows) = (option.core_quota, 0.0);
        for w in types {
            let needed = option.resources_per_row[w][CORES];
            let rate = (self.worker_counts[w] * self.rate_on_one_worker(option, w)).min(ratio(cores, needed));
            rows += rate;
            // Rows that need no cores do not use the quota.
            cores = if needed > 0.0 { (cores - rate * needed).max(0.0) } else { cores };
        }
        rows
    }

    /// Returns the used share of each tenant's core quota. `cores` contains the cores of each job.
    pub(super) fn tenant_loads(&self, cores: impl Iterator<Item = (usize, f64)>) -> Vec<f64> {
        let mut loads = vec![0.0; self.core_quotas.len()];
        for (job, cores) in cores {
            if let Some(tenant) = self.job_tenants[job] {
                loads[tenant] += cores;
            }
        }
        loads.iter().zip(&self.core_quotas).map(|(used, quota)| used / quota).collect()
    }

    /// Returns the jobs of each tenant.
    pub(super) fn jobs_of_tenants(&self) -> Vec<Vec<usize>> {
        let mut jobs = vec![Vec::new(); self.core_quotas.len()];
        for (job, tenant) in self.job_tenants.iter().enumerate() {
            if let Some(tenant) = tenant {
                jobs[*tenant].push(job);
            }
        }
        jobs
    }

    /// Returns the costs of the given jobs of a tenant as if the tenant were alone in the cluster. Each job has only
    /// the given option.
    pub(super) fn for_tenant(&self, tenant: usize, jobs: &[usize], options: &[&ExecutionOption]) -> Self {
        Self {
            worker_counts: self.worker_counts.clone(),
            worker_capacity: self.worker_capacity.clone(),
            store_bandwidths: self.store_bandwidths.clone(),
            tier_bytes: self.tier_bytes,
            core_quotas: vec![self.core_quotas[tenant]],
            tenant_cache_bytes: vec![self.tenant_cache_bytes[tenant]],
            job_tenants: vec![Some(0); jobs.len()],
            cache_copies: self.cache_copies,
            core_hour_prices: self.core_hour_prices.clone(),
            byte_hour_prices: self.byte_hour_prices,
            weights: jobs.iter().map(|j| self.weights[*j]).collect(),
            demands: jobs.iter().map(|j| self.demands[*j]).collect(),
            is_overloaded: self.is_overloaded,
            options: jobs.iter().map(|j| vec![options[*j].clone()]).collect(),
        }
    }

    /// Returns the size of one copy in the object store, which all workers share, or of all copies in another tier.
    pub(super) fn stored_bytes(&self, tier: CacheTier, bytes: f64) -> f64 {
        if tier == CacheTier::Store { bytes / self.cache_copies } else { bytes }
    }

    /// Returns the cores that a job needs for the given rates by worker type.
    pub(super) fn needed_cores(&self, option: &ExecutionOption, by_type: &[f64]) -> f64 {
        by_type.iter().zip(&option.resources_per_row).map(|(rate, takes)| rate * takes[CORES]).sum()
    }

    /// Returns the bandwidth of the store that a job reads.
    pub(super) fn store_bandwidth(&self, option: &ExecutionOption) -> f64 {
        self.store_bandwidths.get(option.store).copied().unwrap_or(f64::INFINITY)
    }

    /// Returns the used share of each store's bandwidth. `taken` contains pairs of a store index and bytes per second.
    pub(super) fn store_loads(&self, taken: impl Iterator<Item = (usize, f64)>) -> Vec<f64> {
        let mut loads = vec![0.0; self.store_bandwidths.len()];
        for (store, bytes_per_s) in taken {
            if let Some(load) = loads.get_mut(store) {
                *load += bytes_per_s;
            }
        }
        loads.iter().zip(&self.store_bandwidths).map(|(used, bandwidth)| used / bandwidth).collect()
    }

    /// Returns the rate in rows per second that the job could reach alone on one worker of this type.
    pub(super) fn rate_on_one_worker(&self, option: &ExecutionOption, worker_type: usize) -> f64 {
        let amounts = self.worker_capacity[worker_type].iter().zip(&option.resources_per_row[worker_type]);
        amounts
            .map(|(capacity, needed)| ratio(*capacity, *needed))
            .fold(option.max_rate_per_worker[worker_type], f64::min)
    }

    /// Returns the fed fraction that the job could reach alone in the cluster.
    pub(super) fn fed_fraction_alone(&self, job: usize, option: &ExecutionOption) -> f64 {
        if self.demands[job] <= 0.0 { 1.0 } else { (self.rate_alone(option) / self.demands[job]).min(1.0) }
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
    let first = point.map_or(0, |(_, point, _)| point.operator_index + 1);
    let read_bytes = |tier: CacheTier| {
        point.filter(|(_, _, at)| *at == tier).map_or(0.0, |(_, point, _)| point.bytes_per_row)
    };
    let per_byte = problem.settings.cache_read_cpu_s_per_byte;
    let find_cpu_s =
        point.map_or(0.0, |(_, _, tier)| problem.settings.cache_read_cpu_s_per_row[tier as usize]);
    let read_cpu_s: f64 = find_cpu_s
        + CacheTier::ALL.iter().zip(per_byte).map(|(tier, cpu_s)| read_bytes(*tier) * cpu_s).sum::<f64>();
    let from_cache_store = read_bytes(CacheTier::Store);
    let from_dataset = if point.is_none() { job.store_bytes_per_row } else { 0.0 };
    let store_bytes_per_row = from_dataset + from_cache_store;
    let running = || job.operators.iter().skip(first);
    let resources_per_row = |w: usize| {
        // The encoding changes the CPU time of the operator after the cache point.
        let next =
            point.and_then(|(_, point, _)| Some(running().next()?.cpu_s[w] * (1.0 - point.next_cpu_share)));
        let operators = running().map(|operator| operator.cpu_s[w]).sum::<f64>() - next.unwrap_or(0.0);
        let cpu_s = read_cpu_s + job.overhead_cpu_s[w] + operators;
        let mut amounts = [0.0; RESOURCES];
        amounts[CORES] = cpu_s;
        amounts[NIC] =
            job.locality.network_bytes(from_dataset, from_cache_store, job.delivered_bytes_per_row);
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
            cache_point: index,
            tier,
            key: point.key,
            bytes: point.bytes,
        }),
        resources_per_row: (0..types).map(resources_per_row).collect(),
        max_rate_per_worker: (0..types).map(max_rate).collect(),
        store: job.store,
        store_bytes_per_row,
        core_quota: job.tenant.and_then(|tenant| problem.tenants[tenant].cores).unwrap_or(f64::INFINITY),
    }
}

/// Returns `capacity / needed`, or infinity if `needed` is 0.
pub(super) fn ratio(capacity: f64, needed: f64) -> f64 {
    if needed > 0.0 { capacity / needed } else { f64::INFINITY }
}

/// Returns the limit, or infinity if it is 0, which means unknown.
fn limit_or_infinity(limit: f64) -> f64 {
    if limit > 0.0 { limit } else { f64::INFINITY }
}
