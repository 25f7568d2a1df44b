//! A simulated consumer: fetches a few splits ahead, takes batches in the stream's order and at most as fast as it can,
//! and reports as the real client does.

use std::collections::VecDeque;

use feedline_data::ids::{JobId, Millis, SessionId, WorkerId};
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::messages::{ConsumerPlan, ConsumerReport, ConsumerStats, Revision};

use super::fleet::Fleet;
use super::job::SimulatedJob;
use super::scenario::ScenarioControl;

/// What it is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Waits for a batch since this time.
    Waiting(u64),
    /// Works on a batch from the first time to the second.
    Working(u64, u64),
}

/// A split that is fetched ahead.
#[derive(Debug)]
struct Ahead {
    split: SplitRef,
    len: u32,
    /// Rows before this one have arrived.
    fetched: u32,
    workers: Vec<WorkerId>,
}

/// One consumer of a job and its stream. Times are in nanoseconds.
#[derive(Debug)]
pub(super) struct SimulatedConsumer {
    /// Place of its job in the scenario.
    pub(super) job: u32,
    pub(super) number: u32,
    seen: Revision,
    /// Splits from the position on; `None` until the first plan.
    ahead: VecDeque<Ahead>,
    is_placed: bool,
    /// Rows of the first split that were taken.
    offset: u32,
    doing: Doing,
    /// What its reports say: time counts once a wait or a batch's work is over.
    stats: ConsumerStats,
    /// Time up to now in which it waited, and in which it did not.
    pub(super) stall_ns: u64,
    pub(super) step_ns: u64,
    /// A report at this time in any case.
    next_report: Millis,
    /// No report before this.
    earliest_report: Millis,
    /// Whether its last report has not been answered.
    waits: bool,
}

impl SimulatedConsumer {
    pub(super) fn new(job: u32, number: u32, first_report: Millis) -> Self {
        Self {
            job,
            number,
            seen: Revision::default(),
            ahead: VecDeque::new(),
            is_placed: false,
            offset: 0,
            doing: Doing::Waiting(0),
            stats: ConsumerStats::default(),
            stall_ns: 0,
            step_ns: 0,
            next_report: first_report,
            earliest_report: first_report,
            waits: false,
        }
    }

    /// Whether it reports now: there is progress to tell of, or the coordinator has nothing of it to answer.
    pub(super) fn reports(&self, now: Millis) -> bool {
        now >= self.next_report || (!self.waits && now >= self.earliest_report)
    }

    /// It reports now.
    pub(super) fn on_report(&mut self, now: Millis, control: &ScenarioControl) {
        self.waits = true;
        self.next_report = now + control.consumer_report_ms.max(control.tick_ms);
        self.earliest_report = now + control.consumer_gap_ms.max(control.tick_ms);
    }

    pub(super) fn rows(&self) -> u64 {
        self.stats.rows
    }

    pub(super) fn batches(&self) -> u64 {
        self.stats.batches
    }

    /// Takes the coordinator's answer.
    pub(super) fn on_plan(&mut self, plan: &ConsumerPlan, layout: &Layout, splits_ahead: u32) {
        self.seen = plan.revision;
        self.waits = false;
        if !self.is_placed
            && let Some((stream, position)) = plan.streams.first()
            && let Some((split, offset)) = layout.locate(*stream, *position)
        {
            self.is_placed = true;
            self.offset = offset;
            self.push(layout, split);
        }
        self.look_ahead(layout, splits_ahead);
        for ahead in &mut self.ahead {
            let planned = plan.splits.iter().find(|planned| planned.split == ahead.split);
            ahead.workers.clear();
            ahead
                .workers
                .extend(planned.iter().flat_map(|planned| planned.workers.iter().map(|(id, _)| *id)));
        }
    }

    fn push(&mut self, layout: &Layout, split: SplitRef) {
        let len = layout.split_len(split);
        self.ahead.push_back(Ahead { split, len, fetched: self.offset_in(split), workers: Vec::new() });
    }

    /// A split that it has not begun starts with its first row.
    fn offset_in(&self, split: SplitRef) -> u32 {
        let is_first = self.ahead.front().is_none_or(|first| first.split == split);
        if is_first { self.offset } else { 0 }
    }

    fn look_ahead(&mut self, layout: &Layout, splits_ahead: u32) {
        while self.ahead.len() < splits_ahead as usize
            && let Some(next) = self.ahead.back().and_then(|last| layout.next_split(last.split))
        {
            self.push(layout, next);
        }
    }

    /// Takes over what workers have computed.
    pub(super) fn fetch(&mut self, fleet: &mut Fleet) {
        for ahead in self.ahead.iter_mut().filter(|ahead| ahead.fetched < ahead.len) {
            for worker in &ahead.workers {
                let worker = fleet.worker(*worker);
                if let Some(end) =
                    worker.and_then(|worker| worker.fetch(self.job, ahead.split, ahead.fetched))
                {
                    ahead.fetched = end;
                }
            }
        }
    }

    /// Lives from one time to another with so many rows per second that it could take.
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
            match self.doing {
                Doing::Working(since, until) => {
                    let to = until.min(end);
                    self.step_ns += to - now;
                    now = to;
                    if now == until {
                        self.stats.step_ns += until - since;
                        self.doing = Doing::Waiting(now);
                    }
                }
                Doing::Waiting(since) if rows_per_s <= 0.0 => {
                    // It has not asked for a batch, so it does not wait for one.
                    self.stats.stall_ns += now - since;
                    self.doing = Doing::Working(now, end);
                }
                Doing::Waiting(since) => {
                    let Some(rows) = self.take(job, splits_ahead) else {
                        self.stall_ns += end - now;
                        return;
                    };
                    self.stats.stall_ns += now - since;
                    let step_ns = (1e9 * f64::from(rows) / rows_per_s).max(1.0) as u64;
                    self.doing = Doing::Working(now, now + step_ns);
                }
            }
        }
    }

    /// The rows of the next batch, if they are there.
    fn take(&mut self, job: &SimulatedJob, splits_ahead: u32) -> Option<u32> {
        let first = self.ahead.front()?;
        let rows = job.layout.batch_rows.min(first.len - self.offset);
        // Behind the last split of a job there is nothing.
        if rows == 0 || first.fetched < self.offset + rows {
            return None;
        }
        self.offset += rows;
        self.stats.rows += u64::from(rows);
        self.stats.batches += 1;
        self.stats.bytes += u64::from(rows) * job.given.delivered_bytes_per_row;
        self.stats.network_bytes = self.stats.bytes;
        if self.offset == first.len {
            // The last split of a job stays: there is nothing behind it.
            self.look_ahead(&job.layout, splits_ahead + 1);
            if self.ahead.len() > 1 {
                self.ahead.pop_front();
                self.offset = 0;
            }
        }
        Some(rows)
    }

    /// The next row that it will take; `None` before its first plan.
    pub(super) fn position(&self, layout: &Layout) -> Option<StreamPosition> {
        let first = self.ahead.front()?;
        Some(layout.position_in(first.split, self.offset))
    }

    /// What it reports.
    pub(super) fn report(
        &self,
        now: Millis,
        id: JobId,
        layout: &Layout,
        splits_ahead: u32,
    ) -> ConsumerReport {
        let mut stats = self.stats;
        if let Doing::Waiting(since) = self.doing {
            stats.stall_ns += (1_000_000 * now).saturating_sub(since);
        }
        ConsumerReport {
            job: id,
            consumer: self.number,
            session: SessionId(1),
            seen: self.seen,
            positions: self.position(layout).map(|position| (self.number, position)).into_iter().collect(),
            open: Vec::new(),
            wants: splits_ahead,
            unreachable: Vec::new(),
            failed: None,
            stats,
            slots: Default::default(),
            history: Default::default(),
        }
    }
}
