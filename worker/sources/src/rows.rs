//! Reads the encoded rows of a block. Reads the whole block or individual rows.

use std::ops::Range;

use bytes::Bytes;

use crate::content::Content;
use crate::error::SourceError;
use crate::object::{BufferSpan, Object};
use crate::reader::BlockRead;

/// Encoded rows, which are parts of shared buffers.
pub(crate) struct RowSet {
    pub(crate) buffers: Vec<Bytes>,
    pub(crate) rows: Vec<EncodedRow>,
}

/// One encoded row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EncodedRow {
    pub(crate) span: BufferSpan,
    /// The byte offset of the row in the shard.
    pub(crate) offset: u64,
}

impl RowSet {
    pub(crate) fn bytes(&self, row: usize) -> &[u8] {
        let span = self.rows[row].span;
        &self.buffers[span.buffer][span.start..span.start + span.len]
    }

    /// The total size of the buffers in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.buffers.iter().map(Bytes::len).sum()
    }
}

/// An error while splitting a block into rows.
pub(crate) struct SplitError {
    /// The byte offset in the block.
    pub(crate) at: usize,
    pub(crate) reason: String,
}

/// Reads the requested rows. If the index does not contain the row sizes, `split` finds the rows in the bytes of the block.
pub(crate) async fn fetch(
    object: &Object,
    read: &BlockRead<'_>,
    split: impl Fn(&[u8]) -> Result<Vec<Range<usize>>, SplitError>,
) -> Result<RowSet, SourceError> {
    let block = read.block;
    let content = Content::of_block(object, read);
    if let Some(rows) = read.rows {
        return fetch_rows(&content, read, rows).await;
    }
    let bytes = content.read(block.offset..block.offset + block.bytes).await?;
    let spans = if block.row_bytes.is_empty() {
        split(&bytes)
            .map_err(|bad| SourceError::corrupt(read.shard, block.offset + bad.at as u64, bad.reason))?
    } else {
        contiguous_spans(&block.row_bytes)
    };
    if spans.len() != block.rows as usize || spans.last().is_some_and(|last| last.end > bytes.len()) {
        let reason = format!(
            "the block has {} rows, but the index expects {}: run `feedline index --rebuild`",
            spans.len(),
            block.rows
        );
        return Err(SourceError::corrupt(read.shard, block.offset, reason));
    }
    let row = |span: Range<usize>| EncodedRow {
        span: BufferSpan { buffer: 0, start: span.start, len: span.len() },
        offset: block.offset + span.start as u64,
    };
    Ok(RowSet { rows: spans.into_iter().map(row).collect(), buffers: vec![bytes] })
}

async fn fetch_rows(
    content: &Content<'_>,
    read: &BlockRead<'_>,
    rows: &[u32],
) -> Result<RowSet, SourceError> {
    let error =
        |reason: &str| SourceError::Request { url: read.shard.url.clone(), reason: reason.to_owned() };
    let all = contiguous_spans(&read.block.row_bytes);
    if all.is_empty() {
        return Err(error("individual rows can be read only if the index contains the row sizes"));
    }
    if rows.windows(2).any(|pair| pair[0] >= pair[1])
        || rows.last().is_some_and(|&last| last as usize >= all.len())
    {
        return Err(error("the requested rows must be in ascending order and within the block"));
    }
    let offset = read.block.offset;
    let ranges: Vec<Range<u64>> = rows
        .iter()
        .map(|&row| &all[row as usize])
        .map(|span| offset + span.start as u64..offset + span.end as u64)
        .collect();
    let (buffers, spans) = content.read_ranges(&ranges).await?;
    let rows = spans
        .into_iter()
        .zip(&ranges)
        .map(|(span, range)| EncodedRow { span, offset: range.start })
        .collect();
    Ok(RowSet { buffers, rows })
}

fn contiguous_spans(row_bytes: &[u32]) -> Vec<Range<usize>> {
    let mut end = 0;
    row_bytes
        .iter()
        .map(|&bytes| {
            let start = end;
            end += bytes as usize;
            start..end
        })
        .collect()
}
