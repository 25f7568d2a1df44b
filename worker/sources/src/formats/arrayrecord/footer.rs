//! The end of an ArrayRecord file: a footer with one record per chunk, and a block with the offset of the footer.

use std::ops::Range;

use super::super::decompress::off_runtime;
use super::chunk::{RecordLimits, decode_records, take_varint};
use super::framing::{BLOCK_BYTES, read_chunk};
use crate::error::SourceError;
use crate::object::Object;

const MAGIC: u64 = 0x7193_0e70_4fda_e05e;
/// Maximum size of a footer. A footer needs about 20 bytes per chunk.
const MAX_FOOTER_BYTES: u64 = 256 << 20;
/// Minimum size of an entry: two fields with a tag and a value.
const MIN_ENTRY_BYTES: u64 = 4;
/// Maximum number of chunks of a file.
const MAX_CHUNKS: u64 = 1 << 24;

/// A chunk with records.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChunkEntry {
    /// The byte range in the file.
    pub(super) range: Range<u64>,
    pub(super) decoded_bytes: u64,
    pub(super) records: u64,
}

/// Reads the chunks of a file from its footer.
pub(super) async fn read_footer(object: &Object) -> Result<Vec<ChunkEntry>, SourceError> {
    let size = object.size_bytes();
    let corrupt = |at: u64, reason: String| SourceError::corrupt(object.shard(), at, reason);
    let not_array_record = || {
        let reason = "the file does not end with the postscript of an ArrayRecord file: check `source.format`, or write the file again";
        corrupt(size, reason.to_owned())
    };
    let end = size.checked_sub(BLOCK_BYTES).filter(|end| *end > 0 && end % BLOCK_BYTES == 0);
    let end = end.ok_or_else(not_array_record)?;
    let block = object.read(end..size).await?;
    let (postscript, _) = read_chunk(&block, end, end).map_err(|_| not_array_record())?;
    let (values, sizes) =
        decode_records(&postscript, RecordLimits { records: BLOCK_BYTES, bytes: BLOCK_BYTES })
            .map_err(|_| not_array_record())?;
    let record = sizes.first().map(|size| &values[..*size]).ok_or_else(not_array_record)?;
    let [start, magic] = fields(record, [1, 2]).map_err(|_| not_array_record())?;
    if magic != MAGIC || start >= end {
        return Err(not_array_record());
    }
    if end - start > MAX_FOOTER_BYTES {
        let bytes = end - start;
        let reason = format!(
            "the footer has {bytes} bytes; the limit is {MAX_FOOTER_BYTES} bytes: write several files"
        );
        return Err(corrupt(start, reason));
    }
    let bytes = object.read(start..end).await?;
    let parse = move || parse_footer(&bytes, start);
    off_runtime(end - start, parse).await.flatten().map_err(|reason| corrupt(start, reason))
}

/// Parses the chunk of the footer, which begins at the offset `start`.
fn parse_footer(bytes: &[u8], start: u64) -> Result<Vec<ChunkEntry>, String> {
    let (footer, _) = read_chunk(bytes, start, start)?;
    if footer.records > MAX_CHUNKS {
        return Err(format!(
            "the file has {} chunks; the limit is {MAX_CHUNKS} chunks: write several files, or use a larger `group_size`",
            footer.records
        ));
    }
    let records = footer.decoded_bytes / MIN_ENTRY_BYTES + 1;
    let (values, sizes) = decode_records(&footer, RecordLimits { records, bytes: MAX_FOOTER_BYTES })?;
    parse_entries(&values, &sizes, start)
}

/// Parses the records of the footer, which begins at the offset `end`.
fn parse_entries(values: &[u8], sizes: &[usize], end: u64) -> Result<Vec<ChunkEntry>, String> {
    let wrong = || "the chunks of the footer do not match the file: the file is corrupted".to_owned();
    let mut at = 0;
    let mut records = sizes.iter().map(|size| {
        at += size;
        &values[at - size..at]
    });
    let metadata = nested(records.next().ok_or_else(wrong)?, 1)?;
    let [version, chunks, total] = fields(metadata, [1, 2, 3])?;
    if version != 1 {
        return Err(format!(
            "the footer has version {version}, but this release reads version 1: write the file again"
        ));
    }
    let mut entries: Vec<ChunkEntry> = Vec::new();
    for record in records {
        let [start, decoded_bytes, records] = fields(record, [1, 2, 3])?;
        if let Some(last) = entries.last_mut() {
            last.range.end = start;
        }
        entries.push(ChunkEntry { range: start..end, decoded_bytes, records });
    }
    let is_ascending =
        entries.iter().all(|entry| entry.range.start < entry.range.end && entry.range.end <= end);
    let sum = entries.iter().map(|entry| entry.records).fold(0, u64::saturating_add);
    if !is_ascending
        || entries.len() as u64 != chunks
        || sum != total
        || entries.iter().any(|entry| entry.records == 0)
    {
        return Err(wrong());
    }
    Ok(entries)
}

/// Returns the varints with these field numbers of a protobuf message. A missing field is 0.
fn fields<const N: usize>(mut message: &[u8], numbers: [u64; N]) -> Result<[u64; N], String> {
    let mut values = [0; N];
    while !message.is_empty() {
        let tag = take_varint(&mut message)?;
        match tag & 7 {
            0 => {
                let value = take_varint(&mut message)?;
                if let Some(place) = numbers.iter().position(|number| *number == tag >> 3) {
                    values[place] = value;
                }
            }
            2 => {
                let length = take_varint(&mut message)? as usize;
                message = message.get(length..).ok_or("a message of the footer is truncated")?;
            }
            other => return Err(format!("a message of the footer has the unknown wire type {other}")),
        }
    }
    Ok(values)
}

/// Returns the message in a field of another message.
fn nested(mut message: &[u8], number: u64) -> Result<&[u8], String> {
    let wrong = || "the footer has no metadata: the file is corrupted".to_owned();
    let tag = take_varint(&mut message)?;
    if tag != number << 3 | 2 {
        return Err(wrong());
    }
    let length = take_varint(&mut message)? as usize;
    message.get(..length).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn damaged_footers_are_errors(values in prop::collection::vec(any::<u8>(), 0..60), cuts in prop::collection::vec(0_usize..20, 0..6)) {
            let mut left = values.len();
            let sizes: Vec<usize> = cuts.into_iter().map(|cut| { let size = cut.min(left); left -= size; size }).collect();
            if let Ok(entries) = parse_entries(&values, &sizes, 1_000) {
                prop_assert!(entries.iter().all(|entry| entry.range.start < entry.range.end && entry.range.end <= 1_000));
            }
            let _ = fields(&values, [1, 2]);
        }
    }
}
