//! Selects the decoder of a codec.

use feedline_data::compression::{AccessPoint, Codec};

use crate::bzip2::{self, Bzip2Decoder};
use crate::decoder::{DecodeError, StreamDecoder};
use crate::error_guard::ErrorGuard;
use crate::gzip::{Framing, GzipDecoder};
use crate::xz::XzDecoder;
use crate::zstd::ZstdDecoder;

/// Number of bytes from which [`detect`] detects a codec.
pub const DETECTION_BYTES: u64 = 12;

/// Maximum bit offset of an access point: no shard is larger, and no offset of a decoder overflows.
const MAX_BIT_OFFSET: u64 = 1 << 60;

/// The magics of a block of bzip2, and of the end of a stream without blocks.
const BZIP2_MAGICS: [&[u8]; 2] = [b"1AY&SY", b"\x17rE8P\x90"];

/// Detects the codec of data from its first [`DETECTION_BYTES`] bytes.
pub fn detect(start: &[u8]) -> Option<Codec> {
    match start {
        // The method is deflate, and the reserved flags are not set.
        [0x1f, 0x8b] | [0x1f, 0x8b, 8] | [0x1f, 0x8b, 8, 0..=0x1f, ..] => Some(Codec::Gzip),
        // A file of `pzstd` begins with a skippable frame.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Codec::Zstd),
        [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..]
            if rest.is_empty() || BZIP2_MAGICS.iter().any(|magic| rest.starts_with(magic)) =>
        {
            Some(Codec::Bzip2)
        }
        [0xfd, b'7', b'z', b'X', ..] => Some(Codec::Xz),
        _ => None,
    }
}

/// Formats of compressed files and archives that are not supported, with the bytes at their start.
const UNSUPPORTED: [(&str, &[u8]); 10] = [
    ("a ZIP archive", b"PK\x03\x04"),
    ("a ZIP archive", b"PK\x05\x06"),
    ("a 7z archive", b"7z\xbc\xaf\x27\x1c"),
    ("a RAR archive", b"Rar!\x1a\x07"),
    ("an LZ4 file", b"\x04\x22\x4d\x18"),
    ("an LZ4 file", b"\x02\x21\x4c\x18"),
    ("a file of the Snappy framing format", b"\xff\x06\x00\x00sNaPpY"),
    ("a file of `compress`", b"\x1f\x9d"),
    ("an LZMA file", b"\x5d\x00\x00"),
    ("an LZOP file", b"\x89LZO\x00"),
];

/// Returns the name of a compressed format that is not supported, if data begins like such a file.
pub fn detect_unsupported(start: &[u8]) -> Option<&'static str> {
    UNSUPPORTED.iter().find(|(_, magic)| start.starts_with(magic)).map(|(name, _)| *name)
}

/// Whether these few bytes are the beginning of what identifies a file of a codec.
pub fn is_truncated_magic(codec: Codec, bytes: &[u8]) -> bool {
    match codec {
        Codec::Gzip => [0x1f, 0x8b, 8].starts_with(bytes),
        Codec::Zstd => [0x28, 0xb5, 0x2f, 0xfd].starts_with(bytes),
        Codec::Bzip2 => match bytes {
            [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..] => {
                BZIP2_MAGICS.iter().any(|magic| magic.starts_with(rest))
            }
            _ => b"BZh".starts_with(bytes),
        },
        Codec::Xz => [0xfd, b'7', b'z', b'X', b'Z', 0].starts_with(bytes),
        Codec::Zlib => matches!(*bytes, [] | [0x08 | 0x18 | 0x28 | 0x38 | 0x48 | 0x58 | 0x68 | 0x78]),
    }
}

/// Whether data may begin with a zlib stream. Two bytes determine it, so other data may look like one.
pub fn may_be_zlib(start: &[u8]) -> bool {
    matches!(*start, [first, second, ..] if Framing::is_zlib_start(first, second))
}

/// Creates a decoder that starts at the start of a shard.
///
/// # Errors
/// Returns an error if a decoder cannot be created.
pub fn start(codec: Codec) -> Result<Box<dyn StreamDecoder>, DecodeError> {
    match codec {
        Codec::Gzip => Ok(guarded(GzipDecoder::start(Framing::Gzip))),
        Codec::Zstd => Ok(guarded(ZstdDecoder::start()?)),
        Codec::Bzip2 => Ok(guarded(Bzip2Decoder::start())),
        Codec::Xz => Ok(guarded(XzDecoder::start())),
        Codec::Zlib => Ok(guarded(GzipDecoder::start(Framing::Zlib))),
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
        Codec::Gzip => Ok(guarded(GzipDecoder::resume(Framing::Gzip, point)?)),
        Codec::Zstd => Ok(guarded(ZstdDecoder::resume(point)?)),
        Codec::Bzip2 => Ok(guarded(Bzip2Decoder::resume(point)?)),
        Codec::Xz => Ok(guarded(XzDecoder::resume(point)?)),
        Codec::Zlib => Ok(guarded(GzipDecoder::resume(Framing::Zlib, point)?)),
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
        Codec::Gzip | Codec::Zstd | Codec::Xz | Codec::Zlib => &[],
    }
}
