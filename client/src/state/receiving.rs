//! Handles the frames of fetches.

use arrow::datatypes::SchemaRef;
use feedline_data::consumer::Piece;
use feedline_data::layout::SplitRef;
use tokio::time::Instant;

use super::ConsumerState;
use super::fetch_outcome::FetchOutcome;
use crate::error::ClientError;
use crate::pieces::ReadPiece;

impl ConsumerState {
    /// Handles a frame without data, which shows that the worker makes progress.
    pub(crate) fn on_working(&mut self, split: SplitRef, attempt: u64, now: Instant) {
        self.fetches.update_attempt(split, attempt, |attempt| attempt.last_frame_at = now);
    }

    /// Handles the start of a piece of `bytes` bytes.
    pub(crate) fn on_piece_opened(&mut self, split: SplitRef, attempt: u64, bytes: u64, now: Instant) {
        self.largest_piece = self.largest_piece.max(Some(bytes));
        self.warn_of_small_buffer(bytes);
        self.fetches.update_attempt(split, attempt, |attempt| {
            attempt.on_progress(now);
            attempt.missing_piece_bytes = bytes;
            attempt.largest_piece = attempt.largest_piece.max(bytes);
        });
        self.queue_for_credit(split);
        self.grant_credit(now);
    }

    /// Handles bytes of a piece.
    pub(crate) fn on_bytes(&mut self, split: SplitRef, attempt: u64, bytes: u64, now: Instant) {
        self.fetches.update_attempt(split, attempt, |attempt| {
            attempt.on_progress(now);
            attempt.received_bytes += bytes;
            attempt.missing_piece_bytes = attempt.missing_piece_bytes.saturating_sub(bytes);
        });
    }

    /// Handles a complete piece.
    pub(crate) fn on_piece(&mut self, split: SplitRef, attempt: u64, piece: ReadPiece, now: Instant) {
        let is_selected = self.fetches.update(split, |fetch| fetch.select_attempt(attempt, now));
        if is_selected != Some(true) {
            return;
        }
        self.worker_mismatch.reset();
        self.largest_piece = self.largest_piece.max(Some(piece.payload.bytes));
        let ReadPiece { from, to, kept, payload } = piece;
        if !self.is_schema_of_job(&payload.records.schema()) {
            let message = "the columns differ from the columns of earlier rows".to_owned();
            return self.on_outcome(split, attempt, FetchOutcome::Invalid(message), now);
        }
        let bytes = payload.bytes;
        let (Some(index), Some(layout)) = (self.streams.index_of(split.stream), &self.layout) else { return };
        let is_whole = !layout.indivisible || layout.is_whole_batch(layout.split_len(split), from, to);
        if payload.is_indivisible != layout.indivisible || !is_whole {
            let message = format!("the piece with offsets {from} to {to} is not a batch of the job");
            let split = format!("{} of epoch {}, stream {}", split.ordinal, split.epoch, split.stream);
            // All workers divide a split in the same way, so another attempt would fail too.
            return self.fail(ClientError::Damaged { split, message });
        }
        let planned_from = self.planned.get(&split).map_or(from, |planned| planned.start_offset);
        let is_relaxed = self.identity.is_relaxed;
        let is_accepted = self.streams.update(index, layout, |stream| {
            if is_relaxed && stream.assembler.next_arrival_offset(split).is_none() {
                stream.assembler.expect_split(split, planned_from, false);
            }
            stream.assembler.push(Piece { split, start: from, end: to, kept_offsets: kept, payload })
        });
        if is_accepted {
            self.add_buffered(split, bytes);
        }
        self.queue_for_credit(split);
        self.extend_stream(index);
        self.end_exhausted();
        self.grant_credit(now);
    }

    fn is_schema_of_job(&mut self, schema: &SchemaRef) -> bool {
        self.schema.get_or_insert_with(|| SchemaRef::clone(schema)) == schema
    }
}
