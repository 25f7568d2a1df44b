//! Chunks whose items are compressed in frames: a header, the offsets of the items after decompression, a table of frames,
//! and the frames.

use std::ops::Range;

use bytes::Bytes;
use feedline_data::manifest::Block;

use super::super::decompress::{Compression, MAX_DECOMPRESSED_BYTES};
use super::super::samples::u32_at;
use super::items::row_set;
use crate::cache::CachedSize;
use crate::error::SourceError;
use crate::limits::MAX_BLOCKS;
use crate::object::Object;
use crate::rows::RowSet;

const MAGIC: &[u8] = b"LDFZ01\0\0";
const HEADER_BYTES: u64 = 24;
const FRAME_ENTRY_BYTES: usize = 24;
/// Maximum size of the tables of a chunk.
const MAX_TABLES_BYTES: u64 = 256 << 20;

/// The frames of a chunk.
pub(super) struct FrameTable {
    /// The offset of each item and of the end, in the decompressed data.
    offsets: Vec<u32>,
    frames: Vec<Frame>,
}

struct Frame {
    first_item: u32,
    items: u32,
    /// The byte range in the chunk.
    range: Range<u64>,
    decompressed_bytes: u32,
}

impl CachedSize for FrameTable {
    fn held_bytes(&self) -> usize {
        size_of_val(self.offsets.as_slice()) + size_of_val(self.frames.as_slice())
    }
}

impl FrameTable {
    pub(super) async fn read(object: &Object) -> Result<Self, SourceError> {
        let size = object.size_bytes();
        let corrupt = |reason: String| SourceError::corrupt(object.shard(), 0, reason);
        let header = object.read(0..size.min(HEADER_BYTES)).await?;
        if header.len() as u64 != HEADER_BYTES || !header.starts_with(MAGIC) {
            return Err(corrupt(
                "the chunk has no frames: check that all files are from one dataset".to_owned(),
            ));
        }
        let version = u32_at(&header[8..]) & 0xffff;
        if version != 1 {
            return Err(corrupt(format!(
                "the frames have version {version}, but this release reads version 1"
            )));
        }
        let (items, frames) = (u64::from(u32_at(&header[12..])), u64::from(u32_at(&header[20..])));
        let (offsets_bytes, frames_bytes) = (4 * (items + 1), FRAME_ENTRY_BYTES as u64 * frames);
        let end = HEADER_BYTES + offsets_bytes + frames_bytes;
        if end > size || offsets_bytes + frames_bytes > MAX_TABLES_BYTES || frames > MAX_BLOCKS as u64 {
            return Err(corrupt(truncated()));
        }
        let tables = object.read(HEADER_BYTES..end).await?;
        let (offsets, frames) = tables.split_at(offsets_bytes as usize);
        Self::parse(offsets, frames, size).map_err(corrupt)
    }

    fn parse(offsets: &[u8], frames: &[u8], size: u64) -> Result<Self, String> {
        let offsets: Vec<u32> = offsets.chunks_exact(4).map(u32_at).collect();
        let mut next_item = 0;
        let mut parsed = Vec::new();
        for entry in frames.chunks_exact(FRAME_ENTRY_BYTES) {
            let number = |at: usize| u32_at(&entry[at..]);
            let start = u64::from(number(8)) | u64::from(number(12)) << 32;
            let end =
                start.checked_add(u64::from(number(16))).filter(|end| *end <= size).ok_or_else(truncated)?;
            let frame = Frame {
                first_item: number(0),
                items: number(4),
                range: start..end,
                decompressed_bytes: number(20),
            };
            let items =
                frame.first_item as usize..(frame.first_item as usize).saturating_add(frame.items as usize);
            let ends = offsets.get(items.start).zip(offsets.get(items.end));
            let bytes = ends.and_then(|(first, last)| last.checked_sub(*first));
            if items.start != next_item || items.is_empty() || bytes != Some(frame.decompressed_bytes) {
                return Err("the items and sizes of a frame do not match: the file is corrupted".to_owned());
            }
            next_item = items.end;
            parsed.push(frame);
        }
        if next_item + 1 != offsets.len() || offsets.windows(2).any(|pair| pair[0] > pair[1]) {
            return Err("the frames do not contain all items: the file is corrupted".to_owned());
        }
        Ok(Self { offsets, frames: parsed })
    }

    /// One block per frame, whose group is the number of the frame.
    pub(super) fn blocks(&self) -> Vec<Block> {
        let block = |(number, frame): (u32, &Frame)| Block {
            rows: frame.items,
            offset: frame.range.start,
            bytes: u64::from(frame.decompressed_bytes),
            group: number,
            row_bytes: Vec::new(),
        };
        (0..).zip(&self.frames).map(block).collect()
    }

    pub(super) async fn first_item(&self, object: &Object) -> Result<Bytes, SourceError> {
        let rows = self.read_frame(object, 0).await?;
        let first = rows.rows.first().map(|row| row.span);
        Ok(first.map_or_else(Bytes::new, |span| rows.buffers[0].slice(span.start..span.start + span.len)))
    }

    /// Reads and decompresses a frame.
    pub(super) async fn read_frame(&self, object: &Object, number: u32) -> Result<RowSet, SourceError> {
        let Some(frame) = self.frames.get(number as usize) else {
            let reason =
                "the index contains a frame that the chunk does not have: run `feedline index --rebuild`";
            return Err(SourceError::corrupt(object.shard(), 0, reason));
        };
        let corrupt = |reason: String| SourceError::corrupt(object.shard(), frame.range.start, reason);
        let size = u64::from(frame.decompressed_bytes);
        if size > MAX_DECOMPRESSED_BYTES {
            return Err(corrupt(format!(
                "the frame has {size} bytes; the limit is {MAX_DECOMPRESSED_BYTES} bytes"
            )));
        }
        let bytes = object.read(frame.range.clone()).await?;
        let bytes = Compression::Zstd.decompress(bytes, size).await.map_err(corrupt)?;
        let items = frame.first_item as usize..=(frame.first_item + frame.items) as usize;
        let offsets = &self.offsets[items];
        let at = |offset: u32| (offset - offsets[0]) as usize;
        Ok(row_set(bytes, offsets.windows(2).map(|pair| at(pair[0])..at(pair[1])).collect()))
    }
}

fn truncated() -> String {
    "the frames exceed the chunk: the file is truncated or corrupted".to_owned()
}
