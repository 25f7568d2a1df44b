//! Processes consumer reports: sessions, progress, and unreachable workers.

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::layout::SplitRef;
use feedline_data::messages::{ConsumerReport, JobState, ServiceError, ServiceErrorKind};

use crate::records::Record;
use crate::slots::MAX_RANKS;
use crate::state::consumer::TrackedConsumer;
use crate::state::long_poll::LongPoll;
use crate::{Cluster, Ready, Reply, RequestId};

fn superseded(consumer: u32, job: &str) -> ServiceError {
    let message = format!("a newer session of consumer {consumer} of job `{job}` has replaced this session");
    ServiceError::new(ServiceErrorKind::Superseded, message)
}

impl Cluster {
    pub(crate) fn on_consumer(&mut self, request: RequestId, report: ConsumerReport, ready: &mut Ready) {
        if let Err(refusal) = self.check_consumer(&report) {
            ready.replies.push((request, Reply::Rejected(refusal)));
            return;
        }
        self.update_consumer(&report);
        self.park_consumer(request, &report, ready);
        if let Some(message) = report.batch_error {
            if self.jobs[&report.job].running_layout().is_some() {
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
                format!("invalid rank {}: expected a rank from 0 to {}", report.consumer, MAX_RANKS - 1);
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
        // Session ids increase with time.
        match job.consumers.get(&report.consumer) {
            Some(present) if present.session > report.session => {
                return Err(superseded(report.consumer, &job.spec.name));
            }
            Some(present)
                if present.session == report.session
                    && present.has_delivered_lost_rows(&report.open_splits) =>
            {
                return Err(self.superseded_after_silence(report, &job.spec.name, "rows"));
            }
            _ => {}
        }
        self.check_claims(job, report)?;
        self.check_consumer_limit(report)
    }

    /// Rejects a consumer that has delivered rows which other consumers also receive. Continuing would repeat these rows.
    pub(crate) fn superseded_after_silence(
        &self,
        report: &ConsumerReport,
        job: &str,
        lost: &str,
    ) -> ServiceError {
        let seconds = self.settings.consumer_lease_ms / 1_000;
        let message = format!(
            "consumer {} of job `{job}` has not reported for more than {seconds} s, and its {lost} moved to other consumers; restart the consumer from its last checkpoint",
            report.consumer
        );
        ServiceError::new(ServiceErrorKind::Superseded, message)
    }

    /// Updates the state of a consumer from its report.
    fn update_consumer(&mut self, report: &ConsumerReport) {
        let (now, lease_ms, number) = (self.now, self.settings.consumer_lease_ms, report.consumer);
        let Some(job) = self.jobs.get_mut(&report.job) else { return };
        let wants = report.wanted_splits.min(job.max_wanted_splits());
        if job.is_idle(now, &self.settings) {
            // The leases of an idle job were revoked, so all of them must be granted again.
            job.touched_streams.all = true;
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
            job.slot_rebalance.request();
        }
        let has_changed = is_new_session || consumer.wanted_splits != wants;
        if is_known && is_new_session {
            consumer.replace_session(report.session);
        }
        consumer.last_seen = now;
        if consumer.wanted_splits != wants {
            consumer.wanted_splits = wants;
            consumer.revision += 1;
        }
        consumer.set_stats(report.session, report.stats);
        consumer.known_growth = report.known_growth;
        if has_changed || was_silent {
            job.touch_streams_of(number);
            self.jobs_to_schedule.insert(report.job);
        }
        job.update_report_time(number);
        if job.is_relaxed() && job.consumers_with_room.insert(number) {
            self.jobs_to_schedule.insert(report.job);
        }
        job.record_history(report);
        job.changed_consumers.insert(number);
    }

    /// Renews the leases of all current consumers, because the coordinator itself may have been unreachable.
    fn renew_consumers(&mut self, id: JobId) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        self.examined_items += job.consumers.len() as u64;
        let here = job.consumers.iter_mut().filter(|(_, consumer)| consumer.is_present);
        let here: Vec<u32> = here
            .map(|(number, consumer)| {
                consumer.last_seen = now;
                *number
            })
            .collect();
        for number in here {
            job.update_report_time(number);
            if !job.is_ended() {
                self.consumer_reports.set((id, number), now);
            }
        }
    }

    /// Parks the long poll of a consumer, and answers the previously parked request.
    fn park_consumer(&mut self, request: RequestId, report: &ConsumerReport, ready: &mut Ready) {
        let (id, number) = (report.job, report.consumer);
        let poll = LongPoll::new(request, self.now, report.plan_revision, self.incarnation);
        self.consumer_polls.set((id, number), self.now.saturating_add(self.settings.hold_ms));
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(consumer) = job.consumers.get_mut(&number) else { return };
        let (earlier, is_same_session) =
            (consumer.parked.replace(poll), consumer.parked_session == report.session);
        consumer.parked_session = report.session;
        let Some(earlier) = earlier else { return };
        let reply = if is_same_session {
            // Requests may arrive out of order, so the previously parked request may be the later one.
            Reply::Consumer(self.consumer_plan(&self.jobs[&id], number))
        } else {
            Reply::Rejected(superseded(number, &self.jobs[&id].spec.name))
        };
        ready.replies.push((earlier.request, reply));
    }

    fn on_progress(&mut self, report: &ConsumerReport, ready: &mut Ready) {
        let (id, consumer) = (report.job, report.consumer);
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.running_layout().is_some()) else { return };
        let mut streams = Vec::new();
        let mut splits = Vec::new();
        if job.spec.elastic {
            streams = job.take_claims(report);
        } else if job.is_relaxed() {
            for &(split, offset) in &report.open_splits {
                let held = job.open_splits.get(split).filter(|held| held.consumer == Some(consumer));
                // A report may contain the same split several times.
                if held.is_some_and(|held| offset > held.offset) && splits.len() < job.open_splits.len() {
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
        self.examined_items +=
            (report.positions.len() + report.open_splits.len() + report.slots.claims.len()) as u64;
        if streams.is_empty() && splits.is_empty() {
            return;
        }
        self.record(Record::Advanced { job: id, streams, splits }, ready);
        self.release_delivered(id, consumer);
        self.fail_if_empty(id, ready);
    }

    /// Removes the leases of delivered splits from their workers.
    fn release_delivered(&mut self, id: JobId, consumer: u32) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let released = std::mem::take(&mut job.delivered_leases);
        if !released.is_empty() {
            job.touch_consumer(consumer);
        }
        self.examined_items += released.len() as u64;
        for (split, lease) in released {
            for holder in lease.holders() {
                job.changed_loads.insert(holder.worker);
                if let Some(worker) = self.workers.get_mut(&holder.worker)
                    && worker.remove_lease(id, split)
                {
                    worker.revision += 1;
                }
            }
        }
    }

    /// Completes a running job if all of its rows are delivered. Returns whether the job was completed.
    pub(crate) fn finish_if_delivered(&mut self, id: JobId, ready: &mut Ready) -> bool {
        let job = &self.jobs[&id];
        let is_delivered = job.running_layout().is_some() && (job.spec.index_only || job.is_delivered());
        if is_delivered && !self.fail_if_empty(id, ready) {
            self.end_job(id, JobState::Completed, ready);
        }
        is_delivered
    }

    /// Revokes the leases of workers that a consumer could not reach, so that other workers get the splits.
    fn on_unreachable(&mut self, id: JobId, unreachable: &[(SplitRef, WorkerId)], ready: &mut Ready) {
        if self.jobs[&id].running_layout().is_none() {
            return;
        }
        for &(split, worker) in unreachable {
            let lease = self.jobs[&id].leases.get(split);
            if lease.is_some_and(|lease| lease.is_held_by(worker)) {
                let found = self.workers.get(&worker);
                let may_compute = found.is_some_and(|found| self.may_compute(found, id, split));
                self.revoke(id, worker, vec![split], ready);
                if may_compute {
                    self.suspect(id, split, worker);
                } else if let Some(found) = self.workers.get_mut(&worker) {
                    found.unreceived.insert((id, split));
                }
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.unreachable.insert(split, worker);
                }
            }
        }
    }
}
