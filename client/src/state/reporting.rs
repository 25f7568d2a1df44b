//! What a consumer reports to the coordinator, and when.

use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::messages::{ConsumerReport, Revision};
use tokio::time::{Duration, Instant};

use super::ConsumerState;
use super::report_tracker::SentReport;
use super::stream_state::StreamState;

/// Interval between reports for each stream. A report and its reply contain every stream, so with hundreds of streams that
/// complete splits all the time, reports without an interval would use most of a core.
const INTERVAL_PER_STREAM: Duration = Duration::from_micros(8);

impl ConsumerState {
    /// The earliest time of the next report. A flush and a failure are not delayed.
    pub(crate) fn next_report_at(&self) -> Instant {
        let reports = &self.reports;
        if reports.is_flushing || self.row_error.is_some() {
            return reports.sent_at;
        }
        reports.sent_at + INTERVAL_PER_STREAM * self.streams.len().saturating_sub(1) as u32
    }

    /// Whether a report is due while the coordinator has not replied to the last one.
    pub(crate) fn is_report_due(&self, now: Instant) -> bool {
        let reports = &self.reports;
        let interval = Duration::from_millis(self.settings.report_ms);
        reports.is_urgent
            || reports.sent_wants != self.wanted_splits()
            || (reports.version > reports.sent_version && now - reports.sent_at >= interval)
    }

    /// The number of splits for each stream that the next plan should contain; in relaxed mode, for the consumer.
    fn wanted_splits(&self) -> u32 {
        if self.identity.is_relaxed && self.streams.as_slice().iter().any(StreamState::is_ended) {
            return 0;
        }
        self.splits_ahead + self.streams.max_complete_splits() as u32
    }

    /// Creates a report of the present state.
    pub(crate) fn create_report(&mut self, now: Instant) -> (ConsumerReport, SentReport) {
        let (wants, stats) = (self.wanted_splits(), self.reported_stats(now));
        let (slots, sent_slots) = self.slot_report();
        let positions = if self.slots.is_elastic { Vec::new() } else { self.positions() };
        let (open, history) = (self.open_splits(), self.recorder.report());
        let reports = &mut self.reports;
        // A failure ends the job, so the coordinator must have acknowledged all deliveries before it.
        let failed = self.row_error.as_ref().filter(|_| reports.acknowledged_version + 1 >= reports.version);
        let version = reports.version - u64::from(self.row_error.is_some() && failed.is_none());
        let sent = SentReport { version, unreachable: reports.unreachable(), slots: sent_slots };
        let report = ConsumerReport {
            job: self.identity.job,
            consumer: self.identity.consumer,
            session: self.identity.session,
            plan_revision: if reports.is_flushing { Revision::default() } else { self.revision },
            positions,
            open_splits: open,
            wanted_splits: wants,
            unreachable: sent.unreachable.clone(),
            batch_error: failed.cloned(),
            stats,
            slots,
            history,
        };
        reports.on_sent(version, wants, now);
        (report, sent)
    }

    /// Records that the coordinator has acknowledged a report. Returns the acknowledged version.
    pub(crate) fn on_report_acknowledged(&mut self, report: &SentReport) -> u64 {
        self.on_slots_acknowledged(&report.slots);
        let reports = &mut self.reports;
        reports.on_acknowledged(report);
        reports.is_urgent |= self.row_error.is_some() && reports.acknowledged_version < reports.version;
        reports.acknowledged_version
    }

    /// Requests a report at once. Returns the version that it covers.
    pub(crate) fn request_flush(&mut self) -> u64 {
        self.reports.request_flush()
    }

    /// Deterministic mode: the next undelivered row of each stream.
    pub(crate) fn positions(&self) -> Vec<(u32, StreamPosition)> {
        let Some(layout) = self.layout.as_ref().filter(|_| !self.identity.is_relaxed) else {
            return Vec::new();
        };
        self.streams.as_slice().iter().map(|stream| (stream.id, stream.position(layout))).collect()
    }

    /// Relaxed mode: the offset of the next undelivered row of each split; for a delivered split, its length.
    pub(crate) fn open_splits(&self) -> Vec<(SplitRef, u32)> {
        let Some(layout) = self.layout.as_ref().filter(|_| self.identity.is_relaxed) else {
            return Vec::new();
        };
        let delivered = self.reports.delivered().map(|split| (split, layout.split_len(split)));
        delivered
            .chain(self.streams.as_slice().iter().flat_map(|stream| stream.assembler.undelivered_splits()))
            .collect()
    }
}
