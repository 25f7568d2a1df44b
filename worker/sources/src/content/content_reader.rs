//! Decodes the content of a compressed shard from an access point on.

use std::ops::Range;

use bytes::Bytes;
use feedline_compression::{Event, StreamDecoder};
use feedline_data::compression::ShardCompression;

use super::damage::describe;
use super::decoders::{DecoderMemory, DecodingTurn};
use super::metrics;
use super::range::RangeSource;
use crate::error::SourceError;
use crate::object::Object;

/// Maximum number of compressed bytes of a request.
const MAX_READ_BYTES: u64 = 4 << 20;
/// Number of compressed bytes that are read in addition to the estimate.
const EXTRA_READ_BYTES: u64 = 8 << 10;
/// The same for long runs, whose next block will be read.
const RUN_READ_AHEAD_BYTES: u64 = 1 << 20;
/// Size of a read after the estimated end.
const NEXT_READ_BYTES: u64 = 64 << 10;
/// Maximum number of bytes that are decoded before other tasks may run on the thread.
const DECODE_STEP_BYTES: usize = 256 << 10;

/// Decodes content from an access point on.
pub(super) struct ContentReader {
    decoder: Box<dyn StreamDecoder>,
    memory: DecoderMemory,
    /// Compressed bytes that are not decoded.
    input: Bytes,
    /// The offset in the shard after `input`.
    input_end: u64,
    /// The offset in the shard to which reads extend.
    estimated_end: u64,
    /// The content before `start` that the decoder needs, and content that was decoded for the next piece, up to `filled`.
    content: Vec<u8>,
    start: usize,
    filled: usize,
    /// The offset in the content of the byte at `start`.
    position: u64,
    /// The access point after the content that reads need, before which each block ends that is decoded. 0 without an index.
    next_point: u64,
    is_ended: bool,
}

impl Drop for ContentReader {
    fn drop(&mut self) {
        metrics::count_read(self.decoded_ahead());
    }
}

impl ContentReader {
    /// Creates a decoder that starts at the last access point at or before an offset.
    pub(super) fn open(source: RangeSource<'_>, offset: u64) -> Result<Self, SourceError> {
        let point = source
            .compression
            .and_then(|compression| Some(&compression.points[compression.point_before(offset)?]));
        let decoder = match point {
            Some(point) => feedline_compression::resume(source.codec, point),
            None => feedline_compression::start(source.codec),
        };
        let object = source.object;
        let mut decoder =
            decoder.map_err(|error| SourceError::corrupt(object.shard(), offset, describe(&error)))?;
        let content = decoder.take_history();
        Ok(Self {
            decoder,
            memory: DecoderMemory::new(object.decoders()),
            input: Bytes::new(),
            input_end: point.map_or(0, |point| point.bit_offset / 8),
            estimated_end: 0,
            start: content.len(),
            filled: content.len(),
            content,
            position: point.map_or(0, |point| point.content_offset),
            next_point: 0,
            is_ended: false,
        })
    }

    /// The offset in the content of the next byte.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Memory of the reader in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.decoder.memory_bytes() + self.content.capacity() + self.input.len()) as u64
    }

    /// Reads a range, and drops the content before it. Returns fewer bytes at the end of the content.
    pub(super) async fn read(
        mut self,
        source: RangeSource<'_>,
        range: &Range<u64>,
    ) -> Result<Bytes, SourceError> {
        self.estimated_end = estimated_end(source, range.end) + EXTRA_READ_BYTES;
        self.next_point = next_point(source, range.end);
        let mut turn = None;
        while self.position < range.start && !self.is_ended {
            let bytes = (range.start - self.position).min(DECODE_STEP_BYTES as u64);
            self.fill(source.object, bytes, &mut turn).await?;
            self.release();
        }
        self.fill(source.object, range.end - range.start, &mut turn).await?;
        self.content.truncate(self.filled);
        Ok(Bytes::from(std::mem::take(&mut self.content)).slice(self.start..))
    }

    /// Decodes the next bytes of a long run. Returns fewer bytes at the end of the content. The reader remains valid if the
    /// call fails or is cancelled. `turn` is the turn of the read to which the piece belongs.
    pub(super) async fn next_piece<'a>(
        &mut self,
        source: RangeSource<'a>,
        bytes: u64,
        turn: &mut Option<DecodingTurn<'a>>,
    ) -> Result<Bytes, SourceError> {
        self.estimated_end = estimated_end(source, self.position + bytes) + RUN_READ_AHEAD_BYTES;
        self.next_point = next_point(source, self.position + bytes);
        self.fill(source.object, bytes, turn).await?;
        let piece = Bytes::copy_from_slice(&self.content[self.start..self.filled]);
        self.release();
        Ok(piece)
    }

    /// Decodes until `bytes` bytes are available, or until the end of the content. Waits for a turn if `turn` is `None`. The
    /// caller ends the turn.
    async fn fill<'a>(
        &mut self,
        object: &'a Object,
        bytes: u64,
        turn: &mut Option<DecodingTurn<'a>>,
    ) -> Result<(), SourceError> {
        let whole = self.start + bytes as usize;
        let mut step_end = self.filled;
        while self.filled < whole && !self.is_ended {
            if self.filled == self.content.len() {
                // Grow with the content, since the shard may have fewer bytes than a caller without an index requests.
                let wanted = self.filled.saturating_mul(2).max(self.start + (8 << 20));
                self.content.resize(whole.min(wanted), 0);
            }
            if turn.is_none() {
                *turn = Some(object.decoders().decoding_turn().await);
                step_end = self.filled + DECODE_STEP_BYTES;
            } else if self.filled >= step_end {
                // Other tasks may run on the thread, but no other decoder, which would displace the window from the CPU cache.
                tokio::task::yield_now().await;
                step_end = self.filled + DECODE_STEP_BYTES;
            }
            match self.decode(object, whole, step_end)? {
                Event::NeedsInput => {
                    *turn = None;
                    // Some decoders allocate their window when they have read its size.
                    self.memory.set(self.memory_bytes());
                    self.read_more(object).await?;
                }
                Event::End => self.is_ended = true,
                Event::ContentFull | Event::Boundary(_) => {}
            }
        }
        Ok(())
    }

    /// Drops the content that the decoder does not need.
    fn release(&mut self) {
        self.position += (self.filled - self.start) as u64;
        let kept = self.decoder.history_bytes().min(self.filled);
        self.content.copy_within(self.filled - kept..self.filled, 0);
        (self.start, self.filled) = (kept, kept);
        self.memory.set(self.memory_bytes());
    }

    /// Decodes once, at most up to `step_end`.
    fn decode(&mut self, object: &Object, whole: usize, step_end: usize) -> Result<Event, SourceError> {
        let is_last = self.input_end >= object.size_bytes();
        let end = whole.min(self.content.len()).min(step_end);
        let step = self.decoder.decode(&self.input, is_last, &mut self.content[..end], self.filled);
        let produced = self.decoder.produced();
        metrics::count_read(produced as u64);
        self.filled += produced;
        let step = match step {
            Ok(step) => step,
            // The indexing pass found the same error, and the index contains rows before it only.
            Err(_) if self.filled == whole => return Ok(Event::ContentFull),
            Err(error) => {
                return Err(SourceError::corrupt(object.shard(), self.position, describe(&error)));
            }
        };
        let _ = self.input.split_to(step.consumed);
        Ok(step.event)
    }

    /// Maximum number of bytes after the content that are decoded.
    fn decoded_ahead(&self) -> u64 {
        let end = self.position + (self.filled - self.start) as u64;
        (self.decoder.max_decoded_ahead() as u64).min(self.next_point.saturating_sub(end))
    }

    async fn read_more(&mut self, object: &Object) -> Result<(), SourceError> {
        let estimate = self.estimated_end.clamp(self.input_end, self.input_end + MAX_READ_BYTES);
        let end = estimate.max(self.input_end + NEXT_READ_BYTES).min(object.size_bytes());
        let next = object.read(self.input_end..end).await?;
        self.input_end = end;
        self.input = match self.input.is_empty() {
            true => next,
            false => [&self.input[..], &next].concat().into(),
        };
        Ok(())
    }
}

/// The first access point at or after an offset, or the end of the content. 0 without an index.
fn next_point(source: RangeSource<'_>, offset: u64) -> u64 {
    let Some(compression) = source.compression else { return 0 };
    let next = compression.points.partition_point(|point| point.content_offset < offset);
    compression.points.get(next).map_or(compression.content_bytes, |point| point.content_offset)
}

/// Estimates the offset in the shard after the compressed data of all content before `offset`. 0 without an index.
fn estimated_end(source: RangeSource<'_>, offset: u64) -> u64 {
    source.compression.map_or(0, |compression| compressed_end(compression, offset))
}

fn compressed_end(compression: &ShardCompression, offset: u64) -> u64 {
    let next = compression.points.partition_point(|point| point.content_offset < offset);
    let at = |point: usize| {
        let point = &compression.points[point];
        (point.content_offset, point.bit_offset.div_ceil(8))
    };
    let before = next.checked_sub(1).map_or((0, 0), at);
    let is_last = next == compression.points.len();
    let after = if is_last { (compression.content_bytes, compression.readable_bytes) } else { at(next) };
    let content = u128::from(after.0.saturating_sub(before.0)).max(1);
    let compressed = u128::from(after.1.saturating_sub(before.1));
    let part = u128::from(offset.min(after.0).saturating_sub(before.0)) * compressed / content;
    before.1 + part as u64
}
