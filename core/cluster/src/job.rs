//! One job's durable state, changed by records only, and the soft state beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use feedline_data::checkpoint::{OpenRange, POSITION_VERSION, Position};
use feedline_data::ids::{JobId, Millis, SessionId, WorkerId};
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::manifest::DatasetSummary;
use feedline_data::messages::{JobSpec, JobState, WorkerJobStats};
use feedline_data::pipeline::OrderMode;

use super::ClusterSettings;
use super::consumers::TrackedConsumer;
use super::leases::{LeaseIndex, LeaseState};
use super::missing_splits::MissingSplits;
use super::records::Record;
use super::slots::{SlotOwnership, SlotRebalance};
use super::step_queries::StepQueries;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeaseHolder {
    pub(super) worker: WorkerId,
    pub(super) granted_at: Millis,
}

/// Relaxed mode: a split that was taken off the sequence and is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenSplit {
    /// Who takes its rows; `None` until someone asks.
    pub(super) consumer: Option<u32>,
    /// Offset of the next undelivered row.
    pub(super) offset: u32,
}

/// Streams for whose leases something has changed.
#[derive(Debug, Default)]
pub(super) struct TouchedStreams {
    /// Whether all have.
    pub(super) all: bool,
    pub(super) streams: BTreeSet<u32>,
}

#[derive(Debug)]
pub(super) struct TrackedJob {
    pub(super) id: JobId,
    pub(super) spec: JobSpec,
    pub(super) dataset: Option<DatasetSummary>,
    pub(super) layout: Option<Layout>,
    /// `None` while it runs or is prepared.
    pub(super) ended: Option<JobState>,
    /// Next undelivered row of each stream; in relaxed mode the next split that nobody has taken.
    pub(super) streams: Vec<StreamPosition>,
    /// Relaxed mode only.
    pub(super) open: BTreeMap<SplitRef, OpenSplit>,
    pub(super) leases: LeaseIndex,
    /// Elastic jobs: who has each stream.
    pub(super) slots: Vec<SlotOwnership>,
    /// Epoch and round of the furthest split that was ever granted.
    pub(super) granted: Option<(u32, u64)>,

    // Soft state: rebuilt from reports.
    pub(super) consumers: BTreeMap<u32, TrackedConsumer>,
    pub(super) worker_stats: BTreeMap<WorkerId, Arc<WorkerJobStats>>,
    /// When a consumer reported last, or could have first.
    pub(super) last_seen: Millis,
    /// Workers that have not reported since the job ended, with the plan revision that tells them.
    pub(super) unsettled: BTreeMap<WorkerId, u64>,
    /// Splits and the workers at which their consumer could not fetch them.
    pub(super) avoid: BTreeSet<(SplitRef, WorkerId)>,
    /// Consumers whose plans may have changed since they were answered.
    pub(super) changed_consumers: BTreeSet<u32>,
    /// When requests of consumers were parked. An entry may be older than the request that its consumer has parked now.
    pub(super) held_polls: BTreeSet<(Millis, u32)>,
    /// What has changed since its leases were looked at.
    pub(super) touched: TouchedStreams,
    /// Splits that should be leased and are not, for want of room on the workers.
    pub(super) missing: MissingSplits,
    /// Splits that are done, and who held them: to be taken from the workers.
    pub(super) released: Vec<(SplitRef, LeaseState)>,
    /// Elastic jobs: who shall have each slot.
    pub(super) dealing: SlotRebalance,
    /// Steps at which somebody wants to know where the consumers stand.
    pub(super) asks: StepQueries,
}

impl TrackedJob {
    pub(super) fn new(id: JobId, spec: JobSpec, now: Millis) -> Self {
        Self {
            id,
            spec,
            dataset: None,
            layout: None,
            ended: None,
            streams: Vec::new(),
            open: BTreeMap::new(),
            leases: LeaseIndex::default(),
            slots: Vec::new(),
            granted: None,
            consumers: BTreeMap::new(),
            worker_stats: BTreeMap::new(),
            last_seen: now,
            unsettled: BTreeMap::new(),
            avoid: BTreeSet::new(),
            touched: TouchedStreams { all: true, ..TouchedStreams::default() },
            missing: MissingSplits::default(),
            changed_consumers: BTreeSet::new(),
            held_polls: BTreeSet::new(),
            released: Vec::new(),
            dealing: SlotRebalance::default(),
            asks: StepQueries::default(),
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.is_some()
    }

    pub(super) fn is_relaxed(&self) -> bool {
        self.spec.pipeline.order == OrderMode::Relaxed
    }

    /// The layout of a job that runs.
    pub(super) fn running(&self) -> Option<&Layout> {
        if self.is_ended() { None } else { self.layout.as_ref() }
    }

    pub(super) fn holders(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.leases.iter().flat_map(|(_, lease)| lease.holders.iter().map(|holder| holder.worker))
    }

    /// Seats the consumers that hold splits or slots, so that a lost one is noticed.
    pub(super) fn remember_consumers(&mut self, now: Millis) {
        for slot in &self.slots {
            if let Some(number) = slot.rank {
                self.consumers
                    .entry(number)
                    .or_insert_with(|| TrackedConsumer::remembered(slot.session, now));
            }
        }
        for number in self.open.values().filter_map(|open| open.consumer) {
            self.consumers.entry(number).or_insert_with(|| TrackedConsumer::remembered(SessionId(0), now));
        }
    }

    /// Whether no consumer has reported for its lease time.
    pub(super) fn is_idle(&self, now: Millis, settings: &ClusterSettings) -> bool {
        now.saturating_sub(self.last_seen) > settings.consumer_lease_ms
    }

    /// The consumer that owns a stream in deterministic mode; `None` where an elastic job's waits for one.
    pub(super) fn owner(&self, stream: u32) -> Option<u32> {
        if self.spec.elastic {
            return self.slots.get(stream as usize).and_then(|slot| slot.rank);
        }
        Some(stream % self.spec.consumers)
    }

    /// Splits that a stream's owner asks for.
    pub(super) fn wants_of(&self, stream: u32) -> usize {
        let owner = self.owner(stream).and_then(|owner| self.consumers.get(&owner));
        owner.map_or(0, |consumer| consumer.wants as usize)
    }

    pub(super) fn apply(&mut self, record: &Record, now: Millis) {
        // Leases and progress name the streams that they touch.
        self.touched.all |=
            !matches!(record, Record::Granted { .. } | Record::Revoked { .. } | Record::Advanced { .. });
        match record {
            Record::Opened { .. } => {}
            Record::Ready { dataset, .. } => {
                self.last_seen = now;
                self.apply_ready(dataset);
            }
            Record::Granted { worker, splits, .. } => {
                for split in splits {
                    self.granted = self.granted.max(Some((split.epoch, split.ordinal)));
                    self.leases.grant(*split, *worker, now);
                    self.touched.streams.insert(split.stream);
                }
            }
            Record::Revoked { worker, splits, .. } => {
                for split in splits {
                    self.leases.revoke(*split, *worker);
                    self.touched.streams.insert(split.stream);
                }
            }
            Record::Assigned { consumer, splits, .. } => self.apply_assigned(*consumer, splits),
            Record::Advanced { streams, splits, .. } => self.apply_advanced(streams, splits),
            Record::SlotsMoved { rank, session, slots, .. } => self.apply_moved(*rank, *session, slots),
            Record::Remixed { change, .. } => self.apply_remixed(change),
            Record::Stands { streams, open, slots, granted, mix, .. } => {
                self.streams.clone_from(streams);
                self.slots.clone_from(slots);
                self.granted = *granted;
                if let Some(layout) = &mut self.layout {
                    layout.mix.clone_from(mix);
                }
                let open =
                    open.iter().map(|&(split, consumer, offset)| (split, OpenSplit { consumer, offset }));
                self.open = open.collect();
            }
            Record::Ended { state, .. } => {
                self.ended = Some(state.clone());
                self.leases.clear();
                self.avoid.clear();
            }
        }
    }

    fn apply_ready(&mut self, dataset: &DatasetSummary) {
        let mut layout =
            Layout::new(&self.spec.pipeline, dataset, self.spec.epochs, self.spec.virtual_consumers);
        let start = self.spec.start.as_ref();
        layout.mix = start.map(|start| start.mix.clone()).unwrap_or_default();
        self.streams = (0..layout.streams)
            .map(|stream| {
                let position =
                    start.and_then(|start| start.streams.get(stream as usize).copied()).unwrap_or_default();
                layout.normalise(stream, position)
            })
            .collect();
        for range in start.map(|start| start.open.as_slice()).unwrap_or_default() {
            let position = StreamPosition { epoch: range.epoch, row: range.from };
            if let Some((split, offset)) = layout.locate(0, position) {
                self.open.insert(split, OpenSplit { consumer: None, offset });
            }
        }
        if self.spec.elastic {
            self.slots = vec![SlotOwnership::unowned(); self.streams.len()];
        }
        self.dataset = Some(dataset.clone());
        self.layout = Some(layout);
    }

    fn apply_assigned(&mut self, consumer: Option<u32>, splits: &[SplitRef]) {
        let Some(layout) = &self.layout else { return };
        for split in splits {
            let next = &mut self.streams[0];
            if let Some((head, offset)) = layout.locate(0, *next)
                && head == *split
            {
                self.open.insert(*split, OpenSplit { consumer, offset });
                *next = layout.position_in(head, layout.split_len(head));
            } else if let Some(open) = self.open.get_mut(split) {
                open.consumer = consumer;
            }
        }
    }

    fn apply_advanced(&mut self, streams: &[(u32, StreamPosition)], splits: &[(SplitRef, u32)]) {
        let Some(layout) = &self.layout else { return };
        for (stream, position) in streams {
            if let Some(present) = self.streams.get_mut(*stream as usize) {
                *present = layout.normalise(*stream, *position).max(*present);
                self.touched.streams.insert(*stream);
            }
        }
        for (split, offset) in splits {
            if let Some(open) = self.open.get_mut(split) {
                open.offset = open.offset.max(*offset);
                if open.offset >= layout.split_len(*split) {
                    self.open.remove(split);
                    self.touched.streams.insert(split.stream);
                    self.released.extend(self.leases.remove(*split).map(|lease| (*split, lease)));
                    self.avoid.retain(|(avoided, _)| avoided != split);
                }
            }
        }
        if self.spec.pipeline.order == OrderMode::Relaxed {
            return;
        }
        for (stream, _) in streams {
            let Some(at) = self.streams.get(*stream as usize) else { continue };
            let is_done = |split: SplitRef| *at >= layout.position_in(split, layout.split_len(split));
            let done = self.leases.take_done(*stream, is_done);
            self.released.extend(done);
            self.avoid.retain(|(split, _)| split.stream != *stream || !is_done(*split));
        }
    }

    /// Where the job stands.
    pub(super) fn position(&self) -> Option<Position> {
        let (dataset, layout) = (self.dataset.as_ref()?, self.layout.as_ref()?);
        let open = self.open.iter().map(|(split, open)| {
            let start = split.ordinal * layout.split_rows;
            OpenRange {
                epoch: split.epoch,
                from: start + u64::from(open.offset),
                to: start + u64::from(layout.split_len(*split)),
            }
        });
        let begun = self.streams.iter().map(|stream| stream.epoch);
        let epoch = begun.chain(self.open.keys().map(|split| split.epoch)).min().unwrap_or_default();
        Some(Position {
            mix: layout.mix_changes_from(epoch).to_vec(),
            version: POSITION_VERSION,
            pipeline: self.spec.pipeline.fingerprint(),
            dataset: dataset.fingerprint.clone(),
            order: self.spec.pipeline.order,
            virtual_consumers: self.spec.virtual_consumers,
            streams: self.streams.clone(),
            open: open.collect(),
        })
    }

    /// Passes over the dataset that are still to come, the rest of the present one among them; 0 before it has a layout.
    pub(super) fn passes_left(&self) -> f64 {
        let Some(layout) = &self.layout else { return 0.0 };
        let epoch_rows = layout.epoch_rows().max(1) as f64;
        // Each stream has about its part of an epoch's rows.
        let stream_rows =
            if layout.streams == 1 { epoch_rows } else { epoch_rows / f64::from(layout.streams) };
        let left = |at: &StreamPosition| {
            f64::from(layout.epochs.saturating_sub(at.epoch)) - (at.row as f64 / stream_rows).min(1.0)
        };
        let epochs = self.streams.iter().map(left).sum::<f64>() / self.streams.len().max(1) as f64;
        epochs.max(0.0) * f64::from(layout.passes)
    }

    /// The records that rebuild this job, but for its end.
    pub(super) fn snapshot(&self) -> Vec<Record> {
        let job = self.id;
        let mut records = vec![Record::Opened { job, spec: Box::new(self.spec.clone()) }];
        if let Some(dataset) = &self.dataset {
            records.push(Record::Ready { job, dataset: dataset.clone() });
            let open = self.open.iter().map(|(split, open)| (*split, open.consumer, open.offset)).collect();
            let (streams, slots) = (self.streams.clone(), self.slots.clone());
            let mix = self.layout.as_ref().map(|layout| layout.mix.clone()).unwrap_or_default();
            records.push(Record::Stands { job, streams, open, slots, granted: self.granted, mix });
        }
        let mut by_worker: BTreeMap<WorkerId, Vec<SplitRef>> = BTreeMap::new();
        for (split, lease) in self.leases.iter() {
            for holder in &lease.holders {
                by_worker.entry(holder.worker).or_default().push(split);
            }
        }
        for (worker, splits) in by_worker {
            records.push(Record::Granted { job, worker, splits });
        }
        records
    }

    pub(super) fn touch_all_consumers(&mut self) {
        for consumer in self.consumers.values_mut() {
            consumer.revision += 1;
        }
        self.changed_consumers.extend(self.consumers.keys());
    }

    /// Tells the consumer of a split that its workers changed.
    pub(super) fn touch_consumer_of(&mut self, split: SplitRef) {
        let consumer = if self.is_relaxed() {
            self.open.get(&split).and_then(|open| open.consumer)
        } else {
            self.owner(split.stream)
        };
        if let Some(consumer) = consumer {
            self.touch_consumer(consumer);
        }
    }

    /// The plan of one consumer changes.
    pub(super) fn touch_consumer(&mut self, number: u32) {
        if let Some(consumer) = self.consumers.get_mut(&number) {
            consumer.revision += 1;
            self.changed_consumers.insert(number);
        }
    }

    /// Consumers whose parked requests may be due.
    pub(super) fn take_due_consumers(&mut self, now: Millis, hold_ms: u64) -> BTreeSet<u32> {
        let mut due = std::mem::take(&mut self.changed_consumers);
        while let Some((_, number)) =
            self.held_polls.first().copied().filter(|(since, _)| now.saturating_sub(*since) >= hold_ms)
        {
            self.held_polls.pop_first();
            due.insert(number);
        }
        due
    }
}
