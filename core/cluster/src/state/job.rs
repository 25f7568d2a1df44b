//! One job: its durable state, which only records change, and its soft state, which the next reports restore.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use feedline_data::checkpoint::{OpenRange, POSITION_VERSION, Position};
use feedline_data::ids::{JobId, Millis, SessionId, WorkerId};
use feedline_data::layout::{Layout, SplitRef};
use feedline_data::manifest::DatasetSummary;
use feedline_data::messages::{JobSpec, JobState, MAX_WANTED_SPLITS, WorkerJobStats};
use feedline_data::pipeline::OrderMode;

use super::candidates::CandidateQueue;
use super::consumer::TrackedConsumer;
use super::deadlines::Deadlines;
use super::leases::{LeaseAges, LeaseIndex, LeaseState, UnreachableHolders};
use super::missing_splits::MissingSplits;
use super::open_splits::OpenSplits;
use super::slot_ownership::SlotTable;
use super::slot_rebalance::SlotRebalance;
use super::step_queries::StepQueries;
use super::streams::StreamPositions;
use crate::settings::ClusterSettings;

/// Splits ahead of all streams of a job, as long as each stream has [`LEAST_WANTED`]; of one stream at most [`MAX_WANTED_SPLITS`].
const WANTED_TOGETHER: u32 = 1_048_576;
const LEAST_WANTED: u32 = 64;
/// Splits that all consumers of a relaxed job hold, as long as each has [`LEAST_HELD`]: a position has room for this many.
const HELD_TOGETHER: u32 = 65_536;
const LEAST_HELD: u32 = 16;

/// Streams for which leases must be checked.
#[derive(Debug, Default)]
pub(crate) struct TouchedStreams {
    /// Whether all streams must be checked.
    pub(crate) all: bool,
    pub(crate) streams: BTreeSet<u32>,
    /// Streams with leases that are old enough to be recalled.
    pub(crate) recallable: BTreeSet<u32>,
}

impl TouchedStreams {
    pub(crate) fn all() -> Self {
        Self { all: true, ..Self::default() }
    }
}

#[derive(Debug)]
pub(crate) struct TrackedJob {
    pub(crate) id: JobId,
    pub(crate) spec: JobSpec,
    pub(crate) dataset: Option<DatasetSummary>,
    pub(crate) layout: Option<Layout>,
    /// `None` while the job is preparing or running.
    pub(crate) ended: Option<JobState>,
    pub(crate) streams: StreamPositions,
    /// Relaxed mode only.
    pub(crate) open: OpenSplits,
    pub(crate) leases: LeaseIndex,
    /// Elastic jobs only.
    pub(crate) slots: SlotTable,
    /// Epoch and round of the furthest split that was ever granted.
    pub(crate) granted: Option<(u32, u64)>,

    // The rest is soft state.
    pub(crate) consumers: BTreeMap<u32, TrackedConsumer>,
    /// Elastic and relaxed jobs: the last reports of the consumers that lose slots or splits when they are silent.
    pub(crate) activity: Deadlines<u32>,
    /// Relaxed jobs: consumers that may have room for more splits.
    pub(crate) consumers_with_room: BTreeSet<u32>,
    pub(crate) worker_stats: BTreeMap<WorkerId, Arc<WorkerJobStats>>,
    /// When a consumer reported last, or when the job began.
    pub(crate) last_seen: Millis,
    /// Workers that have held splits of the job.
    pub(crate) workers: BTreeSet<WorkerId>,
    /// Workers that have not reported since the job ended.
    pub(crate) unsettled: BTreeSet<WorkerId>,
    pub(crate) unreachable: UnreachableHolders,
    /// Consumers with plans that may have changed since the last answer.
    pub(crate) changed_consumers: BTreeSet<u32>,
    pub(crate) touched: TouchedStreams,
    pub(crate) missing: MissingSplits,
    /// Leases of delivered splits that their workers still hold.
    pub(crate) released: Vec<(SplitRef, LeaseState)>,
    pub(crate) ages: LeaseAges,
    /// Splits that one worker has held for long and has not computed.
    pub(crate) late: BTreeSet<SplitRef>,
    /// `None` before the first grant, and when plan or workers have changed.
    pub(crate) candidates: Option<CandidateQueue>,
    /// Candidates with a changed load.
    pub(crate) changed_loads: BTreeSet<WorkerId>,
    /// Whether the candidates are those of the plan.
    pub(crate) is_planned: bool,
    pub(crate) rebalance: SlotRebalance,
    pub(crate) queries: StepQueries,
}

impl TrackedJob {
    pub(crate) fn new(id: JobId, spec: JobSpec, now: Millis) -> Self {
        Self {
            id,
            spec,
            dataset: None,
            layout: None,
            ended: None,
            streams: StreamPositions::default(),
            open: OpenSplits::default(),
            leases: LeaseIndex::default(),
            slots: SlotTable::default(),
            granted: None,
            consumers: BTreeMap::new(),
            activity: Deadlines::default(),
            consumers_with_room: BTreeSet::new(),
            worker_stats: BTreeMap::new(),
            last_seen: now,
            workers: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            unreachable: UnreachableHolders::default(),
            changed_consumers: BTreeSet::new(),
            touched: TouchedStreams::all(),
            missing: MissingSplits::default(),
            released: Vec::new(),
            ages: LeaseAges::default(),
            late: BTreeSet::new(),
            candidates: None,
            changed_loads: BTreeSet::new(),
            is_planned: false,
            rebalance: SlotRebalance::default(),
            queries: StepQueries::default(),
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.is_some()
    }

    pub(crate) fn is_relaxed(&self) -> bool {
        self.spec.pipeline.order == OrderMode::Relaxed
    }

    /// Whether silent consumers lose their splits or slots to others.
    fn has_movable_rows(&self) -> bool {
        self.is_relaxed() || self.spec.elastic
    }

    /// The layout of a running job.
    pub(crate) fn running(&self) -> Option<&Layout> {
        if self.is_ended() { None } else { self.layout.as_ref() }
    }

    /// Whether every row was delivered.
    pub(crate) fn is_delivered(&self) -> bool {
        self.streams.is_finished() && self.open.is_empty()
    }

    /// Whether every undelivered split is leased.
    pub(crate) fn is_leased_to_the_end(&self) -> bool {
        self.streams.splits_left() + self.open.len() as u64 == self.leases.len() as u64
    }

    /// Whether no consumer has reported for its lease time.
    pub(crate) fn is_idle(&self, now: Millis, settings: &ClusterSettings) -> bool {
        now.saturating_sub(self.last_seen) > settings.consumer_lease_ms
    }

    /// Creates the consumers that hold splits or slots, so that those that do not report lose them.
    pub(crate) fn restore_consumers(&mut self, now: Millis) {
        let ranks = self.slots.as_slice().iter().filter_map(|slot| Some((slot.rank?, slot.session)));
        let holders = self.open.consumers().map(|consumer| (consumer, SessionId(0)));
        let restored: Vec<(u32, SessionId)> = ranks.chain(holders).collect();
        for (number, session) in restored {
            self.consumers.entry(number).or_insert_with(|| TrackedConsumer::new(session, now));
            self.activity.set(number, now);
        }
    }

    /// Updates the order in which consumers fall silent.
    pub(crate) fn note_activity(&mut self, number: u32) {
        let Some(consumer) = self.consumers.get(&number).filter(|_| self.has_movable_rows()) else { return };
        if consumer.is_present {
            self.activity.set(number, consumer.last_seen);
        } else {
            self.activity.remove(number);
        }
    }

    /// Removes and returns the consumers that are silent, unless all are: then the coordinator itself may have been
    /// unreachable.
    pub(crate) fn take_silent_consumers(&mut self, now: Millis, lease_ms: u64) -> Vec<u32> {
        let Some(silent_before) = now.checked_sub(lease_ms + 1) else { return Vec::new() };
        if self.activity.latest().is_none_or(|latest| latest <= silent_before) {
            return Vec::new();
        }
        std::iter::from_fn(|| self.activity.pop_due(silent_before)).collect()
    }

    /// The consumer that owns a stream in deterministic mode; `None` for a slot without an owner.
    pub(crate) fn owner(&self, stream: u32) -> Option<u32> {
        if self.spec.elastic {
            return self.slots.get(stream).and_then(|slot| slot.rank);
        }
        Some(stream % self.spec.consumers)
    }

    /// Splits that the owner of a stream wants ahead.
    pub(crate) fn wants_of(&self, stream: u32) -> usize {
        let owner = self.owner(stream).and_then(|owner| self.consumers.get(&owner));
        owner.map_or(0, |consumer| consumer.wants as usize)
    }

    /// Checks the leases of a consumer's own streams in the next step.
    pub(crate) fn touch_streams_of(&mut self, consumer: u32) {
        if self.is_relaxed() {
            self.touched.streams.insert(0);
        } else if self.spec.elastic {
            self.touched.streams.extend(self.slots.of_rank(consumer));
        } else {
            let own = consumer..self.streams.len() as u32;
            self.touched.streams.extend(own.step_by(self.spec.consumers.max(1) as usize));
        }
    }

    /// Most splits ahead of each stream that a consumer receives; in relaxed mode of all streams together.
    pub(crate) fn most_wanted(&self) -> u32 {
        let (together, parts, least) = if self.is_relaxed() {
            (HELD_TOGETHER, self.spec.consumers, LEAST_HELD)
        } else {
            (WANTED_TOGETHER, self.spec.virtual_consumers, LEAST_WANTED)
        };
        (together / parts.max(1)).clamp(least, MAX_WANTED_SPLITS)
    }

    /// The offset of the first undelivered row of a split; `None` for a delivered split.
    pub(crate) fn next_offset(&self, split: SplitRef) -> Option<u32> {
        let open = self.open.get(split).map(|open| open.offset);
        open.or_else(|| self.streams.next_offset(split))
    }

    /// Drops the missing splits of all or of the touched streams and computes them anew. `ahead` is the number of splits ahead
    /// that keep the workers busy. Returns the touched streams.
    pub(crate) fn refresh_missing(&mut self, ahead: usize) -> TouchedStreams {
        let touched = std::mem::take(&mut self.touched);
        let Some(streams) = self.running().map(|layout| layout.streams) else { return touched };
        if touched.all {
            self.missing.clear();
            (0..streams).for_each(|stream| self.refresh_missing_of(stream, ahead));
        } else {
            touched.streams.iter().for_each(|stream| self.refresh_missing_of(*stream, ahead));
        }
        touched
    }

    fn refresh_missing_of(&mut self, stream: u32, ahead: usize) {
        // A consumer may need many short splits for one batch: it then wants more.
        let ahead = self.streams.splits_from(stream).take(ahead.max(self.wants_of(stream)));
        let ahead = ahead.filter(|split| !self.leases.contains(*split));
        let missing = self.open.unleased().filter(|split| split.stream == stream).chain(ahead).collect();
        self.missing.set(stream, missing);
    }

    /// The position of the whole job, as a checkpoint contains it.
    pub(crate) fn position(&self) -> Option<Position> {
        let (dataset, layout) = (self.dataset.as_ref()?, self.layout.as_ref()?);
        let open = self.open.iter().map(|(split, open)| {
            let start = split.ordinal * layout.split_rows;
            OpenRange {
                epoch: split.epoch,
                start_row: start + u64::from(open.offset),
                end_row: start + u64::from(layout.split_len(split)),
            }
        });
        let streams = self.streams.positions();
        let epochs = streams.iter().map(|stream| stream.epoch);
        let epoch = epochs.chain(self.open.iter().map(|(split, _)| split.epoch)).min().unwrap_or_default();
        Some(Position {
            mix: layout.mix_changes_from(epoch).to_vec(),
            version: POSITION_VERSION,
            pipeline: self.spec.pipeline.fingerprint(),
            dataset: dataset.fingerprint.clone(),
            order: self.spec.pipeline.order,
            virtual_consumers: self.spec.virtual_consumers,
            streams: streams.to_vec(),
            open_ranges: open.collect(),
        })
    }

    /// Passes over the dataset that are left, with the rest of the present one; 0 before the job has a layout.
    pub(crate) fn passes_left(&self) -> f64 {
        let Some(layout) = &self.layout else { return 0.0 };
        let epoch_rows = layout.epoch_rows().max(1) as f64;
        let stream_rows =
            if layout.streams == 1 { epoch_rows } else { epoch_rows / f64::from(layout.streams) };
        let streams = self.streams.positions();
        let left = streams.iter().map(|at| {
            f64::from(layout.epochs.saturating_sub(at.epoch)) - (at.row as f64 / stream_rows).min(1.0)
        });
        let epochs = left.sum::<f64>() / streams.len().max(1) as f64;
        epochs.max(0.0) * f64::from(layout.passes)
    }

    /// Changes the plans of all consumers.
    pub(crate) fn touch_all_consumers(&mut self) {
        for consumer in self.consumers.values_mut() {
            consumer.revision += 1;
        }
        self.changed_consumers.extend(self.consumers.keys());
    }

    /// Changes the plan of the consumer that receives a split.
    pub(crate) fn mark_consumer_changed(&mut self, split: SplitRef) {
        let consumer = if self.is_relaxed() {
            self.open.get(split).and_then(|open| open.consumer)
        } else {
            self.owner(split.stream)
        };
        if let Some(consumer) = consumer {
            self.touch_consumer(consumer);
        }
    }

    /// Changes the plan of a consumer.
    pub(crate) fn touch_consumer(&mut self, number: u32) {
        if let Some(consumer) = self.consumers.get_mut(&number) {
            consumer.revision += 1;
            self.changed_consumers.insert(number);
        }
    }
}
