//! Divides the rows of a shard into blocks, at access points if the shard is compressed.

use feedline_data::compression::{AccessPoint, ShardCompression};
use feedline_data::manifest::Block;

use super::ContentWindow;
use super::decompressing::DecompressingWindow;
use super::points::{Boundaries, PointSelector};
use crate::blocks::BlockBuilder;

/// Collects contiguous rows into blocks.
pub(crate) enum ContentBlocks {
    Plain(BlockBuilder),
    Compressed(PointSelector),
}

impl Boundaries for DecompressingWindow<'_> {
    fn boundary_before(&self, offset: u64) -> Option<(usize, u64)> {
        self.boundary_before(offset)
    }

    fn access_point(&self, number: usize) -> AccessPoint {
        self.access_point(number)
    }

    fn store_row_end(&self, point: &mut AccessPoint, row_end: u64) {
        self.store_row_end(point, row_end);
    }
}

impl ContentBlocks {
    /// Creates a builder for the content of `window`. The first row starts at `offset`.
    pub(crate) fn new(window: &ContentWindow<'_>, offset: u64) -> Self {
        match window {
            ContentWindow::Plain(..) => Self::Plain(BlockBuilder::new(offset)),
            ContentWindow::Compressed(_) => Self::Compressed(PointSelector::new(offset)),
        }
    }

    /// The offset of the next row.
    pub(crate) fn end(&self) -> u64 {
        match self {
            Self::Plain(builder) => builder.end(),
            Self::Compressed(selector) => selector.end(),
        }
    }

    /// Whether bytes between two rows can be omitted from the blocks. Compressed content must be decoded anyway.
    pub(crate) fn can_skip(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Skips bytes that are not part of a row, if this is possible. The next row starts at `offset`.
    pub(crate) fn skip_to(&mut self, offset: u64) {
        if let Self::Plain(builder) = self {
            builder.skip_to(offset);
        }
    }

    /// Adds the next row, whose content `window` has passed or contains. Rejects rows larger than 2 GiB.
    pub(crate) fn push(&mut self, row_bytes: u64, window: &ContentWindow<'_>) -> Result<(), String> {
        match (self, window) {
            (Self::Plain(builder), _) => builder.push(row_bytes),
            (Self::Compressed(selector), ContentWindow::Compressed(window)) => {
                selector.push(row_bytes, window.as_ref())
            }
            (Self::Compressed(_), ContentWindow::Plain(..)) => {
                Err("the compression of the shard changed while indexing".to_owned())
            }
        }
    }

    /// Returns the blocks in order, and the compression of the shard.
    pub(crate) fn finish(self, window: &ContentWindow<'_>) -> (Vec<Block>, Option<ShardCompression>) {
        let (blocks, points) = match self {
            Self::Plain(builder) => (builder.finish(), Vec::new()),
            Self::Compressed(selector) => selector.finish(),
        };
        let end = blocks.last().map_or(0, |block| block.offset + block.bytes);
        (blocks, compression(window, points, end))
    }
}

/// The compression of a shard whose window is at its end, or at a defect after the rows that end at `end`.
pub(crate) fn compression(
    window: &ContentWindow<'_>,
    points: Vec<AccessPoint>,
    end: u64,
) -> Option<ShardCompression> {
    let ContentWindow::Compressed(window) = window else { return None };
    Some(ShardCompression {
        codec: window.codec(),
        // How much more is decoded depends on the cores.
        content_bytes: window.known_end().unwrap_or(end),
        readable_bytes: window.readable_bytes(end),
        decoder_bytes: window.decoder_bytes(),
        points,
    })
}
