//! Delivers batches to the user.

use std::collections::BTreeSet;

use feedline_data::consumer::{AssembledBatch, PieceSlice, RunKind};
use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::messages::JobState;
use feedline_data::urls::is_kafka;
use metrics::{counter, gauge};
use tokio::time::{Duration, Instant};

use super::ConsumerState;
use super::fetch_table::SplitFetch;
use crate::batch::{StepShare, TakenBatch, add_carried, is_last_part};
use crate::error::ClientError;
use crate::metrics::{BATCHES_TOTAL, BUFFERED_BYTES, BYTES_TOTAL, ROWS_TOTAL};
use crate::pieces::PieceBytes;

/// Maximum time for which a consumer without rows waits at its end for other consumers.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(3);

/// Result of [`ConsumerState::take`].
#[derive(Debug)]
pub(crate) enum TakeResult {
    /// The next batch. It counts as delivered, unless delivery is deferred.
    Batch(Box<TakenBatch>),
    /// The next batch has not arrived.
    Pending,
    /// There are no more batches.
    Finished,
    /// There are no more batches because of an error.
    Failed(ClientError),
}

impl ConsumerState {
    /// Takes the next batch in order, if it has arrived.
    pub(crate) fn take(&mut self, now: Instant) -> TakeResult {
        self.history_recorder.is_next_requested = true;
        self.confirm_last_batch();
        if let Some(error) = &self.fatal_error {
            return TakeResult::Failed(error.clone());
        }
        if self.job_state == JobState::Cancelled {
            return TakeResult::Failed(ClientError::Cancelled);
        }
        if let Some(message) = &self.row_error {
            return TakeResult::Failed(ClientError::JobFailed(message.clone()));
        }
        loop {
            let Some(index) = self.streams.next_index() else { return self.result_without_stream(now) };
            let deferred_start = self.deferred_start(index);
            let Some((start, run)) = self.next_run(index) else { return self.result_without_run(index) };
            self.record_run(index, run.kind, run.epoch);
            self.record_first_skipped(&run.parts);
            let completed_splits = self.on_batch_delivered(&run.parts);
            if run.kind == RunKind::Batch {
                if let Some(start) = deferred_start {
                    self.defer_batch(index, start, &run.parts, completed_splits);
                }
                return TakeResult::Batch(Box::new(self.deliver(index, start, run, now)));
            }
            add_carried(&mut self.carried, &run);
            self.extend_stream(index);
            self.grant_credit(now);
        }
    }

    fn deliver(
        &mut self,
        index: usize,
        start: StreamPosition,
        batch: AssembledBatch<PieceBytes>,
        now: Instant,
    ) -> TakenBatch {
        self.history_recorder.is_next_requested = false;
        let stream = self.streams.get(index).id;
        let share = self.step_share(start, batch.rows);
        self.on_slot_delivered(start);
        self.extend_stream(index);
        self.grant_credit(now);
        self.stats.rows += u64::from(batch.rows);
        self.stats.batches += 1;
        let newest_ms = batch.parts.iter().map(|part| part.payload.newest_ms).max();
        self.stats.newest_ms = self.stats.newest_ms.max(newest_ms.unwrap_or(0));
        counter!(BATCHES_TOTAL).increment(1);
        counter!(ROWS_TOTAL).increment(u64::from(batch.rows));
        let carried = std::mem::take(&mut self.carried);
        let mut taken = TakenBatch::new(stream, share, batch, carried, self.schema.clone());
        self.stats.skipped_rows += taken.info.skipped.len() as u64;
        self.set_batch_growth(&mut taken.info);
        taken
    }

    /// Takes the next run of a stream, and returns its start.
    fn next_run(&mut self, index: usize) -> Option<(StreamPosition, AssembledBatch<PieceBytes>)> {
        let layout = self.layout.as_ref()?;
        let start = self.streams.get(index).batch_position(layout);
        let run = self.streams.update(index, layout, |stream| stream.assembler.next_run());
        run.map(|run| (start, run))
    }

    fn result_without_stream(&mut self, now: Instant) -> TakeResult {
        let is_at_end = self.layout.is_some() && !self.may_receive_slots();
        let is_finished = is_at_end && !self.awaits_verdict(now);
        match &self.job_state {
            JobState::Failed(message) => TakeResult::Failed(self.job_failure(message)),
            JobState::Completed => TakeResult::Finished,
            _ if is_finished => TakeResult::Finished,
            _ => TakeResult::Pending,
        }
    }

    /// Whether a consumer without rows waits at its end, because the coordinator fails a job that has delivered no row to any
    /// consumer. It does not wait long for other consumers, because they may wait for this one.
    fn awaits_verdict(&mut self, now: Instant) -> bool {
        if self.stats.rows > 0 || self.job_has_rows {
            return false;
        }
        self.without_rows_since.get_or_insert(now);
        self.is_alone() || self.verdict_deadline().is_some_and(|deadline| now < deadline)
    }

    fn is_alone(&self) -> bool {
        self.consumers <= 1 && !self.slots.is_elastic
    }

    /// When a consumer without rows stops to wait at its end. `None` if it does not wait, or waits for the coordinator.
    pub(crate) fn verdict_deadline(&self) -> Option<Instant> {
        self.without_rows_since.filter(|_| !self.is_alone()).map(|since| since + VERDICT_TIMEOUT)
    }

    /// Stores the first skipped row of a consumer without rows.
    fn record_first_skipped(&mut self, parts: &[PieceSlice<PieceBytes>]) {
        if self.stats.rows == 0 && self.first_skipped.is_none() {
            self.first_skipped = parts.iter().find_map(|part| part.payload.skipped.first().cloned());
        }
    }

    /// Returns the error of a failed job. If all rows were skipped, the message contains the first reason.
    fn job_failure(&self, message: &str) -> ClientError {
        let first = self.first_skipped.as_ref().filter(|_| self.stats.rows == 0);
        let first = first.map(|row| {
            let unit = if is_kafka(&row.shard) { "offset" } else { "byte" };
            format!(
                "; the first skipped row is row {} of {}, at {unit} {}: {}",
                row.row_id, row.shard, row.offset, row.reason
            )
        });
        ClientError::JobFailed(format!("{message}{}", first.unwrap_or_default()))
    }

    /// Returns the result of [`Self::take`] if the next batch of the first stream has not arrived.
    fn result_without_run(&mut self, index: usize) -> TakeResult {
        match &self.job_state {
            JobState::Failed(message) => return TakeResult::Failed(self.job_failure(message)),
            JobState::Completed => return TakeResult::Finished,
            _ => {}
        }
        if let Some(message) = self.row_error_of(index).or_else(|| self.underfull_batch_error(index)) {
            self.row_error = Some(message.clone());
            self.reports.on_event();
            return TakeResult::Failed(ClientError::JobFailed(message));
        }
        TakeResult::Pending
    }

    /// Returns the error of a failed row in the split that a stream waits for.
    fn row_error_of(&self, index: usize) -> Option<String> {
        if self.identity.is_relaxed {
            // A relaxed consumer does not wait for one split, so any failed row ends the job.
            return self.fetches.iter().find_map(|(_, fetch)| fetch.row_error.clone());
        }
        let (first, _) = self.streams.get(index).assembler.missing_splits().next()?;
        self.fetches.get(first)?.row_error.clone()
    }

    /// Returns the step of a batch that starts at `start`, and the batch's share of the rows of the step.
    fn step_share(&self, start: StreamPosition, rows: u32) -> StepShare {
        let Some(layout) = self.layout.as_ref().filter(|_| !self.identity.is_relaxed) else {
            return StepShare::default();
        };
        let step = layout.step_of(start);
        let full_step = u64::from(layout.batch_rows) * u64::from(layout.streams);
        let step_rows = step.map_or(full_step, |step| layout.step_rows(step));
        StepShare { step, weight: f64::from(rows) / step_rows.max(1) as f64 }
    }

    /// Releases the memory of delivered rows, and records their splits for the next report. Returns the number of splits that
    /// were completed.
    fn on_batch_delivered(&mut self, parts: &[PieceSlice<PieceBytes>]) -> u32 {
        let mut completed: BTreeSet<SplitRef> = BTreeSet::new();
        for part in parts {
            if is_last_part(part) {
                let bytes = part.payload.bytes;
                self.stats.bytes += bytes;
                counter!(BYTES_TOTAL).increment(bytes);
                self.remove_buffered(part.split, bytes);
            }
            if self.layout.as_ref().is_some_and(|layout| part.input_range.end >= layout.split_len(part.split))
            {
                completed.insert(part.split);
            }
        }
        for split in &completed {
            self.fetches.remove(*split);
        }
        let completed_splits = completed.len() as u32;
        self.reports.on_batch_delivered(completed, self.identity.is_relaxed);
        completed_splits
    }

    pub(super) fn add_buffered(&mut self, split: SplitRef, bytes: u64) {
        self.fetches.update(split, |fetch| fetch.buffered_bytes += bytes);
        self.buffered_bytes += bytes;
        gauge!(BUFFERED_BYTES).increment(bytes as f64);
    }

    pub(super) fn remove_buffered(&mut self, split: SplitRef, bytes: u64) {
        let remove =
            |fetch: &mut SplitFetch| fetch.buffered_bytes = fetch.buffered_bytes.saturating_sub(bytes);
        if self.fetches.update(split, remove).is_some() {
            self.queue_for_credit(split);
        }
        let bytes = bytes.min(self.buffered_bytes);
        self.buffered_bytes -= bytes;
        gauge!(BUFFERED_BYTES).decrement(bytes as f64);
    }

    pub(super) fn remove_all_buffered(&mut self) {
        gauge!(BUFFERED_BYTES).decrement(self.buffered_bytes as f64);
        self.buffered_bytes = 0;
    }
}
