//! Lost workers: counts the losses of each split and each indexing task, and runs a suspect alone on a worker.
//!
//! A row may crash the worker that computes it. Without a limit, its split would move from worker to worker. After two
//! losses, the split or task runs alone on a worker, so that the next loss is evidence against it and against nothing else.
//! The worker computes one group at a time, when the consumer waits for it, so that the consumer then continues at the group that
//! is at fault. After three losses, a worker reports this group as failed, and an indexing task fails its job.
//!
//! A worker that drains is not lost. A worker that reports again, for example after a network partition, withdraws its
//! losses. Losses that were not observed by this state machine, because the worker has never reported to it, do not count.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::layout::SplitRef;
use feedline_data::messages::{JobState, MAX_LOST_WORKERS};
use feedline_data::pipeline::OnError;

use crate::records::Record;
use crate::schedule::Grants;
use crate::state::isolated_worker::{IsolatedWorker, Suspect};
use crate::state::job::TrackedJob;
use crate::state::preparation::PendingTask;
use crate::state::suspects::Suspicion;
use crate::state::worker::TrackedWorker;
use crate::{Cluster, Ready};

/// Maximum number of groups of rows of a job that are given up under `on_error: skip` or `replace`, because each costs workers.
const MAX_GIVEN_UP: u32 = 3;
/// Maximum time for which a worker is reserved for one suspect. The worker then receives other work too, or another suspect if no other
/// worker is free, which is blamed for a later crash.
const MAX_ISOLATION_MS: Millis = 5_000;

/// Maximum age of the last report of a worker that is known to be alive, as a multiple of the interval between reports.
const MAX_REPORT_AGE: u64 = 3;

impl Cluster {
    /// Revokes the leases of an expired worker, and counts the splits that it had not computed.
    pub(crate) fn revoke_expired(&mut self, id: WorkerId, worker: &TrackedWorker, ready: &mut Ready) {
        let is_lost = worker.is_lost_on_expiry();
        let mut by_job: BTreeMap<JobId, (Vec<SplitRef>, BTreeSet<SplitRef>)> = BTreeMap::new();
        for (job, split) in worker.leases() {
            let (others, lost) = by_job.entry(job).or_default();
            if self.may_compute(worker, job, split) {
                lost.insert(split);
            } else {
                others.push(split);
            }
        }
        for (_, job, split) in worker.moved.iter().filter(|_| is_lost) {
            by_job.entry(*job).or_default().1.insert(*split);
        }
        for (_, job, split) in &worker.unreachable {
            if is_lost {
                by_job.entry(*job).or_default().1.insert(*split);
            } else if let Some(job) = self.jobs.get_mut(job) {
                job.withdraw_unconfirmed(*split, id);
            }
        }
        let has_earlier_losses = |job: &JobId, split: SplitRef| {
            self.jobs.get(job).is_some_and(|job| !job.suspects.confirmed(job.lease_unit(split)).is_empty())
        };
        let mut lost = by_job.iter().flat_map(|(job, (_, lost))| lost.iter().map(move |split| (job, *split)));
        if is_lost && !lost.any(|(job, split)| has_earlier_losses(job, split)) {
            let leased = by_job.iter().flat_map(|(job, (others, lost))| {
                others.iter().chain(lost).map(|split| (*job, *split)).collect::<Vec<_>>()
            });
            let unit = |(job, split)| self.jobs.get(&job).map(|found| (job, found.lease_unit(split)));
            let own = leased.chain(worker.unreceived.iter().copied()).filter_map(unit).collect();
            self.unrest.on_unexplained_loss(self.now, own);
        }
        for (job, (mut others, mut lost)) in by_job {
            let excused = self.excused_units(job, &lost);
            if let Some(found) = self.jobs.get_mut(&job).filter(|_| !excused.is_empty()) {
                let is_excused = |split: &SplitRef| excused.contains(&found.lease_unit(*split));
                let splits: Vec<SplitRef> = lost.iter().copied().filter(is_excused).collect();
                for split in splits {
                    lost.remove(&split);
                    found.withdraw_unconfirmed(split, id);
                    others.push(split);
                }
            }
            if !others.is_empty() {
                self.revoke(job, id, others, ready);
            }
            if !lost.is_empty() {
                self.revoke_lost(job, id, lost.into_iter().collect(), ready);
            }
        }
    }

    /// Returns the suspects that would be given up after this loss, although more losses are permitted or workers are lost for other
    /// reasons too. The loss does not count for them.
    fn excused_units(&mut self, job: JobId, lost: &BTreeSet<SplitRef>) -> BTreeSet<SplitRef> {
        let Some(found) = self.jobs.get(&job) else { return BTreeSet::new() };
        let tolerated = self.settings.limits.lost_workers.saturating_sub(MAX_LOST_WORKERS);
        let mut excused: BTreeSet<SplitRef> = lost.iter().map(|split| found.lease_unit(*split)).collect();
        excused.retain(|unit| {
            let is_last = found.suspects.confirmed(*unit).len() + 1 >= MAX_LOST_WORKERS as usize;
            is_last && self.unrest.excuses(self.now, (job, *unit), tolerated)
        });
        excused
    }

    /// Whether the loss of a worker would count for a leased split.
    pub(crate) fn may_compute(&self, worker: &TrackedWorker, job: JobId, split: SplitRef) -> bool {
        // A worker computes no split of a job whose graph it has not loaded.
        let has_loaded =
            self.jobs.get(&job).is_some_and(|job| job.graph().is_none()) || worker.has_loaded(job);
        has_loaded && worker.may_compute(job, split)
    }

    /// Revokes the leases of splits that a lost worker had not computed, and counts the loss.
    pub(crate) fn revoke_lost(
        &mut self,
        job: JobId,
        worker: WorkerId,
        splits: Vec<SplitRef>,
        ready: &mut Ready,
    ) {
        let Some(found) = self.jobs.get_mut(&job).filter(|job| job.running_layout().is_some()) else {
            return;
        };
        found.changed_loads.insert(worker);
        splits.iter().for_each(|split| found.mark_consumer_changed(*split));
        self.suspect_jobs.insert(job);
        self.record(Record::Revoked { job, worker, splits, lost: true }, ready);
        let found = &self.jobs[&job];
        let given_up = found.suspects.given_up();
        if given_up > MAX_GIVEN_UP && found.spec.pipeline.on_error != OnError::Fail {
            let message = format!(
                "{given_up} groups of rows of the job have crashed their workers, and at most {MAX_GIVEN_UP} are skipped; look for the reason in the logs and exit statuses of the workers, then repair the rows or the pipeline"
            );
            self.end_job(job, JobState::Failed(message), ready);
        }
    }

    /// Withdraws the losses of a worker that reports again.
    pub(crate) fn withdraw_losses(&mut self, worker: WorkerId, ready: &mut Ready) {
        for job in self.suspect_jobs.clone() {
            let splits = self.jobs.get(&job).map(|job| job.suspects.confirmed_by(worker)).unwrap_or_default();
            self.examined_items += 1;
            if let Some(found) = self.jobs.get_mut(&job) {
                found.graph_workers.lost.remove(&worker);
            }
            if !splits.is_empty() {
                self.unrest.on_disturbance(self.now);
                self.record(Record::Revoked { job, worker, splits, lost: false }, ready);
            }
        }
        let preparing: Vec<JobId> = self.preparations.keys().copied().collect();
        for job in preparing {
            let preparation = self.preparations.get_mut(&job);
            if preparation.is_some_and(|preparation| preparation.withdraw_loss(worker)) {
                self.update_task_queue(job);
            }
        }
    }

    /// Suspects a split that a consumer could not fetch from `worker`, until the worker reports or expires.
    pub(crate) fn suspect(&mut self, job: JobId, split: SplitRef, worker: WorkerId) {
        let Some(found) = self.workers.get_mut(&worker) else { return };
        found.unreachable.insert((found.revision, job, split));
        if let Some(found) = self.jobs.get_mut(&job) {
            found.suspects.suspect(found.lease_unit(split), worker);
            self.suspect_jobs.insert(job);
        }
    }

    /// Withdraws the unconfirmed losses of a worker that has seen a plan without the splits.
    pub(crate) fn withdraw_unconfirmed(&mut self, id: WorkerId, seen: u64) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.moved.retain(|(revision, ..)| *revision > seen);
        worker.unreceived.clear();
        while let Some((_, job, split)) =
            worker.unreachable.first().copied().filter(|(revision, ..)| *revision <= seen)
        {
            worker.unreachable.pop_first();
            self.examined_items += 1;
            if let Some(job) = self.jobs.get_mut(&job) {
                job.withdraw_unconfirmed(split, id);
                self.jobs_to_schedule.insert(job.id);
            }
        }
    }

    /// Ends a finished isolation, and starts the next one. Only one worker is isolated at a time, so that suspects do not
    /// take the workers of other jobs.
    pub(crate) fn update_isolation(&mut self, ready: &mut Ready) {
        if let Some(isolation) = self.isolation.take_if(|isolation| {
            let (worker, since) = (self.workers.get(&isolation.worker), isolation.since);
            let runs = worker.is_some_and(|worker| match isolation.suspect {
                Suspect::Split(job, unit) => {
                    let units = self.jobs.get(&job).map(|job| job.splits_of_unit(unit)).unwrap_or_default();
                    let mut own = worker.uncomputed_leases();
                    own.any(|(of, split)| of == job && units.contains(&split))
                }
                Suspect::Task(_, task) => worker.tasks.contains(&task),
            });
            !runs || self.now.saturating_sub(since) > MAX_ISOLATION_MS
        }) {
            self.set_isolated(isolation.worker, false);
        }
        if self.isolation.is_some() || (self.suspect_jobs.is_empty() && self.isolated_tasks.is_empty()) {
            return;
        }
        self.suspect_jobs.retain(|job| {
            let has_losses =
                |job: &TrackedJob| !job.suspects.is_empty() || !job.graph_workers.lost.is_empty();
            self.jobs.get(job).is_some_and(|job| job.running_layout().is_some() && has_losses(job))
        });
        self.isolated_tasks.retain(|(job, task)| {
            self.preparations.get(job).is_some_and(|preparation| preparation.is_isolated(*task))
        });
        if let Some((suspect, worker)) = self.next_isolation() {
            self.isolate(suspect, worker, ready);
        }
    }

    /// Returns the next suspect to run alone and its worker: the least loaded one that the consumer can reach.
    fn next_isolation(&self) -> Option<(Suspect, WorkerId)> {
        // A worker with another suspect is the last resort, because that suspect would lose its worker.
        let is_suspect = |(job, split): (JobId, SplitRef)| {
            self.jobs.get(&job).is_some_and(|job| job.suspicion(split) != Suspicion::None)
        };
        let load = |worker: &WorkerId| {
            let found = self.workers.get(worker).filter(|found| self.is_known_alive(found))?;
            let has_suspect = found.uncomputed_leases().any(is_suspect) || self.runs_isolated_task(found);
            Some((has_suspect, found.uncomputed_leases().count() + found.tasks.len(), *worker))
        };
        let least_loaded = |is_possible: &dyn Fn(WorkerId) -> bool| {
            let workers = self.live_workers.iter().filter(|worker| self.accepts_work(**worker));
            workers.filter(|worker| is_possible(**worker)).filter_map(load).min().map(|(_, _, worker)| worker)
        };
        if let Some((job, task)) = self.isolated_tasks.first() {
            // Two tasks that run for long would otherwise take the worker from each other without end.
            let is_free =
                |worker| self.workers.get(&worker).is_some_and(|found| !self.runs_isolated_task(found));
            if let Some(worker) = least_loaded(&is_free) {
                return Some((Suspect::Task(*job, *task), worker));
            }
        }
        self.suspect_jobs.iter().find_map(|id| {
            let job = &self.jobs[id];
            let unit = self.next_isolated_split(job)?;
            let has_graph = |worker: WorkerId| self.has_graph_of(*id, worker);
            let is_reachable = |worker: WorkerId| !job.unreachable.contains(unit, worker);
            // A worker that the consumer could not reach is the last resort.
            let reachable = least_loaded(&|worker| has_graph(worker) && is_reachable(worker));
            let worker = reachable.or_else(|| least_loaded(&has_graph))?;
            Some((Suspect::Split(*id, unit), worker))
        })
    }

    fn runs_isolated_task(&self, worker: &TrackedWorker) -> bool {
        worker.tasks.iter().any(|id| {
            let preparation = self.task_jobs.get(id).and_then(|job| self.preparations.get(job));
            preparation.and_then(|found| found.task(*id)).is_some_and(PendingTask::is_isolated)
        })
    }

    /// Whether a worker has reported so recently that it is not lost. A suspect must not be blamed for an earlier loss.
    fn is_known_alive(&self, worker: &TrackedWorker) -> bool {
        let age_ms = self.now.saturating_sub(worker.last_seen);
        worker.unreachable.is_empty() && age_ms <= MAX_REPORT_AGE * self.settings.hold_ms
    }

    /// Returns the next suspect of a job with a split that is not leased and that a consumer waits for. A later split would occupy
    /// the worker while its consumer cannot receive the rows.
    fn next_isolated_split(&self, job: &TrackedJob) -> Option<SplitRef> {
        if job.is_idle(self.now, &self.settings) {
            return None;
        }
        let suspects = job.suspects.splits();
        // A job that may be about to fail must not lose further workers.
        let is_undecided = |unit: &SplitRef| job.suspicion(*unit) == Suspicion::Undecided;
        if job.spec.pipeline.on_error == OnError::Fail && suspects.iter().any(is_undecided) {
            return None;
        }
        suspects.into_iter().find(|unit| {
            let mut missing =
                job.splits_of_unit(*unit).into_iter().filter(|split| !job.leases.contains(*split));
            job.suspicion(*unit) == Suspicion::Isolated
                && missing.any(|split| job.next_offset(split).is_some() && self.is_urgent(job, split))
        })
    }

    /// Moves all other work of a worker to other workers, and gives it the suspect.
    fn isolate(&mut self, suspect: Suspect, id: WorkerId, ready: &mut Ready) {
        let Some(worker) = self.workers.get(&id) else { return };
        let mut by_job: BTreeMap<JobId, Vec<SplitRef>> = BTreeMap::new();
        for (job, split) in worker.uncomputed_leases() {
            by_job.entry(job).or_default().push(split);
        }
        let tasks = worker.tasks.clone();
        self.isolation = Some(IsolatedWorker { worker: id, suspect, since: self.now });
        for (job, splits) in by_job {
            let may_compute = |split: &SplitRef| {
                self.workers.get(&id).is_some_and(|worker| self.may_compute(worker, job, *split))
            };
            let moved: Vec<SplitRef> = splits.iter().copied().filter(may_compute).collect();
            self.revoke(job, id, splits, ready);
            if let Some(worker) = self.workers.get_mut(&id) {
                let revision = worker.revision;
                worker.moved.extend(moved.into_iter().map(|split| (revision, job, split)));
            }
        }
        for task in &tasks {
            self.take_task(id, *task);
        }
        self.return_tasks(&tasks);
        self.set_isolated(id, true);
        match suspect {
            Suspect::Task(job, task) => {
                self.isolated_tasks.remove(&(job, task));
                self.assign_isolated_task(job, task, id);
            }
            Suspect::Split(job, unit) => {
                let Some(found) = self.jobs.get(&job) else { return };
                let splits = found.splits_of_unit(unit).into_iter();
                let is_missing =
                    |split: &SplitRef| found.next_offset(*split).is_some() && !found.leases.contains(*split);
                let splits = splits.filter(is_missing).collect();
                self.grant_all(job, Grants::of(id, splits), ready);
            }
        }
    }

    fn set_isolated(&mut self, id: WorkerId, is_isolated: bool) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.is_isolated = is_isolated;
            self.refresh_live_workers();
        }
    }
}

impl TrackedJob {
    fn withdraw_unconfirmed(&mut self, split: SplitRef, worker: WorkerId) {
        let unit = self.lease_unit(split);
        self.suspects.withdraw_unconfirmed(unit, worker);
        self.touched_streams.streams.extend(self.splits_of_unit(unit).iter().map(|split| split.stream));
    }
}
