//! Decodes sections of a compressed shard ahead of its indexing, so that one large shard uses all cores.
//!
//! A scanner finds where sections probably begin, and each section has a decoder of its own. The decoder before a section proves that
//! it begins there: it reports the same boundary, with the same state. Otherwise, the sections are dropped, and one decoder continues.
//! The content, the boundaries and the errors are therefore those of one decoder.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use feedline_compression::{Boundary, DecodeError, Event, ScanEvent, Scanner, StreamDecoder};
use feedline_data::compression::{AccessPoint, Codec};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use super::decoders::DecoderMemory;
use super::metrics;
use super::shared_memory::kib;
use crate::error::SourceError;
use crate::object::Object;

/// Number of compressed bytes per read.
pub(super) const READ_BYTES: u64 = 4 << 20;
/// A shard with fewer sections than this has none, because one core soon decodes it.
const MIN_SECTIONS: u64 = 4;
/// Maximum number of compressed bytes in a section. After more, one decoder continues.
const MAX_SECTION_BYTES: usize = 32 << 20;
/// Maximum size of the content of a section. After more, the decoder of the section continues sequentially.
const MAX_CONTENT_BYTES: u64 = 32 << 20;
/// The same for a section whose size is unknown before.
const MAX_UNKNOWN_CONTENT_BYTES: u64 = 8 << 20;
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
    /// The memory of `input`, or less.
    input_memory: OwnedSemaphorePermit,
    /// The start of the next section.
    next: AccessPoint,
    /// The end of the next section, if it is found.
    end: Option<AccessPoint>,
    /// The size of the content of the next section, if it is known.
    content_bytes: Option<u64>,
    /// The memory of the decoder of a section.
    decoder_bytes: u64,
    running: VecDeque<RunningSection>,
    state: SectionsState,
    /// A buffer for the content of the next section. New memory would cost more than decompressing some codecs.
    unused_buffer: Vec<u8>,
}

/// Whether further sections begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SectionsState {
    /// There may be further sections.
    Continue,
    /// Other shards use the memory or the cores. Sections may begin later.
    Paused,
    /// The rest of the shard has no sections.
    Ended,
}

/// A section that a thread decodes. The thread stops when it is dropped.
struct RunningSection {
    start: AccessPoint,
    task: JoinHandle<DecodedSection>,
    is_cancelled: Arc<AtomicBool>,
}

impl Drop for RunningSection {
    fn drop(&mut self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.task.abort();
    }
}

/// A decoded section.
pub(super) struct DecodedSection {
    /// The decoder, which can continue after the section.
    pub(super) decoder: Box<dyn StreamDecoder>,
    /// Compressed bytes from the offset `input_start` in the shard on. The first `consumed` of them are decoded.
    pub(super) input: Vec<u8>,
    pub(super) input_start: u64,
    pub(super) consumed: usize,
    /// The content, of which the first `filled` bytes are used.
    pub(super) content: Vec<u8>,
    pub(super) filled: usize,
    /// The boundaries in the section, and the size of the content before each.
    pub(super) boundaries: Vec<(Boundary, usize)>,
    /// The boundary at which the section ends. `None` if its decoder must continue.
    pub(super) end: Option<Boundary>,
    pub(super) error: Option<DecodeError>,
    /// A part of the memory of all sections, which the content uses.
    pub(super) memory: OwnedSemaphorePermit,
    /// The memory that is counted.
    _counted: DecoderMemory,
}

impl<'a> Sections<'a> {
    /// Begins to decode sections from a boundary on. `input` is compressed data from the byte that contains the boundary.
    ///
    /// # Errors
    /// Returns the reason why no sections begin.
    pub(super) fn new(
        object: &'a Object,
        codec: Codec,
        start: AccessPoint,
        input: &[u8],
        decoder_bytes: u64,
    ) -> Result<Self, SectionsState> {
        let decoders = object.decoders();
        let input_start = start.bit_offset / 8;
        let min_bytes = decoders.section_bytes() * MIN_SECTIONS;
        if decoders.cores() == 1 || object.size_bytes().saturating_sub(input_start) < min_bytes {
            return Err(SectionsState::Ended);
        }
        let scanner = feedline_compression::scanner(codec, &start).ok_or(SectionsState::Ended)?;
        let input_memory =
            decoders.sections().try_acquire(input.len() as u64).ok_or(SectionsState::Paused)?;
        Ok(Self {
            object,
            codec,
            scanner,
            input: input.to_vec(),
            input_start,
            scanned: 0,
            input_memory,
            next: start,
            end: None,
            content_bytes: Some(0),
            decoder_bytes,
            running: VecDeque::new(),
            state: SectionsState::Continue,
            unused_buffer: Vec::new(),
        })
    }

    /// Uses the buffer of a section again, whose content the caller has copied.
    pub(super) fn reuse(&mut self, buffer: Vec<u8>) {
        if buffer.len() as u64 <= MAX_UNKNOWN_CONTENT_BYTES {
            self.unused_buffer = buffer;
        }
    }

    /// The memory of the compressed data and of the unused buffer, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.input.len() + self.unused_buffer.len()) as u64
    }

    /// Whether further sections begin.
    pub(super) fn state(&self) -> SectionsState {
        if self.running.is_empty() { self.state } else { SectionsState::Continue }
    }

    /// Returns the section that begins at a boundary which the decoder before it has reported. `state` is the state of the boundary. The
    /// caller counts the memory of the section.
    ///
    /// # Errors
    /// Returns an error if the shard cannot be read.
    pub(super) async fn take_section_at(
        &mut self,
        boundary: &Boundary,
        state: &[u8],
    ) -> Result<Option<DecodedSection>, SourceError> {
        self.fill().await?;
        let Some(first) = self.running.front() else { return Ok(None) };
        if boundary.bit_offset < first.start.bit_offset {
            // The section before may end early, if its content is large.
            return Ok(None);
        }
        if boundary.bit_offset > first.start.bit_offset || state != first.start.state {
            self.end();
            return Ok(None);
        }
        let Some(mut first) = self.running.pop_front() else { return Ok(None) };
        self.fill().await?;
        let section = (&mut first.task).await.ok();
        if let Some(section) = &section {
            self.decoder_bytes = self.decoder_bytes.max(section.decoder.memory_bytes() as u64);
            self.object.decoders().count_section();
        } else {
            // The thread has panicked. The caller decodes the section and finds out why.
            self.end();
        }
        Ok(section)
    }

    /// Compressed data after the sections, and its offset. The caller needs it once there are no more sections.
    pub(super) fn into_input(mut self) -> (u64, Vec<u8>) {
        self.input.truncate(READ_BYTES as usize);
        self.input.shrink_to_fit();
        (self.input_start, self.input)
    }

    fn end(&mut self) {
        self.running.clear();
        (self.state, self.end) = (SectionsState::Ended, None);
    }

    /// Begins sections until each core has one.
    async fn fill(&mut self) -> Result<(), SourceError> {
        if self.state == SectionsState::Paused {
            self.state = SectionsState::Continue;
        }
        while self.running.len() < self.object.decoders().cores() && self.find_end().await? && self.begin() {}
        Ok(())
    }

    /// Finds the end of the next section. Returns whether there is one.
    async fn find_end(&mut self) -> Result<bool, SourceError> {
        while self.end.is_none() && self.state == SectionsState::Continue {
            let scanned = self.scanner.scan(&self.input[self.scanned..]);
            self.scanned += scanned.consumed;
            match scanned.event {
                ScanEvent::Start(start) => {
                    let sum = self.content_bytes.zip(start.content_bytes);
                    self.content_bytes = sum.and_then(|(sum, bytes)| sum.checked_add(bytes));
                    let bytes = start.point.bit_offset / 8 - self.input_start;
                    if bytes >= self.object.decoders().section_bytes() {
                        self.end = Some(start.point);
                    }
                }
                ScanEvent::NeedsInput => self.read_more().await?,
                ScanEvent::Stop => self.state = SectionsState::Ended,
            }
        }
        Ok(self.end.is_some())
    }

    async fn read_more(&mut self) -> Result<(), SourceError> {
        let (end, size) = (self.input_start + self.input.len() as u64, self.object.size_bytes());
        if end == size || self.input.len() >= MAX_SECTION_BYTES {
            self.state = SectionsState::Ended;
            return Ok(());
        }
        let next = end..size.min(end + READ_BYTES);
        let Some(memory) = self.object.decoders().sections().try_acquire(next.end - next.start) else {
            self.state = SectionsState::Paused;
            return Ok(());
        };
        self.input_memory.merge(memory);
        // The digest is computed in the order of the shard, when the section is used.
        let next = self.object.read_unhashed(next).await?;
        self.input.extend_from_slice(&next);
        Ok(())
    }

    /// Begins to decode the next section, if a core and memory are free. Returns whether it has begun.
    fn begin(&mut self) -> bool {
        let Some(end) = self.end.take() else { return false };
        let decoders = self.object.decoders();
        let bytes = (end.bit_offset / 8 - self.input_start) as usize;
        let input_bytes = (bytes + LOOKAHEAD_BYTES).min(self.input.len());
        let max_content = self.content_bytes.unwrap_or(MAX_UNKNOWN_CONTENT_BYTES).min(MAX_CONTENT_BYTES);
        let memory_bytes =
            (input_bytes as u64).saturating_add(max_content).saturating_add(self.decoder_bytes);
        let thread = Arc::clone(decoders.section_threads()).try_acquire_owned();
        let thread = thread.ok().filter(|_| decoders.has_core_for_section());
        if !decoders.sections().can_hold(memory_bytes) {
            self.end();
            return false;
        }
        let (Some(thread), Some(memory)) = (thread, decoders.sections().try_acquire(memory_bytes)) else {
            (self.end, self.state) = (Some(end), SectionsState::Paused);
            return false;
        };
        let (codec, point, end_bit) = (self.codec, self.next.clone(), end.bit_offset);
        let (input, input_start) = (self.input[..input_bytes].to_vec(), self.input_start);
        let Ok(decoder) = feedline_compression::resume(codec, &point) else {
            self.end();
            return false;
        };
        let mut counted = DecoderMemory::new(decoders);
        counted.set(memory_bytes);
        let section = DecodedSection {
            decoder,
            input,
            input_start,
            consumed: 0,
            content: std::mem::take(&mut self.unused_buffer),
            filled: 0,
            boundaries: Vec::new(),
            end: None,
            error: None,
            memory,
            _counted: counted,
        };
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let limits = SectionLimits {
            end_bit,
            // A little more than the content, because a decoder reports a boundary after it had room for another byte.
            content_bytes: max_content as usize + 1,
            decoder_bytes: self.decoder_bytes as usize,
            is_cancelled: Arc::clone(&is_cancelled),
        };
        let task = tokio::task::spawn_blocking(move || {
            let section = section.decode(&limits);
            drop(thread);
            section
        });
        let start = std::mem::replace(&mut self.next, end);
        self.running.push_back(RunningSection { start, task, is_cancelled });
        self.input.drain(..bytes);
        self.input_start += bytes as u64;
        self.scanned -= bytes;
        self.content_bytes = Some(0);
        let unused = self.input_memory.num_permits().saturating_sub(kib(self.input.len() as u64) as usize);
        drop(self.input_memory.split(unused));
        true
    }
}

/// Where the decoder of a section stops.
struct SectionLimits {
    /// The boundary at which the section ends.
    end_bit: u64,
    content_bytes: usize,
    decoder_bytes: usize,
    is_cancelled: Arc<AtomicBool>,
}

impl DecodedSection {
    /// Decodes up to the end of the section, or as far as the limits allow.
    fn decode(mut self, limits: &SectionLimits) -> Self {
        while !limits.is_cancelled.load(Ordering::Relaxed)
            && self.decoder.memory_bytes() <= limits.decoder_bytes
            && self.filled < limits.content_bytes
        {
            if self.filled == self.content.len() {
                let grown = self.filled + self.filled.max(CHUNK_BYTES);
                self.content.resize(grown.min(limits.content_bytes), 0);
            }
            let room = self.content.len().min(limits.content_bytes);
            let input = &self.input[self.consumed..];
            let step = self.decoder.decode(input, false, &mut self.content[..room], self.filled);
            self.filled += self.decoder.produced();
            match step {
                Ok(step) => {
                    self.consumed += step.consumed;
                    match step.event {
                        Event::Boundary(boundary) => {
                            self.boundaries.push((boundary, self.filled));
                            if boundary.bit_offset >= limits.end_bit {
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
        metrics::count_indexed(self.filled as u64);
        self
    }
}
