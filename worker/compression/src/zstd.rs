//! Decodes Zstandard files. Each frame is an access point, so files with many frames, such as files in the seekable format, have many.
//! Skippable frames, such as the seek table, are skipped.

mod scan;

use feedline_data::compression::AccessPoint;
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, get_error_name};

use crate::decoder::{Boundary, DecodeError, Event, Step, StreamDecoder};
use crate::limits::{MAX_WINDOW_BYTES, MAX_WINDOW_LOG};
pub(crate) use scan::ZstdScanner;

const FRAME_MAGIC: u32 = 0xfd2f_b528;
/// The last 4 bits of the magic of a skippable frame are arbitrary.
const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;
const SKIPPABLE_HEADER_BYTES: usize = 8;
/// Number of bytes with which libzstd begins a frame.
const FIRST_INPUT_BYTES: usize = 5;
/// Memory of a decoder without its window.
const CONTEXT_BYTES: usize = 512 << 10;

/// Decodes a Zstandard file.
pub(crate) struct ZstdDecoder {
    context: DCtx<'static>,
    state: State,
    /// The offset of the next input in the file.
    position: u64,
    produced: usize,
    window_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Before a frame. `is_reported` states that the decoder has reported the boundary, or that it starts here.
    Frame { is_reported: bool },
    /// In a frame. libzstd next needs `next_bytes`, up to the header of the next block. `is_full` states that it may still have content
    /// for which there was no room.
    InFrame { next_bytes: usize, is_full: bool },
    /// In a skippable frame.
    Skip { remaining_bytes: u64, is_reported: bool },
}

/// Whether these few bytes are the beginning of the magic of a frame.
fn may_begin_frame(bytes: &[u8]) -> bool {
    let skippable = SKIPPABLE_MAGIC.to_le_bytes();
    match bytes {
        [first, rest @ ..] if first & 0xf0 == skippable[0] => skippable[1..].starts_with(rest),
        _ => FRAME_MAGIC.to_le_bytes().starts_with(bytes),
    }
}

impl ZstdDecoder {
    /// Creates a decoder that starts at the start of the file.
    pub(crate) fn start() -> Result<Self, DecodeError> {
        Self::at(0)
    }

    /// Creates a decoder that starts at an access point.
    pub(crate) fn resume(point: &AccessPoint) -> Result<Self, DecodeError> {
        let offset = point.bit_offset / 8;
        if !point.bit_offset.is_multiple_of(8) || !point.state.is_empty() {
            return Err(DecodeError::index(offset));
        }
        Self::at(offset)
    }

    fn at(position: u64) -> Result<Self, DecodeError> {
        let mut context = DCtx::try_create()
            .ok_or_else(|| DecodeError::new(position, "a decoder cannot be created: out of memory"))?;
        context
            .set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG))
            .map_err(|code| DecodeError::new(position, get_error_name(code)))?;
        Ok(Self {
            context,
            state: State::Frame { is_reported: true },
            position,
            produced: 0,
            window_bytes: 0,
        })
    }

    /// Starts the next frame. Returns the event that ends the call, if there is one.
    fn start_frame(
        &mut self,
        input: &[u8],
        is_last: bool,
        is_reported: bool,
        consumed: &mut usize,
    ) -> Result<Option<Event>, DecodeError> {
        let rest = &input[*consumed..];
        let offset = self.position + *consumed as u64;
        let incomplete = |event| if is_last { Err(DecodeError::truncated(offset)) } else { Ok(Some(event)) };
        if rest.is_empty() && is_last {
            return if offset == 0 { Err(DecodeError::truncated(0)) } else { Ok(Some(Event::End)) };
        }
        let Some((magic, header)) = rest.split_first_chunk::<4>() else {
            if offset > 0 && !may_begin_frame(rest) {
                return Err(DecodeError::not_a("zstd frame", "zstd", offset));
            }
            return incomplete(Event::NeedsInput);
        };
        let magic = u32::from_le_bytes(*magic);
        if magic & !0xf == SKIPPABLE_MAGIC {
            let Some((bytes, _)) = header.split_first_chunk::<4>() else {
                return incomplete(Event::NeedsInput);
            };
            *consumed += SKIPPABLE_HEADER_BYTES;
            self.state = State::Skip { remaining_bytes: u32::from_le_bytes(*bytes).into(), is_reported };
            return Ok(None);
        }
        if magic != FRAME_MAGIC {
            return Err(DecodeError::not_a("zstd frame", "zstd", offset));
        }
        let Some(header) = FrameHeader::parse(header) else { return incomplete(Event::NeedsInput) };
        header.check().map_err(|reason| DecodeError::new(offset, reason))?;
        if !is_reported {
            self.state = State::Frame { is_reported: true };
            return Ok(Some(Event::Boundary(Boundary { bit_offset: offset * 8, tag: 0 })));
        }
        let reset = self.context.reset(ResetDirective::SessionOnly);
        reset.map_err(|code| DecodeError::new(offset, get_error_name(code)))?;
        self.window_bytes = self.window_bytes.max(header.window_bytes);
        self.state = State::InFrame { next_bytes: FIRST_INPUT_BYTES, is_full: false };
        Ok(None)
    }

    /// Decodes at most one block: an error of libzstd hides all that the call has decoded, and the content before damage must not depend
    /// on the room for it.
    fn decode_block(
        &mut self,
        input: &[u8],
        is_last: bool,
        content: &mut [u8],
        filled: usize,
        consumed: &mut usize,
    ) -> Result<Option<Event>, DecodeError> {
        let State::InFrame { next_bytes, is_full } = self.state else { return Ok(None) };
        let rest = &input[*consumed..];
        let given = if is_full { &[] } else { &rest[..rest.len().min(next_bytes)] };
        let mut source = InBuffer::around(given);
        let start = filled + self.produced;
        let capacity = content.len();
        let (result, end) = {
            let mut target = OutBuffer::around_pos(content, start);
            let result = self.context.decompress_stream(&mut target, &mut source);
            (result, target.pos())
        };
        let used = source.pos();
        *consumed += used;
        self.produced += end - start;
        let offset = self.position + *consumed as u64;
        let next_bytes = result.map_err(|code| {
            DecodeError::new(
                offset,
                format!("the zstd data is damaged ({}): compress the file again", get_error_name(code)),
            )
        })?;
        if next_bytes == 0 {
            self.state = State::Frame { is_reported: false };
            return Ok(None);
        }
        self.state = State::InFrame { next_bytes, is_full: end == capacity };
        if end == capacity {
            return Ok(Some(Event::ContentFull));
        }
        if is_full {
            return Ok(None);
        }
        if *consumed == input.len() {
            return if is_last { Err(DecodeError::truncated(offset)) } else { Ok(Some(Event::NeedsInput)) };
        }
        if used == 0 && end == start {
            return Err(DecodeError::new(offset, "the zstd data is damaged: compress the file again"));
        }
        Ok(None)
    }
}

impl StreamDecoder for ZstdDecoder {
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
            let event = match self.state {
                State::Frame { is_reported } => {
                    self.start_frame(input, is_last, is_reported, &mut consumed)?
                }
                State::InFrame { .. } => self.decode_block(input, is_last, content, filled, &mut consumed)?,
                State::Skip { remaining_bytes, is_reported } => {
                    let skipped = remaining_bytes.min((input.len() - consumed) as u64);
                    consumed += skipped as usize;
                    let remaining_bytes = remaining_bytes - skipped;
                    self.state = State::Skip { remaining_bytes, is_reported };
                    if remaining_bytes == 0 {
                        self.state = State::Frame { is_reported };
                        None
                    } else if is_last {
                        return Err(DecodeError::truncated(self.position + consumed as u64));
                    } else {
                        Some(Event::NeedsInput)
                    }
                }
            };
            if let Some(event) = event {
                break event;
            }
        };
        self.position += consumed as u64;
        Ok(Step { consumed, produced: self.produced, event })
    }

    fn produced(&self) -> usize {
        self.produced
    }

    fn continuation(&self, _: &Boundary) -> Option<Vec<u8>> {
        Some(Vec::new())
    }

    fn memory_bytes(&self) -> usize {
        self.window_bytes as usize + CONTEXT_BYTES
    }
}

/// The fields of a frame header that determine whether the frame can be decoded, and where its blocks begin.
struct FrameHeader {
    /// The size of the header without the magic.
    bytes: usize,
    window_bytes: u64,
    dictionary: u32,
    /// The size of the content, if the header states it.
    content_bytes: Option<u64>,
    has_checksum: bool,
}

impl FrameHeader {
    /// Parses a header after the magic (RFC 8878, section 3.1.1.1). `None` if it is incomplete.
    fn parse(header: &[u8]) -> Option<Self> {
        let (&descriptor, fields) = header.split_first()?;
        let is_single_segment = descriptor & 0x20 != 0;
        let (window, rest) = if is_single_segment {
            (None, fields)
        } else {
            fields.split_first().map(|(&byte, rest)| (Some(byte), rest))?
        };
        let number =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |value: u64, &byte| value << 8 | u64::from(byte));
        let (dictionary, rest) = rest.split_at_checked([0, 1, 2, 4][usize::from(descriptor & 3)])?;
        let size_bytes = match descriptor >> 6 {
            0 => usize::from(is_single_segment),
            code => 1 << code,
        };
        let content = number(rest.get(..size_bytes)?) + if size_bytes == 2 { 256 } else { 0 };
        let window_bytes = window.map_or(content, |byte| {
            let base = 1_u64 << (10 + (byte >> 3));
            base + (base >> 3) * u64::from(byte & 7)
        });
        Some(Self {
            bytes: header.len() - rest.len() + size_bytes,
            window_bytes,
            dictionary: number(dictionary) as u32,
            // libzstd takes the largest number for an unknown size.
            content_bytes: (size_bytes > 0 && content != u64::MAX).then_some(content),
            has_checksum: descriptor & 4 != 0,
        })
    }

    fn check(&self) -> Result<(), String> {
        if self.dictionary != 0 {
            return Err("the file was compressed with a zstd dictionary, which is not supported: compress it without a dictionary".to_owned());
        }
        if self.window_bytes > MAX_WINDOW_BYTES {
            return Err(format!(
                "the window of the zstd frame is {} bytes, more than the limit of {MAX_WINDOW_BYTES} bytes: compress the file without `--long` and `--ultra`",
                self.window_bytes
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
