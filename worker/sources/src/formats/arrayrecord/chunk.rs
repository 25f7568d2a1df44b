//! The contents of chunks with records.

use bytes::Bytes;

use super::super::decompress::Compression;
use super::framing::RecordChunk;
use super::transposed::decode_transposed;

/// Maximum number of bytes that a varint needs.
const MAX_VARINT_BYTES: u64 = 10;

/// The number of records that a chunk may contain, and their total size. The header of a chunk states both, but only the footer
/// is known before the chunk is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RecordLimits {
    pub(super) records: u64,
    pub(super) bytes: u64,
}

/// Decodes the records of a chunk: the concatenated records and their sizes. Chunks without records are empty.
pub(super) fn decode_records(
    chunk: &RecordChunk,
    limits: RecordLimits,
) -> Result<(Bytes, Vec<usize>), String> {
    // The signature, the metadata and padding.
    if matches!(chunk.kind, b's' | b'm' | b'p') {
        return Ok((Bytes::new(), Vec::new()));
    }
    if chunk.records > limits.records || chunk.decoded_bytes > limits.bytes {
        return Err(format!(
            "the chunk has {} records of {} bytes, but the index expects at most {} records of {} bytes: the file is corrupted",
            chunk.records, chunk.decoded_bytes, limits.records, limits.bytes
        ));
    }
    match chunk.kind {
        b'r' => decode_simple(chunk),
        b't' => decode_transposed(chunk),
        other => Err(format!("the chunk has the unknown type {other}")),
    }
}

fn decode_simple(chunk: &RecordChunk) -> Result<(Bytes, Vec<usize>), String> {
    let mut data = chunk.data.as_slice();
    let (&compression, rest) = data.split_first().ok_or_else(truncated)?;
    data = rest;
    let sizes_bytes = take_varint(&mut data)?;
    let sizes_bytes = usize::try_from(sizes_bytes).map_err(|_| truncated())?;
    let (sizes, values) = data.split_at_checked(sizes_bytes).ok_or_else(truncated)?;
    let sizes = decompress(compression, sizes, chunk.records.saturating_mul(MAX_VARINT_BYTES))?;
    let values = decompress(compression, values, chunk.decoded_bytes)?;
    let mut sizes = sizes.as_ref();
    let mut found = Vec::new();
    let mut total = 0_u64;
    while !sizes.is_empty() {
        let size = take_varint(&mut sizes)?;
        total = total.saturating_add(size);
        if total > values.len() as u64 || found.len() as u64 == chunk.records {
            return Err("the records exceed the chunk: the file is corrupted".to_owned());
        }
        found.push(size as usize);
    }
    if found.len() as u64 != chunk.records || total != values.len() as u64 {
        return Err(
            "the number or the sizes of the records do not match the chunk: the file is corrupted".to_owned()
        );
    }
    Ok((values, found))
}

/// Decompresses a buffer, which begins with its decompressed size if it is compressed.
pub(super) fn decompress(compression: u8, mut bytes: &[u8], max_bytes: u64) -> Result<Bytes, String> {
    let algorithm = match compression {
        0 => None,
        b'b' => Some(Compression::Brotli),
        b'z' => Some(Compression::Zstd),
        b's' => Some(Compression::Snappy),
        other => return Err(format!("the compression {other} of a chunk is unknown")),
    };
    let size = if algorithm.is_some() { take_varint(&mut bytes)? } else { bytes.len() as u64 };
    if size > max_bytes {
        return Err(format!(
            "a chunk has {size} bytes after decompression, but its header allows {max_bytes}"
        ));
    }
    match algorithm {
        Some(algorithm) => algorithm.decompress_now(bytes, size),
        None => Ok(Bytes::copy_from_slice(bytes)),
    }
}

pub(super) fn truncated() -> String {
    "the contents of a chunk are truncated: the file is corrupted".to_owned()
}

/// Removes a varint from the start of `bytes`.
pub(super) fn take_varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0_u64;
    for (place, byte) in bytes.iter().take(MAX_VARINT_BYTES as usize).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * place as u32).unwrap_or(0);
        if byte & 0x80 == 0 {
            *bytes = &bytes[place + 1..];
            return Ok(value);
        }
    }
    Err(truncated())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn damaged_chunks_are_errors(data in prop::collection::vec(any::<u8>(), 0..80), records in 0_u64..5, kind in 0_usize..4) {
            let kind = [0, b'b', b'z', b's'][kind];
            let chunk = RecordChunk { kind: b'r', records, decoded_bytes: 40, data: [vec![kind], data].concat() };
            if let Ok((values, sizes)) = decode_records(&chunk, RecordLimits { records, bytes: 40 }) {
                prop_assert_eq!(sizes.len() as u64, records);
                prop_assert_eq!(sizes.iter().sum::<usize>(), values.len());
            }
        }
    }

    #[test]
    fn a_chunk_with_more_records_or_bytes_than_the_footer_states_is_not_decoded() {
        // Empty records, whose sizes are zeros.
        let records = 1 << 30;
        let chunk = RecordChunk { kind: b'r', records, decoded_bytes: 0, data: vec![0, 0] };
        for limits in [RecordLimits { records: records - 1, bytes: 9 }, RecordLimits::default()] {
            let error = decode_records(&chunk, limits).unwrap_err();
            assert!(error.contains("but the index expects at most"), "{error}");
        }
        let chunk = RecordChunk { kind: b'r', records: 1, decoded_bytes: 10, data: vec![0, 0] };
        assert!(decode_records(&chunk, RecordLimits { records: 1, bytes: 9 }).is_err());
    }

    #[test]
    fn varints_have_at_most_ten_bytes() {
        let mut bytes: &[u8] = &[0xac, 0x02, 7];
        assert_eq!((take_varint(&mut bytes), bytes), (Ok(300), &[7][..]));
        assert!(take_varint(&mut [0x80; 11].as_slice()).is_err());
        assert!(take_varint(&mut [].as_slice()).is_err());
        let mut largest: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(take_varint(&mut largest), Ok(u64::MAX));
    }
}
