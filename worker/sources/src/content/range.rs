//! Reads a range of the content of a compressed shard: decodes from the access point before it.

use std::ops::Range;

use bytes::Bytes;
use feedline_data::compression::{Codec, ShardCompression};

use super::content_reader::ContentReader;
use super::runs::{Cursor, NEW_LOOKBACK_BYTES, RunKey, RunPart, RunState};
use crate::error::SourceError;
use crate::object::Object;

/// Maximum number of bytes that the decoder of a run decodes at a time.
const PIECE_BYTES: u64 = 256 << 10;

/// The compressed content that a range is read from.
#[derive(Clone, Copy)]
pub(super) struct RangeSource<'a> {
    pub(super) object: &'a Object,
    pub(super) codec: Codec,
    /// `None` while the shard is being indexed. The decoder then starts at the start of the shard.
    pub(super) compression: Option<&'a ShardCompression>,
    /// The part of a long run that contains the range.
    pub(super) part: Option<RunPart>,
}

impl RangeSource<'_> {
    /// Reads a range. Returns fewer bytes at the end of the content.
    pub(super) async fn read(self, range: Range<u64>) -> Result<Bytes, SourceError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        if let Some((end, stored)) = self.stored_end(&range) {
            let start = Box::pin(self.read(range.start..end)).await?;
            return Ok([&start[..], stored].concat().into());
        }
        match (self.part, self.compression) {
            (Some(part), Some(compression)) => self.read_run(compression, part, &range).await,
            _ => ContentReader::open(self, range.start)?.read(self, &range).await,
        }
    }

    /// Returns the offset of the last access point in a range, and the content from there to the end of the range, if the access
    /// point contains it.
    fn stored_end(&self, range: &Range<u64>) -> Option<(u64, &[u8])> {
        let compression = self.compression?;
        let next = compression.points.partition_point(|point| point.content_offset < range.end);
        let point = &compression.points[next.checked_sub(1)?];
        let length = usize::try_from(range.end - point.content_offset).ok()?;
        let stored = feedline_compression::stored_content(self.codec, point).get(..length)?;
        (point.content_offset > range.start).then_some((point.content_offset, stored))
    }

    /// Reads a range of a long run. The decoder continues where the previous read ended, and waits for the next one.
    #[expect(
        clippy::await_holding_invalid_type,
        reason = "reads of a run take turns, because they share the decoder"
    )]
    async fn read_run(
        self,
        compression: &ShardCompression,
        part: RunPart,
        range: &Range<u64>,
    ) -> Result<Bytes, SourceError> {
        let (decoders, job) = (self.object.decoders(), self.object.job());
        let run = RunKey::of(self.object.shard(), compression, range.start);
        let slot = decoders.slot(job, &run);
        let mut state = slot.state.lock().await;
        let content = match state.take(range) {
            Some(content) => content,
            None => {
                let content = self.advance(&mut state, range).await?;
                if part == RunPart::Last {
                    state.remove_used_up();
                }
                content
            }
        };
        match state.is_empty() {
            true => decoders.remove(job, &run),
            false => decoders.record_bytes(job, &run, state.memory_bytes()),
        }
        Ok(content)
    }

    /// Decodes up to the end of a range. The state remains valid if a read fails or is cancelled.
    async fn advance(self, state: &mut RunState, range: &Range<u64>) -> Result<Bytes, SourceError> {
        let Cursor { reader, is_new, decoded } =
            state.cursor(range.start, self.object.decoders(), || ContentReader::open(self, range.start))?;
        let mut turn = None;
        while reader.position() < range.end && !reader.is_ended() {
            let position = reader.position();
            let end = if position < range.start { range.start } else { range.end };
            let piece = reader.next_piece(self, (end - position).min(PIECE_BYTES), &mut turn).await?;
            // A resume decodes the run from its start, which no read needs.
            if !*is_new || reader.position() + NEW_LOOKBACK_BYTES > range.start {
                decoded.push(position, piece, range.start);
            }
        }
        *is_new = false;
        Ok(decoded.take(&(range.start..range.end.min(reader.position()))).unwrap_or_default())
    }
}
