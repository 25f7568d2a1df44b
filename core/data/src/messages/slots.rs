//! What ranks of elastic jobs and the coordinator say to each other about slots: the streams of such a job.

use serde::{Deserialize, Serialize};

use crate::layout::StreamPosition;

/// What a rank of an elastic job says; empty in other jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotReport {
    /// The slots that it has, those among them that it has stopped at until a plan says that they are not its own.
    pub claims: Vec<SlotPosition>,
    /// Whether it leaves: it gives its slots back and gets none.
    pub leaving: bool,
    /// Nanoseconds that its user takes for a batch of one slot; 0 where that is not known.
    pub slot_ns: u64,
}

/// Where a rank stands in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotPosition {
    /// The slot.
    pub stream: u32,
    /// Generation in which it got the slot: progress in another one counts for nothing.
    pub generation: u64,
    /// Its next undelivered row.
    pub position: StreamPosition,
    /// Whether it delivers nothing more of it in this generation.
    pub stopped: bool,
}

/// A slot that a rank has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotGrant {
    /// The slot.
    pub stream: u32,
    /// Counts how often the slot was given to someone.
    pub generation: u64,
    /// Where the coordinator has it: where a rank to which it is new begins.
    pub position: StreamPosition,
    /// Whether it is wanted for another rank: to be stopped at once the present step is delivered.
    pub release: bool,
}
