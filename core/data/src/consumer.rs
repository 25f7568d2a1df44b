//! A consumer's side of a stream: puts the pieces of splits together into batches of the right size, in order, and
//! knows at any moment which rows have been delivered.
//!
//! Workers cut pieces where it suits them, in any order of arrival and from any worker; the batches do not depend on
//! it. Generic over what a piece carries, so that the client moves Arrow data and the simulator row ids.

use std::collections::VecDeque;
use std::ops::Range;

use crate::layout::{Layout, SplitRef};
use crate::pipeline::Remainder;

/// Finished rows of a split.
#[derive(Debug, Clone)]
pub struct Piece<P> {
    /// The split.
    pub split: SplitRef,
    /// Offset of the first input row that it accounts for.
    pub from: u32,
    /// Offset after the last input row that it accounts for.
    pub to: u32,
    /// Offsets of the input rows that remain, ascending; `None` when all do.
    pub kept: Option<Vec<u32>>,
    /// What it carries; rows are addressed by their place in it.
    pub payload: P,
}

impl<P> Piece<P> {
    /// Rows it carries.
    pub fn rows(&self) -> u32 {
        self.kept.as_ref().map_or(self.to - self.from, |kept| kept.len() as u32)
    }

    /// Rows whose offset lies before `offset`.
    fn rows_before(&self, offset: u32) -> u32 {
        match &self.kept {
            Some(kept) => kept.partition_point(|&kept| kept < offset) as u32,
            None => offset.saturating_sub(self.from),
        }
    }

    /// Offset of the `row`-th row it carries, or its end.
    fn offset_of(&self, row: u32) -> u32 {
        match &self.kept {
            Some(kept) => kept.get(row as usize).copied().unwrap_or(self.to),
            None => self.from + row,
        }
    }
}

/// A run of rows of one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceSlice<P> {
    /// The piece's payload.
    pub payload: P,
    /// Rows of the payload.
    pub rows: Range<u32>,
    /// The split they belong to.
    pub split: SplitRef,
    /// Input rows of the split accounted for, those that operators removed included.
    pub input: Range<u32>,
    /// Offset of the piece's first input row: where its list of row ids begins.
    pub piece_from: u32,
}

/// What a run of parts is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunKind {
    /// A batch for the consumer. It may be empty when others get the last rows of the epoch.
    Batch,
    /// Rows that `remainder: drop` leaves out.
    Dropped,
    /// Input rows that operators removed, with nothing behind them.
    Removed,
}

/// Parts that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssembledBatch<P> {
    /// What they are.
    pub kind: RunKind,
    /// Epoch of the batch's first row.
    pub epoch: u32,
    /// Rows in all.
    pub rows: u32,
    /// The parts in order.
    pub parts: Vec<PieceSlice<P>>,
}

/// A split in the order of delivery.
#[derive(Debug, Clone)]
struct Expected<P> {
    split: SplitRef,
    len: u32,
    /// Offset of the next input row to arrive.
    arrived: u32,
    /// Offset of the next input row to deliver.
    delivered: u32,
    pieces: VecDeque<Held<P>>,
    /// Whether the rows up to here are flushed before rows of the next split are taken.
    flush: bool,
}

#[derive(Debug, Clone)]
struct Held<P> {
    piece: Piece<P>,
    /// Rows delivered.
    taken: u32,
}

/// Puts pieces together.
#[derive(Debug, Clone)]
pub struct Assembler<P> {
    layout: Layout,
    splits: VecDeque<Expected<P>>,
    /// Batches delivered in the current epoch, where the layout knows how many there are.
    steps: u64,
    /// The epoch that `steps` counts.
    steps_epoch: u32,
    /// The epoch whose last step this stream owes, without rows: other streams get the last rows.
    owed: Option<u32>,
    /// No split will follow.
    ended: bool,
}

impl<P: Clone> Assembler<P> {
    /// An assembler for a stream of this layout.
    pub fn new(layout: Layout) -> Self {
        Self { layout, splits: VecDeque::new(), steps: 0, steps_epoch: 0, owed: None, ended: false }
    }

    /// Says that `split`, from offset `from` on, comes next in the order of delivery. `flush` asks that its last rows
    /// are not joined with those of the next split: the end of an epoch, unless rows are carried over it.
    pub fn expect(&mut self, split: SplitRef, from: u32, flush: bool) {
        if self.splits.is_empty() && (split.epoch != self.steps_epoch || self.steps == 0) {
            self.steps_epoch = split.epoch;
            let row = split.ordinal * self.layout.split_rows + u64::from(from);
            self.steps = row / u64::from(self.layout.batch_rows);
        }
        let len = self.layout.split_len(split);
        let pieces = VecDeque::new();
        self.splits.push_back(Expected { split, len, arrived: from, delivered: from, pieces, flush });
    }

    /// Says that no split will follow.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Offset at which a split's next piece must begin or pass; `None` when it is not expected.
    pub fn arrived(&self, split: SplitRef) -> Option<u32> {
        self.find(split).map(|expected| expected.arrived)
    }

    /// Whether all of a split has arrived, or it is not expected.
    pub fn is_complete(&self, split: SplitRef) -> bool {
        self.find(split).is_none_or(|expected| expected.arrived >= expected.len)
    }

    fn find(&self, split: SplitRef) -> Option<&Expected<P>> {
        self.splits.iter().find(|expected| expected.split == split)
    }

    /// Takes a piece. Pieces that came before, or leave a gap, are ignored and `false` is returned.
    pub fn push(&mut self, piece: Piece<P>) -> bool {
        let Some(expected) = self.splits.iter_mut().find(|expected| expected.split == piece.split) else {
            return false;
        };
        if piece.from > expected.arrived || piece.to <= expected.arrived || piece.to > expected.len {
            return false;
        }
        let taken = piece.rows_before(expected.arrived);
        expected.arrived = piece.to;
        expected.pieces.push_back(Held { piece, taken });
        true
    }

    /// Whether enough has arrived for [`Self::next_run`] to give something.
    pub fn has_run(&self) -> bool {
        if self.layout.coordinated {
            return self.splits.front().is_some_and(|front| !front.pieces.is_empty());
        }
        let (rows, flush) = self.available(self.layout.batch_rows);
        self.owed.is_some() || rows >= self.layout.batch_rows || flush
    }

    /// The next run of rows, if enough have arrived.
    pub fn next_run(&mut self) -> Option<AssembledBatch<P>> {
        if let Some(epoch) = self.owed.take() {
            return Some(AssembledBatch { kind: RunKind::Batch, epoch, rows: 0, parts: Vec::new() });
        }
        if self.layout.coordinated {
            return self.next_step();
        }
        let wanted = self.layout.batch_rows;
        let (rows, flush) = self.available(wanted);
        if rows < wanted && !flush {
            return None;
        }
        let epoch = self.splits.front().map_or(self.layout.epochs, |expected| expected.split.epoch);
        if epoch != self.steps_epoch {
            self.steps_epoch = epoch;
            self.steps = 0;
        }
        let take = rows.min(wanted);
        let kind = self.kind_of(rows, wanted)?;
        let closes_epoch = rows <= wanted && flush && self.splits.iter().any(|expected| expected.flush);
        let parts = self.take(take, rows <= wanted && flush);
        if kind == RunKind::Batch {
            self.steps += 1;
            let owes = closes_epoch && self.layout.steps().is_some_and(|steps| self.steps < steps);
            self.owed = owes.then_some(epoch);
        }
        Some(AssembledBatch { kind, epoch, rows: take, parts })
    }

    /// The next step of a coordinated job: a piece as it is, also where it has no rows for this stream.
    fn next_step(&mut self) -> Option<AssembledBatch<P>> {
        let front = self.splits.front_mut()?;
        let piece = front.pieces.pop_front()?.piece;
        let rows = piece.rows();
        let (split, input) = (front.split, front.delivered..piece.to);
        front.delivered = piece.to;
        if front.delivered >= front.len {
            self.splits.pop_front();
        }
        let parts =
            vec![PieceSlice { payload: piece.payload, rows: 0..rows, split, input, piece_from: piece.from }];
        Some(AssembledBatch { kind: RunKind::Batch, epoch: split.epoch, rows, parts })
    }

    /// What the next run is; `None` when there is nothing at all.
    fn kind_of(&self, rows: u32, wanted: u32) -> Option<RunKind> {
        if rows >= wanted {
            return Some(RunKind::Batch);
        }
        let front = self.splits.front()?;
        if rows > 0 {
            let drop = self.layout.remainder == Remainder::Drop;
            return Some(if drop { RunKind::Dropped } else { RunKind::Batch });
        }
        // The layout gives every stream the same number of steps; this one's last may have no rows.
        if front.flush && self.layout.steps().is_some_and(|steps| self.steps < steps) {
            return Some(RunKind::Batch);
        }
        Some(RunKind::Removed)
    }

    /// Rows that can be taken without joining over a flush, up to more than `wanted`; and whether everything up to
    /// the next flush has arrived.
    fn available(&self, wanted: u32) -> (u32, bool) {
        let mut rows = 0;
        for (place, expected) in self.splits.iter().enumerate() {
            rows += expected.pieces.iter().map(|held| held.piece.rows() - held.taken).sum::<u32>();
            if expected.arrived < expected.len {
                return (rows, false);
            }
            if expected.flush || (self.ended && place + 1 == self.splits.len()) {
                return (rows, true);
            }
            if rows > wanted {
                return (rows, false);
            }
        }
        (rows, false)
    }

    /// Takes `wanted` rows; with `flush` also the removed input rows behind them and the end of the splits.
    fn take(&mut self, mut wanted: u32, flush: bool) -> Vec<PieceSlice<P>> {
        let mut parts = Vec::new();
        while let Some(expected) = self.splits.front_mut() {
            while let Some(held) = expected.pieces.front_mut() {
                let rows = held.piece.rows();
                let take = wanted.min(rows - held.taken);
                let end = held.taken + take;
                let offset = if end == rows { held.piece.to } else { held.piece.offset_of(end) };
                if take > 0 || (end == rows && (flush || wanted > 0)) {
                    parts.push(PieceSlice {
                        payload: held.piece.payload.clone(),
                        rows: held.taken..end,
                        split: expected.split,
                        input: expected.delivered..offset,
                        piece_from: held.piece.from,
                    });
                    expected.delivered = offset;
                    held.taken = end;
                    wanted -= take;
                }
                if held.taken < rows || expected.delivered < held.piece.to {
                    return parts;
                }
                expected.pieces.pop_front();
            }
            if expected.delivered < expected.len {
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

    /// Rows that have arrived in order and wait for the rest of their batch.
    pub fn waiting_rows(&self) -> u32 {
        self.available(self.layout.batch_rows).0
    }

    /// Splits not delivered in full, each with the offset of its next undelivered input row.
    pub fn progress(&self) -> impl Iterator<Item = (SplitRef, u32)> + '_ {
        self.splits.iter().map(|expected| (expected.split, expected.delivered))
    }

    /// Splits in the order of delivery that have not arrived in full.
    pub fn missing(&self) -> impl Iterator<Item = (SplitRef, u32)> + '_ {
        self.splits
            .iter()
            .filter(|expected| expected.arrived < expected.len)
            .map(|expected| (expected.split, expected.arrived))
    }

    /// Whether everything that was expected has been delivered and nothing will follow.
    pub fn is_finished(&self) -> bool {
        self.ended && self.splits.is_empty() && self.owed.is_none()
    }

    /// Says that the step which comes next is the last of this epoch and has no rows.
    pub fn owe_step(&mut self, epoch: u32) {
        self.owed = Some(epoch);
    }

    /// The epoch whose last step comes next and has no rows, because other streams get the last rows.
    pub fn owed_epoch(&self) -> Option<u32> {
        self.owed
    }
}

#[cfg(test)]
mod tests;
