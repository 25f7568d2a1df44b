//! The positions of all consumers of a job at one step, and the reports from which they are computed.

use crate::checkpoint::PositionHistory;
use crate::layout::StreamPosition;

/// The part of a consumer's report that describes its most recent batches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryReport {
    /// The positions after each batch; `None` if no plan has queried a step.
    pub history: Option<Box<PositionHistory>>,
    /// Whether this is the consumer's last report. The consumer then stops and cannot answer later queries.
    pub is_last: bool,
}

/// The positions of a job's consumers at one step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupPositions {
    /// The next undelivered row of each stream, ordered by stream. Streams of missing consumers are omitted.
    pub positions: Vec<(u32, StreamPosition)>,
    /// The consumers that have not answered, in ascending order.
    pub missing: Vec<u32>,
    /// Whether a missing consumer may still answer, so that a retry can succeed.
    pub is_retryable: bool,
}
