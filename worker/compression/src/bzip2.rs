//! Decodes bzip2 files. Each block is an access point. Blocks begin at any bit, so the decoder searches the magic numbers, and shifts
//! the bits of the blocks into a stream for the bzip2 library. The library verifies the checksum of each block.

mod magic;
mod scan;

use bzip2::{Decompress, Status};
use feedline_data::compression::AccessPoint;

use crate::decoder::{Boundary, DecodeError, Event, Step, StreamDecoder};
use magic::{BLOCK_MAGIC, END_MAGIC, MAGIC_BITS, find_magic, number_at};
pub(crate) use scan::Bzip2Scanner;

/// Size of the state of an access point: the level, and the combined checksum. Content after the point follows.
pub(crate) const STATE_BYTES: usize = 5;
const STREAM_HEADER_BITS: u64 = 32;
const CRC_BITS: u64 = 32;
/// Unit of the block size.
const LEVEL_BYTES: usize = 100_000;
/// Number of bytes that are shifted at a time.
const SHIFTED_BYTES: usize = 4096;
/// Memory of the library for each 100 kB of the block size, and for its tables.
const MEMORY_PER_LEVEL_BYTES: usize = 400_000;
const TABLES_BYTES: usize = 64 << 10;
const DAMAGED: &str = "the bzip2 data is damaged: compress the file again";

/// Decodes a bzip2 file.
pub(crate) struct Bzip2Decoder {
    library: Option<Decompress>,
    state: State,
    /// The offset of the next input in the file.
    position: u64,
    /// The bit in the file at which the next header begins, or the current block.
    bit: u64,
    /// The next bit that the library receives. It receives whole bytes, so up to 7 bits of the next block.
    fed_bit: u64,
    /// The block size of the stream in units of [`LEVEL_BYTES`].
    level: u8,
    /// Number of bytes of the current block that were written.
    block_bytes: usize,
    /// The combined checksum of the blocks of the stream.
    crc: u32,
    produced: usize,
}

#[derive(Debug, Clone, Copy)]
enum State {
    StreamHeader {
        is_first: bool,
    },
    /// Before a block or the end of the stream. `is_reported` states that the decoder has reported the boundary, or that it starts
    /// here.
    BlockHeader {
        is_reported: bool,
    },
    /// In a block. The search for the next magic continues at `search_bit`.
    Block {
        search_bit: u64,
        end: Option<u64>,
        has_content: bool,
    },
}

/// What a step of the decoder needs.
enum Next {
    Continue,
    Stop(Event),
    /// More input, which is an error at the end of the file.
    Input,
}

impl Bzip2Decoder {
    /// Creates a decoder that starts at the start of the file.
    pub(crate) fn start() -> Self {
        Self {
            library: None,
            state: State::StreamHeader { is_first: true },
            position: 0,
            bit: 0,
            fed_bit: 0,
            level: 0,
            block_bytes: 0,
            crc: 0,
            produced: 0,
        }
    }

    /// Creates a decoder that starts at an access point.
    pub(crate) fn resume(point: &AccessPoint) -> Result<Self, DecodeError> {
        let position = point.bit_offset / 8;
        let (level, crc) = parse_state(&point.state).ok_or_else(|| DecodeError::index(position))?;
        let state = State::BlockHeader { is_reported: true };
        Ok(Self { state, position, bit: point.bit_offset, level, crc, ..Self::start() })
    }

    fn step(&mut self, input: &[u8], content: &mut [u8], filled: usize) -> Result<Next, DecodeError> {
        match self.state {
            State::StreamHeader { is_first } => self.start_stream(input, is_first),
            State::BlockHeader { is_reported } => self.start_block(input, is_reported),
            State::Block { search_bit, end: None, has_content } => {
                let end = find_magic(input, self.position, search_bit);
                let available_bits = (self.position + input.len() as u64) * 8;
                let search_bit = end.unwrap_or(available_bits.saturating_sub(MAGIC_BITS + 8)).max(search_bit);
                self.state = State::Block { search_bit, end, has_content };
                if end.is_some() {
                    return Ok(Next::Continue);
                }
                // The block does not end before `search_bit`, but it may end there.
                let produced = self.produced;
                while self.fed_bit + 8 <= search_bit {
                    let before = (self.fed_bit, self.produced);
                    self.feed(input, search_bit / 8 * 8, content, filled)?;
                    if before == (self.fed_bit, self.produced) {
                        break;
                    }
                }
                let has_content = has_content || self.produced > produced;
                self.state = State::Block { search_bit, end, has_content };
                Ok(Next::Input)
            }
            State::Block { end: Some(end), has_content, .. } => {
                self.finish_block(input, end, has_content, content, filled)
            }
        }
    }

    fn start_stream(&mut self, input: &[u8], is_first: bool) -> Result<Next, DecodeError> {
        let start = (self.bit / 8 - self.position) as usize;
        let rest = input.get(start..).unwrap_or_default();
        if rest.is_empty() && !is_first {
            return Ok(Next::Stop(Event::End));
        }
        let Some((header, _)) = rest.split_first_chunk::<4>() else {
            return match is_first || b"BZh".starts_with(rest) {
                true => Ok(Next::Input),
                false => Err(DecodeError::not_a("bzip2 stream", "bzip2", self.bit / 8)),
            };
        };
        let [b'B', b'Z', b'h', level @ b'1'..=b'9'] = header else {
            return Err(DecodeError::not_a("bzip2 stream", "bzip2", self.bit / 8));
        };
        (self.level, self.crc) = (level - b'0', 0);
        self.bit += STREAM_HEADER_BITS;
        self.state = State::BlockHeader { is_reported: is_first };
        Ok(Next::Continue)
    }

    fn start_block(&mut self, input: &[u8], is_reported: bool) -> Result<Next, DecodeError> {
        let number = |bit, bits| number_at(input, bit - self.position * 8, bits);
        let (Some(magic), Some(crc)) =
            (number(self.bit, MAGIC_BITS), number(self.bit + MAGIC_BITS, CRC_BITS).map(|crc| crc as u32))
        else {
            return Ok(Next::Input);
        };
        match magic {
            BLOCK_MAGIC if !is_reported => {
                self.state = State::BlockHeader { is_reported: true };
                let tag = u64::from(self.crc) << 8 | u64::from(self.level);
                Ok(Next::Stop(Event::Boundary(Boundary { bit_offset: self.bit, tag })))
            }
            BLOCK_MAGIC => {
                self.crc = self.crc.rotate_left(1) ^ crc;
                if self.library.is_none() {
                    let mut library = Decompress::new(false);
                    let header = [b'B', b'Z', b'h', b'0' + self.level];
                    library
                        .decompress(&header, &mut [])
                        .map_err(|_| DecodeError::new(self.bit / 8, DAMAGED))?;
                    self.library = Some(library);
                    self.fed_bit = self.bit;
                }
                self.block_bytes = 0;
                let search_bit = self.bit + MAGIC_BITS + CRC_BITS;
                self.state = State::Block { search_bit, end: None, has_content: false };
                Ok(Next::Continue)
            }
            END_MAGIC if crc == self.crc => {
                self.library = None;
                self.bit = (self.bit + MAGIC_BITS + CRC_BITS).next_multiple_of(8);
                self.state = State::StreamHeader { is_first: false };
                Ok(Next::Continue)
            }
            _ => Err(DecodeError::new(self.bit / 8, DAMAGED)),
        }
    }

    /// Decodes a block up to a magic. If there is no content, the magic is a part of the block.
    fn finish_block(
        &mut self,
        input: &[u8],
        end: u64,
        has_content: bool,
        content: &mut [u8],
        filled: usize,
    ) -> Result<Next, DecodeError> {
        let before = self.produced;
        let fed_bit = self.fed_bit;
        self.feed(input, end, content, filled)?;
        let has_content = has_content || self.produced > before;
        self.state = State::Block { search_bit: end, end: Some(end), has_content };
        if filled + self.produced == content.len() {
            return Ok(Next::Stop(Event::ContentFull));
        }
        if self.produced > before || self.fed_bit > fed_bit {
            return Ok(Next::Continue);
        }
        if self.fed_bit < end {
            return Err(DecodeError::new(self.bit / 8, DAMAGED));
        }
        if has_content {
            self.bit = end;
            self.state = State::BlockHeader { is_reported: false };
        } else {
            self.state = State::Block { search_bit: end + 1, end: None, has_content };
        }
        Ok(Next::Continue)
    }

    /// Passes the next bytes before bit `end` to the library, and the last byte, which may contain bits after `end`.
    fn feed(&mut self, input: &[u8], end: u64, content: &mut [u8], filled: usize) -> Result<(), DecodeError> {
        let library = self.library.as_mut().ok_or_else(|| DecodeError::new(self.bit / 8, DAMAGED))?;
        let count = end.saturating_sub(self.fed_bit).div_ceil(8) as usize;
        let start = (self.fed_bit / 8 - self.position) as usize;
        let shift = (self.fed_bit % 8) as u32;
        let bytes = input.get(start..).unwrap_or_default();
        let mut shifted = [0; SHIFTED_BYTES];
        let source = if shift == 0 {
            &bytes[..count.min(bytes.len())]
        } else {
            let count = count.min(SHIFTED_BYTES).min(bytes.len().saturating_sub(1));
            for (target, pair) in shifted[..count].iter_mut().zip(bytes.windows(2)) {
                *target = pair[0] << shift | pair[1] >> (8 - shift);
            }
            &shifted[..count]
        };
        let (before_in, before_out) = (library.total_in(), library.total_out());
        let result = library.decompress(source, &mut content[filled + self.produced..]);
        self.fed_bit += (library.total_in() - before_in) * 8;
        let written = (library.total_out() - before_out) as usize;
        self.produced += written;
        self.block_bytes += written;
        match result {
            Ok(Status::Ok) => Ok(()),
            Ok(Status::MemNeeded) => {
                Err(DecodeError::new(self.bit / 8, "the bzip2 data cannot be decoded: out of memory"))
            }
            // The whole block is damaged. The library receives it in bytes that depend on where decoding began.
            _ => Err(DecodeError::new(self.bit / 8, DAMAGED)),
        }
    }
}

impl StreamDecoder for Bzip2Decoder {
    fn decode(
        &mut self,
        input: &[u8],
        is_last: bool,
        content: &mut [u8],
        filled: usize,
    ) -> Result<Step, DecodeError> {
        self.produced = 0;
        let end = self.position + input.len() as u64;
        let event = loop {
            match self.step(input, content, filled)? {
                Next::Continue => {}
                Next::Stop(Event::End) if !is_last => break Event::NeedsInput,
                Next::Stop(event) => break event,
                Next::Input if filled + self.produced == content.len() => break Event::ContentFull,
                Next::Input if is_last => return Err(DecodeError::truncated(end)),
                Next::Input => break Event::NeedsInput,
            }
        };
        let next_bit = match self.state {
            State::Block { search_bit, .. } => self.fed_bit.min(search_bit),
            State::BlockHeader { .. } if self.library.is_some() => self.bit.min(self.fed_bit),
            _ => self.bit,
        };
        let consumed = ((next_bit / 8).min(end) - self.position) as usize;
        self.position += consumed as u64;
        Ok(Step { consumed, produced: self.produced, event })
    }

    fn produced(&self) -> usize {
        self.produced
    }

    fn max_decoded_ahead(&self) -> usize {
        match self.state {
            State::Block { .. } if self.block_bytes > 0 => {
                (usize::from(self.level) * LEVEL_BYTES).saturating_sub(self.block_bytes)
            }
            _ => 0,
        }
    }

    fn access_state(&self, boundary: &Boundary, _history: &[u8], _compressed: &[u8]) -> Vec<u8> {
        state(boundary.tag as u8, (boundary.tag >> 8) as u32)
    }

    fn continuation(&self, boundary: &Boundary) -> Option<Vec<u8>> {
        Some(self.access_state(boundary, &[], &[]))
    }

    fn memory_bytes(&self) -> usize {
        usize::from(self.level) * MEMORY_PER_LEVEL_BYTES + TABLES_BYTES
    }
}

/// The state of an access point.
fn state(level: u8, crc: u32) -> Vec<u8> {
    [&[level], crc.to_le_bytes().as_slice()].concat()
}

/// Returns the level and the combined checksum of a state, which content may follow.
fn parse_state(state: &[u8]) -> Option<(u8, u32)> {
    let [level @ 1..=9, crc @ ..] = state.first_chunk::<STATE_BYTES>()? else { return None };
    Some((*level, u32::from_le_bytes(*crc)))
}

#[cfg(test)]
mod tests;
