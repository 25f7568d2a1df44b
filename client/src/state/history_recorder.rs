//! The position history of a consumer, and the coordinator's queries for its position at a step.

use feedline_data::checkpoint::{PositionHistory, StepId};
use feedline_data::messages::HistoryReport;
use tokio::time::{Duration, Instant};

/// Interval at which the consumer checks whether the batches of queried steps have arrived.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The position history and the state of the queries.
#[derive(Debug, Default)]
pub(super) struct HistoryRecorder {
    /// The position history. `None` if the layout determines the steps, or the job has no other consumer.
    pub(super) history: Option<PositionHistory>,
    queries: Vec<StepId>,
    /// Whether a query is unanswered.
    has_open_query: bool,
    checked_at: Option<Instant>,
    /// The answer for the next report.
    answer: Option<Box<PositionHistory>>,
    is_closing: bool,
    /// Whether the user prefetches one batch.
    pub(super) is_prefetching: bool,
    /// Whether the user has requested a batch since the last delivery. Then the training loop has received the last batch.
    pub(super) is_next_requested: bool,
}

impl HistoryRecorder {
    /// Sets the queries of a plan. Plans repeat a query until the coordinator has received the answer.
    pub(super) fn set_queries(&mut self, queries: Vec<StepId>) {
        if self.queries != queries {
            (self.queries, self.checked_at) = (queries, None);
        }
        self.has_open_query = self.history.is_some() && !self.queries.is_empty();
    }

    /// Returns the queries to check now. Returns no queries before the next interval.
    pub(super) fn queries_to_check(&mut self, now: Instant) -> Vec<StepId> {
        let is_early =
            self.checked_at.is_some_and(|checked| now.saturating_duration_since(checked) < CHECK_INTERVAL);
        if !self.has_open_query || is_early {
            return Vec::new();
        }
        self.checked_at = Some(now);
        self.queries.clone()
    }

    /// Sets the answer for the next report. `has_open_query` is whether another query remains unanswered.
    pub(super) fn set_answer(&mut self, answer: PositionHistory, has_open_query: bool) {
        self.has_open_query = has_open_query;
        self.answer = Some(Box::new(answer));
    }

    /// Adds the history to all following reports, because the consumer closes.
    pub(super) fn begin_closing(&mut self, answer: Option<PositionHistory>) {
        self.answer = answer.map(Box::new);
        self.is_closing = true;
    }

    /// Returns the history for the next report.
    pub(super) fn report(&mut self) -> HistoryReport {
        let history = if self.is_closing { self.answer.clone() } else { self.answer.take() };
        HistoryReport { history, is_last: self.is_closing }
    }
}
