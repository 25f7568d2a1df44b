//! What the state machine hands to the planner, and how it applies the planner's allocations.

use std::collections::BTreeMap;
use std::sync::Arc;

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::samples::{ConsumerReportSample, JobFacts, Samples, WorkerReportSample};
use feedline_data::messages::{JobSpec, LEAST_CORES, WorkerAllocations, WorkerJobStats};

use super::Cluster;
use super::opening::{LEAST_WEIGHT, MOST_WEIGHT};

/// A job's weight; logs of earlier releases hold others than jobs may be opened with.
fn weight(spec: &JobSpec) -> f64 {
    spec.weight.clamp(LEAST_WEIGHT, MOST_WEIGHT)
}

impl Cluster {
    /// What every worker and consumer has reported last, each by itself.
    pub fn samples(&self) -> Samples {
        let mut stats: BTreeMap<WorkerId, Vec<Arc<WorkerJobStats>>> = BTreeMap::new();
        for job in self.jobs.values() {
            for (worker, of_job) in &job.worker_stats {
                if self.workers.contains_key(worker) {
                    stats.entry(*worker).or_default().push(Arc::clone(of_job));
                }
            }
        }
        let known = self.workers.iter().filter(|(_, worker)| worker.known);
        let workers = known.map(|(id, worker)| WorkerReportSample {
            worker: *id,
            address: worker.address.clone(),
            cores: worker.cores,
            memory_bytes: worker.memory_bytes,
            machine: worker.machine.clone(),
            nic_bytes_per_s: worker.nic_bytes_per_s,
            caches: worker.caches.clone(),
            memory_full: worker.memory_full,
            draining: worker.draining,
            elapsed_ns: worker.elapsed_ns,
            cpu: worker.cpu,
            jobs: stats.remove(id).unwrap_or_default(),
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
            Some(JobFacts {
                job: job.id,
                tenant: job.spec.tenant.clone(),
                name: job.spec.name.clone(),
                pipeline: job.spec.pipeline.clone(),
                dataset: job.dataset.clone()?,
                passes_left: job.passes_left(),
                weight: self.claim(&job.spec, &weights),
                quota: *self.settings.tenants.quota_of(&job.spec.tenant),
            })
        });
        Samples { workers: workers.collect(), consumers: sessions.collect(), jobs: facts.collect() }
    }

    /// Mean weight of the jobs of each tenant, of those whose rows flow.
    fn mean_weights(&self) -> BTreeMap<&str, f64> {
        let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for job in self.jobs.values().filter(|job| !job.is_ended() && job.dataset.is_some()) {
            let sum = sums.entry(job.spec.tenant.as_str()).or_default();
            *sum = (sum.0 + weight(&job.spec), sum.1 + 1.0);
        }
        sums.into_iter().map(|(tenant, (weights, jobs))| (tenant, weights / jobs)).collect()
    }

    /// A job's claim: tenants compete by their priorities, and the jobs of one by their weights, so that no tenant gets
    /// more by giving its jobs larger ones.
    fn claim(&self, spec: &JobSpec, means: &BTreeMap<&str, f64>) -> f64 {
        let mean = means.get(spec.tenant.as_str()).copied().unwrap_or(1.0);
        let priority = self.settings.tenants.quota_of(&spec.tenant).priority;
        priority * weight(spec) / mean
    }

    /// Takes what was decided. Only workers for which something changed are told.
    pub(super) fn on_shares(&mut self, shares: &BTreeMap<WorkerId, WorkerAllocations>) {
        for (id, worker) in &mut self.workers {
            let share = shares.get(id).cloned().unwrap_or_default();
            if worker.share != share {
                worker.share = share;
                worker.revision += 1;
            }
        }
        let mut placed: BTreeMap<JobId, BTreeMap<WorkerId, f64>> = BTreeMap::new();
        for (id, share) in shares {
            for allotment in share.allotments.iter().filter(|allotment| allotment.cores > LEAST_CORES) {
                placed.entry(allotment.job).or_default().insert(*id, allotment.cores);
            }
        }
        if self.placed != placed {
            let workers = |parts: &BTreeMap<WorkerId, f64>| parts.keys().copied().collect::<Vec<_>>();
            self.placed_at.retain(|job, _| placed.contains_key(job));
            for (job, parts) in &placed {
                if self.placed.get(job).map(workers) != Some(workers(parts)) {
                    self.placed_at.insert(*job, self.now);
                }
            }
            self.placed = placed;
            self.touch_all_jobs();
        }
    }
}
