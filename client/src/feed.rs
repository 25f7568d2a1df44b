//! A consumer's state: what the coordinator planned, what is being fetched, what has been delivered. Takes the time
//! as an argument and does no IO: the session and the fetches call it, under one lock that is never held across a wait.

mod attempts;
mod credit;
mod fetch_table;
mod history;
mod lanes;
mod report;
mod slots;
mod stream_feed;
mod streams;

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::SchemaRef;
use feedline_data::consumer::{AssembledBatch, RunKind};
use feedline_data::ids::{JobId, SessionId, WorkerId};
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::messages::{ConsumerPlan, ConsumerStats, JobState, PlannedSplit, Revision};
use feedline_data::mix::MixChange;
use metrics::{counter, gauge};
use tokio::time::{Duration, Instant};

pub(crate) use self::attempts::{FetchOrder, FetchOutcome};
use self::fetch_table::{FetchTable, SplitFetch};
use self::lanes::Lanes;
pub(crate) use self::report::SentReport;
use self::stream_feed::StreamFeed;
use crate::batch::{BatchInfo, StepShare, TakenBatch, carry, is_last_part};
use crate::error::ClientError;
use crate::metrics::{BATCHES_TOTAL, BUFFERED_BYTES, BYTES_TOTAL, ROWS_TOTAL};
use crate::pieces::PieceBytes;
use crate::settings::ClientSettings;

/// What [`Feed::take`] found.
#[derive(Debug)]
pub(crate) enum TakeResult {
    /// A batch; it counts as delivered from here on.
    Batch(Box<TakenBatch>),
    /// Nothing yet.
    Waiting,
    /// Nothing more will come.
    Finished,
    /// Nothing more will come, because of this.
    Failed(ClientError),
}

/// Who the consumer is.
#[derive(Debug, Clone)]
pub(crate) struct ConsumerIdentity {
    pub(crate) job: JobId,
    pub(crate) consumer: u32,
    pub(crate) session: SessionId,
    pub(crate) relaxed: bool,
}

/// The state of one consumer.
#[derive(Debug)]
pub(crate) struct Feed {
    identity: ConsumerIdentity,
    settings: ClientSettings,
    state: JobState,
    revision: Revision,
    layout: Option<Layout>,
    /// Deterministic mode: one for each owned stream. Relaxed mode: one.
    lanes: Lanes,
    /// The workers of planned splits, and the offset from which each is wanted.
    planned: BTreeMap<SplitRef, (u32, Vec<(WorkerId, String)>)>,
    exhausted: bool,
    /// Splits of each stream, in relaxed mode of all, that a plan has at most; 0 where none has said.
    most_splits: u32,
    /// Consumers of the job; 0 where no plan has said.
    consumers: u32,
    /// Whether it was said that a batch waits until other consumers have used up the data.
    has_said_wait: bool,
    /// What the last plan gave to show to workers.
    ticket: String,
    fetches: FetchTable,
    starts: attempts::Starts,
    /// Splits whose fetches may have room for further credit.
    hungry: BTreeSet<SplitRef>,
    /// The window by which credit was given last.
    window: u64,
    next_attempt: u64,
    /// Columns of the batches, from the first piece.
    schema: Option<SchemaRef>,
    /// Accounted for since the last batch, without rows of their own.
    carried: BatchInfo,
    buffered_bytes: u64,
    /// Size of the largest piece so far; `None` before the first.
    largest_piece: Option<u64>,
    stats: ConsumerStats,
    /// Since when the consumer waits for a batch, if it does.
    waits_since: Option<Instant>,
    /// Why nothing more can come, whatever the coordinator says.
    fatal: Option<ClientError>,
    /// A row failed: one sentence, once everything before it has been delivered.
    failing: Option<String>,
    reports: report::Reports,
    slots: slots::FeedSlots,
    marking: history::FeedHistory,
}

impl Feed {
    pub(crate) fn new(identity: ConsumerIdentity, settings: ClientSettings, now: Instant) -> Self {
        Self {
            identity,
            settings,
            state: JobState::Preparing { indexed: 0, shards: 0, workers: 0 },
            revision: Revision::default(),
            layout: None,
            lanes: Lanes::default(),
            planned: BTreeMap::new(),
            exhausted: false,
            most_splits: 0,
            consumers: 0,
            has_said_wait: false,
            ticket: String::new(),
            fetches: FetchTable::default(),
            starts: attempts::Starts::default(),
            hungry: BTreeSet::new(),
            window: 0,
            next_attempt: 1,
            schema: None,
            carried: BatchInfo::default(),
            buffered_bytes: 0,
            largest_piece: None,
            stats: ConsumerStats::default(),
            waits_since: None,
            fatal: None,
            failing: None,
            reports: report::Reports::new(now),
            slots: slots::FeedSlots::default(),
            marking: history::FeedHistory::default(),
        }
    }

    pub(crate) fn state(&self) -> JobState {
        self.state.clone()
    }

    pub(crate) fn stats(&self) -> ConsumerStats {
        self.stats
    }

    /// How the job's mix has changed, as far as it tells what comes from `epoch` on.
    pub(crate) fn mix_from(&self, epoch: u32) -> &[MixChange] {
        self.layout.as_ref().map(|layout| layout.mix_from(epoch)).unwrap_or_default()
    }

    pub(crate) fn carried(&self) -> BatchInfo {
        self.carried.clone()
    }

    /// The consumer waits from now on.
    pub(crate) fn begin_stall(&mut self, now: Instant) {
        self.waits_since = Some(now);
    }

    /// It waits no more. How long it has.
    pub(crate) fn end_stall(&mut self, now: Instant) -> Duration {
        let waited = self.waits_since.take().map_or(Duration::ZERO, |since| now - since);
        self.stats.stall_ns += waited.as_nanos() as u64;
        waited
    }

    /// What is told of it: a wait that goes on counts as far as it has come, so that who gets nothing is seen to wait.
    fn told_stats(&self, now: Instant) -> ConsumerStats {
        let waits = self.waits_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        ConsumerStats { stall_ns: self.stats.stall_ns + waits.as_nanos() as u64, ..self.stats }
    }

    pub(crate) fn add_step(&mut self, step_ns: u64) {
        self.stats.step_ns += step_ns;
        self.add_slot_time(step_ns);
    }

    pub(crate) fn add_copy(&mut self, copy_ns: u64) {
        self.stats.copy_ns += copy_ns;
    }

    pub(crate) fn count_network_bytes(&mut self, bytes: u64) {
        self.stats.network_bytes += bytes;
    }

    pub(crate) fn fatal(&self) -> Option<ClientError> {
        self.fatal.clone()
    }

    pub(crate) fn set_fatal(&mut self, error: ClientError) {
        self.fatal.get_or_insert(error);
        self.fetches.clear();
    }

    /// Takes the coordinator's plan.
    pub(crate) fn on_plan(&mut self, mut plan: ConsumerPlan, now: Instant) {
        self.on_asked(&mut plan);
        self.revision = plan.revision;
        self.state = plan.state;
        if self.state.is_ended() {
            // What has arrived is still delivered; nothing more is fetched.
            self.planned.clear();
            self.fetches.end_attempts();
        } else {
            self.replace_planned(plan.splits);
        }
        self.exhausted = plan.exhausted;
        self.most_splits = plan.most_splits;
        self.consumers = plan.consumers;
        self.ticket = plan.ticket;
        let mix = plan.layout.as_ref().map(|layout| layout.mix.clone());
        if self.layout.is_none()
            && let Some(layout) = plan.layout
        {
            let lanes = match self.identity.relaxed {
                true => vec![StreamFeed::relaxed(&layout)],
                false => plan
                    .streams
                    .iter()
                    .map(|(stream, from)| StreamFeed::new(&layout, *stream, *from))
                    .collect(),
            };
            self.lanes = Lanes::new(lanes, &layout);
            self.layout = Some(layout);
            self.begin_marks(plan.consumers, plan.slots.is_some());
            (0..self.lanes.len()).for_each(|place| self.extend_lane(place));
        }
        if let (Some(layout), Some(mix)) = (&mut self.layout, mix) {
            layout.mix = mix;
        }
        match &plan.slots {
            Some(_) if self.state.is_ended() => self.end_slots(),
            Some(grants) => self.reconcile(grants),
            None => {}
        }
        if self.identity.relaxed && !self.state.is_ended() {
            self.drop_revoked();
            self.reports.forget_done(&self.planned);
        }
        self.end_exhausted();
        self.top_up(now);
    }

    /// The next batch in order, if it has arrived.
    pub(crate) fn take(&mut self, now: Instant) -> TakeResult {
        self.marking.is_asked_for_more = true;
        if let Some(error) = &self.fatal {
            return TakeResult::Failed(error.clone());
        }
        if self.state == JobState::Cancelled {
            return TakeResult::Failed(ClientError::Cancelled);
        }
        if let Some(message) = &self.failing {
            return TakeResult::Failed(ClientError::JobFailed(message.clone()));
        }
        loop {
            let Some(place) = self.lanes.next_in_turn() else { return self.nothing_to_take() };
            let Some((begins, assembled)) = self.next_run(place) else { return self.nothing_yet(place) };
            self.note_run(place, assembled.kind, assembled.epoch);
            self.on_delivered(&assembled.parts);
            if assembled.kind == RunKind::Batch {
                self.marking.is_asked_for_more = false;
                let stream = self.lanes.get(place).stream;
                let part = self.part_of_step(begins, assembled.rows);
                self.on_slot_delivered(begins);
                self.extend_lane(place);
                self.top_up(now);
                self.count_batch(assembled.rows);
                let carried = std::mem::take(&mut self.carried);
                let taken = TakenBatch::new(stream, part, assembled, carried, self.schema.clone());
                return TakeResult::Batch(Box::new(taken));
            }
            carry(&mut self.carried, &assembled);
            self.extend_lane(place);
            self.top_up(now);
        }
    }

    /// The next run of a lane, and where it begins.
    fn next_run(&mut self, place: usize) -> Option<(StreamPosition, AssembledBatch<PieceBytes>)> {
        let layout = self.layout.as_ref()?;
        let begins = self.lanes.get(place).place_in_order(layout);
        self.lanes.update(place, layout, |lane| lane.assembler.next_run()).map(|run| (begins, run))
    }

    /// Takes the splits of a plan, and notes those that can be fetched now.
    fn replace_planned(&mut self, splits: Vec<PlannedSplit>) {
        let planned =
            splits.into_iter().map(|planned| (planned.split, (planned.from, planned.workers))).collect();
        let before = std::mem::replace(&mut self.planned, planned);
        let is_new = |split: &SplitRef, workers| before.get(split).is_none_or(|(_, known)| known != workers);
        let new = self.planned.iter().filter(|(split, (_, workers))| is_new(split, workers));
        self.starts.ready.extend(new.map(|(split, _)| *split));
    }

    fn nothing_to_take(&self) -> TakeResult {
        match &self.state {
            JobState::Failed(message) => TakeResult::Failed(ClientError::JobFailed(message.clone())),
            JobState::Completed => TakeResult::Finished,
            // A rank without slots may get some.
            _ if self.layout.is_some() && !self.may_get_slots() => TakeResult::Finished,
            _ => TakeResult::Waiting,
        }
    }

    /// The lane whose turn it is has no batch.
    fn nothing_yet(&mut self, place: usize) -> TakeResult {
        match &self.state {
            JobState::Failed(message) => return TakeResult::Failed(ClientError::JobFailed(message.clone())),
            JobState::Completed => return TakeResult::Finished,
            _ => {}
        }
        if let Some(message) = self.failure_of(place).or_else(|| self.never_full(place)) {
            self.failing = Some(message.clone());
            self.reports.on_failing();
            return TakeResult::Failed(ClientError::JobFailed(message));
        }
        TakeResult::Waiting
    }

    /// What failed in the split that a lane waits for.
    fn failure_of(&self, place: usize) -> Option<String> {
        if self.identity.relaxed {
            // Whatever follows the last whole batch is not waited for.
            return self.fetches.iter().find_map(|(_, fetch)| fetch.failed.clone());
        }
        let (head, _) = self.lanes.get(place).assembler.missing().next()?;
        self.fetches.get(head)?.failed.clone()
    }

    /// Which step a batch that begins there belongs to, and its part of it.
    fn part_of_step(&self, begins: StreamPosition, rows: u32) -> StepShare {
        let Some(layout) = self.layout.as_ref().filter(|_| !self.identity.relaxed) else {
            return StepShare::default();
        };
        let step = layout.step_of(begins);
        let usual = u64::from(layout.batch_rows) * u64::from(layout.streams);
        let all = step.map_or(usual, |step| layout.step_rows(step));
        StepShare { step, weight: f64::from(rows) / all.max(1) as f64 }
    }

    fn count_batch(&mut self, rows: u32) {
        self.stats.rows += u64::from(rows);
        self.stats.batches += 1;
        counter!(BATCHES_TOTAL).increment(1);
        counter!(ROWS_TOTAL).increment(u64::from(rows));
    }

    /// Rows have left the feed: frees their room and notes what to report.
    fn on_delivered(&mut self, parts: &[feedline_data::consumer::PieceSlice<PieceBytes>]) {
        let mut finished: BTreeSet<SplitRef> = BTreeSet::new();
        for part in parts {
            if is_last_part(part) {
                let bytes = part.payload.bytes;
                self.stats.bytes += bytes;
                counter!(BYTES_TOTAL).increment(bytes);
                self.forget_buffered(part.split, bytes);
            }
            if self.layout.as_ref().is_some_and(|layout| part.input.end >= layout.split_len(part.split)) {
                finished.insert(part.split);
            }
        }
        for split in &finished {
            self.fetches.remove(*split);
        }
        self.reports.on_delivered(finished, self.identity.relaxed);
    }

    fn add_buffered(&mut self, split: SplitRef, bytes: u64) {
        self.fetches.update(split, |fetch| fetch.buffered_bytes += bytes);
        self.buffered_bytes += bytes;
        gauge!(BUFFERED_BYTES).increment(bytes as f64);
    }

    fn forget_buffered(&mut self, split: SplitRef, bytes: u64) {
        let forget =
            |fetch: &mut SplitFetch| fetch.buffered_bytes = fetch.buffered_bytes.saturating_sub(bytes);
        if self.fetches.update(split, forget).is_some() {
            self.hungry.insert(split);
        }
        let bytes = bytes.min(self.buffered_bytes);
        self.buffered_bytes -= bytes;
        gauge!(BUFFERED_BYTES).decrement(bytes as f64);
    }

    fn forget_all_buffered(&mut self) {
        gauge!(BUFFERED_BYTES).decrement(self.buffered_bytes as f64);
        self.buffered_bytes = 0;
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        gauge!(BUFFERED_BYTES).decrement(self.buffered_bytes as f64);
    }
}

#[cfg(test)]
mod tests;
