//! Builds the models of jobs and the planner's problem from worker and consumer reports.
//!
//! The observer stores recent counters of each worker and consumer of each job. It reads them from [`Cluster::samples`],
//! and receives the time as an argument. The observer makes no decisions.
//!
//! [`Cluster::samples`]: feedline_cluster::Cluster::samples

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::graph::description::GraphHash;
use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::messages::samples::{ConsumerReportSample, JobProperties, Samples, WorkerReportSample};
use feedline_data::messages::saturating_sum;
use feedline_data::pipeline::CacheTier;
use feedline_data::view::Bottleneck;

use self::job_windows::{JobWindows, recent_worker_sample};
use self::saturation::{BUSY_SHARE, active_threads};
use self::stores::ObservedStore;
use self::tenants::ObservedTenants;
use self::terms::{operators_cpu_ns, store_of, worker_sample};

use crate::model::job::JobObservation;
use crate::model::{JobModel, JobResources, Locality, WorkerTypeResources, bottleneck};

use crate::plan::{CachePolicy, JobProblem, PlannerSettings, PoolProblem, Problem, WorkerSlot, WorkerType};

mod arrivals;
mod bandwidth_history;
mod job_windows;
mod needs;
mod saturation;
mod stores;
mod tenants;
mod terms;

pub use job_windows::RECENT_MS;
pub use needs::{PoolNeeds, ResourceNeeds};
pub use terms::{cache_point_keys, reads_local_files, worker_type};

#[cfg(test)]
pub(crate) mod tests;

/// Milliseconds from the first rows of a job until its measured costs are considered stable.
const COST_SETTLING_MS: Millis = 2_000;

/// Stores recent counters, and builds the models of jobs and the planner's problem from them.
#[derive(Debug, Clone, Default)]
pub struct Observer {
    jobs: BTreeMap<JobId, JobWindows>,
    workers: BTreeMap<WorkerId, ObservedWorker>,
    /// The number of jobs whose datasets are being indexed.
    preparing_jobs: u32,
    /// The pools whose sizes a scaler sets.
    pools: Vec<PoolProblem>,
    /// The last known worker type of each of these pools.
    last_types: BTreeMap<String, WorkerType>,
    /// The number of workers per process. Each of them reports the transport CPU time of the whole process. 0 is
    /// treated as 1.
    workers_per_process: usize,
}

/// The properties of a worker that are not counters.
#[derive(Debug, Clone)]
struct ObservedWorker {
    worker_type: WorkerType,
    is_draining: bool,
    /// The capacity of the store tier in bytes; 0 for a worker without that tier.
    store_tier_bytes: u64,
    /// The graphs that the worker holds or loads.
    graphs: Vec<GraphHash>,
}

impl ObservedWorker {
    fn new(worker: &WorkerReportSample) -> Self {
        let store_tier = worker.caches.iter().find(|tier| tier.tier == CacheTier::Store);
        Self {
            worker_type: worker_type(worker),
            is_draining: worker.draining,
            store_tier_bytes: store_tier.map_or(0, |tier| tier.capacity_bytes),
            graphs: worker.graphs.clone(),
        }
    }
}

impl Observer {
    /// Creates an observer for processes that each run this number of workers.
    pub fn with_workers_per_process(workers: usize) -> Self {
        Self { workers_per_process: workers, ..Self::default() }
    }

    /// Sets the pools whose sizes a scaler sets.
    pub fn set_pools(&mut self, pools: Vec<PoolProblem>) {
        self.pools = pools;
    }

    /// Adds the samples up to `now`. Removes jobs and workers that are missing from the samples.
    pub fn push(&mut self, now: Millis, samples: &Samples) {
        self.preparing_jobs = samples.preparing_jobs;
        let mut before = std::mem::take(&mut self.jobs);
        for facts in &samples.jobs {
            let mut windows = before.remove(&facts.job).unwrap_or_else(|| JobWindows::new(facts.clone()));
            windows.properties.passes_left = facts.passes_left;
            windows.push_topic(now, facts);
            windows.encodings.clear();
            self.jobs.insert(facts.job, windows);
        }
        self.workers =
            samples.workers.iter().map(|worker| (worker.worker, ObservedWorker::new(worker))).collect();
        self.update_last_types(samples);
        for worker in &samples.workers {
            let operators_ns = saturating_sum(worker.jobs.iter().map(|stats| operators_cpu_ns(stats)));
            for stats in &worker.jobs {
                if let Some(windows) = self.jobs.get_mut(&stats.job) {
                    let sample = worker_sample(worker, stats, operators_ns, self.workers_per_process);
                    windows.push_worker(now, sample, &stats.encodings);
                }
            }
        }
        let mut sessions: BTreeMap<JobId, Vec<&ConsumerReportSample>> = BTreeMap::new();
        for session in &samples.consumers {
            sessions.entry(session.job).or_default().push(session);
        }
        for (job, windows) in &mut self.jobs {
            windows.workers.retain(|worker, _| self.workers.contains_key(worker));
            windows.push_consumers(now, sessions.remove(job).unwrap_or_default());
        }
        let busy = self.busy_workers();
        self.jobs.values_mut().for_each(|windows| windows.find_bottleneck(now, &busy));
    }

    /// Updates the last known type of each pool: the type of its youngest worker, which new workers are likely to have.
    /// A draining worker counts only if no other worker of the pool is live.
    fn update_last_types(&mut self, samples: &Samples) {
        for pool in &self.pools {
            let own = samples.workers.iter().filter(|worker| worker.pool == pool.name);
            if let Some(youngest) = own.min_by_key(|worker| (worker.draining, worker.elapsed_ns)) {
                self.last_types.insert(pool.name.clone(), worker_type(youngest));
            }
        }
    }

    /// Returns the last known types of the pools that have none of `types`.
    fn types_of_empty_pools(&self, types: &[WorkerType]) -> Vec<WorkerType> {
        let is_empty = |pool: &&PoolProblem| types.iter().all(|kind| kind.pool != pool.name);
        let empty = self.pools.iter().filter(is_empty);
        empty.filter_map(|pool| self.last_types.get(&pool.name).cloned()).collect()
    }

    /// Returns the workers whose threads were active for most of the time, over all jobs.
    fn busy_workers(&self) -> BTreeSet<WorkerId> {
        let mut threads: BTreeMap<WorkerId, (f64, f64)> = BTreeMap::new();
        for (worker, window) in self.jobs.values().flat_map(|windows| &windows.workers) {
            if let Some(sample) = recent_worker_sample(window) {
                let (active, all) = threads.entry(*worker).or_default();
                (*active, *all) = (*active + active_threads(&sample), sample.cores);
            }
        }
        let is_busy = |(_, (active, all)): &(WorkerId, (f64, f64))| *active > BUSY_SHARE * all;
        threads.into_iter().filter(is_busy).map(|(worker, _)| worker).collect()
    }

    /// Returns the observation of a job, or `None` if the last samples do not contain it.
    pub fn observation(&self, job: JobId) -> Option<JobObservation> {
        Some(self.jobs.get(&job)?.observation())
    }

    /// Returns the model of a job, or `None` before its first rows.
    pub fn model(&self, job: JobId) -> Option<JobModel> {
        JobModel::build(&self.observation(job)?)
    }

    /// Returns the jobs that may benefit from a cache: their pipelines have no `cache` operator, their costs are
    /// stable, and they will read rows again.
    pub fn cacheable_jobs(&self, now: Millis) -> Vec<JobId> {
        let is_cacheable = |windows: &&JobWindows| {
            windows.first_rows_at.is_some_and(|at| now >= at + COST_SETTLING_MS)
                && windows.properties.passes_left > 1.0
                && windows.properties.pipeline.cached_prefix().is_none()
        };
        self.jobs.values().filter(is_cacheable).map(|windows| windows.properties.job).collect()
    }

    /// Whether the last samples contain the job.
    pub fn has_job(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    /// Returns the properties of the jobs in the last samples.
    pub fn job_properties(&self) -> impl Iterator<Item = &JobProperties> {
        self.jobs.values().map(|windows| &windows.properties)
    }

    /// Returns the planner's problem for one job on workers of these types, without the effect of a planned cache.
    pub fn problem_without_cache(&self, job: JobId, types: &[WorkerType]) -> Option<JobProblem> {
        let windows = self.jobs.get(&job)?;
        let model = JobModel::build(&windows.observation_without_cache())?;
        let keys = cache_point_keys(&windows.properties.pipeline, &model);
        let locality = windows.locality();
        Some(JobProblem {
            locality,
            ..JobProblem::from_model(job, &windows.properties.name, &model, types, &keys)
        })
    }

    /// Removes the counters of a job, but keeps the observed bandwidth of its store. Must be called when the job's
    /// limits change, because counters under different limits must not be mixed.
    pub fn reset_counters(&mut self, job: JobId) {
        if let Some(windows) = self.jobs.get_mut(&job) {
            windows.workers.clear();
            windows.consumers.clear();
        }
    }

    /// Whether the store limits the job: its consumers wait for rows, its workers wait for reads, and no operator waits
    /// longer than the reads.
    pub fn waits_for_store(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|windows| windows.waits_for_store)
    }

    /// Returns the resources of a job that uses all workers except draining workers.
    pub fn resources(&self, job: JobId) -> JobResources {
        let mut resources = JobResources { locality: self.locality(job), ..JobResources::default() };
        for ObservedWorker { worker_type: kind, .. } in
            self.workers.values().filter(|worker| !worker.is_draining)
        {
            resources.memory_bytes += kind.memory_bytes;
            match resources.workers.iter_mut().find(|known| known.worker_type == kind.name) {
                Some(known) => known.count += 1,
                None => resources.workers.push(WorkerTypeResources {
                    worker_type: kind.name.clone(),
                    count: 1,
                    cores: kind.cores,
                    nic_bytes_per_s: kind.nic_bytes_per_s,
                }),
            }
        }
        if let Some(model) = self.model(job).filter(|_| self.waits_for_store(job)) {
            // Only the store limits the job, so the measured number of requests in flight is the maximum.
            resources.read_concurrency = model.store_concurrency;
        }
        resources
    }

    /// Returns the bottleneck of a job that uses all workers, or `None` before its first rows.
    pub fn bottleneck(&self, job: JobId) -> Option<Bottleneck> {
        bottleneck(&self.model(job)?, &self.resources(job))
    }

    /// Returns the share of a job's traffic that does not use the network of its workers.
    pub fn locality(&self, job: JobId) -> Locality {
        self.jobs.get(&job).map(JobWindows::locality).unwrap_or_default()
    }

    /// Returns the workers that hold or load the graph that a job samples, except draining workers.
    fn graph_holders(&self, job: &JobProperties) -> Vec<WorkerId> {
        let Some(graph) = job.dataset.graph.as_ref().filter(|_| job.pipeline.is_indivisible()) else {
            return Vec::new();
        };
        let holds = |worker: &ObservedWorker| !worker.is_draining && worker.graphs.contains(&graph.topology);
        self.workers.iter().filter(|(_, worker)| holds(worker)).map(|(id, _)| *id).collect()
    }

    /// Returns the planner's problem for all jobs with a model, on all workers except draining workers. A job that samples a graph
    /// has a model before its first rows. Contains the last known type of each pool without workers, so that the pool can grow.
    /// `cache` is the cache policy of all jobs. The counters already include the effect of `cache` operators in pipelines.
    pub fn problem(&self, settings: PlannerSettings, cache: CachePolicy) -> Problem {
        let mut worker_types: Vec<WorkerType> = Vec::new();
        let mut workers = Vec::new();
        let active = || self.workers.iter().filter(|(_, worker)| !worker.is_draining);
        for (id, worker) in active() {
            let known = worker_types.iter().position(|known| known.name == worker.worker_type.name);
            let worker_type = known.unwrap_or_else(|| {
                worker_types.push(worker.worker_type.clone());
                worker_types.len() - 1
            });
            workers.push(WorkerSlot { id: *id, worker_type });
        }
        worker_types.extend(self.types_of_empty_pools(&worker_types));
        let mut jobs = Vec::new();
        let mut stores: Vec<(String, ObservedStore)> = Vec::new();
        let mut tenants = ObservedTenants::default();
        for (id, windows) in &self.jobs {
            let observation = windows.observation();
            let model = JobModel::build(&observation).or_else(|| JobModel::expected(&observation));
            let tenant = tenants.add(&windows.properties, model.is_some());
            let Some(model) = model else { continue };
            let name = store_of(&windows.properties.pipeline);
            let store = stores.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                stores.push((name, ObservedStore::default()));
                stores.len() - 1
            });
            stores[store].1.add(&model, windows.waits_for_store);
            let keys = cache_point_keys(&windows.properties.pipeline, &model);
            let job = JobProblem::from_model(*id, &windows.properties.name, &model, &worker_types, &keys);
            let (weight, locality) = (windows.properties.weight, windows.locality());
            let useful_rows_per_s = windows.useful_rows_per_s(&model, &settings);
            let graph_holders = self.graph_holders(&windows.properties);
            jobs.push(JobProblem {
                cache,
                store,
                tenant,
                weight,
                locality,
                useful_rows_per_s,
                graph_holders,
                ..job
            });
        }
        let store_cache_bytes = active().map(|(_, worker)| worker.store_tier_bytes).min().unwrap_or(0) as f64;
        let store_bytes_per_s = stores.iter().map(|(_, seen)| seen.bytes_per_s_limit()).collect();
        let tenants = tenants.into_problems();
        Problem {
            jobs,
            worker_types,
            workers,
            pools: self.pools.clone(),
            store_bytes_per_s,
            store_cache_bytes,
            tenants,
            cache_copies: 1.0,
            settings,
        }
    }
}
