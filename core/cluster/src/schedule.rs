//! Grants leases of splits to workers, in bulk and ahead of need. Near the end of a job, late splits are leased twice.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::layout::SplitRef;

use crate::records::Record;
use crate::state::candidates::CandidateQueue;
use crate::state::job::{TouchedStreams, TrackedJob};
use crate::state::leases::LeaseHolder;
use crate::state::run_workers::RunWorkers;
use crate::{Cluster, Ready};

/// Minimum number of splits leased ahead of each stream, so that one worker can compute a split while the consumer receives
/// the previous split from another worker.
const MIN_SPLITS_AHEAD: usize = 2;
/// Time after a change to a job's workers during which no split is recalled, because the split may be computed soon.
pub(crate) const SETTLED_MS: u64 = 500;
/// Age of a lease after which an uncomputed split is recalled from a worker that the plan no longer assigns to the job.
/// Other jobs may leave no cores for the split, while a stream waits for it.
pub(crate) const RECALL_MS: u64 = 2_000;

/// New leases of one job.
#[derive(Default)]
pub(crate) struct Grants {
    by_worker: BTreeMap<WorkerId, Vec<SplitRef>>,
    splits: BTreeSet<SplitRef>,
}

impl Grants {
    /// Leases of one worker.
    pub(crate) fn of(worker: WorkerId, splits: Vec<SplitRef>) -> Self {
        Self { splits: splits.iter().copied().collect(), by_worker: [(worker, splits)].into() }
    }

    fn push(&mut self, worker: WorkerId, split: SplitRef) {
        if self.splits.insert(split) {
            self.by_worker.entry(worker).or_default().push(split);
        }
    }
}

impl Cluster {
    /// Assigns and leases splits of the jobs that have changed.
    pub(crate) fn schedule(&mut self, ready: &mut Ready) {
        self.redistribute_if_due();
        for id in std::mem::take(&mut self.jobs_to_schedule) {
            if self.jobs.get(&id).is_none_or(|job| job.running_layout().is_none()) {
                continue;
            }
            // A job may be complete when it opens, and a restored log may lack the record that ends a delivered job.
            if self.finish_if_delivered(id, ready) || self.jobs[&id].is_idle(self.now, &self.settings) {
                continue;
            }
            self.assign_relaxed(id, ready);
            self.touch_old_leases(id);
            self.update_candidates(id);
            self.revoke_without_graph(id, ready);
            self.recall(id, ready);
            self.revoke_for_new_workers(id, ready);
            self.lease_missing(id, ready);
        }
        // Records of this loop have added jobs, which the loop has already processed.
        self.jobs_to_schedule.clear();
    }

    /// Marks the streams whose leases have become late or recallable.
    fn touch_old_leases(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let (now, straggler_ms) = (self.now, job.straggler_ms(&self.settings));
        while let Some(split) = job.lease_ages.pop_late(now, straggler_ms) {
            self.examined_items += 1;
            let Some(lease) = job.leases.get(split) else { continue };
            job.touched_streams.streams.insert(split.stream);
            let is_late = |holder: &LeaseHolder| {
                let worker = self.workers.get(&holder.worker);
                now.saturating_sub(holder.granted_at) >= straggler_ms
                    && worker.is_some_and(|worker| !worker.is_computed(id, split))
            };
            // A second worker would have to decompress the run of the split from its start.
            let may_copy = job.run_key(split).is_none();
            if may_copy && lease.only_holder().is_some_and(|holder| is_late(&holder)) {
                job.late_splits.insert(split);
            }
        }
        while let Some(split) = job.lease_ages.pop_recallable(now, RECALL_MS) {
            self.examined_items += 1;
            if job.leases.contains(split) {
                job.touched_streams.recallable.insert(split.stream);
            }
        }
    }

    /// Revokes old leases of uncomputed splits from workers that the plan no longer assigns to the job.
    fn recall(&mut self, id: JobId, ready: &mut Ready) {
        let job = &self.jobs[&id];
        let Some(candidates) = job.candidates.as_ref().filter(|_| job.is_planned) else { return };
        if self.planned_at.contains_key(&id) {
            return;
        }
        let mut recalled: BTreeMap<WorkerId, Vec<SplitRef>> = BTreeMap::new();
        let mut examine = |split: SplitRef, holder: LeaseHolder| {
            let is_old = self.now.saturating_sub(holder.granted_at) >= RECALL_MS;
            let worker = self.workers.get(&holder.worker);
            let stays = worker.is_some_and(|worker| !worker.draining && !worker.is_computed(id, split));
            // This worker may hold the split because the consumer could not reach another worker.
            let is_isolated = worker.is_some_and(|worker| worker.is_isolated);
            let stays = stays && !is_isolated && !job.unreachable.has_split(split);
            if is_old && stays && !candidates.contains(holder.worker) {
                recalled.entry(holder.worker).or_default().push(split);
            }
        };
        if job.touched_streams.all {
            self.examined_items += job.leases.len() as u64;
            for (split, lease) in job.leases.iter() {
                lease.holders().for_each(|holder| examine(split, holder));
            }
        } else {
            for stream in &job.touched_streams.recallable {
                for (split, lease) in job.leases.of_stream(*stream) {
                    lease.holders().for_each(|holder| examine(split, holder));
                }
            }
        }
        for (worker, splits) in recalled {
            self.revoke(id, worker, splits, ready);
        }
    }

    /// Leases the missing splits. Near the end of the job, leases late splits a second time.
    fn lease_missing(&mut self, id: JobId, ready: &mut Ready) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(streams) = job.running_layout().map(|layout| layout.streams as usize) else { return };
        let Some(mut candidates) = job.candidates.take() else { return };
        let ahead = (2 * candidates.slots()).div_ceil(streams).max(MIN_SPLITS_AHEAD);
        let touched = job.refresh_missing(ahead);
        self.examined_items += if touched.all { streams } else { touched.streams.len() } as u64;
        let missing = job.missing_splits.len();
        let mut run_workers = std::mem::take(&mut job.run_workers);
        let grants = self.choose_grants(&self.jobs[&id], &touched, &mut candidates, &mut run_workers);
        let has_granted_all = grants.splits.len() == missing;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.candidates = Some(candidates);
            job.run_workers = run_workers;
        }
        self.grant_all(id, grants, ready);
        if has_granted_all && self.jobs[&id].is_fully_leased() {
            let copies = self.choose_copies(id);
            self.grant_all(id, copies, ready);
        }
    }

    /// Chooses workers for the missing splits. The next split of a stream is granted regardless of load, because its
    /// consumer waits for this split. When no worker has room, only changed streams are examined.
    fn choose_grants(
        &self,
        job: &TrackedJob,
        touched: &TouchedStreams,
        candidates: &mut CandidateQueue,
        run_workers: &mut RunWorkers,
    ) -> Grants {
        let mut grants = Grants::default();
        let mut last = None;
        while let Some(split) = job.missing_splits.after(last).filter(|_| candidates.has_room()) {
            last = Some(split);
            self.choose_grant(job, split, candidates, run_workers, &mut grants);
        }
        let mut rest: Vec<SplitRef> = Vec::new();
        if touched.all {
            rest.extend(std::iter::successors(job.missing_splits.after(last), |split| {
                job.missing_splits.after(Some(*split))
            }));
        } else {
            let touched = touched.streams.iter().flat_map(|stream| job.missing_splits.of_stream(*stream));
            rest.extend(touched.copied().filter(|split| Some(*split) > last));
            rest.sort_unstable();
        }
        for split in rest {
            self.choose_grant(job, split, candidates, run_workers, &mut grants);
        }
        grants
    }

    fn choose_grant(
        &self,
        job: &TrackedJob,
        split: SplitRef,
        candidates: &mut CandidateQueue,
        run_workers: &mut RunWorkers,
        grants: &mut Grants,
    ) {
        if grants.splits.contains(&split) || job.is_held_back(split) {
            return;
        }
        let is_coordinated = job.running_layout().is_some_and(|layout| layout.coordinated);
        let is_avoided = |worker| job.unreachable.contains(split, worker);
        let holder_of_round = || {
            let mut holders = job.leases.holders_of_round(split.epoch, split.ordinal);
            holders.find(|worker| self.accepts_work(*worker) && !is_avoided(*worker))
        };
        let holder = if is_coordinated { holder_of_round() } else { None };
        let run_worker = job.run_key(split).filter(|_| holder.is_none());
        let run_worker = run_worker.and_then(|key| run_workers.worker(key, candidates));
        let run_worker = run_worker.filter(|worker| !is_avoided(*worker));
        // Another worker would have to decompress the run from its start, so the split waits for its worker.
        if run_worker.is_some_and(|worker| candidates.room_on(worker) == 0) && !self.is_urgent(job, split) {
            return;
        }
        let chosen = holder.or(run_worker).or_else(|| {
            let is_urgent = self.is_urgent(job, split);
            let (best, first) = candidates.choose(is_urgent, is_avoided);
            let elsewhere =
                || if is_urgent { self.choose_elsewhere(job.id, candidates, is_avoided) } else { None };
            // Use a worker that the consumer could not reach only as the last resort.
            best.or_else(elsewhere).or(first)
        });
        let Some(worker) = chosen else { return };
        candidates.add_split(worker);
        grants.push(worker, split);
        if is_coordinated {
            // A worker computes a round for all streams together.
            for other in job.missing_splits.of_round(split.epoch, split.ordinal) {
                if other != split && !job.unreachable.contains(other, worker) {
                    candidates.add_split(worker);
                    grants.push(worker, other);
                }
            }
        }
    }

    /// Returns the least loaded worker that is not a candidate of the job.
    fn choose_elsewhere(
        &self,
        job: JobId,
        candidates: &CandidateQueue,
        is_avoided: impl Fn(WorkerId) -> bool,
    ) -> Option<WorkerId> {
        let others = self.live_workers.iter().filter(|id| !candidates.contains(**id) && !is_avoided(**id));
        let others = others.filter(|id| self.has_graph_of(job, **id));
        others.min_by_key(|id| self.workers.get(id).map(|worker| worker.lease_count())).copied()
    }

    /// Whether a consumer waits for this split before all other splits of its stream. This is the case for the next split of
    /// the stream, and also if all earlier splits have been ready for a while, because their rows do not fill a batch. A
    /// worker with full memory computes only splits that a consumer waits for. A split that such a worker has held for a
    /// while therefore counts as ready: the consumer has received its rows from another worker.
    pub(crate) fn is_urgent(&self, job: &TrackedJob, split: SplitRef) -> bool {
        if job.open_splits.get(split).is_some() {
            return true;
        }
        let wants = job.wanted_splits_of(split.stream);
        for earlier in job.streams.splits_from(split.stream).take(wants.max(1)) {
            if earlier == split {
                return true;
            }
            let is_ready = |holder: LeaseHolder| {
                let worker = self.workers.get(&holder.worker);
                self.now.saturating_sub(holder.granted_at) >= self.settings.straggler_ms
                    && worker.is_some_and(|found| found.memory_full || found.is_computed(job.id, earlier))
            };
            if !job.leases.get(earlier).is_some_and(|lease| lease.holders().any(is_ready)) {
                return false;
            }
        }
        false
    }

    /// Chooses idle workers to compute copies of late splits. The rows are identical, so consumers use the first finished
    /// result. If a split has crashed its worker, a copy would crash another worker before the first loss is known. A split whose
    /// worker is silent is therefore examined again later.
    fn choose_copies(&mut self, id: JobId) -> Grants {
        let mut grants = Grants::default();
        let Some(job) = self.jobs.get_mut(&id) else { return grants };
        let Some(candidates) = job.candidates.as_ref().filter(|_| !job.late_splits.is_empty()) else {
            return grants;
        };
        self.examined_items += (candidates.workers().count() + job.late_splits.len()) as u64;
        let is_idle = |worker: &WorkerId| {
            self.workers
                .get(worker)
                .is_some_and(|found| found.accepts_work() && !found.memory_full && found.uncomputed(id) == 0)
        };
        let mut idle: Vec<WorkerId> = candidates.workers().filter(is_idle).collect();
        let max_silence_ms = self.settings.hold_ms * 3 / 2;
        let mut silent = Vec::new();
        for split in &job.late_splits {
            let Some(holder) = job.leases.get(*split).and_then(|lease| lease.only_holder()) else { continue };
            if job.lost_workers(*split) > 0 {
                continue;
            }
            let worker = self.workers.get(&holder.worker);
            if worker.is_none_or(|worker| self.now.saturating_sub(worker.last_seen) > max_silence_ms) {
                silent.push(*split);
                continue;
            }
            let Some(index) = idle.iter().position(|worker| *worker != holder.worker) else { break };
            grants.push(idle.swap_remove(index), *split);
        }
        for split in &grants.splits {
            job.late_splits.remove(split);
        }
        for split in silent {
            job.late_splits.remove(&split);
            job.lease_ages.push(self.now, split);
        }
        grants
    }

    pub(crate) fn grant_all(&mut self, id: JobId, grants: Grants, ready: &mut Ready) {
        for (worker, splits) in grants.by_worker {
            let Some(found) = self.workers.get_mut(&worker) else { continue };
            splits.iter().for_each(|split| found.add_lease(id, *split));
            found.revision += 1;
            if let Some(job) = self.jobs.get_mut(&id) {
                job.workers.insert(worker);
                job.changed_loads.insert(worker);
                for split in &splits {
                    job.lease_ages.push(self.now, *split);
                    job.mark_consumer_changed(*split);
                }
            }
            self.examined_items += splits.len() as u64;
            self.record(Record::Granted { job: id, worker, splits }, ready);
        }
    }
}
