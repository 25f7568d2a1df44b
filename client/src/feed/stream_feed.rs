//! One stream of a feed: its assembler, and the splits that it expects next.

use feedline_data::consumer::Assembler;
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::pipeline::Remainder;

use crate::pieces::PieceBytes;

/// One stream.
#[derive(Debug, Clone)]
pub(super) struct StreamFeed {
    pub(super) stream: u32,
    pub(super) assembler: Assembler<PieceBytes>,
    /// Deterministic mode: the split to expect next and the offset to begin at.
    next: Option<(SplitRef, u32)>,
    ended: bool,
    /// Elastic jobs: the generation in which the slot was got, whether it is wanted for another rank, and whether nothing more
    /// of it is delivered.
    pub(super) generation: u64,
    pub(super) is_wanted: bool,
    pub(super) is_stopped: bool,
}

impl StreamFeed {
    /// A stream of a deterministic job, from `position` on.
    pub(super) fn new(layout: &Layout, stream: u32, position: StreamPosition) -> Self {
        let mut lane = Self { next: layout.locate(stream, position), ..Self::relaxed_at(layout, stream) };
        if layout.owes_empty_step(stream, position) {
            lane.assembler.owe_step(position.epoch);
        }
        lane
    }

    /// The splits of a relaxed job, in the order in which they arrive.
    pub(super) fn relaxed(layout: &Layout) -> Self {
        Self::relaxed_at(layout, 0)
    }

    fn relaxed_at(layout: &Layout, stream: u32) -> Self {
        Self {
            stream,
            assembler: Assembler::new(layout.clone()),
            next: None,
            ended: false,
            generation: 0,
            is_wanted: false,
            is_stopped: false,
        }
    }

    /// The next undelivered row.
    pub(super) fn position(&self, layout: &Layout) -> StreamPosition {
        if let Some(epoch) = self.assembler.owed_epoch() {
            return StreamPosition { epoch, row: layout.stream_rows(self.stream) };
        }
        if let Some((split, offset)) = self.assembler.progress().next() {
            return layout.position_in(split, offset);
        }
        match self.next {
            Some((split, offset)) => layout.position_in(split, offset),
            None => StreamPosition { epoch: layout.epochs, row: 0 },
        }
    }

    /// Orders lanes: the epoch and first row of the next batch. A batch without rows at an epoch's end comes after the
    /// epoch's rows.
    pub(super) fn place_in_order(&self, layout: &Layout) -> StreamPosition {
        match self.assembler.owed_epoch() {
            Some(epoch) => StreamPosition { epoch, row: u64::MAX },
            None => self.position(layout),
        }
    }

    /// Whether nothing comes of it any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_stopped || self.assembler.is_finished()
    }

    /// When its next batch is due, compared with other lanes.
    pub(super) fn turn(&self, layout: &Layout) -> (StreamPosition, u32) {
        (self.place_in_order(layout), self.stream)
    }

    /// Expects splits until `ahead` of them have not arrived.
    pub(super) fn extend(&mut self, layout: &Layout, ahead: usize) {
        let mut missing = self.assembler.missing().count();
        while missing < ahead
            && let Some((split, from)) = self.next
        {
            let following = layout.next_split(split);
            let last_of_epoch = following.is_none_or(|following| following.epoch != split.epoch);
            self.assembler.expect(split, from, last_of_epoch && layout.remainder != Remainder::Carry);
            self.next = following.map(|following| (following, 0));
            missing += 1;
        }
        if self.next.is_none() {
            self.end();
        }
    }

    pub(super) fn end(&mut self) {
        if !self.ended {
            self.ended = true;
            self.assembler.end();
        }
    }

    /// Splits that have arrived in full and not been delivered in full.
    pub(super) fn held_complete(&self) -> usize {
        self.assembler.progress().count() - self.assembler.missing().count()
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }
}

/// The lane that is furthest behind; `None` when all are finished.
pub(super) fn lane_in_turn(lanes: &[StreamFeed], layout: &Layout) -> Option<usize> {
    let open = lanes.iter().enumerate().filter(|(_, lane)| !lane.is_over());
    open.min_by_key(|(_, lane)| lane.turn(layout)).map(|(place, _)| place)
}
