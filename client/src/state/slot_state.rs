//! The state of a consumer's slots in an elastic job, in addition to its streams.

use std::collections::BTreeSet;

use feedline_data::layout::StreamPosition;

/// The weight of the last batch in the moving average of the batch time is `1 / SMOOTHING`.
const SMOOTHING: u64 = 8;

/// The state of a consumer's slots in an elastic job, in addition to its streams.
#[derive(Debug, Default)]
pub(super) struct SlotState {
    /// Whether the job is elastic, as the first plan states.
    pub(super) is_elastic: bool,
    pub(super) is_leaving: bool,
    /// Whether a revoked slot has not stopped yet.
    pub(super) has_revoked: bool,
    /// Whether the coordinator has acknowledged that the consumer leaves.
    pub(super) is_leave_acknowledged: bool,
    /// The stopped slots that the coordinator has acknowledged in its last reply, with their generations.
    pub(super) acknowledged_stops: BTreeSet<(u32, u64)>,
    /// Start of the last delivered batch.
    pub(super) last_batch: Option<StreamPosition>,
    pub(super) batch_time: SlotBatchTime,
}

/// The time that the user needs for a batch of one slot.
#[derive(Debug, Default)]
pub(super) struct SlotBatchTime {
    pub(super) ns: u64,
    /// Whether the user has set the time, so that measurements do not change it.
    is_fixed: bool,
}

impl SlotBatchTime {
    /// Creates a batch time that the user has set.
    pub(super) fn fixed(ns: u64) -> Self {
        Self { ns, is_fixed: true }
    }

    /// Adds a measurement. The time of the last batch of a step includes waiting for other ranks, so it is only an upper bound.
    pub(super) fn add(&mut self, ns: u64, is_last_of_step: bool) {
        if self.is_fixed {
            return;
        }
        self.ns = match self.ns {
            0 => ns,
            mean if is_last_of_step => mean.min(ns),
            mean => (mean * (SMOOTHING - 1) + ns) / SMOOTHING,
        };
    }
}

/// The slots in a report, which are recorded when the coordinator replies.
#[derive(Debug, Default)]
pub(super) struct SentSlots {
    pub(super) stopped: BTreeSet<(u32, u64)>,
    pub(super) is_leaving: bool,
}
