//! The positions of a job's consumers at one step, and the report of one consumer.

use crate::checkpoint::PositionHistory;
use crate::layout::StreamPosition;

/// The position history in a consumer's report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryReport {
    /// The history; `None` where no plan queries a step.
    pub history: Option<Box<PositionHistory>>,
    /// Whether the consumer closes: it takes no further batch and answers no later query.
    pub is_last: bool,
}

/// The positions of a job's consumers at one step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupPositions {
    /// The next undelivered row of each stream of the consumers that are not missing, ordered by stream.
    pub positions: Vec<(u32, StreamPosition)>,
    /// Consumers whose position is unknown, in order.
    pub missing: Vec<u32>,
    /// Whether a retry may find missing consumers.
    pub waits: bool,
}
