//! The state of a consumer: the coordinator's plan, the running fetches, and the deliveries. The state receives the
//! time as an argument and performs no I/O. The session and the fetches access it under one lock, which is never held
//! across an await.

mod confirmation;
mod credit;
mod delivery;
mod fetch_order;
mod fetch_outcome;
mod fetch_table;
mod fetching;
mod growth;
mod history;
mod history_recorder;
mod planning;
mod receiving;
mod report_tracker;
mod reporting;
mod retry_timer;
mod slot_state;
mod slots;
mod split_queue;
mod stream_state;
mod stream_table;
mod streams;
mod unconfirmed_batch;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use feedline_common::mismatch_timer::MismatchTimer;
use feedline_data::growth::Growth;
use feedline_data::ids::{JobId, SessionId};
use feedline_data::layout::{Layout, SplitRef};
use feedline_data::messages::{ConsumerStats, JobState, PlannedSplit, Revision};
use feedline_data::mix::MixChange;
use feedline_proto::SkippedRow;
use metrics::gauge;
use tokio::time::{Duration, Instant};

pub(crate) use self::delivery::TakeResult;
pub(crate) use self::fetch_order::FetchCommand;
pub(crate) use self::fetch_outcome::FetchOutcome;
use self::fetch_table::FetchTable;
use self::history_recorder::HistoryRecorder;
use self::report_tracker::ReportTracker;
pub(crate) use self::report_tracker::SentReport;
use self::retry_timer::RetryTimer;
use self::slot_state::SlotState;
use self::split_queue::SplitQueue;
use self::stream_table::ConsumerStreams;
use self::unconfirmed_batch::DeliveryConfirmation;
use crate::batch::BatchInfo;
use crate::error::ClientError;
use crate::metrics::BUFFERED_BYTES;
use crate::settings::ClientSettings;

/// Identifies a consumer to the coordinator.
#[derive(Debug, Clone)]
pub(crate) struct ConsumerIdentity {
    pub(crate) job: JobId,
    pub(crate) consumer: u32,
    pub(crate) session: SessionId,
    pub(crate) is_relaxed: bool,
}

/// The state of one consumer.
#[derive(Debug)]
pub(crate) struct ConsumerState {
    identity: ConsumerIdentity,
    settings: ClientSettings,
    job_state: JobState,
    revision: Revision,
    layout: Option<Layout>,
    /// The streams of the consumer. In relaxed mode, the consumer has a single stream.
    streams: ConsumerStreams,
    planned: BTreeMap<SplitRef, PlannedSplit>,
    /// Relaxed mode: whether the coordinator has assigned all splits.
    is_exhausted: bool,
    /// Whether a consumer of the job has delivered rows, or the job need not deliver any.
    job_has_rows: bool,
    /// The time at which the consumer reached its end without any rows.
    without_rows_since: Option<Instant>,
    /// The first skipped row before the first delivered row.
    first_skipped: Option<SkippedRow>,
    /// Maximum number of splits per stream in a plan. 0 before the first plan.
    max_splits: u32,
    /// Number of consumers of the job. 0 before the first plan.
    consumers: u32,
    /// Number of splits per stream that are fetched concurrently.
    splits_ahead: u32,
    /// Whether the consumer has logged a warning that it waits until other consumers have received all rows.
    has_warned_underfull: bool,
    /// Whether the consumer has logged a warning that its buffer is small for its batches.
    has_warned_small_buffer: bool,
    /// The ticket of the last plan, which authorizes the consumer at workers.
    ticket: String,
    fetches: FetchTable,
    /// Splits whose fetches may start.
    start_queue: SplitQueue,
    /// Splits whose fetches may receive more credit.
    credit_queue: SplitQueue,
    retries: RetryTimer,
    /// Measures for how long workers have rejected the protocol version.
    worker_mismatch: MismatchTimer,
    /// The credit window at the last grant.
    window: u64,
    next_attempt: u64,
    /// Columns of the batches, from the first piece.
    schema: Option<SchemaRef>,
    /// Rows since the last batch that are not part of any batch, because they were removed, skipped or dropped.
    carried: BatchInfo,
    buffered_bytes: u64,
    /// Size of the largest piece so far. `None` before the first piece.
    largest_piece: Option<u64>,
    stats: ConsumerStats,
    /// Start of the current stall.
    stalled_since: Option<Instant>,
    /// The error that ended the consumer. No more batches are delivered after it.
    fatal_error: Option<ClientError>,
    /// The error of a failed row, which is set after all batches before the row were delivered.
    row_error: Option<String>,
    reports: ReportTracker,
    confirmation: DeliveryConfirmation,
    slots: SlotState,
    history_recorder: HistoryRecorder,
    /// Unbounded jobs: the recorded segments. `None` before the first plan.
    growth: Option<Arc<Growth>>,
}

impl ConsumerState {
    pub(crate) fn new(identity: ConsumerIdentity, settings: ClientSettings, now: Instant) -> Self {
        Self {
            identity,
            splits_ahead: settings.splits_ahead,
            settings,
            job_state: JobState::Preparing {
                indexed: 0,
                shards: 0,
                read_bytes: 0,
                total_bytes: 0,
                workers: 0,
            },
            revision: Revision::default(),
            layout: None,
            streams: ConsumerStreams::default(),
            planned: BTreeMap::new(),
            is_exhausted: false,
            job_has_rows: false,
            without_rows_since: None,
            first_skipped: None,
            max_splits: 0,
            consumers: 0,
            has_warned_underfull: false,
            has_warned_small_buffer: false,
            ticket: String::new(),
            fetches: FetchTable::default(),
            start_queue: SplitQueue::default(),
            credit_queue: SplitQueue::default(),
            retries: RetryTimer::default(),
            worker_mismatch: MismatchTimer::default(),
            window: 0,
            next_attempt: 1,
            schema: None,
            carried: BatchInfo::default(),
            buffered_bytes: 0,
            largest_piece: None,
            stats: ConsumerStats::default(),
            stalled_since: None,
            fatal_error: None,
            row_error: None,
            reports: ReportTracker::new(now),
            confirmation: DeliveryConfirmation::default(),
            slots: SlotState::default(),
            history_recorder: HistoryRecorder::default(),
            growth: None,
        }
    }

    pub(crate) fn job_state(&self) -> JobState {
        self.job_state.clone()
    }

    pub(crate) fn stats(&self) -> ConsumerStats {
        // The skipped rows since the last batch belong to the next batch, if there is one.
        let skipped_rows = self.stats.skipped_rows + self.carried.skipped.len() as u64;
        ConsumerStats { skipped_rows, ..self.stats }
    }

    /// Mix changes that affect rows from `epoch` on.
    pub(crate) fn mix_changes_from(&self, epoch: u32) -> &[MixChange] {
        self.layout.as_ref().map(|layout| layout.mix_changes_from(epoch)).unwrap_or_default()
    }

    /// Rows since the last batch that are not part of any batch.
    pub(crate) fn carried(&self) -> BatchInfo {
        self.carried.clone()
    }

    pub(crate) fn begin_stall(&mut self, now: Instant) {
        self.stalled_since = Some(now);
    }

    /// Ends a stall and returns its duration.
    pub(crate) fn end_stall(&mut self, now: Instant) -> Duration {
        let stall = self.stalled_since.take().map_or(Duration::ZERO, |since| now - since);
        self.stats.stall_ns += stall.as_nanos() as u64;
        stall
    }

    /// Returns the stats for a report. They include the current stall, so that the coordinator detects a consumer that waits for a
    /// batch.
    fn reported_stats(&self, now: Instant) -> ConsumerStats {
        let stall = self.stalled_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        ConsumerStats { stall_ns: self.stats.stall_ns + stall.as_nanos() as u64, ..self.stats }
    }

    pub(crate) fn add_step(&mut self, step_ns: u64) {
        self.stats.step_ns += step_ns;
        self.add_batch_time(step_ns);
    }

    pub(crate) fn add_copy(&mut self, copy_ns: u64) {
        self.stats.copy_ns += copy_ns;
    }

    pub(crate) fn count_network_bytes(&mut self, bytes: u64) {
        self.stats.network_bytes += bytes;
    }

    pub(crate) fn fatal_error(&self) -> Option<ClientError> {
        self.fatal_error.clone()
    }

    /// Fails the consumer. Retains the first error.
    pub(crate) fn fail(&mut self, error: ClientError) {
        self.fatal_error.get_or_insert(error);
        self.fetches.clear();
    }
}

impl Drop for ConsumerState {
    fn drop(&mut self) {
        gauge!(BUFFERED_BYTES).decrement(self.buffered_bytes as f64);
    }
}

#[cfg(test)]
mod tests;
