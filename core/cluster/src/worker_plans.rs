//! Builds the plan of a worker: its leases, tasks, allocations and limits.

use std::collections::BTreeSet;

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::{JobAllocation, Lease, MIN_CORES, Revision, WorkerPlan};

use crate::Cluster;
use crate::state::worker::TrackedWorker;

impl Cluster {
    pub(crate) fn worker_plan(&self, id: WorkerId) -> WorkerPlan {
        let worker = &self.workers[&id];
        let jobs: BTreeSet<JobId> = worker.jobs().collect();
        WorkerPlan {
            revision: Revision { incarnation: self.incarnation, number: worker.revision },
            leases: self.planned_leases(worker, jobs.len()),
            tasks: self.tasks_of(worker),
            group_commits: self.planned_commits(worker),
            lease_ms: self.settings.worker_lease_ms,
            cores: worker.allocations.cores,
            allocations: self.allocations(id, worker, &jobs),
            tenants: self.tenant_cache_quotas(&jobs),
            ticket_key: Vec::new(),
            mixes: self.mix_changes(jobs.iter().copied()),
            segments: self.segments_of(worker),
            stores: worker.allocations.stores.clone(),
            graph_jobs: worker.graph_jobs.iter().copied().collect(),
            partitioned_jobs: self.partitioned_jobs(worker),
        }
    }

    /// Returns the undelivered splits that a worker holds, in the order of their epochs and rounds.
    fn planned_leases(&self, worker: &TrackedWorker, jobs: usize) -> Vec<Lease> {
        let mut leases = Vec::with_capacity(worker.lease_count());
        let mut present = None;
        for (job, split) in worker.leases() {
            if present.is_none_or(|(id, _)| id != job) {
                present = self.jobs.get(&job).map(|found| (job, found));
            }
            if let Some(from) = present.and_then(|(_, found)| found.next_offset(split)) {
                let lost_workers = present.map_or(0, |(_, found)| found.lost_workers(split));
                leases.push(Lease { job, split, start_offset: from, lost_workers });
            }
        }
        if jobs > 1 {
            leases.sort_by_key(|lease| (lease.split, lease.job));
        }
        leases
    }

    /// Returns the allocations of the plan, and limits for jobs with leases on the worker that the plan does not contain.
    fn allocations(
        &self,
        id: WorkerId,
        worker: &TrackedWorker,
        held: &BTreeSet<JobId>,
    ) -> Vec<JobAllocation> {
        let mut allocations = worker.allocations.jobs.clone();
        let listed: BTreeSet<JobId> = allocations.iter().map(|allocation| allocation.job).collect();
        for job in held.difference(&listed) {
            let is_planned = self.planned_workers.contains_key(job);
            // An unplanned job has only the limits of its tenant.
            if is_planned || self.unplanned_core_limit(*job, id) > 0.0 {
                let cores = if is_planned { MIN_CORES } else { 0.0 };
                allocations.push(JobAllocation { cores, ..JobAllocation::unlimited(*job) });
            }
        }
        for allocation in allocations.iter_mut().filter(|allocation| allocation.max_cores == 0.0) {
            allocation.max_cores = self.unplanned_core_limit(allocation.job, id);
        }
        allocations
    }
}
