//! The pages of a column chunk that the footer does not locate: from their headers, or from the index of the shard.

use std::ops::Range;

use feedline_contained::contained;
use feedline_data::manifest::{ListPage, ListPages};
use parquet::file::metadata::{ColumnChunkMetaData, OffsetIndexBuilder};
use parquet::file::page_index::offset_index::{OffsetIndexMetaData, PageLocation};

use super::thrift::{PageHeader, PageKind, page_header};
use crate::error::SourceError;
use crate::object::Object;

/// Maximum number of pages of a column chunk whose headers are read.
pub(super) const MAX_PAGES: usize = 1 << 16;
/// Number of bytes that are read for the first header. Later headers are usually as long as the previous one.
const FIRST_HEADER_BYTES: u64 = 256;
/// Maximum length of a header, which may contain the smallest and the largest value of the page.
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// The pages of a column chunk that the footer does not locate.
#[derive(Debug)]
pub(super) struct ChunkPages {
    pub(super) index: OffsetIndexMetaData,
    /// The decompressed size of each data page.
    pub(super) decompressed_bytes: Vec<u32>,
    pub(super) dictionary_bytes: u64,
    /// Whether each page begins within a row; empty if every page begins with a row.
    pub(super) begins_within_row: Vec<bool>,
}

impl ChunkPages {
    /// Returns the pages of lists, which are in storage order.
    pub(super) fn of_lists(lists: &ListPages, rows: u64) -> Self {
        let mut index = OffsetIndexBuilder::new();
        let next_rows = lists.pages.iter().skip(1).map(|page| page.rows_before).chain([rows]);
        for (page, next) in lists.pages.iter().zip(next_rows) {
            index.append_row_count(next.saturating_sub(page.rows_before) as i64);
            index.append_offset_and_size(
                page.offset as i64,
                i32::try_from(page.stored_bytes).unwrap_or(i32::MAX),
            );
        }
        Self {
            index: index.build(),
            decompressed_bytes: lists.pages.iter().map(|page| page.decompressed_bytes).collect(),
            dictionary_bytes: lists.dictionary_bytes,
            begins_within_row: lists.pages.iter().map(|page| page.begins_within_row).collect(),
        }
    }

    /// Returns the pages for the index of the shard, if they do not all begin with a row.
    pub(super) fn lists(&self, (group, column): (usize, usize)) -> Option<ListPages> {
        let pages = self.index.page_locations().iter().zip(&self.decompressed_bytes);
        let page =
            |((location, decompressed_bytes), begins_within_row): ((&PageLocation, &u32), &bool)| ListPage {
                offset: location.offset as u64,
                stored_bytes: location.compressed_page_size as u32,
                decompressed_bytes: *decompressed_bytes,
                rows_before: location.first_row_index as u64,
                begins_within_row: *begins_within_row,
            };
        let pages: Vec<ListPage> = pages.zip(&self.begins_within_row).map(page).collect();
        let (group, column) = (u32::try_from(group).ok()?, u32::try_from(column).ok()?);
        (!pages.is_empty()).then_some(ListPages {
            group,
            column,
            dictionary_bytes: self.dictionary_bytes,
            pages,
        })
    }

    pub(super) fn held_bytes(&self) -> usize {
        let page_bytes = std::mem::size_of::<PageLocation>() + std::mem::size_of::<u32>();
        self.decompressed_bytes.len() * page_bytes + self.begins_within_row.len()
    }
}

/// Reads the headers of all pages of a column chunk. Returns `None` if the rows of its pages are unknown, or if the headers are
/// corrupted, because the Parquet crate reports the error.
pub(super) async fn read_headers(
    object: &Object,
    chunk: &ColumnChunkMetaData,
    (rows, row_values): (u64, Option<u64>),
) -> Result<Option<ChunkPages>, SourceError> {
    let Ok((start, length)) = contained(|| Ok(chunk.byte_range()), "the offset is negative") else {
        return Ok(None);
    };
    let end = start.saturating_add(length);
    if end > object.size_bytes() {
        return Ok(None);
    }
    // A list that is null has one value, so the lists of this chunk may differ in length.
    let row_values = row_values.filter(|values| {
        u64::try_from(chunk.num_values()).is_ok_and(|all| rows.checked_mul(*values) == Some(all))
    });
    let mut index = OffsetIndexBuilder::new();
    let mut pages = (Vec::new(), 0);
    let (mut at, mut first_row, mut header_bytes) = (start, 0, FIRST_HEADER_BYTES);
    // Empty pages count too.
    for _ in 0..MAX_PAGES {
        if at >= end || first_row >= rows {
            break;
        }
        let Some((header, length)) = read_header(object, at..end, header_bytes).await? else {
            return Ok(None);
        };
        header_bytes = length + 16;
        let stored = length.saturating_add(header.stored_bytes);
        let Ok(page_bytes) = i32::try_from(stored) else { return Ok(None) };
        let page_rows = match header.kind {
            PageKind::Dictionary if at == start => {
                pages.1 = header.decompressed_bytes;
                at += stored;
                continue;
            }
            PageKind::DataV2 { rows } => rows,
            PageKind::DataV1 { values } => match row_values {
                Some(row_values) if values % row_values == 0 => values / row_values,
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        if stored > end - at || page_rows > rows - first_row {
            return Ok(None);
        }
        if page_rows > 0 {
            index.append_row_count(page_rows as i64);
            index.append_offset_and_size(at as i64, page_bytes);
            pages.0.push(u32::try_from(header.decompressed_bytes).unwrap_or(u32::MAX));
        }
        first_row += page_rows;
        at += stored;
    }
    let (decompressed_bytes, dictionary_bytes) = pages;
    let begins_within_row = Vec::new();
    let pages = ChunkPages { index: index.build(), decompressed_bytes, dictionary_bytes, begins_within_row };
    Ok((first_row == rows).then_some(pages))
}

/// Reads the header of the page at the start of `range`, which is probably at most `expected_bytes` long. Returns the header and
/// its length. `None` if the header is corrupted.
async fn read_header(
    object: &Object,
    range: Range<u64>,
    expected_bytes: u64,
) -> Result<Option<(PageHeader, u64)>, SourceError> {
    let mut length = expected_bytes;
    loop {
        let end = range.end.min(range.start + length);
        // The digest of a shard does not depend on the columns that are read.
        let bytes = object.read_unhashed(range.start..end).await?;
        if let Some(header) = page_header(&bytes) {
            return Ok(Some(header));
        }
        if end == range.end || length >= MAX_HEADER_BYTES {
            return Ok(None);
        }
        length *= 8;
    }
}
