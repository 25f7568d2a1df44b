//! The decompressed sizes of Arrow IPC messages. The Arrow crate allocates the sizes that a message declares, so they are checked
//! before.

use arrow::ipc::{CompressionType, Message, RecordBatch, root_as_message};

/// Maximum size of a record batch or dictionary after decompression.
const MAX_DECOMPRESSED_BYTES: u64 = 1 << 30;
/// Size of the length before each compressed buffer.
const LENGTH_BYTES: usize = 8;
/// The length of a buffer that is not compressed.
const NOT_COMPRESSED: i64 = -1;
/// Maximum number of bytes by which the blocks of an LZ4 frame may exceed twice the declared size, because they may be incomplete.
const LZ4_TOLERANCE_BYTES: u64 = 8 << 20;

/// Returns the header of a message. `None` if it cannot be read.
pub(super) fn message(metadata: &[u8]) -> Option<Message<'_>> {
    // Skip the length of the message. Since version 5, a continuation marker precedes the length.
    let message = match metadata.strip_prefix(&[0xff; 4]) {
        Some(rest) => rest.get(4..),
        None => metadata.get(4..),
    };
    root_as_message(message?).ok()
}

/// Whether the buffers of a record batch or dictionary are compressed.
pub(super) fn is_compressed(metadata: &[u8]) -> bool {
    message(metadata).and_then(|message| data(&message)).is_some_and(|data| data.compression().is_some())
}

fn data<'a>(message: &Message<'a>) -> Option<RecordBatch<'a>> {
    let dictionary = || message.header_as_dictionary_batch().and_then(|batch| batch.data());
    message.header_as_record_batch().or_else(dictionary)
}

/// Returns the size of the buffers of a message after decompression. `None` if they are not compressed.
pub(super) fn decompressed_bytes(metadata: &[u8], body: &[u8]) -> Result<Option<u64>, String> {
    let corrupted = || "the sizes of a compressed record batch are invalid: the file is corrupted".to_owned();
    let message = message(metadata).ok_or_else(corrupted)?;
    let Some((data, compression)) =
        data(&message).and_then(|data| data.compression().map(|compression| (data, compression)))
    else {
        return Ok(None);
    };
    let is_lz4 = compression.codec() == CompressionType::LZ4_FRAME;
    let mut total = 0_u64;
    for buffer in data.buffers().iter().flatten() {
        if buffer.length() == 0 {
            continue;
        }
        let start = usize::try_from(buffer.offset()).map_err(|_| corrupted())?;
        let length = usize::try_from(buffer.length()).map_err(|_| corrupted())?;
        let bytes = start.checked_add(length).and_then(|end| body.get(start..end)).ok_or_else(corrupted)?;
        let (declared, content) = bytes.split_first_chunk::<LENGTH_BYTES>().ok_or_else(corrupted)?;
        let declared = match i64::from_le_bytes(*declared) {
            NOT_COMPRESSED => content.len() as u64,
            declared => u64::try_from(declared).map_err(|_| corrupted())?,
        };
        total = total.saturating_add(declared);
        if total > MAX_DECOMPRESSED_BYTES {
            return Err(format!(
                "a record batch decompresses to more than the limit of {MAX_DECOMPRESSED_BYTES} bytes: write smaller record batches"
            ));
        }
        if is_lz4 && lz4_max_bytes(content) > declared.saturating_mul(2).saturating_add(LZ4_TOLERANCE_BYTES) {
            return Err(corrupted());
        }
    }
    Ok(Some(total))
}

/// Returns an upper bound for the content of LZ4 frames, according to the sizes of their blocks. The decoder reports errors.
fn lz4_max_bytes(frames: &[u8]) -> u64 {
    const MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
    const MAX_RATIO: u64 = 255;
    let mut rest = frames;
    let mut total = 0_u64;
    while let Some([flags, sizes, after @ ..]) = rest.strip_prefix(&MAGIC) {
        let block_max = 1_u64 << (8 + 2 * u32::from(sizes >> 4 & 7));
        // The size of the content and the identifier of the dictionary are optional.
        let header = 1 + if flags & 8 == 0 { 0 } else { 8 } + if flags & 1 == 0 { 0 } else { 4 };
        let block_checksum = if flags & 16 == 0 { 0 } else { 4 };
        let frame_checksum = if flags & 4 == 0 { 0 } else { 4 };
        rest = after.get(header..).unwrap_or_default();
        while let Some((size, blocks)) = rest.split_first_chunk::<4>() {
            let size = u32::from_le_bytes(*size);
            if size == 0 {
                rest = blocks.get(frame_checksum..).unwrap_or_default();
                break;
            }
            let stored = u64::from(size & 0x7fff_ffff);
            total = total.saturating_add(block_max.min(stored.saturating_mul(MAX_RATIO)));
            rest = blocks.get(stored as usize + block_checksum..).unwrap_or_default();
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_bound_of_lz4_frames_covers_their_content() {
        for length in [0, 1, 1_000, 100_000, 5_000_000] {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            encoder.write_all(&vec![7; length]).unwrap();
            let frame = encoder.finish().unwrap();
            let bound = lz4_max_bytes(&frame.repeat(2));
            assert!(
                bound >= 2 * length as u64 && bound <= 4 * length as u64 + (4 << 20),
                "{length}: {bound}"
            );
            for end in 0..frame.len().min(100) {
                lz4_max_bytes(&frame[..end]);
            }
        }
    }
}
