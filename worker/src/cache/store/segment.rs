//! The format of a segment of rows in the object store: records, an index of the records, and a footer with the
//! location of the index.
//!
//! All input is checked: lengths against the size of the object, and all bytes against a checksum.

use std::ops::Range;

use bytes::{Buf, Bytes};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::cache::format_version::{magic, other_version};
use crate::cache::rows::{CachedRow, Prefix};

/// The version of the format of segments.
const VERSION: u8 = 2;
/// The first and the last bytes of a segment.
const MAGIC: [u8; 8] = magic(VERSION);
/// The bytes before a row: its id, length and checksum, as on disk.
const HEAD_BYTES: usize = 20;
/// The bytes of an index entry: the id, offset and length of a row.
const ENTRY_BYTES: usize = 20;
/// The bytes of the footer: the offset of the index, its number of rows, its checksum, and the magic.
const FOOTER_BYTES: usize = 32;
/// The largest index that is read. A segment is closed long before.
const MAX_INDEX_BYTES: u64 = 8 << 20;

/// The bytes of an empty segment.
pub(super) const FRAME_BYTES: u64 = (MAGIC.len() + FOOTER_BYTES) as u64;

/// The bytes of a row of this length in a segment.
pub(super) fn row_bytes(length: usize) -> u64 {
    (HEAD_BYTES + ENTRY_BYTES + length) as u64
}

/// The location of a row in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentEntry {
    pub(super) row: u64,
    /// The offset of the record.
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl SegmentEntry {
    pub(super) fn record(&self) -> Range<u64> {
        self.offset..self.offset + HEAD_BYTES as u64 + u64::from(self.length)
    }
}

/// Builds a segment of rows of less than 4 GiB each. Returns the location of each row.
pub(super) fn build_segment(prefix: Prefix, rows: &[CachedRow]) -> (Bytes, Vec<SegmentEntry>) {
    let size = FRAME_BYTES + rows.iter().map(|(_, bytes)| row_bytes(bytes.len())).sum::<u64>();
    let mut segment = Vec::with_capacity(size as usize);
    let mut entries = Vec::with_capacity(rows.len());
    segment.extend(MAGIC);
    for (row, bytes) in rows {
        entries.push(SegmentEntry { row: *row, offset: segment.len() as u64, length: bytes.len() as u32 });
        segment.extend(head(*row, bytes));
        segment.extend_from_slice(bytes);
    }
    let index_at = segment.len();
    for entry in &entries {
        segment.extend(entry.row.to_le_bytes());
        segment.extend(entry.offset.to_le_bytes());
        segment.extend(entry.length.to_le_bytes());
    }
    let checksum = index_checksum(prefix, &segment[index_at..]);
    segment.extend((index_at as u64).to_le_bytes());
    segment.extend((entries.len() as u64).to_le_bytes());
    segment.extend(checksum.to_le_bytes());
    segment.extend(MAGIC);
    (segment.into(), entries)
}

/// The row of a record; `None` if the record is damaged or belongs to another row.
pub(super) fn row_of(record: &Bytes, row: u64) -> Option<Bytes> {
    let bytes = record.get(HEAD_BYTES..)?;
    (record[..HEAD_BYTES] == head(row, bytes)).then(|| record.slice(HEAD_BYTES..))
}

fn head(row: u64, bytes: &[u8]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&row.to_le_bytes());
    head[8..12].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    head[12..].copy_from_slice(&xxh3_64_with_seed(bytes, row).to_le_bytes());
    head
}

/// The reason why an object with these last bytes is not a readable segment.
pub(super) fn rejection(tail: &[u8]) -> String {
    let other = tail.last_chunk::<{ MAGIC.len() }>().and_then(|magic| other_version(magic, VERSION));
    other.unwrap_or_else(|| "it is not a complete segment of rows".to_owned())
}

/// A salt of checksums that differs between prefixes, so that a segment in the wrong folder is rejected.
fn index_checksum(prefix: Prefix, index: &[u8]) -> u64 {
    xxh3_64_with_seed(index, prefix as u64 ^ (prefix >> 64) as u64)
}

/// The location of the index of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SegmentFooter {
    pub(super) index: Range<u64>,
    checksum: u64,
}

impl SegmentFooter {
    /// Parses the last bytes of an object of `size` bytes; `None` if it is not a segment, or truncated.
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

    /// Parses the index; `None` if it is damaged.
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
            let end = entry.offset.checked_add(HEAD_BYTES as u64 + u64::from(entry.length));
            entry.offset >= MAGIC.len() as u64 && end.is_some_and(|end| end <= self.index.start)
        };
        entries.iter().all(lies_within).then_some(entries)
    }
}
