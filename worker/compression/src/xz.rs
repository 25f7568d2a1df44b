//! Decodes xz files. Each block is an access point. The decoder parses headers and the index, and passes the blocks to liblzma behind
//! a stream header of its own, so that decoding can start at any block. liblzma verifies the check of each block.

mod header;
mod index;
mod scan;

use feedline_data::compression::AccessPoint;
use liblzma::stream::{Action, Error, Stream};

use crate::decoder::{Boundary, DecodeError, Event, Step, StreamDecoder};
use header::{
    BlockHeader, Lzma2Chunk, MAGIC, STREAM_HEADER_BYTES, check_bytes, chunk, parse_stream_header,
    stream_header,
};
use index::{IndexParser, Sums};
pub(crate) use scan::XzScanner;

/// Maximum memory of liblzma without its dictionary, as `xz --info-memory` counts it.
const CODER_BYTES: u64 = 1 << 20;
/// Limit of liblzma. Dictionaries are checked earlier, with a better message.
const MEMORY_LIMIT_BYTES: u64 = crate::limits::MAX_WINDOW_BYTES + (64 << 20);
const DAMAGED: &str = "the xz data is damaged: compress the file again";

/// Decodes an xz file.
pub(crate) struct XzDecoder {
    library: Option<Stream>,
    state: State,
    /// The offset of the next input in the file.
    position: u64,
    /// The type of the check in the current stream.
    check: u8,
    /// The sizes of the blocks of the current stream, if it was decoded from its start.
    sums: Option<Sums>,
    dictionary_bytes: u64,
    produced: usize,
}

enum State {
    StreamHeader {
        is_first: bool,
    },
    /// Before a block or the index. `is_reported` states that the decoder has reported the boundary, or that it starts here.
    BlockHeader {
        is_reported: bool,
    },
    Block(Block),
    Index(IndexParser),
}

/// The progress within a block.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// Number of bytes before the next LZMA2 chunk.
    remaining_bytes: u64,
    /// Whether the block ends after these bytes.
    is_end: bool,
    compressed_bytes: u64,
    content_bytes: u64,
    header_bytes: u64,
}

impl Block {
    fn start_chunk(&mut self, chunk: &Lzma2Chunk, check: u8) {
        self.compressed_bytes += chunk.bytes;
        self.is_end = chunk.is_end;
        self.remaining_bytes = chunk.bytes;
        if chunk.is_end {
            // Padding to a multiple of 4 bytes, and the check.
            self.remaining_bytes += self.compressed_bytes.next_multiple_of(4) - self.compressed_bytes;
            self.remaining_bytes += check_bytes(check);
        }
    }
}

/// What a step of the decoder needs.
enum Next {
    Continue,
    Stop(Event),
    /// More input, which is an error at the end of the file.
    Input,
}

impl XzDecoder {
    /// Creates a decoder that starts at the start of the file.
    pub(crate) fn start() -> Self {
        Self {
            library: None,
            state: State::StreamHeader { is_first: true },
            position: 0,
            check: 0,
            sums: None,
            dictionary_bytes: 0,
            produced: 0,
        }
    }

    /// Creates a decoder that starts at an access point.
    pub(crate) fn resume(point: &AccessPoint) -> Result<Self, DecodeError> {
        let position = point.bit_offset / 8;
        let (Some((check, sums)), 0) = (parse_state(&point.state), point.bit_offset % 8) else {
            return Err(DecodeError::index(position));
        };
        Ok(Self { state: State::BlockHeader { is_reported: true }, position, check, sums, ..Self::start() })
    }

    fn step(
        &mut self,
        rest: &[u8],
        consumed: &mut usize,
        offset: u64,
        content: &mut [u8],
    ) -> Result<Next, DecodeError> {
        match &mut self.state {
            State::StreamHeader { is_first } => {
                let is_first = *is_first;
                self.start_stream(rest, consumed, offset, is_first)
            }
            State::BlockHeader { is_reported } => {
                let is_reported = *is_reported;
                self.start_block(rest, offset, is_reported)
            }
            State::Block(block) => {
                let block = *block;
                self.decode_block(block, rest, consumed, offset, content)
            }
            State::Index(parser) => {
                let (used, is_end) = parser
                    .parse(rest, self.check, self.sums.as_ref())
                    .map_err(|reason| DecodeError::new(offset, reason))?;
                *consumed += used;
                if is_end {
                    self.library = None;
                    self.state = State::StreamHeader { is_first: false };
                }
                Ok(if is_end { Next::Continue } else { Next::Input })
            }
        }
    }

    fn start_stream(
        &mut self,
        rest: &[u8],
        consumed: &mut usize,
        offset: u64,
        is_first: bool,
    ) -> Result<Next, DecodeError> {
        if rest.is_empty() && !is_first {
            return Ok(Next::Stop(Event::End));
        }
        // Padding between streams consists of groups of 4 zeros.
        if let ([0, padding @ ..], false) = (rest, is_first) {
            return match padding.first_chunk::<3>() {
                Some([0, 0, 0]) => {
                    *consumed += 4;
                    Ok(Next::Continue)
                }
                Some(_) => Err(DecodeError::new(offset, DAMAGED)),
                None => Ok(Next::Input),
            };
        }
        let known = rest.len().min(MAGIC.len());
        if rest[..known] != MAGIC[..known] {
            return Err(DecodeError::not_a("xz stream", "xz", offset));
        }
        let Some((header, _)) = rest.split_first_chunk::<STREAM_HEADER_BYTES>() else {
            return Ok(Next::Input);
        };
        self.check = parse_stream_header(header).map_err(|reason| DecodeError::new(offset, reason))?;
        self.sums = Some(Sums::default());
        *consumed += STREAM_HEADER_BYTES;
        self.state = State::BlockHeader { is_reported: is_first };
        Ok(Next::Continue)
    }

    fn start_block(&mut self, rest: &[u8], offset: u64, is_reported: bool) -> Result<Next, DecodeError> {
        let Some(&size) = rest.first() else { return Ok(Next::Input) };
        if size == 0 {
            self.state = State::Index(IndexParser::default());
            return Ok(Next::Continue);
        }
        let bytes = (usize::from(size) + 1) * 4;
        let Some(header) = rest.get(..bytes) else { return Ok(Next::Input) };
        if !is_reported {
            self.state = State::BlockHeader { is_reported: true };
            let tag = u64::from(self.check);
            return Ok(Next::Stop(Event::Boundary(Boundary { bit_offset: offset * 8, tag })));
        }
        let header = BlockHeader::parse(header).map_err(|reason| DecodeError::new(offset, reason))?;
        self.dictionary_bytes = self.dictionary_bytes.max(header.dictionary_bytes);
        if self.library.is_none() {
            let library = Stream::new_stream_decoder(MEMORY_LIMIT_BYTES, 0);
            let mut library = library.map_err(|error| library_error(error, offset))?;
            let fed = library.process(&stream_header(self.check), &mut [], Action::Run);
            fed.map_err(|error| library_error(error, offset))?;
            self.library = Some(library);
        }
        self.state = State::Block(Block {
            remaining_bytes: bytes as u64,
            is_end: false,
            compressed_bytes: 0,
            content_bytes: 0,
            header_bytes: bytes as u64,
        });
        Ok(Next::Continue)
    }

    fn decode_block(
        &mut self,
        mut block: Block,
        rest: &[u8],
        consumed: &mut usize,
        offset: u64,
        content: &mut [u8],
    ) -> Result<Next, DecodeError> {
        if block.remaining_bytes == 0 && !block.is_end {
            let Some(chunk) = chunk(rest) else { return Ok(Next::Input) };
            block.start_chunk(&chunk.map_err(|()| DecodeError::new(offset, DAMAGED))?, self.check);
        }
        let library = self.library.as_mut().ok_or_else(|| DecodeError::new(offset, DAMAGED))?;
        let piece = rest.len().min(usize::try_from(block.remaining_bytes).unwrap_or(usize::MAX));
        let target = &mut content[self.produced..];
        let capacity = target.len();
        let (before_in, before_out) = (library.total_in(), library.total_out());
        let result = library.process(&rest[..piece], target, Action::Run);
        let used = (library.total_in() - before_in) as usize;
        let written = (library.total_out() - before_out) as usize;
        *consumed += used;
        self.produced += written;
        block.remaining_bytes -= used as u64;
        block.content_bytes += written as u64;
        self.state = State::Block(block);
        result.map_err(|error| library_error(error, offset + used as u64))?;
        if written == capacity {
            return Ok(Next::Stop(Event::ContentFull));
        }
        if piece > 0 && used == 0 && written == 0 {
            return Err(DecodeError::new(offset, DAMAGED));
        }
        if block.remaining_bytes > 0 {
            return Ok(if used == rest.len() { Next::Input } else { Next::Continue });
        }
        if block.is_end && written == 0 {
            if let Some(sums) = &mut self.sums {
                let unpadded = block.header_bytes + block.compressed_bytes + check_bytes(self.check);
                sums.add(unpadded, block.content_bytes);
            }
            self.state = State::BlockHeader { is_reported: false };
        }
        Ok(Next::Continue)
    }
}

fn library_error(error: Error, offset: u64) -> DecodeError {
    match error {
        Error::MemLimit => DecodeError::new(
            offset,
            "the xz data needs more memory than the limit: compress the file with a smaller dictionary, such as with `xz -6`",
        ),
        Error::Mem => DecodeError::new(offset, "the xz data cannot be decoded: out of memory"),
        Error::Options => DecodeError::new(
            offset,
            "the xz data uses a filter that is not supported: compress the file again with `xz`",
        ),
        _ => DecodeError::new(offset, DAMAGED),
    }
}

impl StreamDecoder for XzDecoder {
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
            let (rest, offset) = (&input[consumed..], self.position + consumed as u64);
            match self.step(rest, &mut consumed, offset, &mut content[filled..])? {
                Next::Continue => {}
                Next::Stop(Event::End) if !is_last => break Event::NeedsInput,
                Next::Stop(event) => break event,
                Next::Input if is_last => {
                    return Err(DecodeError::truncated(self.position + input.len() as u64));
                }
                Next::Input => break Event::NeedsInput,
            }
        };
        self.position += consumed as u64;
        Ok(Step { consumed, produced: self.produced, event })
    }

    fn produced(&self) -> usize {
        self.produced
    }

    fn access_state(&self, boundary: &Boundary, _history: &[u8], _compressed: &[u8]) -> Vec<u8> {
        vec![boundary.tag as u8]
    }

    fn continuation(&self, _: &Boundary) -> Option<Vec<u8>> {
        self.sums.as_ref().map(|sums| state(self.check, sums))
    }

    fn memory_bytes(&self) -> usize {
        (self.dictionary_bytes + CODER_BYTES) as usize
    }
}

/// The state of a decoder that continues a stream, and verifies its index.
fn state(check: u8, sums: &Sums) -> Vec<u8> {
    [&[check], sums.to_bytes().as_slice()].concat()
}

/// Returns the type of the check, and the sizes of the blocks before, which the state of an access point does not contain.
fn parse_state(state: &[u8]) -> Option<(u8, Option<Sums>)> {
    match state {
        [check @ 0..=15] => Some((*check, None)),
        [check @ 0..=15, sums @ ..] => Some((*check, Some(Sums::from_bytes(sums)?))),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
