//! Consumers: what each has taken, which splits it is told of, and what happens when one is lost.

use std::collections::BTreeMap;

use feedline_data::checkpoint::PositionHistory;
use feedline_data::ids::{JobId, Millis, SessionId, WorkerId};
use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, ConsumerStats, JobState, MAX_WANTED_SPLITS, PlannedSplit, Revision,
    ServiceError, ServiceErrorKind,
};
use feedline_data::pipeline::OrderMode;

use super::job::TrackedJob;

use super::records::Record;
use super::slots::MOST_RANKS;
use super::workers::LongPoll;
use super::{Cluster, Ready, Reply, RequestId};

/// At most [`MAX_WANTED_SPLITS`] for a stream, and so many for all streams of a job together, as long as each has [`LEAST_WANTED`].
const WANTED_TOGETHER: u32 = 1_048_576;
const LEAST_WANTED: u32 = 64;
/// The same of relaxed jobs, whose consumers hold what they are told of: a position has room for as many.
const HELD_TOGETHER: u32 = 65_536;
const LEAST_HELD: u32 = 16;
/// Sessions of a consumer whose counts are told each by itself.
const KEPT_SESSIONS: usize = 4;

/// One consumer of a job; soft state.
#[derive(Debug)]
pub(super) struct TrackedConsumer {
    pub(super) session: SessionId,
    pub(super) last_seen: Millis,
    pub(super) wants: u32,
    /// Counts changes of its plan.
    pub(super) revision: u64,
    pub(super) parked: Option<LongPoll>,
    /// Counts of each of its last sessions.
    pub(super) stats: BTreeMap<SessionId, ConsumerStats>,
    /// Counts of those before, together.
    pub(super) earlier: ConsumerStats,
    /// Relaxed mode: splits that this session lost by its silence, and where it stood in them.
    pub(super) lost: BTreeMap<SplitRef, u32>,
    /// Elastic jobs: whether it takes slots, and whether its session has said that it leaves.
    pub(super) is_here: bool,
    pub(super) is_leaving: bool,
    /// Elastic jobs: nanoseconds that it takes for a batch of one slot; 0 where that is not known.
    pub(super) slot_ns: u64,
    /// The position history that its session has reported.
    pub(super) history: Option<Box<PositionHistory>>,
    /// Whether its session has said that it ends.
    pub(super) has_ended: bool,
}

impl TrackedConsumer {
    /// A consumer of which nothing but its session is known.
    pub(super) fn remembered(session: SessionId, now: Millis) -> Self {
        Self {
            session,
            last_seen: now,
            wants: 0,
            revision: 1,
            parked: None,
            stats: BTreeMap::new(),
            earlier: ConsumerStats::default(),
            lost: BTreeMap::new(),
            is_here: true,
            is_leaving: false,
            slot_ns: 0,
            history: None,
            has_ended: false,
        }
    }

    /// Notes what a session has received so far. Earlier ones report no more.
    fn note_stats(&mut self, session: SessionId, stats: ConsumerStats) {
        self.stats.insert(session, stats);
        while self.stats.len() > KEPT_SESSIONS
            && let Some((_, oldest)) = self.stats.pop_first()
        {
            self.earlier.add(&oldest);
        }
    }

    /// Notes what a rank of an elastic job says of itself. A session that leaves does so for good: what it said before may come
    /// later. Whether slots are to be dealt anew.
    fn note_rank(&mut self, report: &ConsumerReport, is_new: bool) -> bool {
        self.is_leaving = report.slots.leaving || (self.is_leaving && !is_new);
        self.slot_ns = report.slots.slot_ns;
        let was_here = std::mem::replace(&mut self.is_here, !self.is_leaving);
        is_new || was_here != self.is_here
    }

    /// Whether it reports rows of splits that it had lost before it delivered them.
    fn has_gone_on(&self, open: &[(SplitRef, u32)]) -> bool {
        open.iter().any(|(split, offset)| self.lost.get(split).is_some_and(|stood| offset > stood))
    }
}

fn superseded(consumer: u32, job: &str) -> ServiceError {
    let message = format!("consumer {consumer} of job `{job}` was taken over by a newer session");
    ServiceError::new(ServiceErrorKind::Superseded, message)
}

impl TrackedJob {
    /// Most splits ahead that one of its consumers can have, of each stream or in relaxed mode in all.
    pub(super) fn most_wanted(&self) -> u32 {
        let (together, parts, least) = if self.is_relaxed() {
            (HELD_TOGETHER, self.spec.consumers, LEAST_HELD)
        } else {
            (WANTED_TOGETHER, self.spec.virtual_consumers, LEAST_WANTED)
        };
        (together / parts.max(1)).clamp(least, MAX_WANTED_SPLITS)
    }

    /// The offset from which a split is still wanted; `None` when it is done.
    pub(super) fn next_offset(&self, split: SplitRef) -> Option<u32> {
        let layout = self.layout.as_ref()?;
        if self.is_relaxed()
            && let Some(open) = self.open.get(&split)
        {
            return Some(open.offset);
        }
        let position = *self.streams.get(split.stream as usize)?;
        let (head, offset) = layout.locate(split.stream, position)?;
        match split.cmp(&head) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some(offset),
            std::cmp::Ordering::Greater => Some(0),
        }
    }

    /// Up to `count` splits of a stream from its position on.
    pub(super) fn splits_ahead(&self, stream: u32, count: usize) -> Vec<SplitRef> {
        self.splits_from(stream).take(count).collect()
    }

    /// The splits of a stream from its position on.
    pub(super) fn splits_from(&self, stream: u32) -> impl Iterator<Item = SplitRef> {
        let layout = self.layout.as_ref();
        let head = layout.and_then(|layout| layout.locate(stream, self.streams[stream as usize]));
        std::iter::successors(head.map(|(split, _)| split), move |split| layout?.next_split(*split))
    }
}

impl Cluster {
    pub(super) fn on_consumer(&mut self, request: RequestId, report: ConsumerReport, ready: &mut Ready) {
        self.seats.expire(self.now, self.settings.consumer_lease_ms);
        if let Err(refusal) = self.check_consumer(&report) {
            ready.replies.push((request, Reply::Refused(refusal)));
            return;
        }
        self.seat_consumer(request, &report, ready);
        if let Some(message) = report.failed {
            if self.jobs[&report.job].running().is_some() {
                self.end_job(report.job, JobState::Failed(message), ready);
            }
            return;
        }
        self.on_progress(&report, ready);
        self.on_unreachable(report.job, &report.unreachable, ready);
    }

    fn check_consumer(&self, report: &ConsumerReport) -> Result<(), ServiceError> {
        let job = self.jobs.get(&report.job).ok_or_else(|| ServiceError::unknown_job(report.job))?;
        if job.spec.elastic && report.consumer >= MOST_RANKS {
            let message = format!(
                "rank {} is more than a job can have; number ranks from 0 to {}",
                report.consumer,
                MOST_RANKS - 1
            );
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
        // A session's number grows with time, so an older one is the one that was replaced.
        match job.consumers.get(&report.consumer) {
            Some(present) if present.session > report.session => {
                Err(superseded(report.consumer, &job.spec.name))
            }
            // It has delivered rows that others were given meanwhile: going on would repeat them in silence.
            Some(present) if present.session == report.session && present.has_gone_on(&report.open) => {
                Err(ServiceError::new(
                    ServiceErrorKind::Superseded,
                    format!(
                        "consumer {} of job `{}` was silent for more than {} s and its rows went to others; start it again from its last checkpoint",
                        report.consumer,
                        job.spec.name,
                        self.settings.consumer_lease_ms / 1_000
                    ),
                ))
            }
            _ => self.check_claims(job, report).and_then(|()| self.check_consumer_room(report)),
        }
    }

    /// Notes the consumer as present and parks its request.
    fn seat_consumer(&mut self, request: RequestId, report: &ConsumerReport, ready: &mut Ready) {
        let (now, life) = (self.now, self.life);
        let lease = self.settings.consumer_lease_ms;
        let Some(job) = self.jobs.get_mut(&report.job) else { return };
        let wants = report.wants.min(job.most_wanted());
        job.last_seen = now;
        let silent = |seat: &TrackedConsumer| now.saturating_sub(seat.last_seen) > lease;
        // It may have had no leases and no splits while it was away.
        if job.consumers.get(&report.consumer).is_none_or(silent) {
            self.stale.insert(report.job);
            job.touched.all = true;
        }
        // Ranks that were given up have been silent for longer than others.
        if job.consumers.get(&report.consumer).is_some_and(|seat| seat.is_here && silent(seat)) {
            // What kept this one from reporting may have kept all: each gets the time to come back.
            for (number, seat) in job.consumers.iter_mut().filter(|(_, seat)| seat.is_here) {
                seat.last_seen = now;
                if job.ended.is_none() {
                    self.seats.see(job.id, *number, now);
                }
            }
        }
        if !job.is_ended() {
            self.seats.see(job.id, report.consumer, now);
        }
        let is_known = job.consumers.contains_key(&report.consumer);
        let consumer = job
            .consumers
            .entry(report.consumer)
            .or_insert_with(|| TrackedConsumer::remembered(report.session, now));
        let is_new = !is_known || consumer.session != report.session;
        if job.spec.elastic && consumer.note_rank(report, is_new) {
            job.dealing.touch();
        }
        let mut anew = None;
        // What it takes is a record, and tells by itself that leases are to be looked at.
        if consumer.session != report.session || consumer.wants != wants {
            self.stale.insert(report.job);
            // Only its own streams where it owns the same ones for good.
            if job.spec.elastic || job.spec.pipeline.order == OrderMode::Relaxed {
                job.touched.all = true;
            } else {
                let own = report.consumer..job.streams.len() as u32;
                job.touched.streams.extend(own.step_by(job.spec.consumers.max(1) as usize));
            }
        }
        if consumer.session == report.session {
            anew = consumer.parked.take();
        } else {
            consumer.session = report.session;
            consumer.revision += 1;
            consumer.lost.clear();
            (consumer.history, consumer.has_ended) = (None, false);
        }
        consumer.last_seen = now;
        if consumer.wants != wants {
            consumer.wants = wants;
            consumer.revision += 1;
        }
        consumer.note_stats(report.session, report.stats);
        job.note_marks(report);
        job.changed_consumers.insert(report.consumer);
        job.held_polls.insert((now, report.consumer));
        let Some(consumer) = job.consumers.get_mut(&report.consumer) else { return };
        let parked = LongPoll::new(request, now, report.seen, life);
        if let Some(earlier) = consumer.parked.replace(parked) {
            ready
                .replies
                .push((earlier.request, Reply::Refused(superseded(report.consumer, &job.spec.name))));
        }
        if let Some(earlier) = anew {
            // Requests may overtake each other, so it may be the later one that is answered here.
            let plan = self.consumer_plan(&self.jobs[&report.job], report.consumer);
            ready.replies.push((earlier.request, Reply::Consumer(plan)));
        }
    }

    fn on_progress(&mut self, report: &ConsumerReport, ready: &mut Ready) {
        let (id, consumer) = (report.job, report.consumer);
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.running().is_some()) else { return };
        let mut streams = Vec::new();
        let mut splits = Vec::new();
        if job.spec.elastic {
            streams = job.take_claims(report);
        } else if job.is_relaxed() {
            for &(split, offset) in &report.open {
                let held = job.open.get(&split).filter(|held| held.consumer == Some(consumer));
                // What is said twice is recorded once.
                if held.is_some_and(|held| offset > held.offset) && splits.len() < job.open.len() {
                    splits.push((split, offset));
                }
            }
        } else {
            for &(stream, position) in &report.positions {
                let owned = stream < job.streams.len() as u32 && job.owner(stream) == Some(consumer);
                let is_news = owned && position > job.streams[stream as usize];
                if is_news && streams.len() < job.streams.len() {
                    streams.push((stream, position));
                }
            }
        }
        if streams.is_empty() && splits.is_empty() {
            return;
        }
        self.record(Record::Advanced { job: id, streams, splits }, ready);
        self.release_done(id, consumer);
    }

    /// Takes splits that are done from the workers that held them.
    fn release_done(&mut self, id: JobId, consumer: u32) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let released = std::mem::take(&mut job.released);
        if !released.is_empty() {
            job.touch_consumer(consumer);
        }
        for (split, lease) in released {
            for holder in lease.holders {
                if let Some(worker) = self.workers.get_mut(&holder.worker)
                    && worker.release(id, split)
                {
                    worker.revision += 1;
                }
            }
        }
    }

    /// Ends a running job that has nothing left to do; whether it had.
    pub(super) fn finish_if_done(&mut self, id: JobId, ready: &mut Ready) -> bool {
        let job = &self.jobs[&id];
        let Some(layout) = job.running() else { return false };
        let at_end = |(stream, position): (usize, &StreamPosition)| layout.is_end(stream as u32, *position);
        let done = job.spec.index_only || (job.streams.iter().enumerate().all(at_end) && job.open.is_empty());
        if done {
            self.end_job(id, JobState::Completed, ready);
        }
        done
    }

    /// A consumer could not reach workers: their splits go to others if there are any.
    fn on_unreachable(&mut self, id: JobId, unreachable: &[(SplitRef, WorkerId)], ready: &mut Ready) {
        if self.jobs[&id].running().is_none() {
            return;
        }
        for &(split, worker) in unreachable {
            let Some(lease) = self.jobs[&id].leases.get(split) else { continue };
            if lease.holders.iter().any(|holder| holder.worker == worker) {
                self.revoke(id, worker, vec![split], ready);
                self.jobs.get_mut(&id).expect("indexed above").avoid.insert((split, worker));
            }
        }
    }

    /// Relaxed jobs: splits of a consumer that has been silent for its lease time are free again, as soon as there is
    /// another who may take them.
    pub(super) fn expire_consumers(&mut self, ready: &mut Ready) {
        let limit = self.settings.consumer_lease_ms;
        for job in self.jobs.values_mut().filter(|job| job.spec.elastic && job.running().is_some()) {
            job.expire_ranks(self.now, limit);
        }
        let mut lost = Vec::new();
        for job in self.jobs.values_mut().filter(|job| job.is_relaxed() && job.running().is_some()) {
            let silent = |seat: &TrackedConsumer| self.now.saturating_sub(seat.last_seen) > limit;
            if job.consumers.values().all(silent) {
                continue;
            }
            for (number, seat) in job.consumers.iter_mut().filter(|(_, seat)| silent(seat)) {
                let held = job.open.iter().filter(|(_, open)| open.consumer == Some(*number));
                let held: Vec<(SplitRef, u32)> = held.map(|(split, open)| (*split, open.offset)).collect();
                if !held.is_empty() {
                    lost.push((job.id, held.iter().map(|(split, _)| *split).collect()));
                    seat.lost.extend(held);
                }
            }
        }
        for (job, splits) in lost {
            self.record(Record::Assigned { job, consumer: None, splits }, ready);
        }
    }

    /// Jobs that no consumer asks for: their leases are given up, so that workers work for others; after a longer time
    /// they fail.
    pub(super) fn expire_jobs(&mut self, ready: &mut Ready) {
        let (now, settings) = (self.now, &self.settings);
        let idle =
            |job: &&TrackedJob| job.running().is_some() && !job.spec.index_only && job.is_idle(now, settings);
        let idle: Vec<JobId> = self.jobs.values().filter(idle).map(|job| job.id).collect();
        for id in idle {
            let job = &self.jobs[&id];
            if now.saturating_sub(job.last_seen) > self.settings.abandoned_ms {
                let minutes = self.settings.abandoned_ms / 60_000;
                let message = format!(
                    "no consumer has asked for rows for {minutes} minutes; open the job again from its last position"
                );
                self.end_job(id, JobState::Failed(message), ready);
                continue;
            }
            let mut by_worker: BTreeMap<WorkerId, Vec<SplitRef>> = BTreeMap::new();
            for (split, lease) in job.leases.iter() {
                for holder in &lease.holders {
                    by_worker.entry(holder.worker).or_default().push(split);
                }
            }
            for (worker, splits) in by_worker {
                self.revoke(id, worker, splits, ready);
            }
        }
    }

    /// Answers consumers that have something new to hear, or have waited long enough.
    pub(super) fn answer_parked_consumers(&mut self, ready: &mut Ready) {
        let (now, hold) = (self.now, self.settings.hold_ms);
        let mut due = Vec::new();
        for job in self.jobs.values_mut() {
            for number in job.take_due_consumers(now, hold) {
                if let Some(consumer) = job.consumers.get_mut(&number)
                    && consumer
                        .parked
                        .as_ref()
                        .is_some_and(|parked| parked.is_due(consumer.revision, now, hold))
                    && let Some(parked) = consumer.parked.take()
                {
                    due.push((job.id, number, parked.request));
                }
            }
        }
        for (job, number, request) in due {
            let plan = self.consumer_plan(&self.jobs[&job], number);
            ready.replies.push((request, Reply::Consumer(plan)));
        }
    }

    fn consumer_plan(&self, job: &TrackedJob, number: u32) -> ConsumerPlan {
        let consumer = &job.consumers[&number];
        let mut streams = Vec::new();
        let mut splits = Vec::new();
        let mut exhausted = false;
        let mut slots = job.spec.elastic.then(Vec::new);
        if let Some(layout) = job.running() {
            if job.is_relaxed() {
                let held = job.open.iter().filter(|(_, open)| open.consumer == Some(number));
                splits.extend(held.filter_map(|(split, _)| self.planned(job, *split)));
                let free = job.open.values().any(|open| open.consumer.is_none());
                exhausted = !free && layout.is_end(0, job.streams[0]);
            } else if let Some(slots) = &mut slots {
                *slots = job.grants(number, consumer);
                for slot in slots {
                    let ahead = job.splits_ahead(slot.stream, consumer.wants as usize);
                    splits.extend(ahead.into_iter().filter_map(|split| self.planned(job, split)));
                }
            } else {
                for stream in (number..layout.streams).step_by(job.spec.consumers as usize) {
                    streams.push((stream, job.streams[stream as usize]));
                    let ahead = job.splits_ahead(stream, consumer.wants as usize);
                    splits.extend(ahead.into_iter().filter_map(|split| self.planned(job, split)));
                }
            }
        }
        ConsumerPlan {
            revision: Revision { life: self.life, number: consumer.revision },
            state: self.job_state(job),
            layout: job.layout.clone(),
            streams,
            splits,
            exhausted,
            most_splits: job.most_wanted(),
            consumers: job.spec.consumers,
            ticket: String::new(),
            slots,
            step_queries: job.asks.of_consumer(number),
        }
    }

    fn planned(&self, job: &TrackedJob, split: SplitRef) -> Option<PlannedSplit> {
        let from = job.next_offset(split)?;
        let holders = job.leases.get(split).map(|lease| lease.holders.as_slice()).unwrap_or_default();
        let workers = holders.iter().filter_map(|holder| {
            let worker = self.workers.get(&holder.worker).filter(|worker| worker.known)?;
            Some((holder.worker, worker.address.clone()))
        });
        Some(PlannedSplit { split, from, workers: workers.collect() })
    }
}
