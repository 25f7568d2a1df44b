//! Queries for the positions of all consumers of a job at one step. The state is soft: a new leader queries the consumers
//! again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use feedline_data::checkpoint::{StepId, StepLookup};
use feedline_data::ids::Millis;
use feedline_data::layout::StreamPosition;

use crate::inputs::RequestId;

/// The unanswered queries of one job, by step.
#[derive(Debug, Default)]
pub(crate) struct StepQueries {
    pub(crate) by_step: BTreeMap<StepId, StepQuery>,
}

/// The answers of the consumers for one step, and the requests that wait for them.
#[derive(Debug, Default)]
pub(crate) struct StepQuery {
    pub(crate) expires_at: Millis,
    pub(crate) positions: BTreeMap<u32, Vec<(u32, StreamPosition)>>,
    /// Consumers with histories that no longer contain the step.
    pub(crate) evicted: BTreeSet<u32>,
    /// Waiting requests with their arrival times, oldest first.
    pub(crate) parked: VecDeque<(RequestId, Millis)>,
    /// Whether a consumer has answered or ended since the last check.
    pub(crate) needs_check: bool,
    pub(crate) checked_at: Millis,
}

impl StepQueries {
    /// Returns the queried steps that a consumer has not answered.
    pub(crate) fn unanswered_steps(&self, consumer: u32) -> Vec<StepId> {
        let open = self.by_step.iter().filter(|(_, query)| query.waits_for(consumer));
        open.map(|(step, _)| *step).collect()
    }

    /// Looks up a consumer's positions for each step that the consumer has not answered. Returns whether a step was
    /// answered.
    pub(crate) fn answer(&mut self, consumer: u32, find: impl Fn(StepId) -> StepLookup) -> bool {
        let mut has_answered = false;
        for (step, query) in self.by_step.iter_mut().filter(|(_, query)| query.waits_for(consumer)) {
            has_answered |= match find(*step) {
                StepLookup::Found(positions) => query.positions.insert(consumer, positions).is_none(),
                StepLookup::Evicted => query.evicted.insert(consumer),
                StepLookup::NotReached => false,
            };
            query.needs_check = true;
        }
        has_answered
    }

    /// Schedules a check of every step, because a consumer has ended.
    pub(crate) fn request_check(&mut self) {
        self.by_step.values_mut().for_each(|query| query.needs_check = true);
    }
}

impl StepQuery {
    /// Whether the query still waits for a consumer.
    pub(crate) fn waits_for(&self, consumer: u32) -> bool {
        !self.positions.contains_key(&consumer) && !self.evicted.contains(&consumer)
    }
}
