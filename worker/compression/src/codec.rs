//! Selects the decoder of a codec.

use feedline_data::compression::{AccessPoint, Codec};

use crate::bzip2::{self, Bzip2Decoder};
use crate::decoder::{DecodeError, StreamDecoder};
use crate::error_guard::ErrorGuard;
use crate::gzip::GzipDecoder;
use crate::xz::XzDecoder;
use crate::zstd::ZstdDecoder;

/// Number of bytes from which [`detect`] detects a codec.
pub const DETECTION_BYTES: u64 = 12;

/// Maximum bit offset of an access point: no shard is larger, and no offset of a decoder overflows.
const MAX_BIT_OFFSET: u64 = 1 << 60;

/// Detects the codec of data from its first [`DETECTION_BYTES`] bytes.
pub fn detect(start: &[u8]) -> Option<Codec> {
    match start {
        // The method is deflate, and the reserved flags are not set.
        [0x1f, 0x8b] | [0x1f, 0x8b, 8] | [0x1f, 0x8b, 8, 0..=0x1f, ..] => Some(Codec::Gzip),
        // A file of `pzstd` begins with a skippable frame.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Codec::Zstd),
        // The magic of a block, or of the end of an empty stream.
        [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..]
            if rest.starts_with(b"1AY&SY") || rest.starts_with(b"\x17rE8P\x90") || rest.is_empty() =>
        {
            Some(Codec::Bzip2)
        }
        [0xfd, b'7', b'z', b'X', ..] => Some(Codec::Xz),
        _ => None,
    }
}

/// Creates a decoder that starts at the start of a shard.
///
/// # Errors
/// Returns an error if a decoder cannot be created.
pub fn start(codec: Codec) -> Result<Box<dyn StreamDecoder>, DecodeError> {
    match codec {
        Codec::Gzip => Ok(guarded(GzipDecoder::start())),
        Codec::Zstd => Ok(guarded(ZstdDecoder::start()?)),
        Codec::Bzip2 => Ok(guarded(Bzip2Decoder::start())),
        Codec::Xz => Ok(guarded(XzDecoder::start())),
    }
}

/// Creates a decoder that starts at an access point of a shard.
///
/// # Errors
/// Returns an error if the offset or the state of the access point is invalid.
pub fn resume(codec: Codec, point: &AccessPoint) -> Result<Box<dyn StreamDecoder>, DecodeError> {
    if point.bit_offset > MAX_BIT_OFFSET {
        return Err(DecodeError::index(point.bit_offset / 8));
    }
    match codec {
        Codec::Gzip => Ok(guarded(GzipDecoder::resume(point)?)),
        Codec::Zstd => Ok(guarded(ZstdDecoder::resume(point)?)),
        Codec::Bzip2 => Ok(guarded(Bzip2Decoder::resume(point)?)),
        Codec::Xz => Ok(guarded(XzDecoder::resume(point)?)),
    }
}

fn guarded(decoder: impl StreamDecoder + 'static) -> Box<dyn StreamDecoder> {
    Box::new(ErrorGuard::new(decoder))
}

/// Adds content after an access point to its state, so that a read that ends shortly after the point does not start to decode there.
/// Only bzip2 decodes a whole block for its first byte.
pub fn store_content(codec: Codec, point: &mut AccessPoint, content: &[u8]) {
    if codec == Codec::Bzip2 {
        point.state.extend_from_slice(content);
    }
}

/// Returns the content after an access point that its state contains.
pub fn stored_content(codec: Codec, point: &AccessPoint) -> &[u8] {
    match codec {
        Codec::Bzip2 => point.state.get(bzip2::STATE_BYTES..).unwrap_or_default(),
        Codec::Gzip | Codec::Zstd | Codec::Xz => &[],
    }
}
