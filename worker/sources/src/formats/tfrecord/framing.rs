//! The framing of TFRecord files. A record consists of the length (u64), the masked CRC-32C of the length, the data, and the masked
//! CRC-32C of the data. Integers are little-endian.

/// Size of the length and its checksum.
pub(super) const HEADER_BYTES: usize = 12;
/// Size of the checksum of the data.
pub(super) const FOOTER_BYTES: usize = 4;
/// Number of bytes that framing adds to the data.
const FRAME_BYTES: u64 = (HEADER_BYTES + FOOTER_BYTES) as u64;

/// Verifies the checksums of a framed record. Returns the data.
pub(super) fn verified_data(record: &[u8]) -> Result<&[u8], String> {
    let framed_bytes = next_record(record, record.len() as u64)?;
    if framed_bytes != record.len() as u64 {
        return Err("the record is shorter than the index expects: run `feedline index --rebuild`".to_owned());
    }
    let (data, crc) = record[HEADER_BYTES..].split_at((framed_bytes - FRAME_BYTES) as usize);
    if masked_crc(data).to_le_bytes() != crc {
        return Err("the record data checksum does not match: the file is corrupted".to_owned());
    }
    Ok(data)
}

/// Returns the size of the framed record at the start of `bytes`. `remaining_bytes` is the size of the rest of the shard.
pub(super) fn next_record(bytes: &[u8], remaining_bytes: u64) -> Result<u64, String> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return Err(truncated()) };
    let Some(crc) = rest.first_chunk::<4>() else { return Err(truncated()) };
    if masked_crc(length).to_le_bytes() != *crc {
        return Err("a record length checksum does not match: the file is corrupted or not a TFRecord file"
            .to_owned());
    }
    let framed_bytes = u64::from_le_bytes(*length).saturating_add(FRAME_BYTES);
    if framed_bytes > remaining_bytes { Err(truncated()) } else { Ok(framed_bytes) }
}

/// The error message for a truncated record.
pub(super) fn truncated() -> String {
    "the last record is truncated: write the file again".to_owned()
}

/// Whether data begins with the length of a record and its checksum. The length may look like the magic of a codec.
pub(crate) fn is_record(start: &[u8]) -> bool {
    start.len() >= HEADER_BYTES && next_record(start, u64::MAX).is_ok()
}

/// The masked checksum of TFRecord. The mask makes checksums of data that contains checksums reliable.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}
