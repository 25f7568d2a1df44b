//! Answers queries for the positions of all consumers of a job at one step. A client queries the positions to save a
//! checkpoint, and each consumer reports its own positions.

use feedline_data::checkpoint::{PositionHistory, StepId, StepLookup};
use feedline_data::ids::{JobId, Millis};
use feedline_data::layout::StreamPosition;
use feedline_data::messages::{ConsumerReport, GroupPositions, JobState, ServiceError, ServiceErrorKind};

use crate::state::consumer::TrackedConsumer;
use crate::state::job::TrackedJob;
use crate::state::step_queries::StepQuery;
use crate::{Cluster, ClusterSettings, Ready, Reply, RequestId};

/// Maximum number of steps of one job with unanswered queries.
const MAX_QUERIED_STEPS: usize = 64;
/// Lifetime of a query as a multiple of the hold time, so that a client can repeat its request.
const QUERY_HOLD_FACTOR: Millis = 2;
/// Milliseconds between two checks for silent consumers.
const SILENCE_CHECK_INTERVAL_MS: Millis = 100;

impl TrackedJob {
    /// Returns the start position of each stream of a consumer.
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
            // A later session has not counted the steps of the earlier session that it continues.
            Some(history) if history.start() != self.start_positions(consumer) => StepLookup::Evicted,
            Some(history) => history.find(step),
        }
    }

    /// Records the position history in a consumer's report, and whether the consumer ends.
    pub(crate) fn record_history(&mut self, report: &ConsumerReport) {
        let number = report.consumer;
        let Some(consumer) = self.consumers.get_mut(&number) else { return };
        if report.history.is_last && !consumer.has_ended {
            consumer.has_ended = true;
            self.step_queries.request_check();
        }
        let Some(history) = &report.history.history else { return };
        let is_complete = history.start() == self.start_positions(number);
        // Only the start of an incomplete history matters.
        let history = if is_complete { history.clone() } else { Box::new(PositionHistory::new(Vec::new())) };
        if let Some(consumer) = self.consumers.get_mut(&number) {
            consumer.history = Some(history);
        }
        let mut queries = std::mem::take(&mut self.step_queries);
        let has_answered = queries.answer(number, |step| self.look_up(number, step));
        self.step_queries = queries;
        if has_answered {
            self.touch_consumer(number);
        }
    }

    /// Starts a query for a step or extends the existing query, and parks the request.
    fn query_step(&mut self, step: StepId, expires_at: Millis, parked: (RequestId, Millis)) {
        if let Some(query) = self.step_queries.by_step.get_mut(&step) {
            (query.expires_at, query.needs_check) = (expires_at, true);
            query.parked.push_back(parked);
            return;
        }
        let query = StepQuery { expires_at, parked: [parked].into(), ..StepQuery::default() };
        self.step_queries.by_step.insert(step, query);
        let mut queries = std::mem::take(&mut self.step_queries);
        for consumer in 0..self.spec.consumers {
            // Other steps were already looked up when the history arrived.
            queries.answer(consumer, |other| {
                if other == step { self.look_up(consumer, step) } else { StepLookup::NotReached }
            });
        }
        self.step_queries = queries;
        self.touch_queried_consumers(step);
    }

    /// Marks the plans of the consumers that have not answered a query as changed.
    fn touch_queried_consumers(&mut self, step: StepId) {
        let Some(query) = self.step_queries.by_step.get(&step) else { return };
        let open = self.consumers.iter_mut().filter(|(number, _)| query.waits_for(**number));
        for (number, consumer) in open {
            consumer.revision += 1;
            self.changed_consumers.insert(*number);
        }
    }

    fn expire_queries(&mut self, now: Millis) {
        let expired = self.step_queries.by_step.iter().filter(|(_, query)| query.expires_at <= now);
        let expired: Vec<StepId> = expired.map(|(step, _)| *step).collect();
        for step in expired {
            self.touch_queried_consumers(step);
            self.step_queries.by_step.remove(&step);
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
                None => !matches!(self.end_state, Some(JobState::Failed(_) | JobState::Cancelled)),
            };
            group.is_retryable |= may_answer && !query.evicted.contains(&number);
        }
        group.positions.sort_unstable_by_key(|(stream, _)| *stream);
        group
    }

    /// Answers the queries that have complete positions, that no further consumer can answer, or whose hold time has
    /// expired.
    fn answer_queries(&mut self, now: Millis, settings: &ClusterSettings, ready: &mut Ready) {
        let is_silent = |consumer: &TrackedConsumer| consumer.is_silent(now, settings.consumer_lease_ms);
        let is_over = |since: Millis| now.saturating_sub(since) >= settings.hold_ms;
        let mut queries = std::mem::take(&mut self.step_queries);
        for query in queries.by_step.values_mut() {
            let Some((_, oldest)) = query.parked.front() else { continue };
            let is_early =
                now.saturating_sub(query.checked_at) < SILENCE_CHECK_INTERVAL_MS && !is_over(*oldest);
            if is_early && !query.needs_check {
                continue;
            }
            (query.needs_check, query.checked_at) = (false, now);
            let group = self.group_positions(query, is_silent);
            let is_final = group.missing.is_empty() || !group.is_retryable;
            while let Some((request, _)) = query.parked.pop_front_if(|(_, since)| is_final || is_over(*since))
            {
                ready.replies.push((request, Reply::Positions(group.clone())));
            }
        }
        self.step_queries = queries;
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
                    "job `{}` is relaxed or elastic, so its consumers do not share steps; save the position of each consumer separately",
                    job.spec.name
                ),
            ),
            Some(job) if job.layout.is_none() => {
                let message = format!("job {id} is still preparing; retry");
                ServiceError::new(ServiceErrorKind::Unavailable, message)
            }
            Some(job)
                if job.step_queries.by_step.len() >= MAX_QUERIED_STEPS
                    && !job.step_queries.by_step.contains_key(&step) =>
            {
                ServiceError::busy(
                    format!(
                        "job {id} already has pending queries for {MAX_QUERIED_STEPS} other steps; retry later"
                    ),
                    hold,
                )
            }
            Some(job) => {
                job.query_step(step, now + QUERY_HOLD_FACTOR * hold, (request, now));
                self.queried_jobs.insert(id);
                return;
            }
        };
        ready.replies.push((request, Reply::Rejected(refusal)));
    }

    /// Answers step queries.
    pub(crate) fn answer_step_queries(&mut self, ready: &mut Ready) {
        let queried = std::mem::take(&mut self.queried_jobs);
        for id in queried {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.answer_queries(self.now, &self.settings, ready);
            self.examined_items += 1;
            if !job.step_queries.by_step.is_empty() {
                self.queried_jobs.insert(id);
            }
        }
    }
}
