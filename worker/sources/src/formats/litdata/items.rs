//! Items of chunks with a table of offsets.

use std::ops::Range;

use bytes::Bytes;
use feedline_data::manifest::Block;

use super::super::decompress::{off_runtime, unzstd};
use super::super::samples;
use super::index::Storage;
use crate::error::SourceError;
use crate::object::{BufferSpan, Object};
use crate::reader::BlockRead;
use crate::rows::{self, EncodedRow, RowSet, SplitError};

/// The end of a chunk that contains an Arrow file: the size of the file (u32) and these bytes.
const ARROW_MAGIC: &[u8] = b"LDARW01\0";

/// Maximum size of the items of a block after decompression, if it is more than [`MAX_ITEMS_RATIO`] times their size.
const MAX_ITEMS_BYTES: u64 = 64 << 20;
const MAX_ITEMS_RATIO: u64 = 4;

/// Indexes a chunk. The group of a block is the number of its first item. Returns the first item if `needs_sample`.
pub(super) async fn index(
    object: &Object,
    items: u64,
    needs_sample: bool,
    storage: Storage,
) -> Result<(Vec<Block>, Bytes), SourceError> {
    let decompress: Option<samples::DecompressSample> = (storage == Storage::CompressedItems)
        .then_some(|item| unzstd(item, crate::limits::MAX_SAMPLED_ROW_BYTES));
    let (mut blocks, sample) = samples::index_rows(object, items, needs_sample, decompress).await?;
    if storage == Storage::Plain && !blocks.is_empty() && blocks.iter().all(|block| block.bytes == 0) {
        let reason = "the items have no data, and the Arrow file at the end of the chunk is missing: copy the chunk again";
        return Err(SourceError::corrupt(object.shard(), 0, reason));
    }
    let mut first = 0;
    for block in &mut blocks {
        block.group = first;
        first += block.rows;
    }
    Ok((blocks, sample))
}

/// Reads items of a block.
pub(super) async fn read(
    object: &Object,
    read: &BlockRead<'_>,
    storage: Storage,
) -> Result<RowSet, SourceError> {
    let ends =
        if read.block.row_bytes.is_empty() { item_ends(object, read.block).await? } else { Vec::new() };
    let split = |_: &[u8]| {
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let spans: Vec<Range<usize>> =
            starts.zip(ends.iter().copied()).map(|(start, end)| start..end).collect();
        match spans.iter().all(|span| span.start <= span.end) {
            true => Ok(spans),
            false => {
                Err(SplitError { at: 0, reason: "the offsets of the items are not ascending".to_owned() })
            }
        }
    };
    let rows = rows::fetch(object, read, split).await?;
    if storage != Storage::CompressedItems {
        return Ok(rows);
    }
    let limit = MAX_ITEMS_BYTES.max(MAX_ITEMS_RATIO * read.block.bytes);
    let stored_bytes = read.block.bytes;
    let items = off_runtime(stored_bytes, move || decompress_items(&rows, limit)).await.flatten();
    items.map_err(|reason| SourceError::corrupt(read.shard, read.block.offset, reason))
}

/// Returns the ends of the items of a block, relative to the start of the block.
async fn item_ends(object: &Object, block: &Block) -> Result<Vec<usize>, SourceError> {
    let start = 4 * (u64::from(block.group) + 2);
    let table = object.read(start..start + 4 * u64::from(block.rows)).await?;
    let end = |bytes: &[u8]| u64::from(samples::u32_at(bytes)).saturating_sub(block.offset) as usize;
    Ok(table.chunks_exact(4).map(end).collect())
}

fn decompress_items(rows: &RowSet, max_bytes: u64) -> Result<RowSet, String> {
    let mut whole = Vec::new();
    let mut ranges = Vec::with_capacity(rows.rows.len());
    for row in 0..rows.rows.len() {
        let start = whole.len();
        whole.extend(unzstd(rows.bytes(row), max_bytes - start as u64)?);
        ranges.push(start..whole.len());
    }
    let mut decompressed = row_set(whole.into(), ranges);
    for (row, stored) in decompressed.rows.iter_mut().zip(&rows.rows) {
        row.offset = stored.offset;
    }
    Ok(decompressed)
}

/// Items in one buffer.
pub(super) fn row_set(bytes: Bytes, ranges: Vec<Range<usize>>) -> RowSet {
    let row = |range: Range<usize>| EncodedRow {
        span: BufferSpan { buffer: 0, start: range.start, len: range.len() },
        offset: range.start as u64,
    };
    RowSet { rows: ranges.into_iter().map(row).collect(), buffers: vec![bytes] }
}

/// Finds the Arrow file at the end of a chunk. Such a chunk has a table of offsets, but no items.
pub(super) async fn find_arrow_file(object: &Object) -> Result<Option<Range<u64>>, SourceError> {
    let size = object.size_bytes();
    let tail_bytes = ARROW_MAGIC.len() as u64 + 4;
    if size < tail_bytes {
        return Ok(None);
    }
    let tail = object.read(size - tail_bytes..size).await?;
    if !tail.ends_with(ARROW_MAGIC) {
        return Ok(None);
    }
    let end = size - tail_bytes;
    let start = end.checked_sub(u64::from(samples::u32_at(&tail))).ok_or_else(|| {
        let reason = "the size of the Arrow file in the chunk exceeds the chunk: the file is corrupted";
        SourceError::corrupt(object.shard(), end, reason)
    })?;
    Ok(Some(start..end))
}
