//! Expiry of leases of silent workers, of splits and slots of silent consumers, and of jobs without consumers.

use std::collections::BTreeSet;

use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::layout::SplitRef;
use feedline_data::messages::{JobState, WorkerPlan};

use crate::records::Record;
use crate::schedule::{RECALL_MS, SETTLED_MS};
use crate::state::job::TrackedJob;
use crate::{Cluster, Ready, Reply};

impl Cluster {
    /// Expires workers that have been silent for the lease time.
    pub(crate) fn expire_workers(&mut self, ready: &mut Ready) {
        let Some(silent_before) = self.now.checked_sub(self.settings.worker_lease_ms + 1) else { return };
        let mut has_expired = false;
        while let Some(id) = self.worker_reports.pop_due(silent_before) {
            self.expire_worker(id, ready);
            has_expired = true;
        }
        if has_expired {
            self.refresh_live_workers();
        }
    }

    fn expire_worker(&mut self, id: WorkerId, ready: &mut Ready) {
        let Some(worker) = self.workers.remove(&id) else { return };
        self.examined_items += worker.lease_count() as u64;
        self.next_revision = self.next_revision.max(worker.revision + 1);
        self.worker_polls.remove(id);
        if let Some(tasks) = worker.queued_tasks {
            self.task_room.remove(&(tasks, id));
        }
        if let Some(parked) = worker.parked {
            ready.replies.push((parked.request, Reply::Worker(WorkerPlan::default())));
        }
        self.revoke_expired(id, &worker, ready);
        for (_, job) in &worker.unsettled_jobs {
            if let Some(job) = self.jobs.get_mut(job) {
                job.unsettled_workers.remove(&id);
            }
        }
        let lost = worker.tasks_in_progress();
        self.return_lost_tasks(id, &lost, ready);
        self.count_lost_loads(id, &worker.loads_in_progress(), ready);
        self.return_tasks(&worker.tasks.difference(&lost).copied().collect());
    }

    /// Returns the jobs that the input has changed and the jobs whose deadline has passed.
    pub(crate) fn take_due_jobs(&mut self) -> BTreeSet<JobId> {
        while let Some(id) = self.job_timers.pop_due(self.now) {
            self.jobs.visit(id);
            self.jobs_to_schedule.insert(id);
            let is_settled = |at: &Millis| self.now >= at.saturating_add(SETTLED_MS);
            if self.planned_at.get(&id).is_some_and(is_settled) {
                self.planned_at.remove(&id);
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.touched_streams.all = true;
                }
            }
        }
        self.examined_items += self.jobs.visited().len() as u64;
        self.jobs.visited().clone()
    }

    /// Sets the timers of the jobs that this step has changed.
    pub(crate) fn set_job_timers(&mut self) {
        for id in self.jobs.take_visited() {
            match self.jobs.get(&id).and_then(|job| self.next_deadline(job)) {
                Some(at) => self.job_timers.set(id, at),
                None => self.job_timers.remove(id),
            }
        }
    }

    /// Returns the time at which a job must be examined even without an input.
    fn next_deadline(&self, job: &TrackedJob) -> Option<Millis> {
        let settings = &self.settings;
        let after = |at: Millis, lease_ms: u64| at.saturating_add(lease_ms).saturating_add(1);
        if job.is_ended() {
            return None;
        }
        if job.running_layout().is_none() {
            let abandoned_at = after(job.last_seen, settings.abandoned_ms);
            return job.first_record.prepare_again_at.into_iter().chain([abandoned_at]).min();
        }
        let deadlines = [
            Some(after(job.last_seen, settings.consumer_lease_ms)),
            Some(after(job.last_seen, settings.abandoned_ms)),
            job.report_times.earliest().map(|at| after(at, settings.consumer_lease_ms)),
            job.spec.elastic.then_some(job.slot_rebalance.due_at),
            job.lease_ages.next_deadline(job.straggler_ms(settings), RECALL_MS),
            self.planned_at.get(&job.id).map(|at| at.saturating_add(SETTLED_MS)),
            job.growth.as_ref().map(|growth| growth.next_listing_at),
        ];
        deadlines.into_iter().flatten().filter(|at| *at > self.now).min()
    }

    /// Removes the splits of silent consumers of relaxed jobs and the slots of silent ranks of elastic jobs, if another
    /// consumer can receive them.
    pub(crate) fn expire_consumers(&mut self, due: &BTreeSet<JobId>, ready: &mut Ready) {
        for id in due {
            let Some(job) = self.jobs.get_mut(id).filter(|job| job.running_layout().is_some()) else {
                continue;
            };
            let silent = job.take_silent_consumers(self.now, self.settings.consumer_lease_ms);
            self.examined_items += silent.len() as u64;
            for number in silent {
                self.expire_consumer(*id, number, ready);
            }
        }
    }

    fn expire_consumer(&mut self, id: JobId, number: u32, ready: &mut Ready) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(consumer) = job.consumers.get_mut(&number) else { return };
        if job.spec.elastic {
            consumer.is_present = false;
            job.slot_rebalance.request();
            return;
        }
        job.consumers_with_room.remove(&number);
        let splits: Vec<SplitRef> = job.open_splits.of(Some(number)).collect();
        let offset = |split: &SplitRef| Some((*split, job.open_splits.get(*split)?.offset));
        consumer.lost_splits.extend(splits.iter().filter_map(offset));
        if !splits.is_empty() {
            self.record(Record::Assigned { job: id, consumer: None, splits }, ready);
        }
    }

    /// Revokes the leases of jobs without consumers, so that workers compute other jobs. After a longer time the job fails,
    /// even if it is still preparing.
    pub(crate) fn expire_jobs(&mut self, due: &BTreeSet<JobId>, ready: &mut Ready) {
        for id in due {
            let Some(job) = self.jobs.get(id).filter(|job| !job.is_ended()) else { continue };
            if !job.is_idle(self.now, &self.settings) {
                continue;
            }
            if self.now.saturating_sub(job.last_seen) > self.settings.abandoned_ms {
                let minutes = self.settings.abandoned_ms / 60_000;
                let message = match (job.spec.index_only, job.running_layout()) {
                    (true, _) => format!(
                        "no client has asked for the status of the job in the last {minutes} minutes; run `feedline index` again"
                    ),
                    (false, None) => format!(
                        "no consumer has reported in the last {minutes} minutes, and the dataset is not indexed yet; open the job again"
                    ),
                    (false, Some(_)) => format!(
                        "no consumer has reported in the last {minutes} minutes; reopen the job from its last checkpoint"
                    ),
                };
                self.end_job(*id, JobState::Failed(message), ready);
                continue;
            }
            self.examined_items += job.leases.len() as u64;
            for (worker, splits) in job.leases.by_worker() {
                self.revoke(*id, worker, splits, ready);
            }
            self.release_graph(*id);
        }
    }

    /// Revokes leases of a worker, and changes the plans of the worker and of the consumers of the splits.
    pub(crate) fn revoke(&mut self, job: JobId, worker: WorkerId, splits: Vec<SplitRef>, ready: &mut Ready) {
        if let Some(found) = self.workers.get_mut(&worker) {
            for split in &splits {
                found.remove_lease(job, *split);
            }
            found.revision += 1;
        }
        if let Some(found) = self.jobs.get_mut(&job) {
            found.changed_loads.insert(worker);
            for split in &splits {
                found.mark_consumer_changed(*split);
            }
        }
        self.record(Record::Revoked { job, worker, splits, lost: false }, ready);
    }
}
