//! The segments of an unbounded job: ranges of offsets that the leader records while the job runs, and the order of their rows.
//!
//! A segment occupies whole rounds of the layout. Its rows are divided evenly among the splits of these rounds, and the rest of
//! each split is *padding*: rows that do not exist, which workers drop like offsets without a record. The layout of the job
//! therefore does not depend on the segments, and a segment with few rows costs no more than its rows.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::layout::SplitRef;
use crate::manifest::Block;
use crate::order::{BlockTable, PassOrder, RowRef};
use crate::random::mix64;

/// The row id of padding in lists of row ids.
pub const PADDING_ROW_ID: u64 = u64::MAX;

/// Target size of a block in bytes.
const TARGET_BLOCK_BYTES: u64 = 1 << 20;
/// Maximum number of rows of a block.
const MAX_BLOCK_ROWS: u64 = 1 << 16;
/// Maximum number of blocks of a segment in a position. The leader forms much smaller segments.
const MAX_SEGMENT_BLOCKS: u64 = 1 << 22;
/// Number of undelivered blocks from which the leader records no further segments. Each range has at least one block, so this also
/// limits the size of positions.
pub const MAX_UNDELIVERED_BLOCKS: u64 = 1 << 22;
/// Maximum number of blocks of all segments in a position. The leader records one more segment below [`MAX_UNDELIVERED_BLOCKS`].
pub(crate) const MAX_POSITION_BLOCKS: u64 = MAX_UNDELIVERED_BLOCKS + MAX_SEGMENT_BLOCKS;

/// A range of offsets of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, u64, u64, u32)", into = "(u32, u64, u64, u32)")]
pub struct OffsetRange {
    /// The index of the partition in the job.
    pub partition: u32,
    /// The first offset.
    pub from: u64,
    /// The offset after the last one.
    pub to: u64,
    /// The estimated size of a record in bytes, which determines the blocks of the range.
    pub row_bytes: u32,
}

impl OffsetRange {
    /// The number of offsets.
    pub fn rows(&self) -> u64 {
        self.to - self.from
    }

    /// The number of rows of a block, so that it has about [`TARGET_BLOCK_BYTES`].
    fn block_rows(&self) -> u64 {
        (TARGET_BLOCK_BYTES / u64::from(self.row_bytes.max(1))).clamp(1, MAX_BLOCK_ROWS)
    }
}

impl From<(u32, u64, u64, u32)> for OffsetRange {
    fn from((partition, from, to, row_bytes): (u32, u64, u64, u32)) -> Self {
        Self { partition, from, to: to.max(from), row_bytes }
    }
}

impl From<OffsetRange> for (u32, u64, u64, u32) {
    fn from(range: OffsetRange) -> Self {
        (range.partition, range.from, range.to, range.row_bytes)
    }
}

/// Ranges of offsets that occupy whole rounds of the layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The first round.
    #[serde(rename = "round")]
    pub first_round: u64,
    /// The number of rounds; at least 1.
    pub rounds: u64,
    /// The row id of the first row. Row ids are unique within the job.
    #[serde(rename = "row")]
    pub first_row_id: u64,
    /// The epoch of the rows, from 0.
    pub epoch: u32,
    /// The ranges, in the order of the partitions.
    pub ranges: Vec<OffsetRange>,
}

impl Segment {
    /// The number of rows without padding.
    pub fn rows(&self) -> u64 {
        self.ranges.iter().map(OffsetRange::rows).fold(0, u64::saturating_add)
    }

    /// The number of blocks. Workers hold those of the segments whose splits they compute.
    pub fn blocks(&self) -> u64 {
        let blocks = self.ranges.iter().map(|range| range.rows().div_ceil(range.block_rows()));
        blocks.fold(0, u64::saturating_add)
    }

    /// Whether workers can hold the blocks of the segment.
    pub(crate) fn has_valid_size(&self) -> bool {
        self.blocks() <= MAX_SEGMENT_BLOCKS
    }

    /// The round after the last one.
    pub fn end_round(&self) -> u64 {
        self.first_round.saturating_add(self.rounds)
    }

    /// Returns the rows of a split as indexes in the segment. All other rows of the split, after these rows, are padding.
    pub fn rows_of(&self, streams: u32, split: SplitRef) -> Range<u64> {
        let streams = u64::from(streams.max(1));
        let splits = self.rounds * streams;
        let Some(round) = split.ordinal.checked_sub(self.first_round).filter(|round| *round < self.rounds)
        else {
            return 0..0;
        };
        let place = round * streams + u64::from(split.stream);
        let rows = self.rows();
        let (each, extra) = (rows / splits, rows % splits);
        // The splits with one more row follow those of the previous segment, so that no stream falls behind.
        let first = self.first_row_id % splits;
        let start = each * place + extra_rows_before(place, first, extra, splits);
        let end = each * (place + 1) + extra_rows_before(place + 1, first, extra, splits);
        start..end
    }
}

/// The number of splits before `place` with one more row. These are the `extra` splits from `first` on, and then from the first
/// split on.
fn extra_rows_before(place: u64, first: u64, extra: u64, splits: u64) -> u64 {
    let wrapped = (first + extra).saturating_sub(splits);
    place.min(wrapped) + place.saturating_sub(first).min(extra - wrapped)
}

/// The order of the rows of one segment. Memory use grows with the number of blocks.
#[derive(Debug)]
pub struct SegmentOrder {
    segment: Segment,
    streams: u32,
    blocks: Vec<SegmentBlock>,
    table: BlockTable,
    order: PassOrder,
}

/// A block of a segment. No other segment contains its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentBlock {
    /// The index of the partition in the job.
    pub partition: u32,
    /// The offsets, with their estimated size.
    pub block: Block,
}

impl SegmentOrder {
    /// Creates the order of a segment of a job with this number of streams. Blocks are permuted with the seed, and rows are
    /// permuted within windows of the segment. With `window` 0 the rows keep the order of the ranges.
    pub fn new(segment: Segment, streams: u32, seed: u64, window: u64) -> Self {
        let blocks: Vec<SegmentBlock> = segment.ranges.iter().flat_map(blocks_of).collect();
        let sizes = blocks.iter().map(|block| (block.partition, block.block.rows));
        let table = BlockTable::of_blocks(sizes, segment.first_row_id);
        // Each segment has another order.
        let seed = mix64(seed ^ mix64(segment.first_round.wrapping_add(1)));
        let order = PassOrder::new(&table, seed, 0, window);
        Self { segment, streams, blocks, table, order }
    }

    /// The segment.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The number of rows of a split without padding.
    pub fn split_rows(&self, split: SplitRef) -> u32 {
        let rows = self.segment.rows_of(self.streams, split);
        (rows.end - rows.start) as u32
    }

    /// Returns the rows at a range of offsets in a split, in order. Omits padding, which follows all other rows.
    /// [`RowRef::shard`] is the index of the partition, and [`RowRef::block`] is an argument of [`Self::block`].
    pub fn rows(&self, split: SplitRef, offsets: Range<u32>) -> Vec<RowRef> {
        let rows = self.segment.rows_of(self.streams, split);
        let at = |offset: u32| (rows.start + u64::from(offset)).min(rows.end);
        self.order.rows(&self.table, at(offsets.start)..at(offsets.end))
    }

    /// Returns a block of the segment; `None` for the index of a block of another segment.
    pub fn block(&self, index: u32) -> Option<&SegmentBlock> {
        self.blocks.get(index as usize)
    }
}

/// Divides a range into blocks of about [`TARGET_BLOCK_BYTES`].
fn blocks_of(range: &OffsetRange) -> impl Iterator<Item = SegmentBlock> + use<> {
    let OffsetRange { partition, from, to, row_bytes } = *range;
    let (rows, row_bytes) = (range.block_rows(), u64::from(row_bytes.max(1)));
    let block = move |offset: u64| {
        let rows = rows.min(to - offset);
        let block =
            Block { rows: rows as u32, offset, bytes: rows * row_bytes, group: 0, row_bytes: Vec::new() };
        SegmentBlock { partition, block }
    };
    (from..to).step_by(rows as usize).map(block)
}

#[cfg(test)]
mod tests;
