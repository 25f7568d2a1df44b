//! Collects the samples for the planner, and applies the planner's allocations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::samples::{ConsumerReportSample, JobProperties, Samples, WorkerReportSample};
use feedline_data::messages::{JobSpec, MIN_CORES, PlanAllocations, WorkerJobStats};

use crate::Cluster;
use crate::spec_checks::{MAX_WEIGHT, MIN_WEIGHT};

/// Returns the weight of a job within the valid range. Logs from earlier releases may contain weights outside this range.
fn clamped_weight(spec: &JobSpec) -> f64 {
    spec.weight.clamp(MIN_WEIGHT, MAX_WEIGHT)
}

impl Cluster {
    /// Returns the last report of each worker and consumer.
    pub fn samples(&self) -> Samples {
        let mut stats: BTreeMap<WorkerId, Vec<Arc<WorkerJobStats>>> = BTreeMap::new();
        for job in self.jobs.values() {
            for (worker, of_job) in &job.worker_stats {
                if self.workers.contains_key(worker) {
                    stats.entry(*worker).or_default().push(Arc::clone(of_job));
                }
            }
        }
        let known = self.workers.iter().filter(|(_, worker)| worker.has_reported);
        let workers = known.map(|(id, worker)| WorkerReportSample {
            worker: *id,
            address: worker.address.url.clone(),
            pool: worker.pool.clone(),
            cores: worker.cores,
            memory_bytes: worker.memory_bytes,
            machine: worker.machine.clone(),
            nic_bytes_per_s: worker.nic_bytes_per_s,
            caches: worker.caches.clone(),
            memory: worker.memory.clone(),
            memory_full: worker.memory_full,
            draining: worker.draining,
            elapsed_ns: worker.elapsed_ns,
            cpu: worker.cpu,
            jobs: stats.remove(id).unwrap_or_default(),
            stores: worker.stores.clone(),
            graphs: self.graphs_of(worker),
        });
        let running = self.jobs.values().filter(|job| !job.is_ended());
        let sessions = running.flat_map(|job| {
            job.consumers.iter().flat_map(|(consumer, found)| {
                found.stats.iter().map(|(session, stats)| ConsumerReportSample {
                    job: job.id,
                    consumer: *consumer,
                    session: *session,
                    stats: *stats,
                })
            })
        });
        let weights = self.mean_weights();
        let facts = self.jobs.values().filter(|job| !job.is_ended()).filter_map(|job| {
            let topic = job.topic_sample();
            Some(JobProperties {
                job: job.id,
                tenant: job.spec.tenant.clone(),
                name: job.spec.name.clone(),
                pipeline: job.spec.pipeline.clone(),
                dataset: job.dataset.clone()?,
                passes_left: job.passes_left(),
                weight: self.cluster_weight(&job.spec, &weights),
                quota: *self.settings.tenants.quota_of(&job.spec.tenant),
                lag_rows: topic.map(|topic| topic.backlog_rows).or_else(|| job.lag_rows()),
                topic,
            })
        });
        let preparing = self.jobs.values().filter(|job| !job.is_ended() && job.dataset.is_none());
        Samples {
            workers: workers.collect(),
            consumers: sessions.collect(),
            jobs: facts.collect(),
            preparing_jobs: preparing.count() as u32,
        }
    }

    /// Returns the mean weight of the unfinished jobs of each tenant.
    fn mean_weights(&self) -> BTreeMap<&str, f64> {
        let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for job in self.jobs.values().filter(|job| !job.is_ended() && job.dataset.is_some()) {
            let sum = sums.entry(job.spec.tenant.as_str()).or_default();
            *sum = (sum.0 + clamped_weight(&job.spec), sum.1 + 1.0);
        }
        sums.into_iter().map(|(tenant, (weights, jobs))| (tenant, weights / jobs)).collect()
    }

    /// Returns the weight of a job relative to all jobs of the cluster. Tenants compete by priority, and the jobs of a
    /// tenant by weight. A tenant therefore gains nothing by raising the weights of all its jobs.
    fn cluster_weight(&self, spec: &JobSpec, means: &BTreeMap<&str, f64>) -> f64 {
        let mean = means.get(spec.tenant.as_str()).copied().unwrap_or(1.0);
        let priority = self.settings.tenants.quota_of(&spec.tenant).priority;
        priority * clamped_weight(spec) / mean
    }

    /// Applies the allocations of the planner. Only the plans of workers with changed allocations change.
    pub(crate) fn on_allocations(&mut self, allocations: &PlanAllocations) {
        let workers: Vec<WorkerId> = self.workers.keys().copied().collect();
        self.examined_items += workers.len() as u64;
        for id in workers {
            let own = allocations.get(&id).cloned().unwrap_or_default();
            if self.workers[&id].allocations != own
                && let Some(worker) = self.workers.get_mut(&id)
            {
                worker.allocations = own;
                worker.revision += 1;
            }
        }
        let mut planned_workers: BTreeMap<JobId, BTreeMap<WorkerId, f64>> = BTreeMap::new();
        for (id, own) in allocations {
            for allocation in own.jobs.iter().filter(|allocation| allocation.cores > MIN_CORES) {
                planned_workers.entry(allocation.job).or_default().insert(*id, allocation.cores);
            }
        }
        self.set_planned_workers(planned_workers);
    }

    /// Replaces the workers of the planned jobs, and discards the lease candidates of changed jobs.
    fn set_planned_workers(&mut self, planned_workers: BTreeMap<JobId, BTreeMap<WorkerId, f64>>) {
        let before = std::mem::replace(&mut self.planned_workers, planned_workers);
        self.planned_at.retain(|job, _| self.planned_workers.contains_key(job));
        let jobs: BTreeSet<JobId> = before.keys().chain(self.planned_workers.keys()).copied().collect();
        for job in jobs {
            let (old, new) = (before.get(&job), self.planned_workers.get(&job));
            if old == new {
                continue;
            }
            let has_other_workers = !old
                .into_iter()
                .flatten()
                .map(|part| part.0)
                .eq(new.into_iter().flatten().map(|part| part.0));
            if new.is_some() && has_other_workers {
                self.planned_at.insert(job, self.now);
            }
            self.refresh_candidates_of(job);
        }
    }
}
