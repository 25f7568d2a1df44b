//! The slots of an elastic job: what the consumer knows besides its streams.

use std::collections::BTreeSet;

use feedline_data::layout::StreamPosition;

/// The latest batch has the weight `1 / SMOOTHING` in the mean time of a slot's batch.
const SMOOTHING: u64 = 8;

/// The state of a consumer of an elastic job, besides its streams.
#[derive(Debug, Default)]
pub(super) struct SlotState {
    /// Whether the job is elastic, as the first plan states.
    pub(super) is_elastic: bool,
    pub(super) is_leaving: bool,
    /// Whether a revoked slot has not stopped.
    pub(super) has_revoked: bool,
    /// Whether the coordinator has acknowledged that the consumer leaves.
    pub(super) is_leave_acknowledged: bool,
    /// Slots and generations whose stop the coordinator has acknowledged with its last reply.
    pub(super) acknowledged_stops: BTreeSet<(u32, u64)>,
    /// Start of the last delivered batch.
    pub(super) last_batch: Option<StreamPosition>,
    pub(super) batch_time: SlotBatchTime,
}

/// Time that the user takes for a batch of one slot.
#[derive(Debug, Default)]
pub(super) struct SlotBatchTime {
    pub(super) ns: u64,
    /// Whether the user has set the time, so that measurements do not change it.
    is_fixed: bool,
}

impl SlotBatchTime {
    /// A time that the user has set.
    pub(super) fn fixed(ns: u64) -> Self {
        Self { ns, is_fixed: true }
    }

    /// Adds a measurement. After the last batch of a step ranks wait for each other, so this time is only an upper bound.
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

/// The slots in a report, to be recorded when the coordinator replies.
#[derive(Debug, Default)]
pub(super) struct SentSlots {
    pub(super) stopped: BTreeSet<(u32, u64)>,
    pub(super) is_leaving: bool,
}
