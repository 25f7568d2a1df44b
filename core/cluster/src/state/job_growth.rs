//! The growth of one unbounded job: the recorded segments, and the state of the listings that extend them.

use feedline_data::growth::{Growth, ListedGrowth, SegmentPlan};
use feedline_data::ids::{Millis, WorkerId};
use feedline_data::layout::{Layout, StreamPosition};
use feedline_data::pipeline::{EpochEnd, Pipeline};

/// Milliseconds between two listings of the topics, and minimum time between two segments with less than one step.
pub(crate) const LISTING_INTERVAL_MS: u64 = 250;
/// First pause after a listing that failed, in milliseconds. Each further failure doubles the pause.
const FIRST_RETRY_MS: u64 = 250;
const MAX_RETRY_MS: u64 = 5_000;
/// How long listings may fail permanently before the job fails, in milliseconds. A broker that has just started may not know a
/// topic yet.
const FAILURE_GRACE_MS: u64 = 10_000;
/// Milliseconds between two small segments for each stream. Each stream has at least one split in a segment.
const INTERVAL_PER_STREAM_MS: u64 = 2;
/// Number of undelivered segments that doubles the time between two small segments. The number of segments of a batch, and of
/// those that wait for a stopped consumer, therefore stays small.
const SLOW_SEGMENTS: u64 = 32;
/// Maximum number of rows of a segment, unless the shuffle window is larger.
const MAX_SEGMENT_ROWS: u64 = 1 << 18;
/// Maximum number of rows of a segment with a larger shuffle window.
const MAX_WINDOW_ROWS: u64 = 1 << 22;
/// Number of undelivered rows after which the job records no further segments, unless a consumer needs more rows for a batch.
/// [`feedline_data::segments::MAX_UNDELIVERED_BLOCKS`] limits these too.
pub(crate) const MAX_UNDELIVERED_ROWS: u64 = 1 << 22;
/// Number of undelivered segments after which the job records no further segments, unless a consumer needs more rows for a batch.
/// Short epochs have small segments.
pub(crate) const MAX_UNDELIVERED_SEGMENTS: usize = 4_096;
/// Maximum number of segments that the job records of one listing.
pub(crate) const MAX_SEGMENTS_PER_LISTING: usize = 256;

#[derive(Debug)]
pub(crate) struct JobGrowth {
    /// Durable state: partitions, undelivered segments and totals.
    pub(crate) recorded: Growth,

    // The remaining fields are soft state.
    /// The time of the next listing.
    pub(crate) next_listing_at: Millis,
    /// The time of the last record, at which the epoch had lasted `recorded.epoch_ms`.
    recorded_at: Millis,
    /// The number of rows that the last listing has found, and that are not recorded.
    unrecorded_rows: u64,
    /// Why the last listing failed, or why the job records no rows.
    pub(crate) source_error: Option<String>,
    failures: u32,
    /// The time of the first of the last permanent failures, without a success since then.
    failing_since: Option<Millis>,
    /// Since when a partition ends before its recorded offsets.
    behind_since: Option<Millis>,
    /// The worker of the last listing, if it could not reach the brokers.
    pub(crate) failed_worker: Option<WorkerId>,
}

impl JobGrowth {
    pub(crate) fn new(recorded: Growth, now: Millis) -> Self {
        Self {
            recorded,
            next_listing_at: now,
            recorded_at: now,
            unrecorded_rows: 0,
            source_error: None,
            failures: 0,
            failing_since: None,
            behind_since: None,
            failed_worker: None,
        }
    }

    /// Records that the job has recorded a segment now.
    pub(crate) fn on_recorded(&mut self, now: Millis) {
        self.recorded_at = now;
    }

    /// Schedules the next listing after a listing that succeeded, or that was not necessary.
    pub(crate) fn on_listed(&mut self, now: Millis) {
        (self.source_error, self.failures, self.failing_since, self.failed_worker) = (None, 0, None, None);
        self.next_listing_at = now + LISTING_INTERVAL_MS;
    }

    /// Schedules the next listing after a listing that failed.
    pub(crate) fn on_unavailable(&mut self, reason: String, now: Millis) {
        self.source_error = Some(reason);
        self.next_listing_at = now + (FIRST_RETRY_MS << self.failures.min(8)).min(MAX_RETRY_MS);
        self.failures += 1;
    }

    /// Schedules the next listing after a listing that failed permanently. Returns whether the job fails.
    pub(crate) fn on_failed(&mut self, message: String, now: Millis) -> bool {
        let since = *self.failing_since.get_or_insert(now);
        self.on_unavailable(message, now);
        now.saturating_sub(since) >= FAILURE_GRACE_MS
    }

    /// Returns the error of a partition that has ended before its recorded offsets for some time. A leader that has just been elected
    /// may not know the end yet.
    pub(crate) fn lost_records(&mut self, found: &ListedGrowth, now: Millis) -> Option<String> {
        let Some(behind) = found.behind else {
            self.behind_since = None;
            return None;
        };
        let since = *self.behind_since.get_or_insert(now);
        (now.saturating_sub(since) >= FAILURE_GRACE_MS).then(|| self.recorded.describe_lost(behind))
    }

    /// Whether a segment with this number of rows is due. A segment that may complete a step is due immediately.
    pub(crate) fn is_segment_due(&self, rows: u64, layout: &Layout, now: Millis) -> bool {
        let streams = u64::from(layout.streams);
        if rows >= streams * u64::from(layout.batch_rows) {
            return true;
        }
        let undelivered = self.recorded.segments.len() as u64;
        let factor = 1 + undelivered * undelivered / (SLOW_SEGMENTS * SLOW_SEGMENTS);
        let interval = LISTING_INTERVAL_MS.max(streams * INTERVAL_PER_STREAM_MS) * factor;
        rows > 0 && (self.recorded.segments.is_empty() || now.saturating_sub(self.recorded_at) >= interval)
    }

    /// Stores what a listing has found, after it was recorded as far as possible.
    pub(crate) fn set_unrecorded(&mut self, found: &ListedGrowth) {
        self.unrecorded_rows = found.rows(&self.recorded);
    }

    /// The number of rows that have arrived since the job started, as of the last listing.
    pub(crate) fn arrived_rows(&self) -> u64 {
        self.recorded.rows.saturating_add(self.unrecorded_rows)
    }

    /// The number of these rows that are not delivered. Takes O(streams * log segments) time.
    pub(crate) fn backlog_rows(&self, layout: &Layout, streams: &[StreamPosition]) -> u64 {
        self.recorded.rows_after(layout, streams).saturating_add(self.unrecorded_rows)
    }

    /// Milliseconds since the start of the current epoch.
    pub(crate) fn epoch_ms(&self, now: Millis) -> u64 {
        self.recorded.epoch_ms.saturating_add(now.saturating_sub(self.recorded_at))
    }

    /// Returns how to form the next segment.
    pub(crate) fn plan_segment(&self, pipeline: &Pipeline, layout: &Layout, now: Millis) -> SegmentPlan {
        let window_rows = pipeline.shuffle.window.min(MAX_WINDOW_ROWS);
        let rows_of_epoch = self.recorded.rows - self.recorded.epoch_first_row;
        let end = pipeline.source.kafka.as_ref().and_then(|kafka| kafka.epoch);
        // An epoch has at least one row.
        let starts_epoch = rows_of_epoch > 0
            && match end {
                Some(EpochEnd::Every(period)) => self.epoch_ms(now) >= period.0,
                Some(EpochEnd::Rows(rows)) => rows_of_epoch >= rows,
                None => false,
            };
        let rows_left = match end {
            Some(EpochEnd::Rows(rows)) if starts_epoch => rows,
            Some(EpochEnd::Rows(rows)) => rows - rows_of_epoch,
            _ => u64::MAX,
        };
        SegmentPlan {
            streams: layout.streams,
            split_rows: layout.split_rows,
            max_rows: MAX_SEGMENT_ROWS.max(window_rows).min(rows_left.max(1)),
            starts_epoch,
        }
    }
}
