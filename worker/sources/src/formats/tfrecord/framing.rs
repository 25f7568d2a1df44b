//! The frame of a TFRecord: length (u64), masked CRC-32C of the length, data, masked CRC-32C of the data, all
//! little-endian.

use std::ops::Range;

use crate::rows::SplitError;

/// The size of the length and its checksum before the data.
pub(super) const HEADER_BYTES: usize = 12;
const FRAME_BYTES: u64 = 16;

/// The data of a framed record, after its checksums are verified.
pub(super) fn data_of(record: &[u8]) -> Result<&[u8], String> {
    let framed = next_record(record, record.len() as u64)?;
    if framed != record.len() as u64 {
        return Err("the record is shorter than indexed: run `feedline index --rebuild`".to_owned());
    }
    let (data, crc) = record[HEADER_BYTES..].split_at((framed - FRAME_BYTES) as usize);
    if masked_crc(data).to_le_bytes() != crc {
        return Err("the checksum of the record's data is wrong: the file is damaged".to_owned());
    }
    Ok(data)
}

/// The size of the framed record at the start of `bytes`; `left` bytes remain in the shard.
pub(super) fn next_record(bytes: &[u8], left: u64) -> Result<u64, String> {
    let truncated = || "the last record is truncated: write the file again".to_owned();
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return Err(truncated()) };
    let Some(crc) = rest.first_chunk::<4>() else { return Err(truncated()) };
    if masked_crc(length).to_le_bytes() != *crc {
        return Err(
            "the checksum of a record's length is wrong: this is not a TFRecord file, or it is damaged"
                .to_owned(),
        );
    }
    let framed = u64::from_le_bytes(*length).saturating_add(FRAME_BYTES);
    if framed > left { Err(truncated()) } else { Ok(framed) }
}

/// The ranges of the records in these bytes.
pub(super) fn split(bytes: &[u8]) -> Result<Vec<Range<usize>>, SplitError> {
    let mut spans = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let framed = next_record(&bytes[at..], (bytes.len() - at) as u64)
            .map_err(|reason| SplitError { at, reason })?;
        spans.push(at..at + framed as usize);
        at += framed as usize;
    }
    Ok(spans)
}

/// TFRecord's masked checksum. The mask avoids problems with checksums of data that contains checksums.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}
