//! Queries for the positions of all consumers of a job at one step. All of it is soft state: a leader asks the consumers again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use feedline_data::checkpoint::{StepId, StepLookup};
use feedline_data::ids::Millis;
use feedline_data::layout::StreamPosition;

use crate::inputs::RequestId;

/// The open queries of one job, by step.
#[derive(Debug, Default)]
pub(crate) struct StepQueries {
    pub(crate) by_step: BTreeMap<StepId, StepQuery>,
}

/// The answers of the consumers for one step, and the requests that wait for them.
#[derive(Debug, Default)]
pub(crate) struct StepQuery {
    pub(crate) expires_at: Millis,
    pub(crate) positions: BTreeMap<u32, Vec<(u32, StreamPosition)>>,
    /// Consumers that no longer know their positions at the step.
    pub(crate) lost: BTreeSet<u32>,
    /// Waiting requests with their arrival times, the oldest first.
    pub(crate) parked: VecDeque<(RequestId, Millis)>,
    /// Whether a consumer has answered or ended since the last check.
    pub(crate) has_news: bool,
    pub(crate) checked_at: Millis,
}

impl StepQueries {
    /// The steps for which a consumer has not answered.
    pub(crate) fn open_for(&self, consumer: u32) -> Vec<StepId> {
        let open = self.by_step.iter().filter(|(_, query)| query.is_open_for(consumer));
        open.map(|(step, _)| *step).collect()
    }

    /// Looks up a consumer's positions for each open step. Returns whether this answered a step.
    pub(crate) fn answer(&mut self, consumer: u32, find: impl Fn(StepId) -> StepLookup) -> bool {
        let mut has_answered = false;
        for (step, query) in self.by_step.iter_mut().filter(|(_, query)| query.is_open_for(consumer)) {
            has_answered |= match find(*step) {
                StepLookup::Found(positions) => query.positions.insert(consumer, positions).is_none(),
                StepLookup::Evicted => query.lost.insert(consumer),
                StepLookup::NotReached => false,
            };
            query.has_news = true;
        }
        has_answered
    }

    /// Checks every step again, since a consumer has ended.
    pub(crate) fn request_check(&mut self) {
        self.by_step.values_mut().for_each(|query| query.has_news = true);
    }
}

impl StepQuery {
    /// Whether a consumer has not answered.
    pub(crate) fn is_open_for(&self, consumer: u32) -> bool {
        !self.positions.contains_key(&consumer) && !self.lost.contains(&consumer)
    }
}
