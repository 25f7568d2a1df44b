//! A simulated consumer. It prefetches a few splits, consumes batches in the order of its stream at its own rate, and
//! reports like a real client.

use std::collections::VecDeque;

use feedline_data::ids::{JobId, Millis, SessionId, WorkerId};
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::messages::{ConsumerPlan, ConsumerReport, ConsumerStats, Revision};

use super::fleet::Fleet;
use super::job::SimulatedJob;
use super::scenario::ScenarioControl;

/// The activity of a consumer, with times in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    /// The consumer has waited for a batch since this time.
    Waiting(u64),
    /// The consumer processes a batch from the first time to the second time.
    Working(u64, u64),
}

/// A split that the consumer prefetches.
#[derive(Debug)]
struct PrefetchedSplit {
    split: SplitRef,
    row_count: u32,
    /// The offset after the last fetched row.
    fetched_end: u32,
    workers: Vec<WorkerId>,
}

/// One consumer of a job, with one stream. Times are in nanoseconds.
#[derive(Debug)]
pub(super) struct SimulatedConsumer {
    /// The index of the job in the scenario.
    pub(super) job: u32,
    pub(super) number: u32,
    plan_revision: Revision,
    /// Prefetched splits, starting with the split at the position. Empty until the first plan.
    prefetched: VecDeque<PrefetchedSplit>,
    has_position: bool,
    /// The number of rows of the first split that have been consumed.
    offset: u32,
    activity: Activity,
    /// The reported counters. A wait or a step is counted when it ends.
    stats: ConsumerStats,
    /// Total time of all waits, including a wait that has not ended.
    pub(super) stall_ns: u64,
    /// Total time of all steps, including a step that has not ended.
    pub(super) step_ns: u64,
    /// The latest time of the next report.
    next_report: Millis,
    /// The earliest time of the next report.
    earliest_report: Millis,
    /// Whether the coordinator has not answered the last report yet.
    awaits_reply: bool,
}

impl SimulatedConsumer {
    pub(super) fn new(job: u32, number: u32, first_report: Millis) -> Self {
        Self {
            job,
            number,
            plan_revision: Revision::default(),
            prefetched: VecDeque::new(),
            has_position: false,
            offset: 0,
            activity: Activity::Waiting(0),
            stats: ConsumerStats::default(),
            stall_ns: 0,
            step_ns: 0,
            next_report: first_report,
            earliest_report: first_report,
            awaits_reply: false,
        }
    }

    /// Whether a report is due: the longest interval has passed, or the coordinator has answered the last report and
    /// the shortest interval has passed.
    pub(super) fn is_report_due(&self, now: Millis) -> bool {
        now >= self.next_report || (!self.awaits_reply && now >= self.earliest_report)
    }

    /// Schedules the next report.
    pub(super) fn schedule_report(&mut self, now: Millis, control: &ScenarioControl) {
        self.awaits_reply = true;
        self.next_report = now + control.consumer_report_ms.max(control.tick_ms);
        self.earliest_report = now + control.consumer_gap_ms.max(control.tick_ms);
    }

    pub(super) fn consumed_rows(&self) -> u64 {
        self.stats.rows
    }

    pub(super) fn consumed_batches(&self) -> u64 {
        self.stats.batches
    }

    /// Applies a plan from the coordinator.
    pub(super) fn on_plan(&mut self, plan: &ConsumerPlan, layout: &Layout, splits_ahead: u32) {
        self.plan_revision = plan.revision;
        self.awaits_reply = false;
        if !self.has_position
            && let Some((stream, position)) = plan.streams.first()
            && let Some((split, offset)) = layout.locate(*stream, *position)
        {
            self.has_position = true;
            self.offset = offset;
            self.push_split(layout, split);
        }
        self.prefetch_splits(layout, splits_ahead);
        for prefetched in &mut self.prefetched {
            let planned = plan.splits.iter().find(|planned| planned.split == prefetched.split);
            prefetched.workers.clear();
            prefetched
                .workers
                .extend(planned.iter().flat_map(|planned| planned.workers.iter().map(|(id, _)| *id)));
        }
    }

    fn push_split(&mut self, layout: &Layout, split: SplitRef) {
        let len = layout.split_len(split);
        self.prefetched.push_back(PrefetchedSplit {
            split,
            row_count: len,
            fetched_end: self.first_missing_offset(split),
            workers: Vec::new(),
        });
    }

    /// Returns the offset of the first row to fetch, which is 0 for all splits except the first.
    fn first_missing_offset(&self, split: SplitRef) -> u32 {
        let is_first = self.prefetched.front().is_none_or(|first| first.split == split);
        if is_first { self.offset } else { 0 }
    }

    fn prefetch_splits(&mut self, layout: &Layout, splits_ahead: u32) {
        while self.prefetched.len() < splits_ahead as usize
            && let Some(next) = self.prefetched.back().and_then(|last| layout.next_split(last.split))
        {
            self.push_split(layout, next);
        }
    }

    /// Fetches the rows that workers have computed.
    pub(super) fn fetch(&mut self, fleet: &mut Fleet) {
        for prefetched in
            self.prefetched.iter_mut().filter(|prefetched| prefetched.fetched_end < prefetched.row_count)
        {
            for worker in &prefetched.workers {
                let worker = fleet.worker(*worker);
                if let Some(end) =
                    worker.and_then(|worker| worker.fetch(self.job, prefetched.split, prefetched.fetched_end))
                {
                    prefetched.fetched_end = end;
                }
            }
        }
    }

    /// Advances the time from `start` to `end`. `rows_per_s` is the rate at which the consumer processes rows.
    pub(super) fn advance(
        &mut self,
        start: u64,
        end: u64,
        rows_per_s: f64,
        job: &SimulatedJob,
        splits_ahead: u32,
    ) {
        let mut now = start;
        while now < end {
            match self.activity {
                Activity::Working(since, until) => {
                    let to = until.min(end);
                    self.step_ns += to - now;
                    now = to;
                    if now == until {
                        self.stats.step_ns += until - since;
                        self.activity = Activity::Waiting(now);
                    }
                }
                Activity::Waiting(since) if rows_per_s <= 0.0 => {
                    // A consumer without demand is not waiting for a batch.
                    self.stats.stall_ns += now - since;
                    self.activity = Activity::Working(now, end);
                }
                Activity::Waiting(since) => {
                    let Some(rows) = self.take_batch(job, splits_ahead) else {
                        self.stall_ns += end - now;
                        return;
                    };
                    self.stats.stall_ns += now - since;
                    let step_ns = (1e9 * f64::from(rows) / rows_per_s).max(1.0) as u64;
                    self.activity = Activity::Working(now, now + step_ns);
                }
            }
        }
    }

    /// Consumes the next batch and returns its number of rows. Returns `None` if some of its rows have not arrived.
    fn take_batch(&mut self, job: &SimulatedJob, splits_ahead: u32) -> Option<u32> {
        let first = self.prefetched.front()?;
        let rows = job.layout.batch_rows.min(first.row_count - self.offset);
        // After the last split of a job, the number of rows is 0.
        if rows == 0 || first.fetched_end < self.offset + rows {
            return None;
        }
        self.offset += rows;
        self.stats.rows += u64::from(rows);
        self.stats.batches += 1;
        self.stats.bytes += u64::from(rows) * job.definition.delivered_bytes_per_row;
        self.stats.network_bytes = self.stats.bytes;
        if self.offset == first.row_count {
            // Keep the last split of a job, because it has no successor.
            self.prefetch_splits(&job.layout, splits_ahead + 1);
            if self.prefetched.len() > 1 {
                self.prefetched.pop_front();
                self.offset = 0;
            }
        }
        Some(rows)
    }

    /// Returns the next undelivered row, or `None` before the first plan.
    pub(super) fn position(&self, layout: &Layout) -> Option<StreamPosition> {
        let first = self.prefetched.front()?;
        Some(layout.position_in(first.split, self.offset))
    }

    /// Returns the report of the consumer.
    pub(super) fn report(
        &self,
        now: Millis,
        id: JobId,
        layout: &Layout,
        splits_ahead: u32,
    ) -> ConsumerReport {
        let mut stats = self.stats;
        if let Activity::Waiting(since) = self.activity {
            stats.stall_ns += (1_000_000 * now).saturating_sub(since);
        }
        ConsumerReport {
            job: id,
            consumer: self.number,
            session: SessionId(1),
            plan_revision: self.plan_revision,
            positions: self.position(layout).map(|position| (self.number, position)).into_iter().collect(),
            open_splits: Vec::new(),
            wanted_splits: splits_ahead,
            unreachable: Vec::new(),
            batch_error: None,
            stats,
            slots: Default::default(),
            history: Default::default(),
            known_growth: feedline_data::growth::KnownGrowth::default(),
        }
    }
}
