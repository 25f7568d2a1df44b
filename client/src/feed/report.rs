//! What a consumer reports, and when.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::WorkerId;
use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::messages::{ConsumerReport, Revision};
use tokio::time::{Duration, Instant};

use super::Feed;
use super::slots::SentSlots;

/// Counts what there is to report and what the coordinator holds of it.
#[derive(Debug)]
pub(super) struct Reports {
    /// Counts deliveries.
    version: u64,
    /// Version that was sent last.
    sent: u64,
    /// Version that the coordinator holds.
    held: u64,
    sent_at: Instant,
    /// Something should be said at once.
    urgent: bool,
    /// The coordinator's answer should not be held back.
    flushing: bool,
    wants: u32,
    /// Relaxed mode: splits delivered in full that the coordinator still lists.
    done: BTreeSet<SplitRef>,
    /// (Split, worker) that broke, each until a report with it was answered.
    unreachable: BTreeSet<(SplitRef, WorkerId)>,
}

/// What a report said, to be noted once it is answered.
#[derive(Debug)]
pub(crate) struct SentReport {
    version: u64,
    unreachable: Vec<(SplitRef, WorkerId)>,
    slots: SentSlots,
}

impl Reports {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            version: 0,
            sent: 0,
            held: 0,
            sent_at: now,
            urgent: true,
            flushing: false,
            wants: 0,
            done: BTreeSet::new(),
            unreachable: BTreeSet::new(),
        }
    }

    pub(super) fn on_delivered(&mut self, finished: BTreeSet<SplitRef>, relaxed: bool) {
        self.version += 1;
        self.urgent |= !finished.is_empty();
        if relaxed {
            self.done.extend(finished);
        }
    }

    /// The failure is said once everything delivered before it is held.
    pub(super) fn on_failing(&mut self) {
        self.version += 1;
        self.urgent = true;
    }

    /// The consumer ends: what it says last is waited for.
    pub(super) fn on_ending(&mut self) {
        self.version += 1;
        self.urgent = true;
    }

    /// Something is to be said at once, and answered at once.
    pub(super) fn ask_at_once(&mut self) {
        (self.urgent, self.flushing) = (true, true);
    }

    pub(super) fn on_unreachable(&mut self, split: SplitRef, worker: WorkerId) {
        self.unreachable.insert((split, worker));
        self.urgent = true;
    }

    pub(super) fn is_done(&self, split: SplitRef) -> bool {
        self.done.contains(&split)
    }

    pub(super) fn forget_done<T>(&mut self, planned: &BTreeMap<SplitRef, T>) {
        self.done.retain(|split| planned.contains_key(split));
    }
}

/// Time between reports for each stream. A report and the plan that answers it have a part for every stream; with hundreds of
/// streams that each finish splits, reports without a pause would take most of a core.
const PAUSE_PER_STREAM: Duration = Duration::from_micros(8);

impl Feed {
    /// When the next report may be sent, as far as its cost goes. What is asked for at once is not held back.
    pub(crate) fn may_report_at(&self) -> Instant {
        let reports = &self.reports;
        if reports.flushing || self.failing.is_some() {
            return reports.sent_at;
        }
        reports.sent_at + PAUSE_PER_STREAM * self.lanes.len().saturating_sub(1) as u32
    }

    /// Whether something should be reported before the present request is answered.
    pub(crate) fn report_due(&self, now: Instant) -> bool {
        let reports = &self.reports;
        let interval = Duration::from_millis(self.settings.report_ms);
        reports.urgent
            || reports.wants != self.wants()
            || (reports.version > reports.sent && now - reports.sent_at >= interval)
    }

    /// Splits to be told of: those to fetch, and those that have arrived and wait for the rest of a batch.
    fn wants(&self) -> u32 {
        if self.identity.relaxed && self.lanes.as_slice().iter().any(super::stream_feed::StreamFeed::is_ended)
        {
            return 0;
        }
        self.settings.splits_ahead + self.lanes.most_held() as u32
    }

    /// The report of the present state.
    pub(crate) fn report(&mut self, now: Instant) -> (ConsumerReport, SentReport) {
        let (wants, stats) = (self.wants(), self.told_stats(now));
        let (slots, said_of_slots) = self.slot_report();
        let positions = if self.slots.is_elastic { Vec::new() } else { self.positions() };
        let (open, marks) = (self.open(), self.mark_report());
        let reports = &mut self.reports;
        // A failure ends the job, so what was delivered before it must be held already.
        let failing = self.failing.as_ref().filter(|_| reports.held + 1 >= reports.version);
        let version = reports.version - u64::from(self.failing.is_some() && failing.is_none());
        let said = SentReport {
            version,
            unreachable: reports.unreachable.iter().copied().collect(),
            slots: said_of_slots,
        };
        let report = ConsumerReport {
            job: self.identity.job,
            consumer: self.identity.consumer,
            session: self.identity.session,
            seen: if reports.flushing { Revision::default() } else { self.revision },
            positions,
            open,
            wants,
            unreachable: said.unreachable.clone(),
            failed: failing.cloned(),
            stats,
            slots,
            marks,
        };
        reports.urgent = false;
        reports.flushing = false;
        reports.sent = version;
        reports.sent_at = now;
        reports.wants = wants;
        (report, said)
    }

    /// A report was answered: the coordinator holds what it said. Gives the version it holds.
    pub(crate) fn on_report_answered(&mut self, said: &SentReport) -> u64 {
        self.on_slots_answered(&said.slots);
        let reports = &mut self.reports;
        reports.held = reports.held.max(said.version);
        for unreachable in &said.unreachable {
            reports.unreachable.remove(unreachable);
        }
        reports.urgent |= self.failing.is_some() && reports.held < reports.version;
        reports.held
    }

    /// Asks for a report at once, answered at once; gives the version that it will cover.
    pub(crate) fn ask_for_flush(&mut self) -> u64 {
        if self.reports.held < self.reports.version {
            self.reports.urgent = true;
            self.reports.flushing = true;
        }
        self.reports.version
    }

    /// Deterministic mode: the next undelivered row of each owned stream.
    pub(crate) fn positions(&self) -> Vec<(u32, StreamPosition)> {
        let Some(layout) = self.layout.as_ref().filter(|_| !self.identity.relaxed) else { return Vec::new() };
        self.lanes.as_slice().iter().map(|lane| (lane.stream, lane.position(layout))).collect()
    }

    /// Relaxed mode: the offset of the next undelivered row of each split, its length when done.
    pub(crate) fn open(&self) -> Vec<(SplitRef, u32)> {
        let Some(layout) = self.layout.as_ref().filter(|_| self.identity.relaxed) else { return Vec::new() };
        let done = self.reports.done.iter().map(|split| (*split, layout.split_len(*split)));
        done.chain(self.lanes.as_slice().iter().flat_map(|lane| lane.assembler.progress())).collect()
    }
}
