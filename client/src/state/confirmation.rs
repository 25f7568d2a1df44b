//! Deferred delivery: the last batch counts as delivered when the user requests the next one. Until then, reports exclude it, so
//! that another session of the consumer receives it again if this one ends.

use std::collections::BTreeMap;

use feedline_data::consumer::PieceSlice;
use feedline_data::layout::StreamPosition;

use super::ConsumerState;
use super::unconfirmed_batch::UnconfirmedBatch;
use crate::pieces::PieceBytes;

impl ConsumerState {
    /// From now on, a batch counts as delivered when the user requests the next one.
    pub(crate) fn defer_delivery(&mut self) {
        self.confirmation.is_deferred = true;
    }

    /// Returns the position of a stream before its next batch. `None` if delivery is not deferred.
    pub(super) fn deferred_start(&self, index: usize) -> Option<StreamPosition> {
        let layout = self.layout.as_ref().filter(|_| self.confirmation.is_deferred)?;
        Some(self.streams.get(index).position(layout))
    }

    /// Records a batch that the user receives, and that reports exclude until [`Self::confirm_last_batch`].
    pub(super) fn defer_batch(
        &mut self,
        index: usize,
        start: StreamPosition,
        parts: &[PieceSlice<PieceBytes>],
        completed_splits: u32,
    ) {
        let mut offsets = BTreeMap::new();
        for part in parts {
            // The first part of a split has its first row.
            offsets.entry(part.split).or_insert(part.input_range.start);
        }
        let stream = self.streams.get(index).id;
        self.confirmation.unconfirmed = Some(UnconfirmedBatch { stream, start, offsets, completed_splits });
    }

    /// Counts the last batch as delivered.
    pub(super) fn confirm_last_batch(&mut self) {
        let Some(batch) = self.confirmation.unconfirmed.take() else { return };
        let is_stopped = self.streams.get_by_id(batch.stream).is_some_and(|stream| stream.is_stopped);
        self.reports.on_batch_confirmed(batch.completed_splits > 0 || is_stopped);
    }
}
