//! One stream of a consumer: its assembler, and the splits that it expects next.

use feedline_data::consumer::Assembler;
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::pipeline::Remainder;

use crate::pieces::PieceBytes;

/// The sort key of streams: the position of the next batch, and the stream.
pub(super) type BatchOrder = (StreamPosition, u32);

/// One stream.
#[derive(Debug, Clone)]
pub(super) struct StreamState {
    pub(super) id: u32,
    pub(super) assembler: Assembler<PieceBytes>,
    /// The next split that the assembler should expect, and the offset of its first row. Always `None` in relaxed mode.
    next_split: Option<(SplitRef, u32)>,
    is_ended: bool,
    /// Elastic jobs: the generation in which this consumer received the slot.
    pub(super) generation: u64,
    /// Elastic jobs: whether the coordinator requests the slot, to grant it to another consumer.
    pub(super) is_revoked: bool,
    /// Elastic jobs: whether the stream has stopped delivering batches.
    pub(super) is_stopped: bool,
}

impl StreamState {
    /// Creates a stream of a deterministic job that starts at `position`.
    pub(super) fn new(layout: &Layout, id: u32, position: StreamPosition) -> Self {
        let mut stream = Self { next_split: layout.locate(id, position), ..Self::empty(layout, id) };
        if layout.has_pending_empty_step(id, position) {
            stream.assembler.set_pending_empty_step(position.epoch);
        }
        stream
    }

    /// Creates the stream of a relaxed job, which orders splits by their arrival.
    pub(super) fn relaxed(layout: &Layout) -> Self {
        Self { assembler: Assembler::relaxed(layout.clone()), ..Self::empty(layout, 0) }
    }

    fn empty(layout: &Layout, id: u32) -> Self {
        Self {
            id,
            assembler: Assembler::new(layout.clone()),
            next_split: None,
            is_ended: false,
            generation: 0,
            is_revoked: false,
            is_stopped: false,
        }
    }

    /// Returns the position of the next undelivered row.
    pub(super) fn position(&self, layout: &Layout) -> StreamPosition {
        if let Some(epoch) = self.assembler.pending_empty_step_epoch() {
            return StreamPosition { epoch, row: layout.stream_rows(self.id) };
        }
        if let Some((split, offset)) = self.assembler.undelivered_splits().next() {
            return layout.position_in(split, offset);
        }
        match self.next_split {
            Some((split, offset)) => layout.position_in(split, offset),
            None => StreamPosition { epoch: layout.epochs, row: 0 },
        }
    }

    /// Returns the position by which the next batch is ordered. An empty batch at the end of an epoch follows all rows of the epoch.
    pub(super) fn batch_position(&self, layout: &Layout) -> StreamPosition {
        match self.assembler.pending_empty_step_epoch() {
            Some(epoch) => StreamPosition { epoch, row: u64::MAX },
            None => self.position(layout),
        }
    }

    /// Returns the sort key of the next batch among all streams.
    pub(super) fn batch_order(&self, layout: &Layout) -> BatchOrder {
        (self.batch_position(layout), self.id)
    }

    /// Whether the stream has delivered its last batch.
    pub(super) fn is_finished(&self) -> bool {
        self.is_stopped || self.assembler.is_finished()
    }

    /// Adds expected splits to the assembler, until `ahead` of them have not arrived.
    pub(super) fn extend(&mut self, layout: &Layout, ahead: usize) {
        let mut missing = self.assembler.missing_splits().count();
        while missing < ahead
            && let Some((split, from)) = self.next_split
        {
            let following = layout.next_split(split);
            let is_last_of_epoch = following.is_none_or(|following| following.epoch != split.epoch);
            self.assembler.expect_split(
                split,
                from,
                is_last_of_epoch && layout.remainder != Remainder::Carry,
            );
            self.next_split = following.map(|following| (following, 0));
            missing += 1;
        }
        if self.next_split.is_none() {
            self.end();
        }
    }

    /// Records that the stream has no splits after the expected splits.
    pub(super) fn end(&mut self) {
        if !self.is_ended {
            self.is_ended = true;
            self.assembler.end_stream();
        }
    }

    /// Whether the stream has no splits after the expected splits.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Returns the number of splits that have arrived completely and have not been delivered completely.
    pub(super) fn complete_splits(&self) -> usize {
        self.assembler.undelivered_splits().count() - self.assembler.missing_splits().count()
    }
}

/// Returns the index of the stream that delivers the next batch. `None` if all streams are finished.
pub(super) fn next_stream(streams: &[StreamState], layout: &Layout) -> Option<usize> {
    let open = streams.iter().enumerate().filter(|(_, stream)| !stream.is_finished());
    open.min_by_key(|(_, stream)| stream.batch_order(layout)).map(|(index, _)| index)
}
