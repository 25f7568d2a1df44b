//! What a read of a partition asks for.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::records::RecordParts;

/// What happens to offsets whose records were deleted or lost. The read continues behind them, and returns their ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapPolicy {
    /// The log contains a line, one for all reads of a gap.
    Warn,
    /// The caller handles the ranges.
    Report,
}

/// How a read detects records that replaced others at their offsets: a replica without the latest records became the leader, and the
/// topic received new records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplacementCheck {
    /// The read returns the records that the topic contains now.
    None,
    /// By the leader epochs of the records. Those that existed when the range was determined have at most this one.
    LeaderEpoch(i32),
    /// The brokers compare the leader epoch of the last record of the previous read of the partition, if this one continues there.
    Continuation,
}

/// A request to read a range of offsets of one partition.
#[derive(Debug, Clone)]
pub struct ReadRequest {
    /// The topic.
    pub topic: Arc<str>,
    /// The expected id of the topic.
    pub topic_id: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offsets.
    pub offsets: Range<u64>,
    /// The requested parts.
    pub parts: RecordParts,
    /// What happens to missing records.
    pub gaps: GapPolicy,
    /// How replaced records are detected. [`RecordBlock::missing`](crate::RecordBlock::missing) contains their offsets.
    pub replacements: ReplacementCheck,
    /// The expected size of the requested parts in bytes, for which the caller has reserved memory twice.
    pub expected_bytes: usize,
    /// How long the read waits for the next record; the budget of the client if `None`. Doubles with each consecutive read of the
    /// partition for which this was too short, up to the budget, because a large response needs long on a slow network.
    pub patience: Option<Duration>,
    /// The number of bytes after which the read ends early.
    pub max_bytes: Option<u64>,
    /// The number of records with a payload after which the read ends; only these are returned. All records if `None`.
    pub payloads: Option<usize>,
}
