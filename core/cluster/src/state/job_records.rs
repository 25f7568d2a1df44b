//! Applies records to the durable state of a job, and builds the records of a snapshot.

use feedline_data::growth::{Growth, GrowthPartition};
use feedline_data::ids::{Millis, SessionId, WorkerId};
use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::manifest::DatasetSummary;
use feedline_data::mix::MixChange;
use feedline_data::segments::Segment;

use super::ended_job::{DroppedPipeline, drop_large_spec};
use super::job::{TouchedStreams, TrackedJob};
use super::job_growth::JobGrowth;
use super::open_splits::{OpenSplit, OpenSplits};
use super::slot_ownership::{SlotOwnership, SlotTable};
use super::streams::StreamPositions;
use super::suspects::{LostWorkers, SuspectSplits};
use crate::dataset_checks::layout_of;
use crate::records::Record;

impl TrackedJob {
    pub(crate) fn apply(&mut self, record: &Record, now: Millis) {
        match record {
            Record::Opened { .. } => {}
            Record::DatasetIndexed { dataset, dropped, .. } => {
                self.last_seen = now;
                self.apply_dataset_indexed(dataset, dropped.as_deref(), now);
            }
            Record::Granted { worker, splits, .. } => {
                for split in splits {
                    self.last_granted = self.last_granted.max(Some((split.epoch, split.ordinal)));
                    self.leases.grant(*split, *worker, now);
                    self.open_splits.set_leased(*split, true);
                    self.touched_streams.streams.insert(split.stream);
                }
            }
            Record::Revoked { worker, splits, lost, .. } => {
                for split in splits {
                    self.apply_loss(*split, *worker, *lost);
                    self.leases.revoke(*split, *worker);
                    self.open_splits.set_leased(*split, self.leases.contains(*split));
                    self.late_splits.remove(split);
                    self.touched_streams.streams.insert(split.stream);
                }
            }
            Record::Assigned { consumer, splits, .. } => self.apply_assigned(*consumer, splits),
            Record::Advanced { streams, splits, .. } => self.apply_advanced(streams, splits),
            Record::SlotsMoved { rank, session, slots, .. } => self.apply_slots_moved(*rank, *session, slots),
            Record::WeightsChanged { change, .. } => self.apply_mix_change(change),
            Record::Grown { partitions, segment, epoch_ms, .. } => {
                self.apply_grown(partitions, segment.as_ref(), *epoch_ms, now);
            }
            Record::Progress { streams, open_splits, slots, last_granted, mix, lost, growth, .. } => {
                self.last_granted = *last_granted;
                self.restore_losses(lost);
                self.restore_progress(streams, open_splits, slots, mix);
                if let Some(growth) = growth {
                    self.set_growth((**growth).clone(), now);
                }
            }
            Record::Ended { state, .. } => {
                self.end_state = Some(state.clone());
                self.leases.clear();
                self.unreachable.clear();
                self.lease_ages.clear();
                self.late_splits.clear();
                self.suspects = SuspectSplits::default();
                if self.dropped_pipeline.is_none() {
                    self.dropped_pipeline = drop_large_spec(&mut self.spec, self.layout.is_some());
                }
            }
        }
    }

    fn apply_loss(&mut self, split: SplitRef, worker: WorkerId, is_lost: bool) {
        let unit = self.lease_unit(split);
        if is_lost {
            self.suspects.confirm(unit, worker);
        } else {
            self.suspects.withdraw(unit, worker);
        }
    }

    fn restore_losses(&mut self, lost: &LostWorkers) {
        self.suspects = SuspectSplits::restore(lost);
    }

    /// Forgets the losses of delivered splits.
    fn remove_delivered_suspects(&mut self) {
        if self.suspects.is_empty() {
            return;
        }
        let is_coordinated = self.layout.as_ref().is_some_and(|layout| layout.coordinated);
        let streams = 0..self.streams.len() as u32;
        let (open, heads) = (&self.open_splits, &self.streams);
        let is_undelivered =
            |split: SplitRef| open.get(split).is_some() || heads.next_offset(split).is_some();
        self.suspects.remove(|split| match is_coordinated {
            true => !streams.clone().any(|stream| is_undelivered(SplitRef { stream, ..split })),
            false => !is_undelivered(split),
        });
    }

    fn apply_dataset_indexed(
        &mut self,
        dataset: &DatasetSummary,
        dropped: Option<&DroppedPipeline>,
        now: Millis,
    ) {
        self.dropped_pipeline = dropped.map(|dropped| dropped.pipeline.clone());
        let mut layout =
            dropped.map_or_else(|| layout_of(&self.spec, dataset), |dropped| dropped.layout.clone());
        let start = self.spec.start.as_ref();
        layout.mix_changes = start.map(|start| start.mix.clone()).unwrap_or_default();
        let position = |stream: u32| {
            let position = start.and_then(|start| start.streams.get(stream as usize).copied());
            layout.normalise(stream, position.unwrap_or_default())
        };
        self.streams = StreamPositions::new(&layout, (0..layout.streams).map(position).collect());
        for range in start.map(|start| start.open_ranges.as_slice()).unwrap_or_default() {
            let position = StreamPosition { epoch: range.epoch, row: range.start_row };
            if let Some((split, offset)) = layout.locate(0, position) {
                self.open_splits.insert(split, OpenSplit { consumer: None, offset }, false);
            }
        }
        if self.spec.elastic {
            self.slots = SlotTable::new(vec![SlotOwnership::unowned(); self.streams.len()]);
        }
        if layout.coordinated {
            self.leases.index_rounds();
        }
        let growth = start.and_then(|start| start.growth.as_ref()).map(|growth| growth.growth.clone());
        if layout.unbounded {
            self.set_growth(growth.unwrap_or_default(), now);
        }
        self.dataset = Some(dataset.clone());
        self.layout = Some(layout);
        self.touched_streams = TouchedStreams::all();
    }

    fn set_growth(&mut self, growth: Growth, now: Millis) {
        self.streams.set_recorded(growth.rounds);
        self.growth = Some(Box::new(JobGrowth::new(growth, now)));
    }

    /// Adds partitions and a segment, and removes the segments that are delivered to all streams.
    fn apply_grown(
        &mut self,
        partitions: &[GrowthPartition],
        segment: Option<&Segment>,
        epoch_ms: u64,
        now: Millis,
    ) {
        let first = self.first_undelivered_round();
        let Some(growth) = &mut self.growth else { return };
        growth.recorded.extend(partitions, segment, epoch_ms);
        growth.recorded.trim(first);
        if segment.is_some() {
            growth.on_recorded(now);
            self.streams.set_recorded(growth.recorded.rounds);
            self.touched_streams.streams.extend(0..self.streams.len() as u32);
        }
    }

    /// The first round that is not delivered to all streams.
    pub(crate) fn first_undelivered_round(&self) -> u64 {
        let open = self.open_splits.iter().next().map(|(split, _)| split.ordinal);
        self.streams.first_round().into_iter().chain(open).min().unwrap_or(0)
    }

    fn apply_assigned(&mut self, consumer: Option<u32>, splits: &[SplitRef]) {
        let Some(layout) = &self.layout else { return };
        self.touched_streams.streams.insert(0);
        for split in splits {
            if let Some((head, offset)) = self.streams.head(0)
                && head == *split
            {
                let is_leased = self.leases.contains(head);
                self.open_splits.insert(head, OpenSplit { consumer, offset }, is_leased);
                self.streams.advance(layout, 0, layout.position_in(head, layout.split_len(head)));
            } else {
                self.open_splits.assign(*split, consumer);
            }
        }
    }

    fn apply_advanced(&mut self, streams: &[(u32, StreamPosition)], splits: &[(SplitRef, u32)]) {
        let Some(layout) = &self.layout else { return };
        for (split, offset) in splits {
            let Some(offset) = self.open_splits.advance(*split, *offset) else { continue };
            if offset >= layout.split_len(*split) {
                self.open_splits.remove(*split);
                self.touched_streams.streams.insert(split.stream);
                self.late_splits.remove(split);
                self.delivered_leases.extend(self.leases.remove(*split).map(|lease| (*split, lease)));
                self.unreachable.remove_split(*split);
            }
        }
        for (stream, position) in streams {
            self.streams.advance(layout, *stream, *position);
            self.touched_streams.streams.insert(*stream);
        }
        self.remove_delivered_suspects();
        if self.is_relaxed() {
            return;
        }
        for (stream, _) in streams {
            let head = self.streams.head(*stream).map(|(split, _)| split);
            let done = self.leases.take_before(*stream, head);
            for (split, _) in &done {
                self.late_splits.remove(split);
            }
            self.delivered_leases.extend(done);
            self.unreachable.remove_before(*stream, head);
        }
    }

    fn apply_slots_moved(&mut self, rank: Option<u32>, session: SessionId, slots: &[u32]) {
        for slot in slots {
            if let Some(at) = self.streams.position(*slot) {
                self.slots.set_owner(*slot, rank, session, at);
                self.touched_streams.streams.insert(*slot);
            }
        }
    }

    /// Adds a weight change. Replaces an earlier change at the same offset, because no later row was granted.
    fn apply_mix_change(&mut self, change: &MixChange) {
        let Some(layout) = &mut self.layout else { return };
        layout.mix_changes.retain(|known| (known.pass, known.offset) < (change.pass, change.offset));
        layout.mix_changes.push(change.clone());
        self.touched_streams = TouchedStreams::all();
    }

    fn restore_progress(
        &mut self,
        streams: &[StreamPosition],
        open: &[(SplitRef, Option<u32>, u32)],
        slots: &[SlotOwnership],
        mix: &[MixChange],
    ) {
        let Some(layout) = &mut self.layout else { return };
        layout.mix_changes = mix.to_vec();
        self.streams = StreamPositions::new(layout, streams.to_vec());
        self.slots = SlotTable::new(slots.to_vec());
        self.open_splits = OpenSplits::default();
        for (split, consumer, offset) in open {
            let is_leased = self.leases.contains(*split);
            self.open_splits.insert(*split, OpenSplit { consumer: *consumer, offset: *offset }, is_leased);
        }
        self.touched_streams = TouchedStreams::all();
    }

    /// Returns the records that rebuild this job, except the record that ends it.
    pub(crate) fn snapshot(&self) -> Vec<Record> {
        let job = self.id;
        let mut records = vec![Record::Opened { job, spec: Box::new(self.spec.clone()) }];
        if let Some(dataset) = &self.dataset {
            let dropped = self.dropped_pipeline.clone().zip(self.layout.as_ref());
            let dropped = dropped.map(|(pipeline, layout)| Box::new(DroppedPipeline::new(pipeline, layout)));
            records.push(Record::DatasetIndexed { job, dataset: Box::new(dataset.clone()), dropped });
            let open = self.open_splits.iter().map(|(split, open)| (split, open.consumer, open.offset));
            records.push(Record::Progress {
                job,
                streams: self.streams.positions().to_vec(),
                open_splits: open.collect(),
                slots: self.slots.as_slice().to_vec(),
                last_granted: self.last_granted,
                mix: self.layout.as_ref().map(|layout| layout.mix_changes.clone()).unwrap_or_default(),
                lost: self.suspects.to_record(),
                growth: self.growth.as_ref().map(|growth| Box::new(growth.recorded.clone())),
            });
        }
        let by_worker = self.leases.by_worker().into_iter();
        records.extend(by_worker.map(|(worker, splits)| Record::Granted { job, worker, splits }));
        records
    }
}
