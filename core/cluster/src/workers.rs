//! Workers: what each reports, holds and is told; and what happens when one is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use feedline_data::ids::{JobId, Millis, TaskId, WorkerId};
use feedline_data::layout::SplitRef;
use feedline_data::messages::{
    JobAllocation, LEAST_CORES, Lease, ProcessCpu, Revision, TierCapacity, WorkerAllocations, WorkerPlan,
    WorkerReport,
};

use super::leases_ahead::leases_for_cores;
use super::limits::kept_text;

use super::records::Record;

use super::{Cluster, Ready, Reply, RequestId};

/// A request that is held until there is something to say.
#[derive(Debug, Clone, Copy)]
pub(super) struct LongPoll {
    pub(super) request: RequestId,
    pub(super) since: Millis,
    /// Revision number that the asker holds; 0 when it is of another life.
    pub(super) seen: u64,
}

impl LongPoll {
    pub(super) fn new(request: RequestId, since: Millis, seen: Revision, life: u64) -> Self {
        Self { request, since, seen: if seen.life == life { seen.number } else { 0 } }
    }

    /// Whether it shall be answered: there is news, or it was held long enough.
    pub(super) fn is_due(&self, revision: u64, now: Millis, hold_ms: u64) -> bool {
        self.seen != revision || now.saturating_sub(self.since) >= hold_ms
    }
}

/// What a worker has of one job.
#[derive(Debug, Clone, Copy, Default)]
struct JobWork {
    leases: u32,
    computed: u32,
}

#[derive(Debug)]
pub(super) struct TrackedWorker {
    pub(super) address: String,
    pub(super) last_seen: Millis,
    /// Whether it has reported in this life of the coordinator.
    pub(super) known: bool,
    pub(super) memory_full: bool,
    pub(super) draining: bool,
    /// What its cores are, its network, the threads of its CPU pool and its memory budget, as it reports them.
    pub(super) machine: String,
    pub(super) nic_bytes_per_s: u64,
    pub(super) cores: u32,
    pub(super) memory_bytes: u64,
    /// The tiers of its caches, as it reports them.
    pub(super) caches: Vec<TierCapacity>,
    /// What it had used so far when it reported, and when that was, counted from its start.
    pub(super) elapsed_ns: u64,
    pub(super) cpu: ProcessCpu,
    /// Threads of its CPU pool that it shall use, and what each job may use of it.
    pub(super) share: WorkerAllocations,
    pub(super) leases: BTreeSet<(JobId, SplitRef)>,
    pub(super) computed: BTreeSet<(JobId, SplitRef)>,
    /// Counts of `leases` and `computed` for each job.
    work: BTreeMap<JobId, JobWork>,
    pub(super) tasks: BTreeSet<TaskId>,
    /// Counts changes of its plan.
    pub(super) revision: u64,
    pub(super) parked: Option<LongPoll>,
    /// Jobs that it has ever held splits of.
    pub(super) jobs: BTreeSet<JobId>,
}

impl TrackedWorker {
    /// A worker of which only the log knows; its plans are counted from `revision` on.
    pub(super) fn remembered(now: Millis, revision: u64) -> Self {
        Self {
            address: String::new(),
            last_seen: now,
            known: false,
            memory_full: false,
            draining: false,
            cores: 0,
            memory_bytes: 0,
            machine: String::new(),
            nic_bytes_per_s: 0,
            caches: Vec::new(),
            elapsed_ns: 0,
            cpu: ProcessCpu::default(),
            share: WorkerAllocations::default(),
            leases: BTreeSet::new(),
            computed: BTreeSet::new(),
            work: BTreeMap::new(),
            tasks: BTreeSet::new(),
            revision,
            parked: None,
            jobs: BTreeSet::new(),
        }
    }

    pub(super) fn worked_on(&self, job: JobId) -> bool {
        self.jobs.contains(&job)
    }

    pub(super) fn forget_job(&mut self, job: JobId) {
        self.leases.retain(|(of, _)| *of != job);
        self.computed.retain(|(of, _)| *of != job);
        self.work.remove(&job);
    }

    /// Splits of a job that it holds and has still to compute.
    pub(super) fn uncomputed(&self, job: JobId) -> u32 {
        self.work.get(&job).map_or(0, |work| work.leases - work.computed)
    }

    /// Leases that it may hold ahead of a job with splits of this many rows.
    pub(super) fn leases_ahead(&self, least: u32, split_rows: u64) -> u32 {
        leases_for_cores(least, self.cores, split_rows)
    }

    /// Notes a split that it holds.
    pub(super) fn hold(&mut self, job: JobId, split: SplitRef) {
        if self.leases.insert((job, split)) {
            self.work.entry(job).or_default().leases += 1;
        }
        self.jobs.insert(job);
    }

    /// Gives it a split to hold.
    pub(super) fn grant(&mut self, job: JobId, split: SplitRef) {
        self.hold(job, split);
        self.revision += 1;
    }

    /// Takes a split from it. Whether it held it.
    pub(super) fn release(&mut self, job: JobId, split: SplitRef) -> bool {
        let (was_held, was_computed) =
            (self.leases.remove(&(job, split)), self.computed.remove(&(job, split)));
        if let Some(work) = self.work.get_mut(&job) {
            work.leases -= u32::from(was_held);
            work.computed -= u32::from(was_computed);
        }
        was_held
    }

    /// Replaces the splits that it has computed. Those that are new.
    fn set_computed(&mut self, reported: &[(JobId, SplitRef)]) -> Vec<(JobId, SplitRef)> {
        let held = reported.iter().filter(|lease| self.leases.contains(lease)).copied().collect();
        let before = std::mem::replace(&mut self.computed, held);
        self.work.values_mut().for_each(|work| work.computed = 0);
        for (job, _) in &self.computed {
            self.work.entry(*job).or_default().computed += 1;
        }
        self.computed.difference(&before).copied().collect()
    }
}

impl Cluster {
    pub(super) fn on_worker(&mut self, request: RequestId, report: WorkerReport, ready: &mut Ready) {
        if let Err(refusal) = self.check_worker_room(report.worker) {
            ready.replies.push((request, Reply::Refused(refusal)));
            return;
        }
        let (address, machine) = (kept_text(report.address), kept_text(report.machine));
        let report = WorkerReport { address, machine, ..report };
        let now = self.now;
        let life = self.life;
        let first = self.next_revision;
        let worker =
            self.workers.entry(report.worker).or_insert_with(|| TrackedWorker::remembered(now, first));
        let appeared = !worker.known || worker.address != report.address;
        let has_room = (worker.memory_full && !report.memory_full) || (worker.draining && !report.draining);
        worker.known = true;
        worker.address.clone_from(&report.address);
        worker.last_seen = now;
        worker.memory_full = report.memory_full;
        worker.draining = report.draining;
        worker.cores = report.cores;
        worker.memory_bytes = report.memory_bytes;
        worker.machine = report.machine;
        worker.nic_bytes_per_s = report.nic_bytes_per_s;
        worker.caches = report.caches;
        worker.elapsed_ns = report.elapsed_ns;
        worker.cpu = report.cpu;
        // As each job is computed the worker has room for more of it.
        for (job, split) in worker.set_computed(&report.computed) {
            self.stale.insert(job);
            if let Some(job) = self.jobs.get_mut(&job) {
                job.touched.streams.insert(split.stream);
            }
        }
        let parked = LongPoll::new(request, now, report.seen, life);
        if let Some(earlier) = worker.parked.replace(parked) {
            // Requests may overtake each other, so it may be the later one that is answered here: by a true plan.
            let plan = self.worker_plan(report.worker);
            ready.replies.push((earlier.request, Reply::Worker(plan)));
        }
        if appeared {
            self.touch_consumers_of_worker(report.worker);
        }
        if appeared || has_room {
            self.touch_all_jobs();
        }
        for mut stats in report.stats {
            for operator in &mut stats.operators {
                operator.name = kept_text(std::mem::take(&mut operator.name));
            }
            if let Some(job) = self.jobs.get_mut(&stats.job) {
                job.worker_stats.insert(report.worker, Arc::new(stats));
            }
        }
        self.settle(report.worker, parked.seen);
        self.on_task_results(report.worker, report.tasks, ready);
    }

    /// A worker that holds this revision of its plan has reported: jobs that ended before it have all its counts.
    fn settle(&mut self, worker: WorkerId, seen: u64) {
        for id in &self.ended {
            if let Some(job) = self.jobs.get_mut(id)
                && job.unsettled.get(&worker).is_some_and(|revision| seen >= *revision)
            {
                job.unsettled.remove(&worker);
            }
        }
    }

    fn touch_consumers_of_worker(&mut self, worker: WorkerId) {
        let leases: Vec<_> = self.workers[&worker].leases.iter().copied().collect();
        for (job, split) in leases {
            if let Some(job) = self.jobs.get_mut(&job) {
                job.touch_consumer_of(split);
            }
        }
    }

    /// Answers the worker's parked request with its present plan.
    fn answer_worker(&mut self, id: WorkerId, ready: &mut Ready) {
        let Some(parked) = self.workers.get_mut(&id).and_then(|worker| worker.parked.take()) else { return };
        let plan = self.worker_plan(id);
        ready.replies.push((parked.request, Reply::Worker(plan)));
    }

    fn worker_plan(&self, id: WorkerId) -> WorkerPlan {
        let worker = &self.workers[&id];
        let mut leases: Vec<Lease> = worker
            .leases
            .iter()
            .filter_map(|&(job, split)| {
                let from = self.jobs.get(&job)?.next_offset(split)?;
                Some(Lease { job, split, from })
            })
            .collect();
        leases.sort_by_key(|lease| (lease.split, lease.job));
        let mut allotments = worker.share.allotments.clone();
        let listed: BTreeSet<JobId> = allotments.iter().map(|allotment| allotment.job).collect();
        let held: BTreeSet<JobId> = worker.leases.iter().map(|(job, _)| *job).collect();
        // A job that the plan does not know yet has no limits but its tenant's.
        let left = |job: &&JobId| self.placed.contains_key(job) || self.unplanned_cap(**job, id) > 0.0;
        allotments.extend(held.difference(&listed).filter(left).map(|job| {
            let cores = if self.placed.contains_key(job) { LEAST_CORES } else { 0.0 };
            JobAllocation { cores, ..JobAllocation::unlimited(*job) }
        }));
        for allotment in allotments.iter_mut().filter(|allotment| allotment.most_cores == 0.0) {
            allotment.most_cores = self.unplanned_cap(allotment.job, id);
        }
        let (tenants, mixes) = (self.tenant_parts(&held), self.mixes(held.iter().copied()));
        WorkerPlan {
            revision: Revision { life: self.life, number: worker.revision },
            leases,
            tasks: self.tasks_of(worker),
            lease_ms: self.settings.worker_lease_ms,
            cores: worker.share.cores,
            allotments,
            tenants,
            ticket_key: Vec::new(),
            mixes,
        }
    }

    /// Gives up workers that have been silent for the lease time.
    pub(super) fn expire(&mut self, ready: &mut Ready) {
        let limit = self.settings.worker_lease_ms;
        let lost: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, worker)| self.now.saturating_sub(worker.last_seen) > limit)
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            let Some(worker) = self.workers.remove(&id) else { continue };
            self.next_revision = self.next_revision.max(worker.revision + 1);
            if let Some(parked) = worker.parked {
                ready.replies.push((parked.request, Reply::Worker(WorkerPlan::default())));
            }
            let mut by_job: BTreeMap<JobId, Vec<SplitRef>> = BTreeMap::new();
            for (job, split) in worker.leases {
                by_job.entry(job).or_default().push(split);
            }
            for (job, splits) in by_job {
                self.revoke(job, id, splits, ready);
            }
            for job in self.jobs.values_mut() {
                job.unsettled.remove(&id);
            }
            self.return_tasks(&worker.tasks);
        }
        self.expire_consumers(ready);
        self.expire_jobs(ready);
    }

    /// Takes splits from a worker and tells it and their consumers.
    pub(super) fn revoke(&mut self, job: JobId, worker: WorkerId, splits: Vec<SplitRef>, ready: &mut Ready) {
        if let Some(found) = self.workers.get_mut(&worker) {
            for split in &splits {
                found.release(job, *split);
            }
            found.revision += 1;
        }
        if let Some(found) = self.jobs.get_mut(&job) {
            for split in &splits {
                found.touch_consumer_of(*split);
            }
        }
        self.record(Record::Revoked { job, worker, splits }, ready);
    }

    /// Answers whoever waits and has something new to hear, or has waited long enough.
    pub(super) fn answer_parked(&mut self, ready: &mut Ready) {
        self.answer_asks(ready);
        let (now, hold) = (self.now, self.settings.hold_ms);
        let due = |worker: &TrackedWorker| {
            worker.parked.as_ref().is_some_and(|parked| parked.is_due(worker.revision, now, hold))
        };
        let changed: Vec<WorkerId> =
            self.workers.iter().filter(|(_, worker)| due(worker)).map(|(id, _)| *id).collect();
        for id in changed {
            self.answer_worker(id, ready);
        }
        self.answer_parked_consumers(ready);
    }
}
