//! The tracked state of one job: durable state, which only records change, and soft state, which the next reports restore.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use feedline_data::checkpoint::{OpenRange, POSITION_VERSION, Position};
use feedline_data::growth::GrowthPosition;
use feedline_data::ids::{JobId, Millis, SessionId, WorkerId};
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::manifest::DatasetSummary;
use feedline_data::messages::samples::TopicSample;
use feedline_data::messages::{JobSpec, JobState, MAX_WANTED_SPLITS, WorkerJobStats};
use feedline_data::pipeline::{OrderMode, PipelineId};

use super::candidates::CandidateQueue;
use super::consumer::TrackedConsumer;
use super::deadlines::Deadlines;
use super::first_record::FirstRecordWait;
use super::graph_workers::GraphWorkers;
use super::job_growth::JobGrowth;
use super::leases::{LeaseAges, LeaseIndex, LeaseState, UnreachableHolders};
use super::missing_splits::MissingSplits;
use super::open_splits::OpenSplits;
use super::run_workers::RunWorkers;
use super::slot_ownership::SlotTable;
use super::slot_rebalance::SlotRebalance;
use super::step_queries::StepQueries;
use super::streams::StreamPositions;
use super::suspects::{SuspectSplits, Suspicion};
use crate::settings::ClusterSettings;

/// Maximum number of splits ahead of all streams of a job. Each stream may have at least [`MIN_STREAM_SPLITS`], and at most
/// [`MAX_WANTED_SPLITS`].
const MAX_JOB_SPLITS: u32 = 1_048_576;
const MIN_STREAM_SPLITS: u32 = 64;
/// Maximum number of splits that all consumers of a relaxed job hold, because a position contains them. Each consumer may
/// hold at least [`MIN_CONSUMER_SPLITS`].
const MAX_RELAXED_SPLITS: u32 = 65_536;
const MIN_CONSUMER_SPLITS: u32 = 16;
/// Factor by which leases of compressed data are late later than others.
const COMPRESSED_STRAGGLER_FACTOR: u64 = 15;

/// Streams with leases that the next step must check.
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
    /// The specification. [`super::ended_job`] describes what an ended job keeps of it.
    pub(crate) spec: JobSpec,
    /// The id of the pipeline, if the job has ended and dropped it.
    pub(crate) dropped_pipeline: Option<PipelineId>,
    pub(crate) dataset: Option<DatasetSummary>,
    pub(crate) layout: Option<Layout>,
    /// The final state; `None` while the job is preparing or running.
    pub(crate) end_state: Option<JobState>,
    pub(crate) streams: StreamPositions,
    /// Relaxed mode: assigned splits that are not delivered.
    pub(crate) open_splits: OpenSplits,
    pub(crate) leases: LeaseIndex,
    /// Elastic jobs: the owner of each slot.
    pub(crate) slots: SlotTable,
    /// Epoch and round of the latest split, in the order of the job, that has been granted.
    pub(crate) last_granted: Option<(u32, u64)>,
    /// Splits whose workers were lost. The unconfirmed losses are soft state.
    pub(crate) suspects: SuspectSplits,
    /// Unbounded jobs: the recorded segments.
    pub(crate) growth: Option<Box<JobGrowth>>,

    // The remaining fields are soft state.
    /// Unbounded jobs that are being prepared: the wait for the first record of their topics.
    pub(crate) first_record: FirstRecordWait,
    pub(crate) consumers: BTreeMap<u32, TrackedConsumer>,
    /// Elastic and relaxed jobs: times of the last reports of consumers that lose slots or splits when they are silent.
    pub(crate) report_times: Deadlines<u32>,
    /// Relaxed jobs: consumers that may accept more splits.
    pub(crate) consumers_with_room: BTreeSet<u32>,
    pub(crate) worker_stats: BTreeMap<WorkerId, Arc<WorkerJobStats>>,
    /// The time of the last report from any consumer, or of the start of the job.
    pub(crate) last_seen: Millis,
    /// Workers that have held splits of the job.
    pub(crate) workers: BTreeSet<WorkerId>,
    /// Workers that have not reported since the job ended.
    pub(crate) unsettled_workers: BTreeSet<WorkerId>,
    pub(crate) unreachable: UnreachableHolders,
    /// Consumers with plans that may have changed since the last reply.
    pub(crate) changed_consumers: BTreeSet<u32>,
    pub(crate) touched_streams: TouchedStreams,
    pub(crate) missing_splits: MissingSplits,
    /// Leases of delivered splits that are not yet removed from their workers.
    pub(crate) delivered_leases: Vec<(SplitRef, LeaseState)>,
    pub(crate) lease_ages: LeaseAges,
    /// Splits that only one worker holds, and that the worker has not computed for a long time.
    pub(crate) late_splits: BTreeSet<SplitRef>,
    /// The lease candidates; `None` before the first grant and after a change of the plan or the workers.
    pub(crate) candidates: Option<CandidateQueue>,
    /// The workers of long runs.
    pub(crate) run_workers: RunWorkers,
    /// Jobs that sample a graph: the workers that load it.
    pub(crate) graph_workers: GraphWorkers,
    /// Candidates that have never held a split of the job, since the candidates were chosen in this step.
    pub(crate) new_candidates: Vec<WorkerId>,
    /// Candidates with a changed load.
    pub(crate) changed_loads: BTreeSet<WorkerId>,
    /// Whether the candidates come from the plan.
    pub(crate) is_planned: bool,
    pub(crate) slot_rebalance: SlotRebalance,
    /// The epoch that must deliver rows; `None` after rows were delivered, and in jobs that need not deliver any.
    pub(crate) watched_epoch: Option<u32>,
    pub(crate) step_queries: StepQueries,
}

impl TrackedJob {
    pub(crate) fn new(id: JobId, spec: JobSpec, now: Millis) -> Self {
        Self {
            id,
            spec,
            dropped_pipeline: None,
            dataset: None,
            layout: None,
            end_state: None,
            streams: StreamPositions::default(),
            open_splits: OpenSplits::default(),
            leases: LeaseIndex::default(),
            slots: SlotTable::default(),
            last_granted: None,
            suspects: SuspectSplits::default(),
            growth: None,
            first_record: FirstRecordWait::default(),
            consumers: BTreeMap::new(),
            report_times: Deadlines::default(),
            consumers_with_room: BTreeSet::new(),
            worker_stats: BTreeMap::new(),
            last_seen: now,
            workers: BTreeSet::new(),
            unsettled_workers: BTreeSet::new(),
            unreachable: UnreachableHolders::default(),
            changed_consumers: BTreeSet::new(),
            touched_streams: TouchedStreams::all(),
            missing_splits: MissingSplits::default(),
            delivered_leases: Vec::new(),
            lease_ages: LeaseAges::default(),
            late_splits: BTreeSet::new(),
            candidates: None,
            run_workers: RunWorkers::default(),
            graph_workers: GraphWorkers::default(),
            new_candidates: Vec::new(),
            changed_loads: BTreeSet::new(),
            is_planned: false,
            slot_rebalance: SlotRebalance::default(),
            watched_epoch: None,
            step_queries: StepQueries::default(),
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.end_state.is_some()
    }

    pub(crate) fn is_relaxed(&self) -> bool {
        self.spec.pipeline.order == OrderMode::Relaxed
    }

    /// Whether the splits or slots of silent consumers move to other consumers.
    fn has_movable_rows(&self) -> bool {
        self.is_relaxed() || self.spec.elastic
    }

    /// Returns the layout of a running job, or `None` if the job is preparing or has ended.
    pub(crate) fn running_layout(&self) -> Option<&Layout> {
        if self.is_ended() { None } else { self.layout.as_ref() }
    }

    /// Whether all rows were delivered.
    pub(crate) fn is_delivered(&self) -> bool {
        self.streams.is_finished() && self.open_splits.is_empty()
    }

    /// Whether every undelivered split is leased.
    pub(crate) fn is_fully_leased(&self) -> bool {
        self.streams.remaining_splits() + self.open_splits.len() as u64 == self.leases.len() as u64
    }

    /// Whether no consumer has reported within the lease time.
    pub(crate) fn is_idle(&self, now: Millis, settings: &ClusterSettings) -> bool {
        now.saturating_sub(self.last_seen) > settings.consumer_lease_ms
    }

    /// Creates the consumers that hold splits or slots, so that consumers which do not report again lose them.
    pub(crate) fn restore_consumers(&mut self, now: Millis) {
        let ranks = self.slots.as_slice().iter().filter_map(|slot| Some((slot.rank?, slot.session)));
        let holders = self.open_splits.consumers().map(|consumer| (consumer, SessionId(0)));
        let restored: Vec<(u32, SessionId)> = ranks.chain(holders).collect();
        for (number, session) in restored {
            self.consumers.entry(number).or_insert_with(|| TrackedConsumer::new(session, now));
            self.report_times.set(number, now);
        }
    }

    /// Updates the report time of a consumer that can lose splits or slots.
    pub(crate) fn update_report_time(&mut self, number: u32) {
        let Some(consumer) = self.consumers.get(&number).filter(|_| self.has_movable_rows()) else { return };
        if consumer.is_present {
            self.report_times.set(number, consumer.last_seen);
        } else {
            self.report_times.remove(number);
        }
    }

    /// Removes and returns the silent consumers, unless all consumers are silent, because then the coordinator itself may
    /// have been unreachable.
    pub(crate) fn take_silent_consumers(&mut self, now: Millis, lease_ms: u64) -> Vec<u32> {
        let Some(silent_before) = now.checked_sub(lease_ms + 1) else { return Vec::new() };
        if self.report_times.latest().is_none_or(|latest| latest <= silent_before) {
            return Vec::new();
        }
        std::iter::from_fn(|| self.report_times.pop_due(silent_before)).collect()
    }

    /// Returns the consumer that owns a stream in deterministic mode; `None` for a slot without an owner.
    pub(crate) fn owner(&self, stream: u32) -> Option<u32> {
        if self.spec.elastic {
            return self.slots.get(stream).and_then(|slot| slot.rank);
        }
        Some(stream % self.spec.consumers)
    }

    /// Returns the number of splits that the owner of a stream requests ahead.
    pub(crate) fn wanted_splits_of(&self, stream: u32) -> usize {
        let owner = self.owner(stream).and_then(|owner| self.consumers.get(&owner));
        owner.map_or(0, |consumer| consumer.wanted_splits as usize)
    }

    /// Schedules a check of the leases of a consumer's streams for the next step.
    pub(crate) fn touch_streams_of(&mut self, consumer: u32) {
        if self.is_relaxed() {
            self.touched_streams.streams.insert(0);
        } else if self.spec.elastic {
            self.touched_streams.streams.extend(self.slots.of_rank(consumer));
        } else {
            let own = consumer..self.streams.len() as u32;
            self.touched_streams.streams.extend(own.step_by(self.spec.consumers.max(1) as usize));
        }
    }

    /// Maximum number of splits ahead of each stream in a consumer's plan; in relaxed mode, of all splits in the plan.
    pub(crate) fn max_wanted_splits(&self) -> u32 {
        let (together, parts, least) = if self.is_relaxed() {
            (MAX_RELAXED_SPLITS, self.spec.consumers, MIN_CONSUMER_SPLITS)
        } else {
            (MAX_JOB_SPLITS, self.spec.virtual_consumers, MIN_STREAM_SPLITS)
        };
        (together / parts.max(1)).clamp(least, MAX_WANTED_SPLITS)
    }

    /// Returns the offset of the first undelivered row of a split; `None` for a delivered split.
    pub(crate) fn next_offset(&self, split: SplitRef) -> Option<u32> {
        let open = self.open_splits.get(split).map(|open| open.offset);
        open.or_else(|| self.streams.next_offset(split))
    }

    /// Returns the age of a lease from which an idle worker may compute a copy of its split. Splits of compressed data are large,
    /// and a copy decompresses all of their blocks again.
    pub(crate) fn straggler_ms(&self, settings: &ClusterSettings) -> Millis {
        let is_compressed = self.dataset.as_ref().is_some_and(|dataset| dataset.is_compressed);
        if is_compressed {
            COMPRESSED_STRAGGLER_FACTOR * settings.straggler_ms
        } else {
            settings.straggler_ms
        }
    }

    /// Returns the key of the long runs that a split reads; `None` if any worker may compute the split.
    pub(crate) fn run_key(&self, split: SplitRef) -> Option<u64> {
        self.running_layout()?.run_key(self.dataset.as_ref()?, split)
    }

    /// Recomputes the missing splits of the touched streams, and returns these streams. `ahead` is the number of splits
    /// ahead that keep the workers busy.
    pub(crate) fn refresh_missing(&mut self, ahead: usize) -> TouchedStreams {
        let touched = std::mem::take(&mut self.touched_streams);
        let Some(streams) = self.running_layout().map(|layout| layout.streams) else { return touched };
        if touched.all {
            self.missing_splits.clear();
            (0..streams).for_each(|stream| self.refresh_missing_of(stream, ahead));
        } else {
            touched.streams.iter().for_each(|stream| self.refresh_missing_of(*stream, ahead));
        }
        touched
    }

    fn refresh_missing_of(&mut self, stream: u32, ahead: usize) {
        // A consumer may need many short splits for one batch, and then requests more splits.
        let ahead = self.streams.splits_from(stream).take(ahead.max(self.wanted_splits_of(stream)));
        let ahead = ahead.filter(|split| !self.leases.contains(*split));
        let missing =
            self.open_splits.unleased().filter(|split| split.stream == stream).chain(ahead).collect();
        self.missing_splits.set(stream, missing);
    }

    /// Returns the key under which losses of a split are counted. A worker computes a round of a coordinated job for all
    /// streams together, so the splits of a round share a key.
    pub(crate) fn lease_unit(&self, split: SplitRef) -> SplitRef {
        match self.layout.as_ref().is_some_and(|layout| layout.coordinated) {
            true => SplitRef { stream: 0, ..split },
            false => split,
        }
    }

    /// The splits that a worker computes together with a split.
    pub(crate) fn splits_of_unit(&self, unit: SplitRef) -> Vec<SplitRef> {
        match &self.layout {
            Some(layout) if layout.coordinated => {
                (0..layout.streams).map(|stream| SplitRef { stream, ..unit }).collect()
            }
            _ => vec![unit],
        }
    }

    pub(crate) fn suspicion(&self, split: SplitRef) -> Suspicion {
        if self.suspects.is_empty() {
            return Suspicion::None;
        }
        self.suspects.suspicion(self.lease_unit(split))
    }

    /// The number of workers that were lost with a split.
    pub(crate) fn lost_workers(&self, split: SplitRef) -> u32 {
        if self.suspects.is_empty() { 0 } else { self.suspects.losses(self.lease_unit(split)) }
    }

    /// Whether a split is not leased like others: it runs alone, or its losses are not decided.
    pub(crate) fn is_held_back(&self, split: SplitRef) -> bool {
        matches!(self.suspicion(split), Suspicion::Isolated | Suspicion::Undecided)
    }

    /// Returns the position of the job, as stored in a checkpoint.
    pub(crate) fn position(&self) -> Option<Position> {
        let (dataset, layout) = (self.dataset.as_ref()?, self.layout.as_ref()?);
        let open = self.open_splits.iter().map(|(split, open)| {
            let start = split.ordinal * layout.split_rows;
            OpenRange {
                epoch: split.epoch,
                start_row: start + u64::from(open.offset),
                end_row: start + u64::from(layout.split_len(split)),
            }
        });
        let streams = self.streams.positions();
        let ranges: Vec<OpenRange> = open.collect();
        let growth = self.growth.as_ref().map(|growth| {
            let open = ranges.iter().map(|range| StreamPosition { epoch: range.epoch, row: range.start_row });
            let growth = growth.recorded.before(layout, streams.iter().copied().chain(open));
            Box::new(GrowthPosition {
                growth,
                columns: dataset.schema.clone(),
                split_rows: layout.split_rows,
            })
        });
        let epochs = streams.iter().map(|stream| stream.epoch);
        let epoch =
            epochs.chain(self.open_splits.iter().map(|(split, _)| split.epoch)).min().unwrap_or_default();
        Some(Position {
            mix: layout.mix_changes_from(epoch).to_vec(),
            version: POSITION_VERSION,
            pipeline: self.dropped_pipeline.clone().unwrap_or_else(|| self.spec.pipeline.id()),
            dataset: dataset.fingerprint.clone(),
            content: dataset.content.clone(),
            order: self.spec.pipeline.order,
            virtual_consumers: self.spec.virtual_consumers,
            streams: streams.to_vec(),
            open_ranges: ranges,
            ranges: dataset.ranges.clone().filter(|_| growth.is_none()),
            growth,
            split_rows: layout.indivisible.then_some(layout.split_rows),
        })
    }

    /// Returns the number of remaining passes over the dataset; 0 before the job has a layout. The remaining part of the
    /// current pass counts as a fraction. An unbounded job reads each row once, so it has no further passes.
    pub(crate) fn passes_left(&self) -> f64 {
        let Some(layout) = self.layout.as_ref().filter(|layout| !layout.unbounded) else { return 0.0 };
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

    /// Returns the number of rows of a growing source with an end that are not delivered; `None` for other sources, and before the
    /// job has a layout. [`Self::topic_sample`] contains those of an unbounded job.
    pub(crate) fn lag_rows(&self) -> Option<u64> {
        let layout = self.layout.as_ref().filter(|layout| !layout.unbounded)?;
        let open = self.open_splits.iter().map(|(split, open)| (split, open.offset));
        let is_growing = self.spec.pipeline.source.is_growing();
        is_growing.then(|| layout.undelivered_rows(self.streams.positions(), open))
    }

    /// Returns the rows that have arrived in the topics of an unbounded job. All rows of a job with an end have arrived before it
    /// starts, so its topics do not determine its rate.
    pub(crate) fn topic_sample(&self) -> Option<TopicSample> {
        let (layout, growth) = (self.layout.as_ref()?, self.growth.as_ref()?);
        Some(TopicSample {
            arrived_rows: growth.arrived_rows(),
            backlog_rows: growth.backlog_rows(layout, self.streams.positions()),
            step_rows: layout.full_step_rows(),
        })
    }

    /// Marks the plans of all consumers as changed.
    pub(crate) fn touch_all_consumers(&mut self) {
        for consumer in self.consumers.values_mut() {
            consumer.revision += 1;
        }
        self.changed_consumers.extend(self.consumers.keys());
    }

    /// Marks the plan of the consumer that receives a split as changed.
    pub(crate) fn mark_consumer_changed(&mut self, split: SplitRef) {
        let consumer = if self.is_relaxed() {
            self.open_splits.get(split).and_then(|open| open.consumer)
        } else {
            self.owner(split.stream)
        };
        if let Some(consumer) = consumer {
            self.touch_consumer(consumer);
        }
    }

    /// Marks the plan of a consumer as changed.
    pub(crate) fn touch_consumer(&mut self, number: u32) {
        if let Some(consumer) = self.consumers.get_mut(&number) {
            consumer.revision += 1;
            self.changed_consumers.insert(number);
        }
    }
}
