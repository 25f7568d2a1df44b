//! Messages between the ranks of elastic jobs and the coordinator about slots, which are the streams of an elastic job.

use serde::{Deserialize, Serialize};

use crate::layout::StreamPosition;

/// The part of a rank's report that describes its slots; empty for jobs that are not elastic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotReport {
    /// The slots that the rank owns. A stopped slot stays in the list until a plan no longer grants the slot to the rank.
    pub claims: Vec<SlotPosition>,
    /// Whether the rank leaves the job: it releases its slots and receives no others.
    pub leaving: bool,
    /// Nanoseconds that the training loop takes for a batch of one slot; 0 if unknown.
    pub slot_ns: u64,
}

/// The position of a rank in one of its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotPosition {
    /// The slot.
    pub stream: u32,
    /// The generation of the grant. Progress from other generations is ignored.
    pub generation: u64,
    /// The next undelivered row of the slot.
    pub position: StreamPosition,
    /// Whether the rank delivers no further rows of the slot in this generation.
    pub stopped: bool,
}

/// A slot that a plan grants to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotGrant {
    /// The slot.
    pub stream: u32,
    /// The number of times that the slot has been granted.
    pub generation: u64,
    /// The recorded position of the slot. A new owner starts at this position.
    pub position: StreamPosition,
    /// Whether the slot is to move to another rank. The owner then stops the slot after the current step.
    pub release: bool,
}
