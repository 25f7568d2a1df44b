//! Tracks which deliveries and events a consumer must report, and which of them the coordinator has acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::WorkerId;
use feedline_data::layout::SplitRef;
use tokio::time::Instant;

use super::slot_state::SentSlots;

/// The state of the reports. The version increases with each delivery and each other event to report.
#[derive(Debug)]
pub(super) struct ReportTracker {
    /// The current version.
    pub(super) version: u64,
    /// Version of the last report.
    pub(super) sent_version: u64,
    /// Version that the coordinator has acknowledged.
    pub(super) acknowledged_version: u64,
    pub(super) sent_at: Instant,
    /// Whether a report is due immediately.
    pub(super) is_urgent: bool,
    /// Whether the coordinator must reply to the next report immediately.
    pub(super) is_flushing: bool,
    /// Number of splits per stream that the last report requested.
    pub(super) sent_wanted_splits: u32,
    /// Relaxed mode: splits that were delivered completely and that the plan still contains.
    delivered: BTreeSet<SplitRef>,
    /// Splits and workers of failed fetches that the coordinator has not acknowledged yet.
    unreachable: BTreeSet<(SplitRef, WorkerId)>,
}

/// The parts of a report that are recorded when the coordinator replies.
#[derive(Debug)]
pub(crate) struct SentReport {
    pub(super) version: u64,
    pub(super) unreachable: Vec<(SplitRef, WorkerId)>,
    pub(super) slots: SentSlots,
}

impl ReportTracker {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            version: 0,
            sent_version: 0,
            acknowledged_version: 0,
            sent_at: now,
            is_urgent: true,
            is_flushing: false,
            sent_wanted_splits: 0,
            delivered: BTreeSet::new(),
            unreachable: BTreeSet::new(),
        }
    }

    /// Records a delivery and the splits that it completed.
    pub(super) fn on_batch_delivered(&mut self, completed: BTreeSet<SplitRef>, is_relaxed: bool) {
        self.version += 1;
        self.is_urgent |= !completed.is_empty();
        if is_relaxed {
            self.delivered.extend(completed);
        }
    }

    /// Records that a batch counts as delivered which earlier reports excluded.
    pub(super) fn on_batch_confirmed(&mut self, is_urgent: bool) {
        self.version += 1;
        self.is_urgent |= is_urgent;
    }

    /// Records that the consumer has failed or is closing, which is reported immediately.
    pub(super) fn on_event(&mut self) {
        self.version += 1;
        self.is_urgent = true;
    }

    /// Requests an immediate report and an immediate reply.
    pub(super) fn request_now(&mut self) {
        (self.is_urgent, self.is_flushing) = (true, true);
    }

    /// Requests an immediate report of everything that is not acknowledged yet. Returns the version that the report
    /// covers.
    pub(super) fn request_flush(&mut self) -> u64 {
        if self.acknowledged_version < self.version {
            self.request_now();
        }
        self.version
    }

    pub(super) fn on_unreachable(&mut self, split: SplitRef, worker: WorkerId) {
        self.unreachable.insert((split, worker));
        self.is_urgent = true;
    }

    pub(super) fn unreachable(&self) -> Vec<(SplitRef, WorkerId)> {
        self.unreachable.iter().copied().collect()
    }

    pub(super) fn is_delivered(&self, split: SplitRef) -> bool {
        self.delivered.contains(&split)
    }

    pub(super) fn delivered(&self) -> impl Iterator<Item = SplitRef> + '_ {
        self.delivered.iter().copied()
    }

    /// Removes delivered splits that the plan no longer contains.
    pub(super) fn retain_delivered<T>(&mut self, planned: &BTreeMap<SplitRef, T>) {
        self.delivered.retain(|split| planned.contains_key(split));
    }

    pub(super) fn on_sent(&mut self, version: u64, wanted_splits: u32, now: Instant) {
        (self.is_urgent, self.is_flushing) = (false, false);
        (self.sent_version, self.sent_wanted_splits, self.sent_at) = (version, wanted_splits, now);
    }

    /// Records that the coordinator has acknowledged a report.
    pub(super) fn on_acknowledged(&mut self, report: &SentReport) {
        self.acknowledged_version = self.acknowledged_version.max(report.version);
        for unreachable in &report.unreachable {
            self.unreachable.remove(unreachable);
        }
    }
}
