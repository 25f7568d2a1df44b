//! What one row per second of a job takes of each resource, for each way of caching it; and what there is.

use feedline_data::pipeline::CacheTier;

use super::problem::{CachePolicy, JobProblem, Problem};

/// Resources of a single worker.
pub(super) const CORES: usize = 0;
pub(super) const NIC: usize = 1;
pub(super) const MEMORY: usize = 2;
pub(super) const MEMORY_READ: usize = 3;
pub(super) const DISK_READ: usize = 4;
pub(super) const RESOURCES: usize = 5;

/// Amounts of each resource of a worker.
pub(super) type ResourceAmounts = [f64; RESOURCES];

/// A cut of a job in a tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CutPlacement {
    /// Place in [`JobProblem::cuts`].
    pub(super) cut: usize,
    pub(super) tier: CacheTier,
    pub(super) key: u64,
    pub(super) bytes: f64,
}

/// One way of running a job.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ExecutionOption {
    pub(super) kept: Option<CutPlacement>,
    /// What a row per second takes of a worker, by worker type.
    pub(super) per_row: Vec<ResourceAmounts>,
    /// Rows per second that a worker can make at most, however much of it the job has, by worker type.
    pub(super) most_per_worker: Vec<f64>,
    /// Place of the store in [`Costs::stores`].
    pub(super) store: usize,
    /// Bytes of the store that a row takes.
    pub(super) store_bytes: f64,
    /// Cores that all jobs of its tenant may have together; infinite without a quota.
    pub(super) quota: f64,
}

/// The problem in numbers.
#[derive(Debug, Clone)]
pub(super) struct Costs {
    /// Workers of each type.
    pub(super) counts: Vec<f64>,
    /// What a worker of each type has; infinite where nothing is known to bind.
    pub(super) has: Vec<ResourceAmounts>,
    /// Bytes per second of each store.
    pub(super) stores: Vec<f64>,
    /// Room of each tier, in the order of [`CacheTier::ALL`] over the whole cluster.
    pub(super) room: [f64; 3],
    /// Cores that the jobs of each tenant may have together, and bytes that may be kept for them; infinite without a quota.
    pub(super) quotas: Vec<f64>,
    pub(super) tenant_room: Vec<f64>,
    /// Place of each job's tenant in these.
    pub(super) tenants: Vec<Option<usize>>,
    /// Copies that bytes in the store are reckoned with.
    pub(super) copies: f64,
    /// Price of a core-hour of each type.
    pub(super) core_hour: Vec<f64>,
    /// Price of a byte-hour of each tier.
    pub(super) byte_hour: [f64; 3],
    /// Weights; the largest is 1.
    pub(super) weights: Vec<f64>,
    /// Rows per second wanted.
    pub(super) demand: Vec<f64>,
    /// Whether it is known that not all can be fed, so that this need not be tried.
    pub(super) is_short: bool,
    /// Ways of running each job; the first keeps nothing, unless the user has the job keep something.
    pub(super) ways: Vec<Vec<ExecutionOption>>,
}

impl Costs {
    pub(super) fn new(problem: &Problem) -> Self {
        let settings = &problem.settings;
        let types = &problem.worker_types;
        let counts: Vec<f64> = problem.counts().into_iter().map(f64::from).collect();
        let over_types = |bytes: &dyn Fn(usize) -> f64| (0..types.len()).map(|w| counts[w] * bytes(w)).sum();
        let heaviest = problem.jobs.iter().map(|job| job.weight).fold(f64::MIN_POSITIVE, f64::max);
        let mut costs = Self {
            has: types
                .iter()
                .map(|kind| {
                    let in_flight = kind.memory_bytes * (1.0 - settings.cache_memory_share);
                    [
                        kind.cores,
                        known(kind.nic_bytes_per_s),
                        known(in_flight),
                        known(kind.memory_read_bytes_per_s),
                        known(kind.disk_read_bytes_per_s),
                    ]
                })
                .collect(),
            stores: problem.stores.iter().copied().map(known).collect(),
            room: [
                over_types(&|w| types[w].memory_bytes * settings.cache_memory_share),
                over_types(&|w| types[w].disk_bytes),
                problem.store_cache_bytes,
            ],
            quotas: problem.tenants.iter().map(|tenant| tenant.cores.unwrap_or(f64::INFINITY)).collect(),
            tenant_room: problem
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
            ways: problem.jobs.iter().map(|job| ways(problem, job)).collect(),
            counts,
        };
        costs.demand = (0..problem.jobs.len()).map(|j| costs.demand_of(j, &problem.jobs[j])).collect();
        costs
    }

    pub(super) fn jobs(&self) -> usize {
        self.ways.len()
    }

    pub(super) fn types(&self) -> usize {
        self.counts.len()
    }

    fn demand_of(&self, job: usize, given: &JobProblem) -> f64 {
        let known = given.demand_rows_per_s.filter(|demand| demand.is_finite() && *demand >= 0.0);
        let alone = || self.ways[job].iter().map(|way| self.alone(way)).fold(0.0, f64::max);
        known.unwrap_or_else(alone)
    }

    /// Rows per second if the job had the cluster for itself.
    pub(super) fn alone(&self, way: &ExecutionOption) -> f64 {
        let on_type =
            |w: usize| if self.counts[w] > 0.0 { self.counts[w] * self.on_one(way, w) } else { 0.0 };
        let made = match way.quota.is_finite() {
            true => self.within_quota(way),
            false => (0..self.types()).map(on_type).sum(),
        };
        made.min(per(self.store_of(way), way.store_bytes))
    }

    /// Rows per second that a job makes of its tenant's cores: of those first on which a row takes the least of them.
    fn within_quota(&self, way: &ExecutionOption) -> f64 {
        let mut types: Vec<usize> = (0..self.types()).filter(|w| self.counts[*w] > 0.0).collect();
        types.sort_by(|a, b| way.per_row[*a][CORES].total_cmp(&way.per_row[*b][CORES]));
        let (mut cores, mut rows) = (way.quota, 0.0);
        for w in types {
            let takes = way.per_row[w][CORES];
            let rate = (self.counts[w] * self.on_one(way, w)).min(per(cores, takes));
            rows += rate;
            // Of what takes no cores none are gone, however much it is.
            cores = if takes > 0.0 { (cores - rate * takes).max(0.0) } else { cores };
        }
        rows
    }

    /// What the cores of jobs take of each tenant's quota, as a share.
    pub(super) fn tenant_loads(&self, cores: impl Iterator<Item = (usize, f64)>) -> Vec<f64> {
        let mut loads = vec![0.0; self.quotas.len()];
        for (job, cores) in cores {
            if let Some(tenant) = self.tenants[job] {
                loads[tenant] += cores;
            }
        }
        loads.iter().zip(&self.quotas).map(|(taken, quota)| taken / quota).collect()
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

    /// The problem of some jobs of a tenant, each with the way that it is given, as if they had the cluster for themselves.
    pub(super) fn of_tenant(&self, tenant: usize, jobs: &[usize], ways: &[&ExecutionOption]) -> Self {
        Self {
            counts: self.counts.clone(),
            has: self.has.clone(),
            stores: self.stores.clone(),
            room: self.room,
            quotas: vec![self.quotas[tenant]],
            tenant_room: vec![self.tenant_room[tenant]],
            tenants: vec![Some(0); jobs.len()],
            copies: self.copies,
            core_hour: self.core_hour.clone(),
            byte_hour: self.byte_hour,
            weights: jobs.iter().map(|j| self.weights[*j]).collect(),
            demand: jobs.iter().map(|j| self.demand[*j]).collect(),
            is_short: self.is_short,
            ways: jobs.iter().map(|j| vec![ways[*j].clone()]).collect(),
        }
    }

    /// What is really there of so many bytes that are kept: in the store one copy serves all workers.
    pub(super) fn bytes_of(&self, tier: CacheTier, bytes: f64) -> f64 {
        if tier == CacheTier::Store { bytes / self.copies } else { bytes }
    }

    /// Cores that a job takes at so many rows per second on workers of each type.
    pub(super) fn cores_of(&self, way: &ExecutionOption, by_type: &[f64]) -> f64 {
        by_type.iter().zip(&way.per_row).map(|(rate, takes)| rate * takes[CORES]).sum()
    }

    /// Bytes per second of the store that a job reads.
    pub(super) fn store_of(&self, way: &ExecutionOption) -> f64 {
        self.stores.get(way.store).copied().unwrap_or(f64::INFINITY)
    }

    /// What these rates take of each store, over what it gives.
    pub(super) fn store_loads(&self, taken: impl Iterator<Item = (usize, f64)>) -> Vec<f64> {
        let mut loads = vec![0.0; self.stores.len()];
        for (store, bytes_per_s) in taken {
            if let Some(load) = loads.get_mut(store) {
                *load += bytes_per_s;
            }
        }
        loads.iter().zip(&self.stores).map(|(taken, gives)| taken / gives).collect()
    }

    /// Rows per second if the job had one worker of this type for itself.
    pub(super) fn on_one(&self, way: &ExecutionOption, worker_type: usize) -> f64 {
        let amounts = self.has[worker_type].iter().zip(&way.per_row[worker_type]);
        amounts.map(|(has, takes)| per(*has, *takes)).fold(way.most_per_worker[worker_type], f64::min)
    }

    /// Fed fraction if the job had the cluster for itself.
    pub(super) fn fed_alone(&self, job: usize, way: &ExecutionOption) -> f64 {
        if self.demand[job] <= 0.0 { 1.0 } else { (self.alone(way) / self.demand[job]).min(1.0) }
    }
}

fn ways(problem: &Problem, job: &JobProblem) -> Vec<ExecutionOption> {
    match job.cache {
        CachePolicy::Never => vec![way(problem, job, None)],
        CachePolicy::Pinned { cut, tier } => vec![way(problem, job, Some((cut, tier)))],
        CachePolicy::Free => {
            let tiers = |cut| CacheTier::ALL.into_iter().map(move |tier| Some((cut, tier)));
            let kept = (0..job.cuts.len()).flat_map(tiers);
            let has_tier = |kept: &Option<(usize, CacheTier)>| match kept {
                Some((_, CacheTier::Disk)) => problem.worker_types.iter().any(|kind| kind.disk_bytes > 0.0),
                Some((_, CacheTier::Store)) => problem.store_cache_bytes > 0.0,
                _ => true,
            };
            [None].into_iter().chain(kept.filter(has_tier)).map(|kept| way(problem, job, kept)).collect()
        }
    }
}

fn way(problem: &Problem, job: &JobProblem, kept: Option<(usize, CacheTier)>) -> ExecutionOption {
    let cut = kept.map(|(cut, tier)| (cut, &job.cuts[cut], tier));
    let first = cut.map_or(0, |(_, cut, _)| cut.after + 1);
    let read_bytes =
        |tier: CacheTier| cut.filter(|(_, _, at)| *at == tier).map_or(0.0, |(_, cut, _)| cut.bytes_per_row);
    let per_byte = problem.settings.cache_read_cpu_s_per_byte;
    let find_cpu_s = cut.map_or(0.0, |(_, _, tier)| problem.settings.cache_read_cpu_s_per_row[tier as usize]);
    let read_cpu_s: f64 = find_cpu_s
        + CacheTier::ALL.iter().zip(per_byte).map(|(tier, cpu_s)| read_bytes(*tier) * cpu_s).sum::<f64>();
    let from_cache_store = read_bytes(CacheTier::Store);
    let from_dataset = if cut.is_none() { job.store_bytes } else { 0.0 };
    let store_bytes = from_dataset + from_cache_store;
    let running = || job.operators.iter().skip(first);
    let per_row = |w: usize| {
        // The form in which rows are kept changes what the operator behind the cut takes.
        let next = cut.and_then(|(_, cut, _)| Some(running().next()?.cpu_s[w] * (1.0 - cut.next_cpu_share)));
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
    let most = |w: usize| {
        let limited = running().filter_map(|operator| {
            let service_s = operator.cpu_s[w] + operator.latency_s;
            operator.limit.map(|limit| per(f64::from(limit), service_s))
        });
        limited.fold(f64::INFINITY, f64::min)
    };
    let types = problem.worker_types.len();
    ExecutionOption {
        kept: cut.map(|(place, cut, tier)| CutPlacement { cut: place, tier, key: cut.key, bytes: cut.bytes }),
        per_row: (0..types).map(per_row).collect(),
        most_per_worker: (0..types).map(most).collect(),
        store: job.store,
        store_bytes,
        quota: job.tenant.and_then(|tenant| problem.tenants[tenant].cores).unwrap_or(f64::INFINITY),
    }
}

/// What is there over what one takes; infinite where one takes nothing.
pub(super) fn per(has: f64, takes: f64) -> f64 {
    if takes > 0.0 { has / takes } else { f64::INFINITY }
}

/// Zero means that nothing is known to bind.
fn known(limit: f64) -> f64 {
    if limit > 0.0 { limit } else { f64::INFINITY }
}
