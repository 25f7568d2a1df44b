//! The format of a segment in the object store: records with rows, an index of the records, and a footer with the location of the
//! index.
//!
//! The parser trusts no input. It checks lengths against the size of the object, and rows and the index against checksums.

use std::ops::Range;

use bytes::{Buf, Bytes};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::cache::format_version::{magic, version_mismatch};
use crate::cache::rows::{CachedRow, Prefix};

/// The format version of segments in the object store.
const VERSION: u8 = 2;
/// The first and the last bytes of a segment.
const MAGIC: [u8; 8] = magic(VERSION);
/// Size of the header of a row: id (8 bytes), length (4) and checksum (8). Segments on disk have the same header.
const RECORD_HEADER_BYTES: usize = 20;
/// Size of an index entry: id (8 bytes), offset (8) and length (4) of a row.
const ENTRY_BYTES: usize = 20;
/// Size of the footer: offset of the index (8 bytes), number of rows (8), checksum of the index (8) and magic bytes (8).
const FOOTER_BYTES: usize = 32;
/// Maximum size of an index that is read. The indexes that this release writes are much smaller.
const MAX_INDEX_BYTES: u64 = 8 << 20;

/// Size of a segment without rows.
pub(super) const EMPTY_SEGMENT_BYTES: u64 = (MAGIC.len() + FOOTER_BYTES) as u64;

/// Number of bytes that a row of this length adds to a segment.
pub(super) fn stored_row_bytes(length: usize) -> u64 {
    (RECORD_HEADER_BYTES + ENTRY_BYTES + length) as u64
}

/// The location of a row in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentEntry {
    pub(super) row: u64,
    /// The offset of the row's header in the segment.
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl SegmentEntry {
    pub(super) fn record(&self) -> Range<u64> {
        self.offset..self.offset + RECORD_HEADER_BYTES as u64 + u64::from(self.length)
    }
}

/// Builds a segment. Each row must be smaller than 4 GiB. Returns the segment and the location of each row.
pub(super) fn build_segment(prefix: Prefix, rows: &[CachedRow]) -> (Bytes, Vec<SegmentEntry>) {
    let size = EMPTY_SEGMENT_BYTES + rows.iter().map(|(_, bytes)| stored_row_bytes(bytes.len())).sum::<u64>();
    let mut segment = Vec::with_capacity(size as usize);
    let mut entries = Vec::with_capacity(rows.len());
    segment.extend(MAGIC);
    for (row, bytes) in rows {
        entries.push(SegmentEntry { row: *row, offset: segment.len() as u64, length: bytes.len() as u32 });
        segment.extend(record_header(*row, bytes));
        segment.extend_from_slice(bytes);
    }
    let index_offset = segment.len();
    for entry in &entries {
        segment.extend(entry.row.to_le_bytes());
        segment.extend(entry.offset.to_le_bytes());
        segment.extend(entry.length.to_le_bytes());
    }
    let checksum = index_checksum(prefix, &segment[index_offset..]);
    segment.extend((index_offset as u64).to_le_bytes());
    segment.extend((entries.len() as u64).to_le_bytes());
    segment.extend(checksum.to_le_bytes());
    segment.extend(MAGIC);
    (segment.into(), entries)
}

/// Extracts the row from a record. `None` if the record is corrupted or contains a different row.
pub(super) fn verified_row(record: &Bytes, row: u64) -> Option<Bytes> {
    let bytes = record.get(RECORD_HEADER_BYTES..)?;
    (record[..RECORD_HEADER_BYTES] == record_header(row, bytes)).then(|| record.slice(RECORD_HEADER_BYTES..))
}

fn record_header(row: u64, bytes: &[u8]) -> [u8; RECORD_HEADER_BYTES] {
    let mut record_header = [0; RECORD_HEADER_BYTES];
    record_header[..8].copy_from_slice(&row.to_le_bytes());
    record_header[8..12].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    record_header[12..].copy_from_slice(&xxh3_64_with_seed(bytes, row).to_le_bytes());
    record_header
}

/// Returns the reason why an object that ends with these bytes is not a valid segment.
pub(super) fn rejection_reason(tail: &[u8]) -> String {
    let other = tail.last_chunk::<{ MAGIC.len() }>().and_then(|magic| version_mismatch(magic, VERSION));
    other.unwrap_or_else(|| "the object is not a complete segment".to_owned())
}

/// The checksum of an index. The prefix is the seed, so that a segment in the directory of another prefix is rejected.
fn index_checksum(prefix: Prefix, index: &[u8]) -> u64 {
    xxh3_64_with_seed(index, prefix as u64 ^ (prefix >> 64) as u64)
}

/// The footer of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SegmentFooter {
    pub(super) index: Range<u64>,
    checksum: u64,
}

impl SegmentFooter {
    /// Parses the last bytes of an object of `size` bytes. `None` if the object is not a complete segment.
    pub(super) fn parse(tail: &[u8], size: u64) -> Option<Self> {
        let mut fields: &[u8] = tail.last_chunk::<FOOTER_BYTES>()?;
        let (start, rows, checksum) = (fields.get_u64_le(), fields.get_u64_le(), fields.get_u64_le());
        let end = start.checked_add(rows.checked_mul(ENTRY_BYTES as u64)?)?;
        let sound = fields == MAGIC
            && start >= MAGIC.len() as u64
            && end.checked_add(FOOTER_BYTES as u64) == Some(size)
            && end - start <= MAX_INDEX_BYTES;
        sound.then_some(Self { index: start..end, checksum })
    }

    /// Parses the index. `None` if the index is corrupted.
    pub(super) fn entries(&self, prefix: Prefix, index: &[u8]) -> Option<Vec<SegmentEntry>> {
        let whole = index.len() as u64 == self.index.end - self.index.start;
        if !whole || index_checksum(prefix, index) != self.checksum {
            return None;
        }
        let entry = |mut fields: &[u8]| SegmentEntry {
            row: fields.get_u64_le(),
            offset: fields.get_u64_le(),
            length: fields.get_u32_le(),
        };
        let entries: Vec<SegmentEntry> = index.chunks_exact(ENTRY_BYTES).map(entry).collect();
        let lies_within = |entry: &SegmentEntry| {
            let end = entry.offset.checked_add(RECORD_HEADER_BYTES as u64 + u64::from(entry.length));
            entry.offset >= MAGIC.len() as u64 && end.is_some_and(|end| end <= self.index.start)
        };
        entries.iter().all(lies_within).then_some(entries)
    }
}
