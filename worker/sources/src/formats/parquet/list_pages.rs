//! Counts the rows in pages of lists. The headers of the first version of pages do not contain them, and a row may continue in the
//! next page, so that all pages are decompressed while the shard is indexed. The start of a row is a value with repetition level 0.

use std::ops::Range;

use bytes::Bytes;
use feedline_contained::contained;
use feedline_data::manifest::{ListPage, ListPages};
use parquet::basic::Encoding;
use parquet::column::page::Page;
use parquet::file::metadata::ColumnChunkMetaData;

use super::super::decompress::off_runtime;
use super::bounded_pages::page_reader;
use super::page_parts::PageParts;
use super::thrift::{PageKind, page_header, read_varint};
use crate::error::SourceError;
use crate::object::Object;

/// Number of bytes that are read at once.
const READ_BYTES: u64 = 4 << 20;
/// Maximum size of a page in either form. Larger pages remain unknown.
const MAX_PAGE_BYTES: u64 = 32 << 20;

/// Reads all pages of a column chunk of lists, and counts the rows of each page. Returns `None` if that is not possible, because the
/// Parquet crate reports the error when it reads the chunk, or if there are more than `max_pages`.
pub(super) async fn count_list_rows(
    object: &Object,
    chunk: &ColumnChunkMetaData,
    (group, column): (usize, usize),
    (rows, max_pages): (u64, usize),
) -> Result<Option<ListPages>, SourceError> {
    let Ok((start, length)) = contained(|| Ok(chunk.byte_range()), "the offset is negative") else {
        return Ok(None);
    };
    let (end, mut window) = (start.saturating_add(length), Window { start, bytes: Bytes::new() });
    let (Ok(group), Ok(column)) = (u32::try_from(group), u32::try_from(column)) else { return Ok(None) };
    if end > object.size_bytes() {
        return Ok(None);
    }
    let mut found = ListPages { group, column, dictionary_bytes: 0, pages: Vec::new() };
    let (mut at, mut rows_before) = (start, 0);
    while at < end {
        let Some(page) = window.page(object, at..end).await? else { return Ok(None) };
        let (page_bytes, decompressed_bytes) = (page.bytes.len() as u32, page.decompressed_bytes);
        let counted = match page.kind {
            PageKind::Dictionary if at == start => {
                found.dictionary_bytes = decompressed_bytes;
                None
            }
            // A page of the second version begins with a row.
            PageKind::DataV2 { rows } => {
                Some(PageRows { begun: rows, begins_within_row: false, has_values: rows > 0 })
            }
            PageKind::DataV1 { .. } => {
                let (chunk, bytes) = (chunk.clone(), page.bytes);
                let count = move || contained(|| Ok(page_rows(&chunk, bytes)), "the page is invalid");
                let counted = off_runtime(decompressed_bytes, count).await;
                let Ok(Ok(Some(counted))) = counted else { return Ok(None) };
                Some(counted)
            }
            PageKind::Dictionary | PageKind::Other => return Ok(None),
        };
        if let Some(counted) = counted.filter(|counted| counted.has_values) {
            if found.pages.len() == max_pages {
                return Ok(None);
            }
            found.pages.push(ListPage {
                offset: at,
                stored_bytes: page_bytes,
                decompressed_bytes: decompressed_bytes as u32,
                rows_before,
                begins_within_row: counted.begins_within_row,
            });
            rows_before += counted.begun;
        }
        at += u64::from(page_bytes);
    }
    Ok((rows_before == rows && found.check(rows, start..end).is_ok()).then_some(found))
}

/// A part of a file that has been read.
struct Window {
    start: u64,
    bytes: Bytes,
}

/// A page with its header.
struct StoredPage {
    kind: PageKind,
    /// The header and the content.
    bytes: Bytes,
    decompressed_bytes: u64,
}

impl Window {
    /// Returns the page at the start of a range. `None` if its header is invalid, or if the page is too large.
    async fn page(&mut self, object: &Object, range: Range<u64>) -> Result<Option<StoredPage>, SourceError> {
        let mut needed = 1;
        loop {
            if range.end - range.start < needed {
                return Ok(None);
            }
            self.fill(object, &range, needed).await?;
            let bytes = self.bytes.slice((range.start - self.start) as usize..);
            needed = match page_header(&bytes) {
                Some((header, length)) => {
                    let page_bytes = length.saturating_add(header.stored_bytes);
                    if page_bytes.max(header.decompressed_bytes) > MAX_PAGE_BYTES {
                        return Ok(None);
                    }
                    if page_bytes <= bytes.len() as u64 {
                        let bytes = bytes.slice(..page_bytes as usize);
                        let decompressed_bytes = header.decompressed_bytes;
                        return Ok(Some(StoredPage { kind: header.kind, bytes, decompressed_bytes }));
                    }
                    page_bytes
                }
                // The statistics in a header may be long.
                None if (bytes.len() as u64) < READ_BYTES => bytes.len() as u64 + 1,
                None => return Ok(None),
            };
        }
    }

    /// Reads on until the window contains `needed` bytes from the start of `range`. Bytes that it contains are not read again.
    async fn fill(&mut self, object: &Object, range: &Range<u64>, needed: u64) -> Result<(), SourceError> {
        let end = self.start + self.bytes.len() as u64;
        if range.start + needed <= end {
            return Ok(());
        }
        let kept = self.bytes.slice((range.start.clamp(self.start, end) - self.start) as usize..);
        let read = range.start.max(end)..range.end.min(range.start + needed.max(READ_BYTES));
        // The digest of a shard does not depend on the columns that are read.
        let bytes = object.read_unhashed(read).await?;
        self.start = range.start;
        self.bytes = if kept.is_empty() { bytes } else { [kept, bytes].concat().into() };
        Ok(())
    }
}

/// The rows of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PageRows {
    /// The number of rows that begin in the page.
    begun: u64,
    begins_within_row: bool,
    has_values: bool,
}

/// Counts the rows in a page of the first version. `None` if the page is invalid.
fn page_rows(chunk: &ColumnChunkMetaData, bytes: Bytes) -> Option<PageRows> {
    let mut reader = page_reader(&PageParts::new([bytes]), chunk).ok()?;
    let Page::DataPage { buf, num_values, rep_level_encoding: Encoding::RLE, .. } =
        reader.get_next_page().ok()??
    else {
        return None;
    };
    let (length, rest) = buf.split_first_chunk::<4>()?;
    let levels = rest.get(..u32::from_le_bytes(*length) as usize)?;
    let max_level = u16::try_from(chunk.column_descr().max_rep_level()).ok()?;
    count_zeros(levels, u16::BITS - max_level.leading_zeros(), num_values.into())
}

/// Counts the zeros among levels of `width` bits each, in the hybrid encoding of runs and packed bits (RLE) of
/// <https://parquet.apache.org/docs/file-format/data-pages/encodings/>. `None` if there are fewer than `count` levels.
fn count_zeros(mut levels: &[u8], width: u32, count: u64) -> Option<PageRows> {
    let (mut remaining, mut begun, mut first) = (count, 0, None);
    while remaining > 0 {
        let header = read_varint(&mut levels)?;
        if header & 1 == 0 {
            let value = *levels.split_off_first()?;
            let run = (header >> 1).min(remaining);
            let is_start = u64::from(value == 0);
            first = first.or((run > 0).then_some(value != 0));
            begun += is_start * run;
            remaining -= run;
            continue;
        }
        // Groups of eight levels.
        let packed_bytes = (header >> 1).checked_mul(width.into())?;
        // A writer may leave out the padding of the last group.
        let packed = levels.split_off(..usize::try_from(packed_bytes).ok()?.min(levels.len()))?;
        let run = (packed.len() as u64 * 8 / u64::from(width)).min(remaining);
        if run == 0 {
            return None;
        }
        let level = |at: u64| {
            let bit = |at: u64| packed[(at / 8) as usize] >> (at % 8) & 1;
            (at * u64::from(width)..(at + 1) * u64::from(width)).any(|at| bit(at) == 1)
        };
        first = first.or(Some(level(0)));
        begun += match width {
            1 => run - ones(packed, run),
            _ => (0..run).filter(|at| !level(*at)).count() as u64,
        };
        remaining -= run;
    }
    Some(PageRows { begun, begins_within_row: first == Some(true), has_values: count > 0 })
}

/// Returns the number of ones among the first `count` bits.
fn ones(packed: &[u8], count: u64) -> u64 {
    let (whole, rest) = packed.split_at((count / 8) as usize);
    let mask = (1_u8 << (count % 8)) - 1;
    let last = rest.first().map_or(0, |byte| (byte & mask).count_ones());
    whole.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>() + u64::from(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(levels: &[u8], width: u32, count: u64) -> Option<(u64, bool)> {
        count_zeros(levels, width, count).map(|rows| (rows.begun, rows.begins_within_row))
    }

    #[test]
    fn rows_begin_at_zeros_of_runs_and_packed_bits() {
        // A run of 5 ones, and a run of 3 zeros.
        assert_eq!(counted(&[10, 1, 6, 0], 1, 8), Some((3, true)));
        // Two groups of packed bits, of which the last level is padding.
        assert_eq!(counted(&[5, 0b1111_1110, 0b0111_1101], 1, 15), Some((2, false)));
        assert_eq!(counted(&[5, 0b1111_1110, 0b0111_1101], 1, 16), Some((3, false)));
        // Levels of two bits: 0 1 2 1 0 2 2 0.
        assert_eq!(counted(&[3, 0b0110_0100, 0b0010_1000], 2, 8), Some((3, false)));
        assert_eq!(counted(&[3, 0b0110_0100, 0b0010_1000], 2, 7), Some((2, false)));
        // A run that is longer than the page.
        assert_eq!(counted(&[200, 1, 0], 1, 7), Some((7, false)));
        assert_eq!(counted(&[], 1, 0), Some((0, false)));
    }

    #[test]
    fn truncated_levels_are_invalid() {
        for levels in [&[][..], &[10], &[10, 1], &[3], &[0x80], &[0xff; 12], &[1], &[0, 0]] {
            assert_eq!(counted(levels, 1, 8), None, "{levels:?}");
        }
        let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(counted(&huge, 3, 8), None);
    }

    #[test]
    fn counts_agree_with_the_levels() {
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for width in 1..=3 {
            for _ in 0..200 {
                let mut values = Vec::new();
                let mut levels = Vec::new();
                for _ in 0..random(6) + 1 {
                    if random(2) == 0 {
                        let (run, value) = (random(40) + 1, random(1 << width));
                        levels.extend([(run << 1) as u8, value as u8]);
                        values.extend(std::iter::repeat_n(value, run as usize));
                        continue;
                    }
                    let groups = random(4) + 1;
                    levels.push((groups << 1 | 1) as u8);
                    let packed: Vec<u64> = (0..groups * 8).map(|_| random(1 << width)).collect();
                    let bits: Vec<u64> =
                        packed.iter().flat_map(|value| (0..width).map(move |bit| value >> bit & 1)).collect();
                    let byte = |bits: &[u64]| (0..8).fold(0, |byte, at| byte | (bits[at] << at)) as u8;
                    levels.extend(bits.chunks(8).map(byte));
                    values.extend(packed);
                }
                let count = random(values.len() as u64) + 1;
                let begun = values[..count as usize].iter().filter(|value| **value == 0).count() as u64;
                assert_eq!(counted(&levels, width, count), Some((begun, values[0] != 0)), "{values:?}");
            }
        }
    }
}
