//! Headers of xz streams, blocks and LZMA2 chunks (The .xz File Format, version 1.2.1).

use crate::limits::MAX_WINDOW_BYTES;

pub(super) const MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
pub(super) const STREAM_HEADER_BYTES: usize = 12;

const LZMA2: u64 = 0x21;
const DAMAGED: &str = "a header of the xz data is damaged: compress the file again";

/// Returns the type of the check of a stream.
pub(super) fn parse_stream_header(header: &[u8; STREAM_HEADER_BYTES]) -> Result<u8, String> {
    let check = header[7];
    if check > 15 || *header != stream_header(check) {
        return Err(DAMAGED.to_owned());
    }
    // The types without a definition cannot be verified.
    match check {
        0 | 1 | 4 | 10 => Ok(check),
        _ => Err(format!(
            "the xz data has a check of the unknown type {check}: compress the file again with `xz`"
        )),
    }
}

/// Returns the header of a stream.
pub(super) fn stream_header(check: u8) -> [u8; STREAM_HEADER_BYTES] {
    let crc = crc32fast::hash(&[0, check]).to_le_bytes();
    let mut header = [0; STREAM_HEADER_BYTES];
    header[..6].copy_from_slice(&MAGIC);
    header[7] = check;
    header[8..].copy_from_slice(&crc);
    header
}

/// The size of a check in bytes.
pub(super) fn check_bytes(check: u8) -> u64 {
    match check {
        0 => 0,
        1..=3 => 4,
        4..=6 => 8,
        7..=9 => 16,
        10..=12 => 32,
        _ => 64,
    }
}

/// The fields of a block header that the decoder checks.
pub(super) struct BlockHeader {
    pub(super) dictionary_bytes: u64,
}

impl BlockHeader {
    /// Parses a complete header. liblzma verifies its checksum.
    pub(super) fn parse(header: &[u8]) -> Result<Self, String> {
        let damaged = || DAMAGED.to_owned();
        let mut rest = header.get(1..header.len().saturating_sub(4)).ok_or_else(damaged)?;
        let flags = take(&mut rest, 1).ok_or_else(damaged)?[0];
        for flag in [0x40, 0x80] {
            if flags & flag != 0 {
                number(&mut rest).ok_or_else(damaged)?;
            }
        }
        let mut dictionary_bytes = None;
        for _ in 0..=flags & 3 {
            let filter = number(&mut rest).ok_or_else(damaged)?;
            let size = number(&mut rest).ok_or_else(damaged)?;
            let properties =
                take(&mut rest, usize::try_from(size).map_err(|_| damaged())?).ok_or_else(damaged)?;
            dictionary_bytes = match (filter, properties) {
                (LZMA2, [bits @ 0..=40]) => Some(dictionary_size(*bits)),
                _ => None,
            };
        }
        let dictionary_bytes = dictionary_bytes.ok_or_else(damaged)?;
        if dictionary_bytes > MAX_WINDOW_BYTES {
            return Err(format!(
                "the dictionary of the xz block is {dictionary_bytes} bytes, more than the limit of {MAX_WINDOW_BYTES} bytes: \
                 compress the file with a smaller dictionary, such as with `xz -6`"
            ));
        }
        Ok(Self { dictionary_bytes })
    }
}

/// The size of an LZMA2 dictionary.
fn dictionary_size(bits: u8) -> u64 {
    if bits == 40 { u32::MAX.into() } else { (2 | u64::from(bits & 1)) << (bits / 2 + 11) }
}

/// Returns the next bytes of the input.
fn take<'a>(input: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(count)?;
    *input = rest;
    Some(taken)
}

/// Reads a number with 7 bits in each byte.
fn number(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for at in 0..9 {
        let byte = take(input, 1)?[0];
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return (byte != 0 || at == 0).then_some(value);
        }
    }
    None
}

/// An LZMA2 chunk.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lzma2Chunk {
    /// The size of the chunk, with its header.
    pub(super) bytes: u64,
    /// The size of its content.
    pub(super) content_bytes: u64,
    /// Whether the chunk is the end marker.
    pub(super) is_end: bool,
}

/// Parses the header of a chunk. `None` if the header is incomplete.
pub(super) fn chunk(input: &[u8]) -> Option<Result<Lzma2Chunk, ()>> {
    let size = |at: usize| Some(u64::from(u16::from_be_bytes([*input.get(at)?, *input.get(at + 1)?])) + 1);
    Some(match input.first()? {
        0 => Ok(Lzma2Chunk { bytes: 1, content_bytes: 0, is_end: true }),
        1 | 2 => Ok(Lzma2Chunk { bytes: 3 + size(1)?, content_bytes: size(1)?, is_end: false }),
        control @ 0x80.. => {
            let header = if *control >= 0xc0 { 6 } else { 5 };
            let content_bytes = (u64::from(*control & 0x1f) << 16) + size(1)?;
            Ok(Lzma2Chunk { bytes: header + size(3)?, content_bytes, is_end: false })
        }
        _ => Err(()),
    })
}
