//! Creates the reports of a consumer, and decides when they are due.

use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::messages::{ConsumerReport, Revision};
use tokio::time::{Duration, Instant};

use super::ConsumerState;
use super::report_tracker::SentReport;
use super::stream_state::StreamState;

/// Minimum interval between reports, per stream. Reports and replies contain all streams, so without this interval, consumers with
/// hundreds of streams would use most of a core for reports.
const INTERVAL_PER_STREAM: Duration = Duration::from_micros(32);

impl ConsumerState {
    /// Returns the earliest time of the next report. Flushes and failures are not delayed.
    pub(crate) fn next_report_at(&self) -> Instant {
        let reports = &self.reports;
        if reports.is_flushing || self.row_error.is_some() {
            return reports.sent_at;
        }
        reports.sent_at + INTERVAL_PER_STREAM * self.streams.len().saturating_sub(1) as u32
    }

    /// Whether a report is due although the coordinator has not replied to the previous report.
    pub(crate) fn is_report_due(&self, now: Instant) -> bool {
        let reports = &self.reports;
        let interval = Duration::from_millis(self.settings.report_ms);
        reports.is_urgent
            || reports.sent_wanted_splits != self.wanted_splits()
            || (reports.version > reports.sent_version && now - reports.sent_at >= interval)
    }

    /// Returns the number of splits per stream that the next plan should contain.
    fn wanted_splits(&self) -> u32 {
        if self.identity.is_relaxed && self.streams.as_slice().iter().any(StreamState::is_ended) {
            return 0;
        }
        let held = self.streams.max_complete_splits() as u32 + self.confirmation.completed_splits();
        self.splits_ahead + held
    }

    /// Creates a report of the current state.
    pub(crate) fn create_report(&mut self, now: Instant) -> (ConsumerReport, SentReport) {
        let (wanted_splits, stats) = (self.wanted_splits(), self.reported_stats(now));
        let (slots, sent_slots) = self.slot_report();
        let positions = if self.slots.is_elastic { Vec::new() } else { self.confirmed_positions() };
        let (open, history) = (self.open_splits(), self.history_recorder.report());
        let known_growth = self.known_growth();
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
            wanted_splits,
            unreachable: sent.unreachable.clone(),
            batch_error: failed.cloned(),
            stats,
            slots,
            history,
            known_growth,
        };
        reports.on_sent(version, wanted_splits, now);
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

    /// Requests an immediate report. Returns the version that it covers.
    pub(crate) fn request_flush(&mut self) -> u64 {
        self.reports.request_flush()
    }

    /// Returns the next undelivered row of each stream. Empty in relaxed mode.
    pub(crate) fn positions(&self) -> Vec<(u32, StreamPosition)> {
        let Some(layout) = self.layout.as_ref().filter(|_| !self.identity.is_relaxed) else {
            return Vec::new();
        };
        self.streams.as_slice().iter().map(|stream| (stream.id, stream.position(layout))).collect()
    }

    /// Like [`Self::positions`], without the batch that is not confirmed yet.
    fn confirmed_positions(&self) -> Vec<(u32, StreamPosition)> {
        let mut positions = self.positions();
        for (stream, position) in &mut positions {
            if let Some(start) = self.confirmation.start_of(*stream) {
                *position = start;
            }
        }
        positions
    }

    /// Returns the offset of the next undelivered row of each split, without the batch that is not confirmed yet. The offset of a
    /// delivered split is its length. Empty in deterministic mode.
    pub(crate) fn open_splits(&self) -> Vec<(SplitRef, u32)> {
        let Some(layout) = self.layout.as_ref().filter(|_| self.identity.is_relaxed) else {
            return Vec::new();
        };
        let delivered = self.reports.delivered().map(|split| (split, layout.split_len(split)));
        delivered
            .chain(self.streams.as_slice().iter().flat_map(|stream| stream.assembler.undelivered_splits()))
            .map(|(split, offset)| (split, self.confirmation.confirmed_offset(split, offset)))
            .collect()
    }
}
