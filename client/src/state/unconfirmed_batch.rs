//! The batch that a consumer with deferred delivery has received, and that reports exclude.

use std::collections::BTreeMap;

use feedline_data::layout::{SplitRef, StreamPosition};

/// Whether delivery is deferred, and the batch that is not confirmed yet.
#[derive(Debug, Default)]
pub(super) struct DeliveryConfirmation {
    pub(super) is_deferred: bool,
    pub(super) unconfirmed: Option<UnconfirmedBatch>,
}

/// A batch that the user has received. The user has not requested the next one.
#[derive(Debug)]
pub(super) struct UnconfirmedBatch {
    pub(super) stream: u32,
    /// Position of the stream before the batch.
    pub(super) start: StreamPosition,
    /// Offset of the batch's first row in each of its splits.
    pub(super) offsets: BTreeMap<SplitRef, u32>,
    /// Number of splits that the batch completed.
    pub(super) completed_splits: u32,
}

impl DeliveryConfirmation {
    /// Returns the position of a stream before its unconfirmed batch. `None` if it has none.
    pub(super) fn start_of(&self, stream: u32) -> Option<StreamPosition> {
        self.unconfirmed.as_ref().filter(|batch| batch.stream == stream).map(|batch| batch.start)
    }

    /// Returns the offset of a split's first unconfirmed row. `offset` is the offset of its next undelivered row.
    pub(super) fn confirmed_offset(&self, split: SplitRef, offset: u32) -> u32 {
        let start = self.unconfirmed.as_ref().and_then(|batch| batch.offsets.get(&split));
        start.map_or(offset, |start| offset.min(*start))
    }

    /// Returns the number of splits that the unconfirmed batch completed. Plans still contain them.
    pub(super) fn completed_splits(&self) -> u32 {
        self.unconfirmed.as_ref().map_or(0, |batch| batch.completed_splits)
    }
}
