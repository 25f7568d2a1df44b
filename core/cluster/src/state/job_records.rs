//! How records change the durable state of a job, and the records that rebuild it.

use feedline_data::ids::{Millis, SessionId};
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::manifest::DatasetSummary;
use feedline_data::mix::MixChange;

use super::job::{TouchedStreams, TrackedJob};
use super::open_splits::{OpenSplit, OpenSplits};
use super::slot_ownership::{SlotOwnership, SlotTable};
use super::streams::StreamPositions;
use crate::records::Record;

impl TrackedJob {
    pub(crate) fn apply(&mut self, record: &Record, now: Millis) {
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
                    self.open.set_leased(*split, true);
                    self.touched.streams.insert(split.stream);
                }
            }
            Record::Revoked { worker, splits, .. } => {
                for split in splits {
                    self.leases.revoke(*split, *worker);
                    self.open.set_leased(*split, self.leases.contains(*split));
                    self.late.remove(split);
                    self.touched.streams.insert(split.stream);
                }
            }
            Record::Assigned { consumer, splits, .. } => self.apply_assigned(*consumer, splits),
            Record::Advanced { streams, splits, .. } => self.apply_advanced(streams, splits),
            Record::SlotsMoved { rank, session, slots, .. } => self.apply_moved(*rank, *session, slots),
            Record::Remixed { change, .. } => self.apply_remixed(change),
            Record::Stands { streams, open, slots, granted, mix, .. } => {
                self.granted = *granted;
                self.restore_progress(streams, open, slots, mix);
            }
            Record::Ended { state, .. } => {
                self.ended = Some(state.clone());
                self.leases.clear();
                self.unreachable.clear();
                self.ages.clear();
                self.late.clear();
            }
        }
    }

    fn apply_ready(&mut self, dataset: &DatasetSummary) {
        let mut layout =
            Layout::new(&self.spec.pipeline, dataset, self.spec.epochs, self.spec.virtual_consumers);
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
                self.open.insert(split, OpenSplit { consumer: None, offset }, false);
            }
        }
        if self.spec.elastic {
            self.slots = SlotTable::new(vec![SlotOwnership::unowned(); self.streams.len()]);
        }
        if layout.coordinated {
            self.leases.index_rounds();
        }
        self.dataset = Some(dataset.clone());
        self.layout = Some(layout);
        self.touched = TouchedStreams::all();
    }

    fn apply_assigned(&mut self, consumer: Option<u32>, splits: &[SplitRef]) {
        let Some(layout) = &self.layout else { return };
        self.touched.streams.insert(0);
        for split in splits {
            if let Some((head, offset)) = self.streams.head(0)
                && head == *split
            {
                let is_leased = self.leases.contains(head);
                self.open.insert(head, OpenSplit { consumer, offset }, is_leased);
                self.streams.advance(layout, 0, layout.position_in(head, layout.split_len(head)));
            } else {
                self.open.assign(*split, consumer);
            }
        }
    }

    fn apply_advanced(&mut self, streams: &[(u32, StreamPosition)], splits: &[(SplitRef, u32)]) {
        let Some(layout) = &self.layout else { return };
        for (split, offset) in splits {
            let Some(offset) = self.open.advance(*split, *offset) else { continue };
            if offset >= layout.split_len(*split) {
                self.open.remove(*split);
                self.touched.streams.insert(split.stream);
                self.late.remove(split);
                self.released.extend(self.leases.remove(*split).map(|lease| (*split, lease)));
                self.unreachable.remove_split(*split);
            }
        }
        for (stream, position) in streams {
            self.streams.advance(layout, *stream, *position);
            self.touched.streams.insert(*stream);
        }
        if self.is_relaxed() {
            return;
        }
        for (stream, _) in streams {
            let head = self.streams.head(*stream).map(|(split, _)| split);
            let done = self.leases.take_before(*stream, head);
            for (split, _) in &done {
                self.late.remove(split);
            }
            self.released.extend(done);
            self.unreachable.remove_before(*stream, head);
        }
    }

    fn apply_moved(&mut self, rank: Option<u32>, session: SessionId, slots: &[u32]) {
        for slot in slots {
            if let Some(at) = self.streams.position(*slot) {
                self.slots.set_owner(*slot, rank, session, at);
                self.touched.streams.insert(*slot);
            }
        }
    }

    /// Replaces a change at the same place: no row after it was granted.
    fn apply_remixed(&mut self, change: &MixChange) {
        let Some(layout) = &mut self.layout else { return };
        layout.mix_changes.retain(|known| (known.pass, known.offset) < (change.pass, change.offset));
        layout.mix_changes.push(change.clone());
        self.touched = TouchedStreams::all();
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
        self.open = OpenSplits::default();
        for (split, consumer, offset) in open {
            let is_leased = self.leases.contains(*split);
            self.open.insert(*split, OpenSplit { consumer: *consumer, offset: *offset }, is_leased);
        }
        self.touched = TouchedStreams::all();
    }

    /// The records that rebuild this job without its end.
    pub(crate) fn snapshot(&self) -> Vec<Record> {
        let job = self.id;
        let mut records = vec![Record::Opened { job, spec: Box::new(self.spec.clone()) }];
        if let Some(dataset) = &self.dataset {
            records.push(Record::Ready { job, dataset: dataset.clone() });
            let open = self.open.iter().map(|(split, open)| (split, open.consumer, open.offset));
            records.push(Record::Stands {
                job,
                streams: self.streams.positions().to_vec(),
                open: open.collect(),
                slots: self.slots.as_slice().to_vec(),
                granted: self.granted,
                mix: self.layout.as_ref().map(|layout| layout.mix_changes.clone()).unwrap_or_default(),
            });
        }
        let by_worker = self.leases.by_worker().into_iter();
        records.extend(by_worker.map(|(worker, splits)| Record::Granted { job, worker, splits }));
        records
    }
}
