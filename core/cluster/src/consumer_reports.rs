//! Reports of consumers: sessions, progress, and workers that a consumer could not reach.

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::layout::SplitRef;
use feedline_data::messages::{ConsumerReport, JobState, ServiceError, ServiceErrorKind};

use crate::records::Record;
use crate::slots::MAX_RANKS;
use crate::state::consumer::TrackedConsumer;
use crate::state::long_poll::LongPoll;
use crate::{Cluster, Ready, Reply, RequestId};

fn superseded(consumer: u32, job: &str) -> ServiceError {
    let message = format!("consumer {consumer} of job `{job}` was taken over by a newer session");
    ServiceError::new(ServiceErrorKind::Superseded, message)
}

impl Cluster {
    pub(crate) fn on_consumer(&mut self, request: RequestId, report: ConsumerReport, ready: &mut Ready) {
        if let Err(refusal) = self.check_consumer(&report) {
            ready.replies.push((request, Reply::Refused(refusal)));
            return;
        }
        self.update_consumer(&report);
        self.park_consumer(request, &report, ready);
        if let Some(message) = report.batch_error {
            if self.jobs[&report.job].running().is_some() {
                self.end_job(report.job, JobState::Failed(message), ready);
            }
            return;
        }
        self.on_progress(&report, ready);
        self.on_unreachable(report.job, &report.unreachable, ready);
    }

    fn check_consumer(&mut self, report: &ConsumerReport) -> Result<(), ServiceError> {
        let job = self.jobs.get(&report.job).ok_or_else(|| ServiceError::unknown_job(report.job))?;
        if job.spec.elastic && report.consumer >= MAX_RANKS {
            let message =
                format!("invalid rank {}: number ranks from 0 to {}", report.consumer, MAX_RANKS - 1);
            return Err(ServiceError::new(ServiceErrorKind::Invalid, message));
        }
        if !job.spec.elastic && report.consumer >= job.spec.consumers {
            return Err(ServiceError::new(
                ServiceErrorKind::Invalid,
                format!(
                    "consumer {} does not exist: job `{}` was opened for {} consumers, numbered from 0",
                    report.consumer, job.spec.name, job.spec.consumers
                ),
            ));
        }
        // The numbers of sessions grow with time.
        match job.consumers.get(&report.consumer) {
            Some(present) if present.session > report.session => {
                return Err(superseded(report.consumer, &job.spec.name));
            }
            Some(present)
                if present.session == report.session
                    && present.has_delivered_lost_rows(&report.open_splits) =>
            {
                return Err(self.lost_by_silence(report, &job.spec.name, "rows"));
            }
            _ => {}
        }
        self.check_claims(job, report)?;
        self.check_consumer_room(report)
    }

    /// The refusal of a consumer that has delivered rows after others received them. Continuing would repeat these rows.
    pub(crate) fn lost_by_silence(&self, report: &ConsumerReport, job: &str, lost: &str) -> ServiceError {
        let seconds = self.settings.consumer_lease_ms / 1_000;
        let message = format!(
            "consumer {} of job `{job}` was silent for more than {seconds} s and lost its {lost} to others; start it again from its last checkpoint",
            report.consumer
        );
        ServiceError::new(ServiceErrorKind::Superseded, message)
    }

    /// Replaces what the cluster knows about a consumer.
    fn update_consumer(&mut self, report: &ConsumerReport) {
        let (now, lease_ms, number) = (self.now, self.settings.consumer_lease_ms, report.consumer);
        let Some(job) = self.jobs.get_mut(&report.job) else { return };
        let wants = report.wanted_splits.min(job.most_wanted());
        if job.is_idle(now, &self.settings) {
            // The job had lost its leases.
            job.touched.all = true;
            self.jobs_to_schedule.insert(report.job);
        }
        job.last_seen = now;
        let present = job.consumers.get(&number);
        let was_silent = present.is_some_and(|consumer| consumer.is_silent(now, lease_ms));
        if was_silent && present.is_some_and(|consumer| consumer.is_present) {
            self.renew_consumers(report.job);
        }
        let Some(job) = self.jobs.get_mut(&report.job) else { return };
        if !job.is_ended() {
            self.consumer_reports.set((report.job, number), now);
        }
        let is_known = job.consumers.contains_key(&number);
        let consumer =
            job.consumers.entry(number).or_insert_with(|| TrackedConsumer::new(report.session, now));
        let is_new_session = !is_known || consumer.session != report.session;
        if job.spec.elastic && consumer.update_rank(report, is_new_session) {
            job.rebalance.request();
        }
        let has_changed = is_new_session || consumer.wants != wants;
        if is_known && is_new_session {
            consumer.replace_session(report.session);
        }
        consumer.last_seen = now;
        if consumer.wants != wants {
            consumer.wants = wants;
            consumer.revision += 1;
        }
        consumer.set_stats(report.session, report.stats);
        if has_changed || was_silent {
            job.touch_streams_of(number);
            self.jobs_to_schedule.insert(report.job);
        }
        job.note_activity(number);
        if job.is_relaxed() && job.consumers_with_room.insert(number) {
            self.jobs_to_schedule.insert(report.job);
        }
        job.note_history(report);
        job.changed_consumers.insert(number);
    }

    /// Counts all present consumers as seen now: the coordinator itself may have been unreachable.
    fn renew_consumers(&mut self, id: JobId) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        self.examined += job.consumers.len() as u64;
        let here = job.consumers.iter_mut().filter(|(_, consumer)| consumer.is_present);
        let here: Vec<u32> = here
            .map(|(number, consumer)| {
                consumer.last_seen = now;
                *number
            })
            .collect();
        for number in here {
            job.note_activity(number);
            if !job.is_ended() {
                self.consumer_reports.set((id, number), now);
            }
        }
    }

    /// Parks the request of a consumer, and answers the one that was parked before.
    fn park_consumer(&mut self, request: RequestId, report: &ConsumerReport, ready: &mut Ready) {
        let (id, number) = (report.job, report.consumer);
        let poll = LongPoll::new(request, self.now, report.plan_revision, self.life);
        self.consumer_polls.set((id, number), self.now.saturating_add(self.settings.hold_ms));
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(consumer) = job.consumers.get_mut(&number) else { return };
        let (earlier, is_same_session) =
            (consumer.parked.replace(poll), consumer.parked_session == report.session);
        consumer.parked_session = report.session;
        let Some(earlier) = earlier else { return };
        let reply = if is_same_session {
            // Requests may overtake each other, so this may answer the later one.
            Reply::Consumer(self.consumer_plan(&self.jobs[&id], number))
        } else {
            Reply::Refused(superseded(number, &self.jobs[&id].spec.name))
        };
        ready.replies.push((earlier.request, reply));
    }

    fn on_progress(&mut self, report: &ConsumerReport, ready: &mut Ready) {
        let (id, consumer) = (report.job, report.consumer);
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.running().is_some()) else { return };
        let mut streams = Vec::new();
        let mut splits = Vec::new();
        if job.spec.elastic {
            streams = job.take_claims(report);
        } else if job.is_relaxed() {
            for &(split, offset) in &report.open_splits {
                let held = job.open.get(split).filter(|held| held.consumer == Some(consumer));
                // A report may repeat a split.
                if held.is_some_and(|held| offset > held.offset) && splits.len() < job.open.len() {
                    splits.push((split, offset));
                }
            }
        } else {
            for &(stream, position) in &report.positions {
                let is_owned = job.owner(stream) == Some(consumer);
                let has_advanced = job.streams.position(stream).is_some_and(|present| position > present);
                if is_owned && has_advanced && streams.len() < job.streams.len() {
                    streams.push((stream, position));
                }
            }
        }
        self.examined +=
            (report.positions.len() + report.open_splits.len() + report.slots.claims.len()) as u64;
        if streams.is_empty() && splits.is_empty() {
            return;
        }
        self.record(Record::Advanced { job: id, streams, splits }, ready);
        self.release_delivered(id, consumer);
    }

    /// Takes delivered splits from the workers that hold them.
    fn release_delivered(&mut self, id: JobId, consumer: u32) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let released = std::mem::take(&mut job.released);
        if !released.is_empty() {
            job.touch_consumer(consumer);
        }
        self.examined += released.len() as u64;
        for (split, lease) in released {
            for holder in lease.holders() {
                job.changed_loads.insert(holder.worker);
                if let Some(worker) = self.workers.get_mut(&holder.worker)
                    && worker.release(id, split)
                {
                    worker.revision += 1;
                }
            }
        }
    }

    /// Ends a running job that is delivered. Returns whether it was.
    pub(crate) fn finish_if_delivered(&mut self, id: JobId, ready: &mut Ready) -> bool {
        let job = &self.jobs[&id];
        let is_delivered = job.running().is_some() && (job.spec.index_only || job.is_delivered());
        if is_delivered {
            self.end_job(id, JobState::Completed, ready);
        }
        is_delivered
    }

    /// Moves splits from workers that a consumer could not reach to others, if there are any.
    fn on_unreachable(&mut self, id: JobId, unreachable: &[(SplitRef, WorkerId)], ready: &mut Ready) {
        if self.jobs[&id].running().is_none() {
            return;
        }
        for &(split, worker) in unreachable {
            let lease = self.jobs[&id].leases.get(split);
            if lease.is_some_and(|lease| lease.is_held_by(worker)) {
                self.revoke(id, worker, vec![split], ready);
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.unreachable.insert(split, worker);
                }
            }
        }
    }
}
