//! The positions of all consumers of a job at one step: a client asks for them to save a checkpoint, and each consumer answers
//! for itself.

use feedline_data::checkpoint::{PositionHistory, StepId, StepLookup};
use feedline_data::ids::{JobId, Millis};
use feedline_data::layout::StreamPosition;
use feedline_data::messages::{ConsumerReport, GroupPositions, JobState, ServiceError, ServiceErrorKind};

use crate::state::consumer::TrackedConsumer;
use crate::state::job::TrackedJob;
use crate::state::step_queries::StepQuery;
use crate::{Cluster, ClusterSettings, Ready, Reply, RequestId};

/// Most steps of one job with open queries.
const MAX_STEPS: usize = 64;
/// Hold times for which consumers are asked for a step, so that a client may repeat its request.
const HOLDS: Millis = 2;
/// Milliseconds between two checks for consumers that have fallen silent.
const CHECK_MS: Millis = 100;

impl TrackedJob {
    /// The start position of each stream of a consumer.
    fn start_positions(&self, consumer: u32) -> Vec<(u32, StreamPosition)> {
        let Some(layout) = &self.layout else { return Vec::new() };
        let start = |stream: u32| {
            let start = self.spec.start.as_ref().and_then(|start| start.streams.get(stream as usize));
            (stream, layout.normalise(stream, start.copied().unwrap_or_default()))
        };
        (consumer..layout.streams).step_by(self.spec.consumers.max(1) as usize).map(start).collect()
    }

    /// Looks up a step in the position history of a consumer.
    fn look_up(&self, consumer: u32, step: StepId) -> StepLookup {
        if step.is_start() {
            return StepLookup::Found(self.start_positions(consumer));
        }
        let history = self.consumers.get(&consumer).and_then(|found| found.history.as_deref());
        match history {
            None => StepLookup::NotReached,
            // A later session that continued an earlier one has not counted the steps of that session.
            Some(history) if history.start() != self.start_positions(consumer) => StepLookup::Evicted,
            Some(history) => history.find(step),
        }
    }

    /// Stores the position history of a consumer, or that the consumer ends.
    pub(crate) fn note_history(&mut self, report: &ConsumerReport) {
        let number = report.consumer;
        let Some(consumer) = self.consumers.get_mut(&number) else { return };
        if report.history.is_last && !consumer.has_ended {
            consumer.has_ended = true;
            self.queries.request_check();
        }
        let Some(history) = &report.history.history else { return };
        let is_complete = history.start() == self.start_positions(number);
        // Of an incomplete history only its start matters.
        let history = if is_complete { history.clone() } else { Box::new(PositionHistory::new(Vec::new())) };
        if let Some(consumer) = self.consumers.get_mut(&number) {
            consumer.history = Some(history);
        }
        let mut queries = std::mem::take(&mut self.queries);
        let has_answered = queries.answer(number, |step| self.look_up(number, step));
        self.queries = queries;
        if has_answered {
            self.touch_consumer(number);
        }
    }

    /// Asks the consumers for a step, or prolongs the query; the request waits.
    fn query_step(&mut self, step: StepId, expires_at: Millis, parked: (RequestId, Millis)) {
        if let Some(query) = self.queries.by_step.get_mut(&step) {
            (query.expires_at, query.has_news) = (expires_at, true);
            query.parked.push_back(parked);
            return;
        }
        let query = StepQuery { expires_at, has_news: true, parked: [parked].into(), ..StepQuery::default() };
        self.queries.by_step.insert(step, query);
        let mut queries = std::mem::take(&mut self.queries);
        for consumer in 0..self.spec.consumers {
            // Other steps were looked up when the history arrived.
            queries.answer(consumer, |other| {
                if other == step { self.look_up(consumer, step) } else { StepLookup::NotReached }
            });
        }
        self.queries = queries;
        self.touch_queried_consumers(step);
    }

    /// Changes the plans of the consumers that have not answered for a step.
    fn touch_queried_consumers(&mut self, step: StepId) {
        let Some(query) = self.queries.by_step.get(&step) else { return };
        let open = self.consumers.iter_mut().filter(|(number, _)| query.is_open_for(**number));
        for (number, consumer) in open {
            consumer.revision += 1;
            self.changed_consumers.insert(*number);
        }
    }

    fn expire_queries(&mut self, now: Millis) {
        let expired = self.queries.by_step.iter().filter(|(_, query)| query.expires_at <= now);
        let expired: Vec<StepId> = expired.map(|(step, _)| *step).collect();
        for step in expired {
            self.touch_queried_consumers(step);
            self.queries.by_step.remove(&step);
        }
    }

    fn group_positions(
        &self,
        query: &StepQuery,
        is_silent: impl Fn(&TrackedConsumer) -> bool,
    ) -> GroupPositions {
        let mut group = GroupPositions::default();
        for number in 0..self.spec.consumers {
            if let Some(positions) = query.positions.get(&number) {
                group.positions.extend_from_slice(positions);
                continue;
            }
            group.missing.push(number);
            let may_answer = match self.consumers.get(&number) {
                Some(consumer) => !consumer.has_ended && !is_silent(consumer),
                None => !matches!(self.ended, Some(JobState::Failed(_) | JobState::Cancelled)),
            };
            group.is_retryable |= may_answer && !query.lost.contains(&number);
        }
        group.positions.sort_unstable_by_key(|(stream, _)| *stream);
        group
    }

    /// Answers the queries for which all positions are known, no other consumer can answer, or the hold time is over.
    fn answer_queries(&mut self, now: Millis, settings: &ClusterSettings, ready: &mut Ready) {
        let is_silent = |consumer: &TrackedConsumer| consumer.is_silent(now, settings.consumer_lease_ms);
        let is_over = |since: Millis| now.saturating_sub(since) >= settings.hold_ms;
        let mut queries = std::mem::take(&mut self.queries);
        for query in queries.by_step.values_mut() {
            let Some((_, oldest)) = query.parked.front() else { continue };
            let is_early = now.saturating_sub(query.checked_at) < CHECK_MS && !is_over(*oldest);
            if is_early && !query.has_news {
                continue;
            }
            (query.has_news, query.checked_at) = (false, now);
            let group = self.group_positions(query, is_silent);
            let is_final = group.missing.is_empty() || !group.is_retryable;
            while let Some((request, _)) = query.parked.pop_front_if(|(_, since)| is_final || is_over(*since))
            {
                ready.replies.push((request, Reply::Places(group.clone())));
            }
        }
        self.queries = queries;
        self.expire_queries(now);
    }
}

impl Cluster {
    pub(crate) fn on_step_query(&mut self, request: RequestId, id: JobId, step: StepId, ready: &mut Ready) {
        let (now, hold) = (self.now, self.settings.hold_ms);
        let refusal = match self.jobs.get_mut(&id) {
            None => ServiceError::unknown_job(id),
            Some(job) if job.is_relaxed() || job.spec.elastic => ServiceError::new(
                ServiceErrorKind::Invalid,
                format!(
                    "job `{}` has no common steps; ask each consumer for its own position",
                    job.spec.name
                ),
            ),
            Some(job) if job.layout.is_none() => {
                let message = format!("job {id} is still preparing; retry");
                ServiceError::new(ServiceErrorKind::Unavailable, message)
            }
            Some(job)
                if job.queries.by_step.len() >= MAX_STEPS && !job.queries.by_step.contains_key(&step) =>
            {
                ServiceError::busy(
                    format!("job {id} has open queries for {MAX_STEPS} other steps; retry"),
                    hold,
                )
            }
            Some(job) => {
                job.query_step(step, now + HOLDS * hold, (request, now));
                self.queried_jobs.insert(id);
                return;
            }
        };
        ready.replies.push((request, Reply::Refused(refusal)));
    }

    /// Answers step queries.
    pub(crate) fn answer_step_queries(&mut self, ready: &mut Ready) {
        let queried = std::mem::take(&mut self.queried_jobs);
        for id in queried {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.answer_queries(self.now, &self.settings, ready);
            self.examined += 1;
            if !job.queries.by_step.is_empty() {
                self.queried_jobs.insert(id);
            }
        }
    }
}
