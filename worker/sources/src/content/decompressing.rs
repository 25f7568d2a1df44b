//! Decompresses a shard from its start to its end, and collects the boundaries at which decoding could start later.

use std::collections::VecDeque;

use feedline_compression::{Boundary, DecodeError, Event, StreamDecoder};
use feedline_data::compression::{AccessPoint, Codec};
use tokio::sync::OwnedSemaphorePermit;

use super::decoders::{DecoderMemory, IndexedShardGuard};
use super::indexing_memory::IndexingMemory;
use super::metrics;
use super::sections::{DecodedSection, READ_BYTES, Sections, SectionsState};
use crate::error::SourceError;
use crate::object::Object;

/// Number of bytes by which the content grows at most before the caller sees them.
const CHUNK_BYTES: usize = 512 << 10;
/// Minimum distance of two boundaries that are collected.
const MIN_CANDIDATE_STEP: u64 = 4 << 10;
/// Distance from the position of the caller at which the state of a boundary is computed, so that its window can be released.
const MAX_LOOKBACK: u64 = 256 << 10;
/// The same for the compressed data up to the position of the decoder, which may be ahead of the caller.
const MAX_COMPRESSED_LOOKBACK: u64 = 1 << 20;
/// Maximum size of the end of a row that an access point contains.
const MAX_ROW_END_BYTES: usize = 16 << 10;
/// Maximum size of the compressed data that determines a state.
const LOOKAHEAD_BYTES: usize = 256 << 10;
/// Number of compressed bytes after which sections may begin again, after others used the memory or the cores.
const PAUSE_BYTES: u64 = 8 << 20;

/// A part of the content of a compressed shard, which moves forward.
pub(crate) struct DecompressingWindow<'a> {
    object: &'a Object,
    codec: Codec,
    decoder: Box<dyn StreamDecoder>,
    /// The memory that is counted.
    counted: DecoderMemory,
    /// The part of the memory for which the shard waits, and the size of the decoder in it.
    pub(super) memory: IndexingMemory<'a>,
    held_decoder_bytes: u64,
    /// The largest size of a decoder of the shard.
    max_decoder_bytes: usize,
    /// Compressed bytes from `input_start`. The first `consumed` of them are decoded.
    input: Vec<u8>,
    input_start: u64,
    consumed: usize,
    /// The first `filled` bytes are the content from `content_start`.
    content: Vec<u8>,
    content_start: u64,
    filled: usize,
    /// Boundaries in ascending order. Only the first of them may be before the position of the caller.
    candidates: VecDeque<Candidate>,
    /// The boundary at the end of the content, if the decoder has just reported it.
    boundary: Option<Boundary>,
    /// Counts the shard as one that is indexed.
    _guard: IndexedShardGuard,
    /// The sections that other cores decode.
    sections: SectionsAhead<'a>,
    /// The end of the last section in the content, and its memory, until the caller has passed it.
    section: Option<(u64, OwnedSemaphorePermit)>,
    /// Whether the content ends at `filled`.
    is_ended: bool,
    error: Option<DecodeError>,
}

/// The sections that other cores decode.
enum SectionsAhead<'a> {
    /// Sections may begin at the next boundary from an offset in the shard on.
    NotBegun {
        from: u64,
    },
    Begun(Box<Sections<'a>>),
    /// No further section begins.
    Ended,
}

/// A boundary that may become an access point.
struct Candidate {
    boundary: Boundary,
    content_offset: u64,
    /// The state, if it is already computed.
    state: Option<Vec<u8>>,
}

impl<'a> DecompressingWindow<'a> {
    /// `input` is the start of the shard.
    pub(crate) fn new(
        object: &'a Object,
        codec: Codec,
        decoder: Box<dyn StreamDecoder>,
        input: Vec<u8>,
    ) -> Self {
        Self {
            object,
            codec,
            decoder,
            counted: DecoderMemory::new(object.decoders()),
            memory: IndexingMemory::new(object.decoders()),
            held_decoder_bytes: 0,
            max_decoder_bytes: 0,
            input,
            input_start: 0,
            consumed: 0,
            content: Vec::new(),
            content_start: 0,
            filled: 0,
            candidates: VecDeque::new(),
            boundary: None,
            _guard: IndexedShardGuard::new(object.decoders()),
            sections: SectionsAhead::NotBegun { from: 0 },
            section: None,
            is_ended: false,
            error: None,
        }
    }

    pub(crate) fn object(&self) -> &'a Object {
        self.object
    }

    pub(crate) fn codec(&self) -> Codec {
        self.codec
    }

    pub(crate) fn error(&self) -> Option<&DecodeError> {
        self.error.as_ref()
    }

    /// The end of the available content. The last decoded byte is not available before the next one is decoded, so that all boundaries up
    /// to the end are collected: the decoder reports a boundary when it continues.
    pub(crate) fn end(&self) -> u64 {
        self.content_start + self.available() as u64
    }

    fn available(&self) -> usize {
        if self.is_ended { self.filled } else { self.filled.saturating_sub(1) }
    }

    fn decoded_end(&self) -> u64 {
        self.content_start + self.filled as u64
    }

    /// The end of the content, if all of it is decoded.
    pub(crate) fn known_end(&self) -> Option<u64> {
        self.is_ended.then(|| self.decoded_end())
    }

    /// The memory of a decoder of the shard.
    pub(crate) fn decoder_bytes(&self) -> u64 {
        (self.max_decoder_bytes.max(self.decoder.memory_bytes()) + self.decoder.history_bytes()) as u64
    }

    /// Number of bytes of the shard before an error, or before the last boundary of the content up to `offset`.
    pub(crate) fn readable_bytes(&self, offset: u64) -> u64 {
        let decoded = self.input_start + self.consumed as u64;
        match (&self.error, self.boundary_before(offset)) {
            (Some(error), _) => error.offset.min(self.object.size_bytes()),
            // How much more is decoded depends on the cores.
            (None, Some((index, _))) if !self.is_ended => self.candidates[index].boundary.bit_offset / 8,
            (None, _) => decoded,
        }
    }

    pub(crate) fn bytes(&self, offset: u64) -> &[u8] {
        let start = offset.saturating_sub(self.content_start).min(self.available() as u64) as usize;
        &self.content[start..self.available()]
    }

    /// Makes the bytes from `offset` available, at least `min_bytes`, except at the end.
    pub(crate) async fn fill(&mut self, offset: u64, min_bytes: u64) -> Result<(), SourceError> {
        let end = offset.saturating_add(min_bytes);
        while self.end() < end && !self.is_ended {
            self.release(offset);
            if let Some(section) = self.next_section().await? {
                self.append(section, offset).await?;
                continue;
            }
            let missing = (end - self.end()).min(1 << 31) as usize;
            self.make_room(offset, missing, missing.clamp(CHUNK_BYTES / 8, CHUNK_BYTES));
            self.step().await?;
        }
        self.release(offset);
        Ok(())
    }

    /// The last collected boundary at or before an offset: the index of the candidate, and its offset in the content.
    pub(crate) fn boundary_before(&self, offset: u64) -> Option<(usize, u64)> {
        let index =
            self.candidates.partition_point(|candidate| candidate.content_offset <= offset).checked_sub(1)?;
        Some((index, self.candidates[index].content_offset))
    }

    /// Returns the access point at a candidate.
    pub(crate) fn access_point(&self, index: usize) -> AccessPoint {
        let candidate = &self.candidates[index];
        AccessPoint {
            bit_offset: candidate.boundary.bit_offset,
            content_offset: candidate.content_offset,
            state: candidate.state.clone().unwrap_or_else(|| self.state(candidate)),
        }
    }

    /// Stores the content from an access point to the end of a row, if the codec needs it and it is short.
    pub(crate) fn store_row_end(&self, point: &mut AccessPoint, row_end: u64) {
        let Some(start) = point.content_offset.checked_sub(self.content_start) else { return };
        let content = self.content.get(start as usize..row_end.saturating_sub(self.content_start) as usize);
        if let Some(content) = content.filter(|content| content.len() <= MAX_ROW_END_BYTES) {
            feedline_compression::store_content(self.codec, point, content);
        }
    }

    fn state(&self, candidate: &Candidate) -> Vec<u8> {
        let end = (candidate.content_offset - self.content_start) as usize;
        let history = &self.content[end.saturating_sub(self.decoder.history_bytes())..end];
        let input = &self.input[(candidate.boundary.bit_offset / 8 - self.input_start) as usize..];
        self.decoder.access_state(&candidate.boundary, history, &input[..input.len().min(LOOKAHEAD_BYTES)])
    }

    /// Drops the boundaries that no row at or after `offset` needs, and computes the state of one that is far behind.
    fn release(&mut self, offset: u64) {
        while self.candidates.get(1).is_some_and(|next| next.content_offset <= offset.min(self.decoded_end()))
        {
            self.candidates.pop_front();
        }
        let position = self.input_start + self.consumed as u64;
        // Only the first candidate can be before the position of the caller.
        let Some(candidate) = self.candidates.front() else { return };
        let is_far = offset.saturating_sub(candidate.content_offset) > MAX_LOOKBACK
            || position.saturating_sub(candidate.boundary.bit_offset / 8) > MAX_COMPRESSED_LOOKBACK;
        let is_behind = candidate.content_offset < offset;
        if candidate.state.is_none() && is_far && is_behind {
            let state = self.state(candidate);
            self.candidates[0].state = Some(state);
        }
    }

    /// The first candidate whose window and compressed data are still needed.
    fn first_open(&self) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.state.is_none())
    }

    /// Makes room for at least `needed` bytes of content. Bytes before `offset` are dropped, except those that windows need. The caller
    /// waits for `missing` bytes.
    fn make_room(&mut self, offset: u64, missing: usize, needed: usize) {
        let is_passed = self.section.as_ref().is_some_and(|(end, _)| *end <= offset);
        if self.content.len() - self.filled >= needed && !is_passed {
            return;
        }
        let end = self.decoded_end();
        let open = self.first_open().map_or(end, |candidate| candidate.content_offset);
        let history = self.decoder.history_bytes() as u64;
        let keep = open.min(end).saturating_sub(history).min(offset).max(self.content_start);
        let dropped = (keep - self.content_start) as usize;
        self.content.copy_within(dropped..self.filled, 0);
        self.filled -= dropped;
        self.content_start = keep;
        // A large row in memory doubles the buffer, so that it is copied only a few times.
        let wanted = self.filled + missing.min(self.filled).max(CHUNK_BYTES).max(needed);
        if self.content.len() < wanted {
            self.content.resize(wanted, 0);
        } else if is_passed {
            self.content.truncate(wanted);
            self.content.shrink_to_fit();
            self.section = None;
        }
    }

    /// Decodes until a boundary, or until the content is full.
    async fn step(&mut self) -> Result<(), SourceError> {
        let is_last = self.input_start + self.input.len() as u64 == self.object.size_bytes();
        let input = &self.input[self.consumed..];
        let step = self.decoder.decode(input, is_last, &mut self.content, self.filled);
        let produced = self.decoder.produced();
        metrics::count_indexed(produced as u64);
        self.filled += produced;
        let step = match step {
            Ok(step) => step,
            Err(error) => {
                self.error = Some(error);
                self.is_ended = true;
                return Ok(());
            }
        };
        self.consumed += step.consumed;
        self.hold_decoder().await?;
        match step.event {
            Event::NeedsInput => self.read_more().await?,
            // Other tasks may run on this thread.
            Event::ContentFull => tokio::task::yield_now().await,
            Event::Boundary(boundary) => {
                self.collect(boundary);
                self.boundary = Some(boundary);
            }
            Event::End => self.is_ended = true,
        }
        Ok(())
    }

    /// Returns the section that begins at the end of the content, if another core has decoded it.
    async fn next_section(&mut self) -> Result<Option<DecodedSection>, SourceError> {
        let Some(boundary) = self.boundary.take() else { return Ok(None) };
        match self.sections {
            SectionsAhead::Ended => return Ok(None),
            SectionsAhead::NotBegun { from } if boundary.bit_offset / 8 < from => return Ok(None),
            SectionsAhead::NotBegun { .. } | SectionsAhead::Begun(_) => {}
        }
        let Some(state) = self.decoder.continuation(&boundary) else { return Ok(None) };
        if let SectionsAhead::NotBegun { .. } = self.sections {
            let input = &self.input[(boundary.bit_offset / 8 - self.input_start) as usize..];
            let start =
                AccessPoint { bit_offset: boundary.bit_offset, content_offset: 0, state: state.clone() };
            let decoder_bytes = self.decoder.memory_bytes() as u64;
            self.sections = match Sections::new(self.object, self.codec, start, input, decoder_bytes) {
                Ok(sections) => SectionsAhead::Begun(Box::new(sections)),
                Err(reason) => self.sections_after(reason),
            };
        }
        let SectionsAhead::Begun(sections) = &mut self.sections else { return Ok(None) };
        let found = sections.take_section_at(&boundary, &state).await?;
        let reason = sections.state();
        if found.is_none() && reason != SectionsState::Continue {
            self.end_sections(reason);
        }
        Ok(found)
    }

    fn sections_after(&self, reason: SectionsState) -> SectionsAhead<'a> {
        match reason {
            SectionsState::Ended => SectionsAhead::Ended,
            SectionsState::Continue | SectionsState::Paused => {
                SectionsAhead::NotBegun { from: self.input_start + self.consumed as u64 + PAUSE_BYTES }
            }
        }
    }

    /// Continues with one decoder. What was read for further sections need not be read again.
    fn end_sections(&mut self, reason: SectionsState) {
        let next = self.sections_after(reason);
        let SectionsAhead::Begun(sections) = std::mem::replace(&mut self.sections, next) else { return };
        let (start, input) = sections.into_input();
        self.extend_input(start, &input);
    }

    /// Adds compressed data that begins at an offset in the shard, up to the end of the known data.
    fn extend_input(&mut self, start: u64, input: &[u8]) {
        let end = self.input_start + self.input.len() as u64;
        if let Some(next) = end.checked_sub(start).and_then(|known| input.get(known as usize..)) {
            self.object.hash(end, next);
            self.input.extend_from_slice(next);
        }
    }

    /// Appends the content and the compressed data of a section, whose decoder continues.
    async fn append(&mut self, section: DecodedSection, offset: u64) -> Result<(), SourceError> {
        self.make_room(offset, 0, section.filled);
        let start = self.filled;
        let end = start + section.filled;
        self.content[start..end].copy_from_slice(&section.content[..section.filled]);
        if let SectionsAhead::Begun(sections) = &mut self.sections {
            sections.reuse(section.content);
        }
        for (boundary, content_bytes) in section.boundaries {
            self.filled = start + content_bytes;
            self.collect(boundary);
        }
        self.filled = end;
        self.section = Some((self.decoded_end(), section.memory));
        self.extend_input(section.input_start, &section.input);
        self.consumed = (section.input_start - self.input_start) as usize + section.consumed;
        self.max_decoder_bytes = self.max_decoder_bytes.max(self.decoder.memory_bytes());
        self.decoder = section.decoder;
        self.boundary = section.end;
        if let Some(error) = section.error {
            self.error = Some(error);
            self.is_ended = true;
            return Ok(());
        }
        self.release(offset);
        self.drop_input();
        self.hold_decoder().await?;
        // Other tasks may run on this thread.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Waits until the decoder may use its memory, if it is large. The size is known after the step that decoded the header, so a shard
    /// waits with the content of one step.
    async fn hold_decoder(&mut self) -> Result<(), SourceError> {
        let bytes = self.decoder.memory_bytes() as u64;
        if bytes <= self.held_decoder_bytes {
            return Ok(());
        }
        self.count_memory();
        let decoders = self.object.decoders();
        if bytes > decoders.decoder_limit() {
            let reason = format!(
                "decompression needs {} MiB of memory, more than the worker has: raise the workers' --memory, or compress the file again with \
                 a smaller window",
                bytes.div_ceil(1 << 20)
            );
            return Err(SourceError::unsupported(self.object.shard(), reason));
        }
        self.memory.hold_decoder(bytes).await;
        self.held_decoder_bytes = bytes;
        Ok(())
    }

    fn count_memory(&mut self) {
        let ahead_bytes = match &self.sections {
            SectionsAhead::Begun(sections) => sections.memory_bytes(),
            SectionsAhead::NotBegun { .. } | SectionsAhead::Ended => 0,
        };
        self.counted.set(self.decoder_bytes() + (self.input.len() + self.content.len()) as u64 + ahead_bytes);
    }

    fn collect(&mut self, boundary: Boundary) {
        let content_offset = self.decoded_end();
        if content_offset == 0 {
            return;
        }
        if let Some(last) = self.candidates.back() {
            if last.content_offset == content_offset {
                self.candidates.pop_back();
            } else if content_offset - last.content_offset < MIN_CANDIDATE_STEP
                && boundary.bit_offset / 8 - last.boundary.bit_offset / 8 < MAX_LOOKBACK
            {
                return;
            }
        }
        self.candidates.push_back(Candidate { boundary, content_offset, state: None });
    }

    /// Drops the compressed data that neither the decoder nor a boundary needs.
    fn drop_input(&mut self) {
        let open = self.first_open().map(|candidate| candidate.boundary.bit_offset / 8 - self.input_start);
        // A boundary may be in the last byte that was consumed.
        let keep = self.consumed.saturating_sub(1);
        let keep = open.map_or(keep, |open| keep.min(open as usize));
        self.input.drain(..keep);
        self.input_start += keep as u64;
        self.consumed -= keep;
        self.count_memory();
    }

    async fn read_more(&mut self) -> Result<(), SourceError> {
        self.drop_input();
        let end = self.input_start + self.input.len() as u64;
        let next = self.object.read(end..self.object.size_bytes().min(end + READ_BYTES)).await?;
        self.input.extend_from_slice(&next);
        self.count_memory();
        Ok(())
    }
}
