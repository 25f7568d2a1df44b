//! Where all consumers of a job stand at one step, and what each says for it.

use crate::layout::StreamPosition;
use crate::position_history::PositionHistory;

/// What a consumer says of its last batches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryReport {
    /// Where it stood behind each; `None` where nobody has asked.
    pub marks: Option<Box<PositionHistory>>,
    /// Whether it ends: it takes no further batch, and will not be there to be asked.
    pub is_last: bool,
}

/// Where a job's consumers stand at one step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupPositions {
    /// The next undelivered row of each stream, in the order of streams; those of missing consumers are not there.
    pub positions: Vec<(u32, StreamPosition)>,
    /// Consumers of which that is not known, in order.
    pub missing: Vec<u32>,
    /// Whether asking again may tell of more of them.
    pub waits: bool,
}
