//! The positions of all consumers of a job at one step, and the reports from which they are computed.

use crate::checkpoint::PositionHistory;
use crate::layout::StreamPosition;

/// The part of a consumer's report about its last batches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryReport {
    /// The positions after each batch; `None` if no plan has asked for a step.
    pub history: Option<Box<PositionHistory>>,
    /// Whether this is the consumer's last report: the consumer stops and cannot answer later queries.
    pub is_last: bool,
}

/// The positions of a job's consumers at one step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupPositions {
    /// The next undelivered row of each stream, in the order of streams, without the streams of missing consumers.
    pub positions: Vec<(u32, StreamPosition)>,
    /// The consumers with unknown positions, in order.
    pub missing: Vec<u32>,
    /// Whether a retry may return the positions of missing consumers.
    pub waits: bool,
}
