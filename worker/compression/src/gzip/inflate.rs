//! Decodes a deflate stream (RFC 1951), block by block.

use super::bits::{DeflateBits, OutOfInput, PartialByte};
use super::symbols::{self, ContentOutput, MatchObserver, PendingMatch, SymbolEvent};
use super::tables::{CodeError, DeflateCodes};

/// The position in a deflate stream.
#[derive(Debug, Clone, Copy)]
enum State {
    BlockHeader,
    StoredLength,
    Stored { left: usize },
    Codes,
    Symbols,
    Ended,
}

/// Why a call of [`Inflate::decode`] stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InflateEvent {
    NeedsInput,
    ContentFull,
    /// A block that is not the last one has ended.
    EndOfBlock,
    /// The last block has ended. The next element starts at the next byte.
    EndOfStream,
}

/// The decoder of one deflate stream.
pub(super) struct Inflate {
    state: State,
    is_last_block: bool,
    partial: PartialByte,
    pending: PendingMatch,
    tables: Box<DeflateCodes>,
}

impl Inflate {
    pub(super) fn new() -> Self {
        Self {
            state: State::BlockHeader,
            is_last_block: false,
            partial: PartialByte::default(),
            pending: PendingMatch::default(),
            tables: DeflateCodes::new(),
        }
    }

    /// Starts a new stream. `partial` is the rest of the byte that contains the start of the next block.
    pub(super) fn restart(&mut self, partial: PartialByte) {
        self.state = State::BlockHeader;
        self.is_last_block = false;
        self.partial = partial;
        self.pending = PendingMatch::default();
    }

    /// Number of unread bits of the last consumed byte.
    pub(super) fn partial_bits(&self) -> u32 {
        self.partial.count
    }

    /// Decodes until a block ends, or the input or the space for content is exhausted. Returns the number of consumed bytes,
    /// also with an error.
    pub(super) fn decode(
        &mut self,
        input: &[u8],
        output: &mut ContentOutput<'_>,
        observer: &mut impl MatchObserver,
    ) -> Result<(usize, InflateEvent), (usize, &'static str)> {
        let mut bits = DeflateBits::new(input, self.partial);
        loop {
            // Elements that are incomplete in this input are read again from their start.
            let start = bits;
            let event = match self.decode_element(&mut bits, output, observer) {
                Ok(None) => continue,
                Ok(Some(event)) => event,
                Err(CodeError::OutOfInput) => {
                    bits = start;
                    InflateEvent::NeedsInput
                }
                Err(CodeError::Invalid(reason)) => return Err((bits.finish().0, reason)),
            };
            if event == InflateEvent::EndOfStream {
                // The rest of the byte is padding.
                bits.return_bytes();
                bits.consume(bits.count);
            }
            let (consumed, partial) = bits.finish();
            self.partial = partial;
            return Ok((consumed, event));
        }
    }

    fn decode_element(
        &mut self,
        bits: &mut DeflateBits<'_>,
        output: &mut ContentOutput<'_>,
        observer: &mut impl MatchObserver,
    ) -> Result<Option<InflateEvent>, CodeError> {
        match self.state {
            State::BlockHeader => {
                let header = bits.read(3)?;
                self.is_last_block = header & 1 == 1;
                self.state = match header >> 1 {
                    0 => State::StoredLength,
                    1 => {
                        self.tables.set_fixed();
                        State::Symbols
                    }
                    2 => State::Codes,
                    _ => return Err(CodeError::Invalid("the type of a block is invalid")),
                };
            }
            State::StoredLength => self.state = State::Stored { left: stored_length(bits)? },
            State::Stored { left } => return Ok(self.copy_stored(left, bits, output)),
            State::Codes => {
                self.tables.read(bits)?;
                self.state = State::Symbols;
            }
            State::Symbols => {
                let event = symbols::decode(&self.tables, bits, output, &mut self.pending, observer);
                return Ok(Some(match event.map_err(CodeError::Invalid)? {
                    SymbolEvent::NeedsInput => InflateEvent::NeedsInput,
                    SymbolEvent::ContentFull => InflateEvent::ContentFull,
                    SymbolEvent::EndOfBlock => self.end_block(),
                }));
            }
            State::Ended => return Ok(Some(InflateEvent::EndOfStream)),
        }
        Ok(None)
    }

    fn copy_stored(
        &mut self,
        left: usize,
        bits: &mut DeflateBits<'_>,
        output: &mut ContentOutput<'_>,
    ) -> Option<InflateEvent> {
        let count = left.min(bits.input.len() - bits.at).min(output.content.len() - output.at);
        output.content[output.at..output.at + count].copy_from_slice(&bits.input[bits.at..bits.at + count]);
        output.at += count;
        bits.at += count;
        self.state = State::Stored { left: left - count };
        if left == count {
            return Some(self.end_block());
        }
        let is_full = output.at == output.content.len();
        Some(if is_full { InflateEvent::ContentFull } else { InflateEvent::NeedsInput })
    }

    fn end_block(&mut self) -> InflateEvent {
        if self.is_last_block {
            self.state = State::Ended;
            return InflateEvent::EndOfStream;
        }
        self.state = State::BlockHeader;
        InflateEvent::EndOfBlock
    }
}

/// Reads the length of a stored block. The content starts at the next byte of the input.
fn stored_length(bits: &mut DeflateBits<'_>) -> Result<usize, CodeError> {
    bits.return_bytes();
    bits.consume(bits.count);
    let Some(header) = bits.input.get(bits.at..bits.at + 4) else { return Err(OutOfInput.into()) };
    let length = u16::from_le_bytes([header[0], header[1]]);
    if length != !u16::from_le_bytes([header[2], header[3]]) {
        return Err(CodeError::Invalid("the length of a stored block does not match its complement"));
    }
    bits.at += 4;
    Ok(usize::from(length))
}
