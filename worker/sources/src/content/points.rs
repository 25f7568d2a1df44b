//! Selects the access points of a compressed shard, and divides its rows into blocks.
//!
//! Reading a block decompresses the content from its access point on. A block therefore begins at the first row after a
//! boundary of the compressed data, and the bytes between the boundary and the row are decompressed without need.

use feedline_data::compression::AccessPoint;
use feedline_data::manifest::{Block, ShardIndex};

use super::runs::{INNER_GROUP, LAST_GROUP};
use crate::blocks::check_row_bytes;

/// Minimum size of a block, except at the end of a shard.
const MIN_BLOCK_BYTES: u64 = 1 << 20;
/// Size from which a block ends at the next boundary, wherever its row begins. A part of the content without boundaries that
/// is larger than this is a run, whose blocks share an access point.
const MAX_BLOCK_BYTES: u64 = 8 << 20;
/// Maximum number of rows per block.
const MAX_BLOCK_ROWS: u32 = 1 << 16;
/// A block ends only where at most this part of the next one would be decompressed without need.
const MAX_WASTE: u64 = 64;
/// The same for blocks above half of the maximum size.
const MAX_WASTE_OF_LARGE: u64 = 16;

/// Whether the index of the beginning of a shard is too small to show whether the shard begins with a run: it has no access
/// points, but not enough content for a run.
pub(crate) fn may_begin_run(index: &ShardIndex) -> bool {
    let has_points = index.compression.as_ref().is_some_and(|compression| !compression.points.is_empty());
    !has_points && matches!(index.blocks.as_slice(), [block] if block.bytes <= MAX_BLOCK_BYTES)
}

/// Where decoding can start in the content that is in memory.
pub(super) trait Boundaries {
    /// The last boundary at or before an offset in the content: a number, and its offset.
    fn boundary_before(&self, offset: u64) -> Option<(usize, u64)>;

    /// The access point at the boundary with this number.
    fn access_point(&self, number: usize) -> AccessPoint;

    /// Stores the content from an access point to the end of the row that contains it, if reads of this row need it.
    fn store_row_end(&self, _point: &mut AccessPoint, _row_end: u64) {}
}

/// Collects contiguous rows into blocks that begin at access points.
#[derive(Debug)]
pub(crate) struct PointSelector {
    blocks: Vec<Block>,
    points: Vec<AccessPoint>,
    /// Offset of the first row after the last access point.
    start: u64,
    /// Offset of the last access point.
    point: u64,
    /// The ends and the numbers of rows of the blocks into which the rows since `start` are divided if they form a run.
    parts: Vec<(u64, u32)>,
    part_start: u64,
    part_rows: u32,
    rows: u32,
    end: u64,
}

impl PointSelector {
    pub(super) fn new(offset: u64) -> Self {
        Self {
            blocks: Vec::new(),
            points: Vec::new(),
            start: offset,
            point: 0,
            parts: Vec::new(),
            part_start: offset,
            part_rows: 0,
            rows: 0,
            end: offset,
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn push(&mut self, row_bytes: u64, boundaries: &impl Boundaries) -> Result<(), String> {
        check_row_bytes(row_bytes)?;
        self.end += row_bytes;
        self.rows = self.rows.saturating_add(1);
        self.part_rows += 1;
        let bytes = self.end - self.start;
        if (bytes >= MIN_BLOCK_BYTES || self.rows >= MAX_BLOCK_ROWS)
            && let Some((number, offset)) = boundaries.boundary_before(self.end)
            && offset > self.point
            && self.is_good_start(bytes, self.end - offset)
        {
            self.close();
            let mut point = boundaries.access_point(number);
            boundaries.store_row_end(&mut point, self.end);
            self.points.push(point);
            self.point = offset;
            self.start = self.end;
        } else if self.end - self.part_start >= MIN_BLOCK_BYTES || self.part_rows >= MAX_BLOCK_ROWS {
            self.close_part();
        }
        Ok(())
    }

    /// Whether the next block may begin here, if it decompresses `waste` bytes without need.
    fn is_good_start(&self, bytes: u64, waste: u64) -> bool {
        bytes >= MAX_BLOCK_BYTES
            || self.rows >= MAX_BLOCK_ROWS
            || waste <= bytes / MAX_WASTE
            || bytes >= MAX_BLOCK_BYTES / 2 && waste <= bytes / MAX_WASTE_OF_LARGE
    }

    /// Returns the blocks and the access points in order.
    pub(super) fn finish(mut self) -> (Vec<Block>, Vec<AccessPoint>) {
        self.close();
        let end = self.blocks.last().map_or(0, |block| block.offset + block.bytes);
        while self.points.last().is_some_and(|point| point.content_offset >= end) {
            self.points.pop();
        }
        (self.blocks, self.points)
    }

    /// Ends the block or the run.
    fn close(&mut self) {
        self.close_part();
        if self.end - self.start <= MAX_BLOCK_BYTES && self.rows <= MAX_BLOCK_ROWS && !self.parts.is_empty() {
            self.parts = vec![(self.end, self.rows)];
        }
        let (mut offset, parts) = (self.start, self.parts.len());
        for (end, rows) in self.parts.drain(..) {
            let bytes = end - offset;
            let group = match parts {
                1 => 0,
                _ if end == self.end => LAST_GROUP,
                _ => INNER_GROUP,
            };
            // Rows are not read individually, because that would decompress the block for each of them.
            self.blocks.push(Block { rows, offset, bytes, group, row_bytes: Vec::new() });
            offset = end;
        }
        self.rows = 0;
    }

    fn close_part(&mut self) {
        if self.part_rows > 0 {
            self.parts.push((self.end, self.part_rows));
        }
        self.part_start = self.end;
        self.part_rows = 0;
    }
}

#[cfg(test)]
mod tests;
