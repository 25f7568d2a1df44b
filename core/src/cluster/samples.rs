//! Between the state machine and whoever plans: what each worker and consumer has reported, and what jobs may use of
//! workers. It decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Cluster;
use super::messages::{ConsumerStats, JobAllocation, JobSpec, ProcessCpu, TierCapacity, WorkerJobStats};
use super::opening::{LEAST_WEIGHT, MOST_WEIGHT};
use crate::ids::{JobId, SessionId, WorkerId};
use crate::manifest::DatasetSummary;
use crate::pipeline::Pipeline;
use crate::tenants::Quota;

/// A share of no more than this is no part in a worker: the job gets what others leave.
pub const LEAST_CORES: f64 = 0.01;

/// A job's weight; logs of earlier releases hold others than jobs may be opened with.
fn weight(spec: &JobSpec) -> f64 {
    spec.weight.clamp(LEAST_WEIGHT, MOST_WEIGHT)
}

/// What was decided for one worker.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerAllocations {
    /// Threads of its CPU pool to use; 0: as many as it has.
    pub cores: u32,
    /// What each job may use of it. Jobs that are listed with more than [`LEAST_CORES`] on some workers get leases there
    /// only, as long as one of these is there; for what they still have elsewhere they get [`LEAST_CORES`].
    pub allotments: Vec<JobAllocation>,
}

/// The latest reports: counters since each reporter's start. A window is the difference of two samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    /// Workers that report, by id.
    pub workers: Vec<WorkerReportSample>,
    /// The last sessions of the consumers of jobs that have not ended.
    pub consumers: Vec<ConsumerReportSample>,
    /// Jobs whose rows flow.
    pub jobs: Vec<JobFacts>,
}

/// What a job is, for those who plan.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFacts {
    /// The job.
    pub job: JobId,
    /// Whose it is.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Its pipeline.
    pub pipeline: Pipeline,
    /// Its dataset.
    pub dataset: DatasetSummary,
    /// Passes over the dataset that are still to come, the rest of the present one among them.
    pub passes_left: f64,
    /// Its claim where workers are short: those of a tenant's jobs are as their weights, and on average its priority.
    pub weight: f64,
    /// What the jobs of its tenant may take together.
    pub quota: Quota,
}

/// What one worker reported last.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerReportSample {
    /// The worker.
    pub worker: WorkerId,
    /// Address at which consumers fetch.
    pub address: String,
    /// What its cores are.
    pub machine: String,
    /// Bandwidth of its network in bytes per second and direction; 0 where it is not known.
    pub nic_bytes_per_s: u64,
    /// Threads of its CPU pool.
    pub cores: u32,
    /// Its memory budget in bytes.
    pub memory_bytes: u64,
    /// The tiers of its caches.
    pub caches: Vec<TierCapacity>,
    /// Whether its memory leaves no room for further splits.
    pub memory_full: bool,
    /// Whether it wants to leave.
    pub draining: bool,
    /// Nanoseconds from its start to its report.
    pub elapsed_ns: u64,
    /// CPU time of its process.
    pub cpu: ProcessCpu,
    /// What it did for each job.
    pub jobs: Vec<Arc<WorkerJobStats>>,
}

/// What one session of a consumer reported last.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerReportSample {
    /// The job.
    pub job: JobId,
    /// Which consumer, from 0.
    pub consumer: u32,
    /// Its connection: a newer one counts from 0 again.
    pub session: SessionId,
    /// What it has received.
    pub stats: ConsumerStats,
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
                quota: *self.settings.tenants.of(&job.spec.tenant),
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
        let priority = self.settings.tenants.of(&spec.tenant).priority;
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
