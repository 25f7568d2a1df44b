//! gzip files (RFC 1952): members, each with a deflate stream. Decoding can start at every deflate block. Files of zlib streams
//! (RFC 1950) differ only in the headers and trailers. The members of bgzip are so small that only their starts are reported.
//!
//! An access point stores a sparse window: the bytes of the last 32 KiB to which later matches refer. zlib-ng and
//! zlib-rs do not report matches, so the decoder is our own. `rapidgzip-core` reads a local file itself, with whole windows.

mod bits;
mod huffman;
mod inflate;
mod member;
mod scan;
mod symbols;
mod tables;
mod window;

use feedline_data::compression::AccessPoint;

use crate::decoder::{Boundary, DecodeError, Event, Step, StreamDecoder};
use bits::PartialByte;
use inflate::{Inflate, InflateEvent};
pub(crate) use member::Framing;
use member::{HeaderReader, MAX_TRAILER_BYTES, MemberContent};
pub(crate) use scan::BgzipScanner;
use symbols::{ContentOutput, IgnoreMatches};
use window::WINDOW_BYTES;

/// Tag of a boundary at the start of a member.
const MEMBER_START: u64 = 0;
/// Tag of a boundary at the start of a deflate block.
const BLOCK_START: u64 = 1;
/// The fix at the end of error messages.
const FIX: &str = "write the file again";

/// The element of the file that is read next.
#[derive(Debug, Clone, Copy)]
enum State {
    Header(HeaderReader),
    /// The first bit of a deflate block in the next byte.
    SkipBits(u32),
    Deflate,
    Trailer {
        read: [u8; MAX_TRAILER_BYTES],
        at: usize,
    },
    /// Zeros after a member, which may end the file.
    Padding,
}

/// Decodes a file of gzip members, or of zlib streams, which are called members too.
pub(crate) struct GzipDecoder {
    framing: Framing,
    state: State,
    inflate: Inflate,
    /// The content of the current member; `None` after a start within the member.
    member: Option<MemberContent>,
    /// Whether the member states its size.
    is_sized: bool,
    /// Number of bytes before the write position that belong to the member, up to the size of the window.
    available: usize,
    history: Vec<u8>,
    /// Byte offset in the shard of the next input.
    offset: u64,
    produced: usize,
}

impl GzipDecoder {
    pub(crate) fn start(framing: Framing) -> Self {
        Self {
            framing,
            state: State::Header(HeaderReader::new(framing)),
            inflate: Inflate::new(),
            member: Some(MemberContent::new(framing)),
            is_sized: false,
            available: 0,
            history: Vec::new(),
            offset: 0,
            produced: 0,
        }
    }

    pub(crate) fn resume(framing: Framing, point: &AccessPoint) -> Result<Self, DecodeError> {
        let (offset, bit) = (point.bit_offset / 8, (point.bit_offset % 8) as u32);
        if point.state.is_empty() {
            return Ok(Self { offset, ..Self::start(framing) });
        }
        let history = window::decode(&point.state).map_err(|reason| DecodeError { offset, reason })?;
        // Zeros before the first byte that is used.
        let mut whole = vec![0; WINDOW_BYTES - history.len()];
        whole.extend(history);
        let state = if bit > 0 { State::SkipBits(bit) } else { State::Deflate };
        Ok(Self {
            state,
            member: None,
            available: WINDOW_BYTES,
            history: whole,
            offset,
            ..Self::start(framing)
        })
    }

    fn error(&self, consumed: usize, reason: impl std::fmt::Display) -> DecodeError {
        DecodeError { offset: self.offset + consumed as u64, reason: format!("{reason}: {FIX}") }
    }

    /// Returns an error in a header, a trailer or padding. The first two bytes of a file identify it.
    fn frame_error(&self, consumed: usize, reason: String) -> DecodeError {
        match self.state {
            State::Header(_) if self.offset + (consumed as u64) < 2 => {
                DecodeError::not_a(self.framing.member(), self.framing.name(), 0)
            }
            _ => self.error(consumed, reason),
        }
    }

    /// Reads everything but deflate data. Returns the number of consumed bytes, also with an error.
    fn read_frame(&mut self, input: &[u8]) -> Result<(usize, FrameEvent), (usize, String)> {
        for (at, &byte) in input.iter().enumerate() {
            match &mut self.state {
                State::Header(header) => {
                    if header.push(byte).map_err(|reason| (at, reason))? {
                        self.is_sized = header.states_size();
                        self.start_member();
                        return Ok((at + 1, FrameEvent::Deflate));
                    }
                }
                State::SkipBits(bit) => {
                    let partial = PartialByte { bits: u64::from(byte >> *bit), count: 8 - *bit };
                    self.inflate.restart(partial);
                    self.state = State::Deflate;
                    return Ok((at + 1, FrameEvent::Deflate));
                }
                State::Deflate => return Ok((at, FrameEvent::Deflate)),
                State::Trailer { read, at: read_bytes } => {
                    read[*read_bytes] = byte;
                    *read_bytes += 1;
                    if *read_bytes == self.framing.trailer_bytes() {
                        let read = *read;
                        self.state = State::Header(HeaderReader::new(self.framing));
                        let verified = self.member.take().map_or(Ok(()), |member| member.verify(read));
                        verified.map_err(|reason| (at + 1, reason))?;
                        return Ok((at + 1, FrameEvent::EndOfMember));
                    }
                }
                State::Padding if byte == 0 => {}
                State::Padding => {
                    self.state = State::Header(HeaderReader::new(self.framing));
                    return Ok((at, FrameEvent::EndOfMember));
                }
            }
        }
        Ok((input.len(), FrameEvent::NeedsInput))
    }

    fn start_member(&mut self) {
        self.inflate.restart(PartialByte::default());
        self.member = Some(MemberContent::new(self.framing));
        self.available = 0;
        self.state = State::Deflate;
    }

    fn inflate(
        &mut self,
        input: &[u8],
        content: &mut [u8],
        filled: usize,
    ) -> Result<(usize, InflateEvent), (usize, &'static str)> {
        let floor = filled.saturating_sub(self.available);
        let mut output = ContentOutput { content, at: filled, floor };
        let result = self.inflate.decode(input, &mut output, &mut IgnoreMatches);
        let end = output.at;
        if let Some(member) = &mut self.member {
            member.add(&content[filled..end]);
        }
        self.available = (self.available + end - filled).min(WINDOW_BYTES);
        self.produced += end - filled;
        result
    }

    /// Whether the file may end here.
    fn is_complete(&self) -> bool {
        match &self.state {
            State::Header(header) => header.is_at_start() && self.offset > 0,
            State::Padding => true,
            _ => false,
        }
    }
}

/// Why the reading of a header, trailer or padding stopped.
enum FrameEvent {
    NeedsInput,
    Deflate,
    EndOfMember,
}

impl StreamDecoder for GzipDecoder {
    fn history_bytes(&self) -> usize {
        WINDOW_BYTES
    }

    fn take_history(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.history)
    }

    fn decode(
        &mut self,
        input: &[u8],
        is_last: bool,
        content: &mut [u8],
        filled: usize,
    ) -> Result<Step, DecodeError> {
        self.produced = 0;
        let mut consumed = 0;
        let event = loop {
            if let State::Deflate = self.state {
                let (read, event) = self
                    .inflate(&input[consumed..], content, filled + self.produced)
                    .map_err(|(at, reason)| {
                        let name = self.framing.name();
                        self.error(consumed + at, format!("the {name} data is damaged, because {reason}"))
                    })?;
                consumed += read;
                match event {
                    InflateEvent::ContentFull => break Event::ContentFull,
                    InflateEvent::NeedsInput => break Event::NeedsInput,
                    InflateEvent::EndOfBlock if self.is_sized => continue,
                    InflateEvent::EndOfBlock => {
                        let end = (self.offset + consumed as u64) * 8;
                        let bit_offset = end - u64::from(self.inflate.partial_bits());
                        break Event::Boundary(Boundary { bit_offset, tag: BLOCK_START });
                    }
                    InflateEvent::EndOfStream => {
                        self.state = State::Trailer { read: [0; MAX_TRAILER_BYTES], at: 0 };
                    }
                }
            }
            // The start of a header may be padding instead.
            if let State::Header(header) = &self.state
                && header.is_at_start()
                && self.offset + consumed as u64 > 0
                && input.get(consumed) == Some(&0)
            {
                self.state = State::Padding;
            }
            let (read, event) = self
                .read_frame(&input[consumed..])
                .map_err(|(at, reason)| self.frame_error(consumed + at, reason))?;
            consumed += read;
            match event {
                FrameEvent::Deflate => {}
                FrameEvent::NeedsInput => break Event::NeedsInput,
                FrameEvent::EndOfMember => {
                    let bit_offset = (self.offset + consumed as u64) * 8;
                    break Event::Boundary(Boundary { bit_offset, tag: MEMBER_START });
                }
            }
        };
        self.offset += consumed as u64;
        if event == Event::NeedsInput && is_last {
            if self.is_complete() {
                return Ok(Step { consumed, produced: self.produced, event: Event::End });
            }
            return Err(DecodeError {
                offset: self.offset - consumed as u64 + input.len() as u64,
                reason: format!("the {} data is truncated: {FIX}", self.framing.name()),
            });
        }
        Ok(Step { consumed, produced: self.produced, event })
    }

    fn produced(&self) -> usize {
        self.produced
    }

    fn access_state(&self, boundary: &Boundary, history: &[u8], compressed: &[u8]) -> Vec<u8> {
        if boundary.tag == MEMBER_START {
            return Vec::new();
        }
        window::encode(history, compressed, (boundary.bit_offset % 8) as u32)
    }

    fn continuation(&self, boundary: &Boundary) -> Option<Vec<u8>> {
        (self.framing == Framing::Gzip && boundary.tag == MEMBER_START).then(Vec::new)
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of::<tables::DeflateCodes>() + self.history.capacity()
    }
}

#[cfg(test)]
mod tests;
