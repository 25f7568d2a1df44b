//! Assembles the batches of one stream from the pieces of its splits, and tracks which rows have been delivered.
//!
//! The batches do not depend on the sizes of pieces, on the order in which pieces arrive, or on the workers that send them.
//! The assembler is generic over the payload of a piece: Arrow data in the client, row ids in the simulator.

use std::collections::VecDeque;
use std::ops::Range;

use crate::layout::{Layout, SplitRef};
use crate::pipeline::Remainder;

/// Output rows of one group of a split.
#[derive(Debug, Clone)]
pub struct Piece<P> {
    /// The split.
    pub split: SplitRef,
    /// The offset of the first input row of the piece in the split.
    pub start: u32,
    /// The offset after the last input row of the piece in the split.
    pub end: u32,
    /// The offsets of the input rows that operators did not remove, in ascending order; `None` if no row was removed.
    pub kept_offsets: Option<Vec<u32>>,
    /// The data of the rows. A row is addressed by its index in the payload.
    pub payload: P,
}

impl<P> Piece<P> {
    /// The number of rows in the payload.
    pub fn rows(&self) -> u32 {
        self.kept_offsets.as_ref().map_or(self.end - self.start, |kept| kept.len() as u32)
    }

    /// Returns the number of payload rows before an offset in the split.
    fn rows_before(&self, offset: u32) -> u32 {
        match &self.kept_offsets {
            Some(kept) => kept.partition_point(|&kept| kept < offset) as u32,
            None => offset.saturating_sub(self.start),
        }
    }

    /// Returns the offset in the split of a payload row, or the end of the piece if `row` is past the payload.
    fn offset_of(&self, row: u32) -> u32 {
        match &self.kept_offsets {
            Some(kept) => kept.get(row as usize).copied().unwrap_or(self.end),
            None => self.start + row,
        }
    }
}

/// A range of rows of one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceSlice<P> {
    /// The payload of the piece.
    pub payload: P,
    /// The range of payload rows.
    pub rows: Range<u32>,
    /// The split of the piece.
    pub split: SplitRef,
    /// The input rows of the split that the slice covers, including rows that operators removed.
    pub input_range: Range<u32>,
    /// The offset in the split of the piece's first input row. The piece's list of row ids starts at this offset.
    pub piece_start: u32,
}

/// The kind of a run of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunKind {
    /// A batch for the consumer. The last batch of an epoch is empty if the remaining rows belong to other streams.
    Batch,
    /// Rows that `remainder: drop` drops.
    Dropped,
    /// Input rows that operators removed at the end of an epoch; in a relaxed stream, at the end of a split.
    Removed,
}

/// A batch, or a run of consecutive rows that were dropped or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssembledBatch<P> {
    /// The kind of the run.
    pub kind: RunKind,
    /// The epoch of the first row.
    pub epoch: u32,
    /// The total number of rows in all parts.
    pub rows: u32,
    /// The parts in order.
    pub parts: Vec<PieceSlice<P>>,
}

/// A split that the consumer will deliver, with the pieces that have arrived.
#[derive(Debug, Clone)]
struct ExpectedSplit<P> {
    split: SplitRef,
    len: u32,
    /// The offset of the next input row to arrive.
    next_arrival: u32,
    /// The offset of the next input row to deliver.
    next_delivery: u32,
    pieces: VecDeque<BufferedPiece<P>>,
    /// Whether a batch ends at the end of this split.
    flush: bool,
}

#[derive(Debug, Clone)]
struct BufferedPiece<P> {
    piece: Piece<P>,
    /// The number of delivered rows of the piece.
    delivered_rows: u32,
}

/// Assembles the batches of one stream.
#[derive(Debug, Clone)]
pub struct Assembler<P> {
    layout: Layout,
    splits: VecDeque<ExpectedSplit<P>>,
    /// The number of batches delivered in `steps_epoch`.
    steps: u64,
    steps_epoch: u32,
    /// The epoch that still needs an empty last batch, because the rows of its last step belong to other streams.
    pending_empty_step: Option<u32>,
    /// Whether no further split follows.
    ended: bool,
    /// Whether splits without rows are removed before a batch is full. A relaxed stream has no other end of its splits.
    is_relaxed: bool,
}

impl<P: Clone> Assembler<P> {
    /// Creates an assembler for a stream of this layout.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            splits: VecDeque::new(),
            steps: 0,
            steps_epoch: 0,
            pending_empty_step: None,
            ended: false,
            is_relaxed: false,
        }
    }

    /// Creates an assembler for a relaxed stream of this layout.
    pub fn relaxed(layout: Layout) -> Self {
        Self { is_relaxed: true, ..Self::new(layout) }
    }

    /// Appends the rows of `split` to the delivery order, starting at offset `from`. With `flush`, a batch ends at the end
    /// of the split. Callers set `flush` at the end of an epoch, unless the remainder is carried to the next epoch.
    pub fn expect_split(&mut self, split: SplitRef, from: u32, flush: bool) {
        if self.splits.is_empty() && (split.epoch != self.steps_epoch || self.steps == 0) {
            self.steps_epoch = split.epoch;
            let row = split.ordinal * self.layout.split_rows + u64::from(from);
            self.steps = row / u64::from(self.layout.batch_rows);
        }
        let len = self.layout.split_len(split);
        let pieces = VecDeque::new();
        self.splits.push_back(ExpectedSplit {
            split,
            len,
            next_arrival: from,
            next_delivery: from,
            pieces,
            flush,
        });
    }

    /// Records that no further split follows.
    pub fn end_stream(&mut self) {
        self.ended = true;
    }

    /// Returns the offset in the split of the next row to arrive, or `None` if the split is not expected.
    pub fn next_arrival_offset(&self, split: SplitRef) -> Option<u32> {
        self.find_split(split).map(|expected| expected.next_arrival)
    }

    /// Whether all rows of a split have arrived, or the split is not expected.
    pub fn is_complete(&self, split: SplitRef) -> bool {
        self.find_split(split).is_none_or(|expected| expected.next_arrival >= expected.len)
    }

    fn find_split(&self, split: SplitRef) -> Option<&ExpectedSplit<P>> {
        self.splits.iter().find(|expected| expected.split == split)
    }

    /// Adds a piece. Ignores the piece and returns `false` if it contains no new row, leaves a gap, belongs to an unexpected split,
    /// or divides an indivisible batch.
    pub fn push(&mut self, piece: Piece<P>) -> bool {
        let Some(expected) = self.splits.iter_mut().find(|expected| expected.split == piece.split) else {
            return false;
        };
        if piece.start > expected.next_arrival
            || piece.end <= expected.next_arrival
            || piece.end > expected.len
        {
            return false;
        }
        if self.layout.indivisible && !self.layout.is_whole_batch(expected.len, piece.start, piece.end) {
            return false;
        }
        let delivered_rows = piece.rows_before(expected.next_arrival);
        expected.next_arrival = piece.end;
        expected.pieces.push_back(BufferedPiece { piece, delivered_rows });
        true
    }

    /// Whether [`Self::next_run`] returns a run.
    pub fn has_run(&self) -> bool {
        if self.layout.coordinated || self.layout.indivisible {
            let has_piece = self.splits.front().is_some_and(|front| !front.pieces.is_empty());
            return has_piece || self.pending_empty_step.is_some();
        }
        let (rows, flush) = self.available_rows(self.layout.batch_rows);
        self.pending_empty_step.is_some()
            || self.has_removed_front()
            || rows >= self.layout.batch_rows
            || flush
    }

    /// Whether operators have removed all remaining rows of the first split of a relaxed stream.
    fn has_removed_front(&self) -> bool {
        let is_removed = |front: &ExpectedSplit<P>| {
            let mut pieces = front.pieces.iter();
            front.next_arrival >= front.len
                && pieces.all(|buffered| buffered.delivered_rows == buffered.piece.rows())
        };
        self.is_relaxed && self.splits.front().is_some_and(is_removed)
    }

    /// Returns the next run of rows if enough rows have arrived.
    pub fn next_run(&mut self) -> Option<AssembledBatch<P>> {
        if let Some(epoch) = self.pending_empty_step.take() {
            return Some(AssembledBatch { kind: RunKind::Batch, epoch, rows: 0, parts: Vec::new() });
        }
        if self.layout.coordinated {
            return self.next_whole_piece();
        }
        if self.layout.indivisible {
            return self.next_indivisible_batch();
        }
        if self.has_removed_front() {
            let epoch = self.splits.front()?.split.epoch;
            let parts = self.take_rows(0, true);
            return Some(AssembledBatch { kind: RunKind::Removed, epoch, rows: 0, parts });
        }
        let wanted = self.layout.batch_rows;
        let (rows, flush) = self.available_rows(wanted);
        if rows < wanted && !flush {
            return None;
        }
        let epoch = self.splits.front().map_or(self.layout.epochs, |expected| expected.split.epoch);
        self.begin_batch(epoch);
        let take = rows.min(wanted);
        let kind = self.kind_of(rows, wanted)?;
        let closes_epoch = rows <= wanted && flush && self.splits.iter().any(|expected| expected.flush);
        let parts = self.take_rows(take, rows <= wanted && flush);
        if kind == RunKind::Batch {
            self.end_batch(epoch, closes_epoch);
        }
        Some(AssembledBatch { kind, epoch, rows: take, parts })
    }

    /// Restarts the count of batches at the first batch of an epoch.
    fn begin_batch(&mut self, epoch: u32) {
        if epoch != self.steps_epoch {
            self.steps_epoch = epoch;
            self.steps = 0;
        }
    }

    /// Counts a batch. If the stream has no rows for the last step of the epoch, an empty batch follows the last rows.
    fn end_batch(&mut self, epoch: u32, closes_epoch: bool) {
        self.steps += 1;
        let is_step_pending = closes_epoch && self.layout.steps().is_some_and(|steps| self.steps < steps);
        self.pending_empty_step = is_step_pending.then_some(epoch);
    }

    /// Returns the next indivisible batch, which is one whole piece. The batch has no rows if operators removed all of its input
    /// rows.
    fn next_indivisible_batch(&mut self) -> Option<AssembledBatch<P>> {
        let front = self.splits.front()?;
        let (epoch, len, flush) = (front.split.epoch, front.len, front.flush);
        let ends_split = front.pieces.front()?.piece.end >= len;
        self.begin_batch(epoch);
        let batch = self.next_whole_piece()?;
        self.end_batch(epoch, ends_split && flush);
        Some(batch)
    }

    /// Returns the next piece as a batch. In a coordinated job, a piece is a step, and may have no rows for this stream.
    fn next_whole_piece(&mut self) -> Option<AssembledBatch<P>> {
        let front = self.splits.front_mut()?;
        let piece = front.pieces.pop_front()?.piece;
        let rows = piece.rows();
        let (split, input) = (front.split, front.next_delivery..piece.end);
        front.next_delivery = piece.end;
        if front.next_delivery >= front.len {
            self.splits.pop_front();
        }
        let parts = vec![PieceSlice {
            payload: piece.payload,
            rows: 0..rows,
            split,
            input_range: input,
            piece_start: piece.start,
        }];
        Some(AssembledBatch { kind: RunKind::Batch, epoch: split.epoch, rows, parts })
    }

    /// Returns the kind of the next run, or `None` if no split is expected.
    fn kind_of(&self, rows: u32, wanted: u32) -> Option<RunKind> {
        if rows >= wanted {
            return Some(RunKind::Batch);
        }
        let front = self.splits.front()?;
        if rows > 0 {
            let drop = self.layout.remainder == Remainder::Drop;
            return Some(if drop { RunKind::Dropped } else { RunKind::Batch });
        }
        // Every stream has the same number of steps, so the last step of this stream may be empty.
        if front.flush && self.layout.steps().is_some_and(|steps| self.steps < steps) {
            return Some(RunKind::Batch);
        }
        Some(RunKind::Removed)
    }

    /// Returns the number of buffered rows before the next flush, counted until it exceeds `wanted`, and whether all rows
    /// before the next flush have arrived.
    fn available_rows(&self, wanted: u32) -> (u32, bool) {
        let mut rows = 0;
        for (index, expected) in self.splits.iter().enumerate() {
            rows += expected
                .pieces
                .iter()
                .map(|buffered| buffered.piece.rows() - buffered.delivered_rows)
                .sum::<u32>();
            if expected.next_arrival < expected.len {
                return (rows, false);
            }
            if expected.flush || (self.ended && index + 1 == self.splits.len()) {
                return (rows, true);
            }
            if rows > wanted {
                return (rows, false);
            }
        }
        (rows, false)
    }

    /// Removes `wanted` rows from the buffer. With `flush`, also removes the following input rows that operators removed.
    fn take_rows(&mut self, mut wanted: u32, flush: bool) -> Vec<PieceSlice<P>> {
        let mut parts = Vec::new();
        while let Some(expected) = self.splits.front_mut() {
            while let Some(BufferedPiece { piece, delivered_rows: delivered }) = expected.pieces.front_mut() {
                let rows = piece.rows();
                let take = wanted.min(rows - *delivered);
                let end = *delivered + take;
                let offset = if end == rows { piece.end } else { piece.offset_of(end) };
                if take > 0 || (end == rows && (flush || wanted > 0)) {
                    parts.push(PieceSlice {
                        payload: piece.payload.clone(),
                        rows: *delivered..end,
                        split: expected.split,
                        input_range: expected.next_delivery..offset,
                        piece_start: piece.start,
                    });
                    expected.next_delivery = offset;
                    *delivered = end;
                    wanted -= take;
                }
                if *delivered < rows || expected.next_delivery < piece.end {
                    return parts;
                }
                expected.pieces.pop_front();
            }
            if expected.next_delivery < expected.len {
                return parts;
            }
            let flushed = expected.flush;
            self.splits.pop_front();
            if flushed || wanted == 0 {
                return parts;
            }
        }
        parts
    }

    /// The number of buffered rows of the next, incomplete batch.
    pub fn buffered_rows(&self) -> u32 {
        self.available_rows(self.layout.batch_rows).0
    }

    /// The splits that are not fully delivered, each with the offset of its next undelivered input row.
    pub fn undelivered_splits(&self) -> impl Iterator<Item = (SplitRef, u32)> + '_ {
        self.splits.iter().map(|expected| (expected.split, expected.next_delivery))
    }

    /// The splits that are not fully received, in delivery order, each with the offset of its next row to arrive.
    pub fn missing_splits(&self) -> impl Iterator<Item = (SplitRef, u32)> + '_ {
        self.splits
            .iter()
            .filter(|expected| expected.next_arrival < expected.len)
            .map(|expected| (expected.split, expected.next_arrival))
    }

    /// Whether all expected rows have been delivered and no split follows.
    pub fn is_finished(&self) -> bool {
        self.ended && self.splits.is_empty() && self.pending_empty_step.is_none()
    }

    /// Makes the next run an empty batch, which is the stream's part of the last step of `epoch`.
    pub fn set_pending_empty_step(&mut self, epoch: u32) {
        self.pending_empty_step = Some(epoch);
    }

    /// The epoch of the next run if the run is an empty batch at the end of the epoch.
    pub fn pending_empty_step_epoch(&self) -> Option<u32> {
        self.pending_empty_step
    }
}

#[cfg(test)]
mod tests;
