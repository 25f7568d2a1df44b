//! Decodes sections of a compressed shard ahead of its indexing, so that one large shard uses all cores.
//!
//! A scanner finds where sections probably begin, and each section has a decoder of its own. The decoder before a section proves that
//! it begins there: it reports the same boundary, with the same state. Otherwise, the sections are dropped, and one decoder continues.
//! The content, the boundaries and the errors are therefore those of one decoder.

use std::collections::VecDeque;

use feedline_compression::{Boundary, DecodeError, Event, ScanEvent, Scanner, StreamDecoder};
use feedline_data::compression::{AccessPoint, Codec};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use crate::error::SourceError;
use crate::object::Object;

/// Number of compressed bytes per read.
const READ_BYTES: u64 = 4 << 20;
/// A shard with fewer sections than this has none, because one core soon decodes it.
const MIN_SECTIONS: u64 = 4;
/// Maximum size of a section in the shard.
const MAX_SECTION_BYTES: usize = 64 << 20;
/// Maximum size of the content of a section whose size is unknown before.
const MAX_CONTENT_BYTES: u64 = 8 << 20;
/// Number of compressed bytes after a section that its decoder may need to report the boundary: the header of the next block.
const LOOKAHEAD_BYTES: usize = 2 << 10;
/// Size by which the content of a section grows.
const CHUNK_BYTES: usize = 1 << 20;

/// The sections of a shard that are decoded ahead.
pub(super) struct Sections<'a> {
    object: &'a Object,
    codec: Codec,
    scanner: Box<dyn Scanner>,
    /// Compressed bytes from `input_start`, where the next section begins. The first `scanned` of them are scanned.
    input: Vec<u8>,
    input_start: u64,
    scanned: usize,
    /// The start of the next section.
    next: AccessPoint,
    /// The end of the next section, if it is found.
    end: Option<AccessPoint>,
    /// The size of the content of the next section, if it is known.
    content_bytes: Option<u64>,
    /// Whether the scanner finds no more starts.
    is_scanned: bool,
    decoder_bytes: u64,
    running: VecDeque<Running>,
}

/// A section that a thread decodes.
struct Running {
    start: AccessPoint,
    /// The section holds its memory, also if it is dropped while the thread decodes.
    task: JoinHandle<(DecodedSection, OwnedSemaphorePermit)>,
    memory_bytes: u64,
}

/// A decoded section.
pub(super) struct DecodedSection {
    /// The decoder, which can continue after the section.
    pub(super) decoder: Box<dyn StreamDecoder>,
    /// Compressed bytes from the offset `input_start` in the shard on. The first `consumed` of them are decoded.
    pub(super) input: Vec<u8>,
    pub(super) input_start: u64,
    pub(super) consumed: usize,
    pub(super) content: Vec<u8>,
    /// The boundaries in the section, and the size of the content before each.
    pub(super) boundaries: Vec<(Boundary, usize)>,
    /// The boundary at which the section ends. `None` if its decoder must continue.
    pub(super) end: Option<Boundary>,
    pub(super) error: Option<DecodeError>,
}

impl<'a> Sections<'a> {
    /// Begins to decode sections from a boundary on. `input` is compressed data from the byte that contains the boundary. `None` if the
    /// shard has no sections, or the worker has one core.
    pub(super) fn new(
        object: &'a Object,
        codec: Codec,
        start: AccessPoint,
        input: &[u8],
        decoder_bytes: u64,
    ) -> Option<Self> {
        let input_start = start.bit_offset / 8;
        let min_bytes = object.decoders().section_bytes() * MIN_SECTIONS;
        if object.decoders().cores() == 1 || object.size_bytes().saturating_sub(input_start) < min_bytes {
            return None;
        }
        Some(Self {
            object,
            codec,
            scanner: feedline_compression::scanner(codec, &start)?,
            input: input.to_vec(),
            input_start,
            scanned: 0,
            next: start,
            end: None,
            content_bytes: Some(0),
            is_scanned: false,
            decoder_bytes,
            running: VecDeque::new(),
        })
    }

    /// The memory of the sections, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let running: u64 = self.running.iter().map(|running| running.memory_bytes).sum();
        self.input.len() as u64 + running
    }

    /// Whether sections may begin at later boundaries.
    pub(super) fn has_more(&self) -> bool {
        !self.running.is_empty() || !self.is_scanned
    }

    /// Returns the section that begins at a boundary which the decoder before it has reported. `state` is the state of the boundary. The
    /// caller counts the memory of the section.
    ///
    /// # Errors
    /// Returns an error if the shard cannot be read.
    pub(super) async fn at(
        &mut self,
        boundary: &Boundary,
        state: &[u8],
    ) -> Result<Option<DecodedSection>, SourceError> {
        self.fill().await?;
        let Some(first) = self.running.front() else { return Ok(None) };
        if boundary.bit_offset < first.start.bit_offset {
            // A section may end before the start of the next one, if its content is large.
            return Ok(None);
        }
        if boundary.bit_offset > first.start.bit_offset || state != first.start.state {
            self.stop();
            return Ok(None);
        }
        let Some(first) = self.running.pop_front() else { return Ok(None) };
        self.fill().await?;
        match first.task.await {
            Ok((section, _)) => {
                self.object.decoders().count_section();
                Ok(Some(section))
            }
            // The thread has panicked. The caller decodes the section and finds out why.
            Err(_) => {
                self.stop();
                Ok(None)
            }
        }
    }

    /// Compressed data after the sections, and its offset. The caller needs it once there are no more sections.
    pub(super) fn into_input(self) -> (u64, Vec<u8>) {
        (self.input_start, self.input)
    }

    fn stop(&mut self) {
        self.running.clear();
        (self.is_scanned, self.end) = (true, None);
    }

    /// Begins sections until each core has one.
    async fn fill(&mut self) -> Result<(), SourceError> {
        while self.running.len() < self.object.decoders().cores() && self.find_end().await? && self.begin() {}
        Ok(())
    }

    /// Finds the end of the next section. Returns whether there is one.
    async fn find_end(&mut self) -> Result<bool, SourceError> {
        while self.end.is_none() && !self.is_scanned {
            let scanned = self.scanner.scan(&self.input[self.scanned..]);
            self.scanned += scanned.consumed;
            match scanned.event {
                ScanEvent::Start(start) => {
                    self.content_bytes =
                        self.content_bytes.zip(start.content_bytes).map(|(sum, bytes)| sum + bytes);
                    let bytes = start.point.bit_offset / 8 - self.input_start;
                    if bytes >= self.object.decoders().section_bytes() {
                        self.end = Some(start.point);
                    }
                }
                ScanEvent::NeedsInput => self.read_more().await?,
                ScanEvent::Stop => self.is_scanned = true,
            }
        }
        Ok(self.end.is_some())
    }

    async fn read_more(&mut self) -> Result<(), SourceError> {
        let (end, size) = (self.input_start + self.input.len() as u64, self.object.size_bytes());
        if end == size || self.input.len() >= MAX_SECTION_BYTES {
            self.is_scanned = true;
            return Ok(());
        }
        let next = self.object.read(end..size.min(end + READ_BYTES)).await?;
        self.input.extend_from_slice(&next);
        Ok(())
    }

    /// Begins to decode the next section, if there is memory for it. Returns whether it has begun.
    fn begin(&mut self) -> bool {
        let Some(end) = self.end.take() else { return false };
        let bytes = (end.bit_offset / 8 - self.input_start) as usize;
        let input_bytes = (bytes + LOOKAHEAD_BYTES).min(self.input.len());
        let max_content = self.content_bytes.unwrap_or(MAX_CONTENT_BYTES);
        let memory_bytes = input_bytes as u64 + max_content + self.decoder_bytes;
        let Some(memory) = self.object.decoders().sections().try_acquire(memory_bytes) else {
            self.end = Some(end);
            if self.running.is_empty() {
                // Other shards use the memory, or it is too small for this one.
                self.stop();
            }
            return false;
        };
        let (codec, point, end_bit) = (self.codec, self.next.clone(), end.bit_offset);
        let (input, input_start) = (self.input[..input_bytes].to_vec(), self.input_start);
        let Ok(decoder) = feedline_compression::resume(codec, &point) else {
            self.stop();
            return false;
        };
        let section = DecodedSection {
            decoder,
            input,
            input_start,
            consumed: 0,
            content: Vec::new(),
            boundaries: Vec::new(),
            end: None,
            error: None,
        };
        // A little more than the content, because a decoder reports a boundary after it had room for another byte.
        let max_content = max_content as usize + 1;
        let task = tokio::task::spawn_blocking(move || (section.decode(end_bit, max_content), memory));
        let start = std::mem::replace(&mut self.next, end);
        self.running.push_back(Running { start, task, memory_bytes });
        self.input.drain(..bytes);
        self.input_start += bytes as u64;
        self.scanned -= bytes;
        self.content_bytes = Some(0);
        true
    }
}

impl DecodedSection {
    /// Decodes up to the boundary at a bit, or until the content has a maximum size.
    fn decode(mut self, end_bit: u64, max_content: usize) -> Self {
        let mut filled = 0;
        loop {
            if filled == self.content.len() {
                if filled == max_content {
                    break;
                }
                self.content.resize((filled + filled.max(CHUNK_BYTES)).min(max_content), 0);
            }
            let step = self.decoder.decode(&self.input[self.consumed..], false, &mut self.content, filled);
            filled += self.decoder.produced();
            match step {
                Ok(step) => {
                    self.consumed += step.consumed;
                    match step.event {
                        Event::Boundary(boundary) => {
                            self.boundaries.push((boundary, filled));
                            if boundary.bit_offset >= end_bit {
                                self.end = Some(boundary);
                                break;
                            }
                        }
                        Event::ContentFull => {}
                        Event::NeedsInput | Event::End => break,
                    }
                }
                Err(error) => {
                    self.error = Some(error);
                    break;
                }
            }
        }
        self.content.truncate(filled);
        self
    }
}
