//! The slots of an elastic job, which are streams that the coordinator grants to a consumer and can revoke.
//!
//! A stream stops if its slot is revoked or granted to another consumer. The next report contains the position of the stopped stream.
//! The stream is removed when the plan that acknowledges this report no longer contains the slot. A stopped stream never continues in
//! the same generation, so delayed reports are harmless.

use std::collections::HashMap;

use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::messages::{SlotGrant, SlotPosition, SlotReport};

use super::ConsumerState;
use super::slot_state::{SentSlots, SlotBatchTime};
use super::stream_state::StreamState;

impl ConsumerState {
    /// Returns the slots for the next report.
    pub(super) fn slot_report(&self) -> (SlotReport, SentSlots) {
        let is_leaving = self.slots.is_leaving;
        let Some(layout) = self.layout.as_ref().filter(|_| self.slots.is_elastic) else {
            let report = SlotReport { leaving: is_leaving, ..SlotReport::default() };
            return (report, SentSlots { is_leaving, ..SentSlots::default() });
        };
        let position = |stream: &StreamState| {
            let unconfirmed = self.confirmation.start_of(stream.id);
            SlotPosition {
                stream: stream.id,
                generation: stream.generation,
                position: unconfirmed.unwrap_or_else(|| stream.position(layout)),
                // Otherwise, another consumer would receive the last batch as well.
                stopped: stream.is_stopped && unconfirmed.is_none(),
            }
        };
        let claims: Vec<SlotPosition> = self.streams.as_slice().iter().map(position).collect();
        let stopped = claims.iter().filter(|claim| claim.stopped);
        let stopped = stopped.map(|claim| (claim.stream, claim.generation)).collect();
        let slot_ns = self.slots.batch_time.ns;
        (SlotReport { claims, leaving: is_leaving, slot_ns }, SentSlots { stopped, is_leaving })
    }

    /// Records that the coordinator has acknowledged the slots of a report.
    pub(super) fn on_slots_acknowledged(&mut self, report: &SentSlots) {
        self.slots.acknowledged_stops.clone_from(&report.stopped);
        self.slots.is_leave_acknowledged |= report.is_leaving;
    }

    /// Adds, stops and removes streams, as the grants of a plan require.
    pub(super) fn apply_grants(&mut self, grants: &[SlotGrant]) {
        self.slots.is_elastic = true;
        let acknowledged = std::mem::take(&mut self.slots.acknowledged_stops);
        let Some(layout) = self.layout.clone() else { return };
        let by_stream: HashMap<u32, &SlotGrant> = grants.iter().map(|grant| (grant.stream, grant)).collect();
        let grant_of = |stream: &StreamState| {
            by_stream.get(&stream.id).filter(|grant| grant.generation == stream.generation).copied()
        };
        for index in 0..self.streams.len() {
            match grant_of(self.streams.get(index)) {
                Some(grant) if grant.release => {
                    self.streams.update(index, &layout, |stream| stream.is_revoked = true)
                }
                Some(_) => {}
                // The coordinator may have granted the slot to another consumer. It also checks whether this consumer has
                // delivered rows of that consumer.
                None => self.stop_stream(index),
            }
        }
        let is_removed = |stream: &StreamState| {
            grant_of(stream).is_none() && acknowledged.contains(&(stream.id, stream.generation))
        };
        self.streams.retain(&layout, |stream| !is_removed(stream));
        for grant in grants {
            if self.streams.index_of(grant.stream).is_none() {
                let mut stream = StreamState::new(&layout, grant.stream, grant.position);
                (stream.generation, stream.is_revoked) = (grant.generation, grant.release);
                self.streams.push(stream, &layout);
                self.extend_stream(self.streams.len() - 1);
            }
        }
        let is_pending = |stream: &StreamState| stream.is_revoked && !stream.is_stopped;
        self.slots.has_revoked = self.streams.as_slice().iter().any(is_pending);
        if self.slots.is_leaving {
            // A plan may have granted more slots before the coordinator learned that the consumer is leaving.
            self.stop_all();
        } else {
            self.stop_revoked();
        }
    }

    /// Discards unfinished streams. The job has ended, so other consumers have delivered their rows.
    pub(super) fn end_slots(&mut self) {
        let Some(layout) = self.layout.clone() else { return };
        for index in 0..self.streams.len() {
            if !self.streams.get(index).assembler.is_finished() {
                self.discard_fetches(index);
            }
        }
        self.streams.retain(&layout, |stream| stream.assembler.is_finished());
    }

    /// Records the start of a delivered batch, and stops revoked slots.
    pub(super) fn on_slot_delivered(&mut self, start: StreamPosition) {
        if self.slots.is_elastic {
            self.slots.last_batch = Some(start);
            self.stop_revoked();
        }
    }

    /// Stops the streams of revoked slots that are between two steps. All slots of a consumer must deliver the same steps, so a stream
    /// does not stop within a step.
    fn stop_revoked(&mut self) {
        let Some(layout) = self.layout.as_ref().filter(|_| self.slots.has_revoked) else { return };
        let last = self.slots.last_batch;
        let is_between_steps =
            |stream: &StreamState| last.is_none_or(|last| stream.batch_position(layout) > last);
        let streams = self.streams.as_slice().iter().enumerate();
        let revoked = streams.filter(|(_, stream)| stream.is_revoked && !stream.is_stopped);
        let (stopping, waiting): (Vec<_>, Vec<_>) = revoked
            .map(|(index, stream)| (index, is_between_steps(stream)))
            .partition(|(_, is_between_steps)| *is_between_steps);
        self.slots.has_revoked = !waiting.is_empty();
        stopping.into_iter().for_each(|(index, _)| self.stop_stream(index));
    }

    fn stop_all(&mut self) {
        (0..self.streams.len()).for_each(|index| self.stop_stream(index));
    }

    fn stop_stream(&mut self, index: usize) {
        let is_running = !self.streams.get(index).is_stopped;
        let Some(layout) = self.layout.as_ref().filter(|_| is_running) else { return };
        self.streams.update(index, layout, |stream| stream.is_stopped = true);
        self.discard_fetches(index);
        self.reports.request_now();
    }

    fn discard_fetches(&mut self, index: usize) {
        let splits: Vec<SplitRef> =
            self.streams.get(index).assembler.undelivered_splits().map(|(split, _)| split).collect();
        for split in splits {
            let bytes = self.fetches.get(split).map_or(0, |fetch| fetch.buffered_bytes);
            self.remove_buffered(split, bytes);
            self.fetches.remove(split);
        }
    }

    /// Stops all streams, because the consumer leaves the job.
    pub(crate) fn leave(&mut self) {
        self.confirm_last_batch();
        self.slots.is_leaving = true;
        if self.slots.is_elastic {
            self.stop_all();
        }
        self.reports.request_now();
    }

    /// Whether the coordinator has released all slots of the leaving consumer.
    pub(crate) fn has_left(&self) -> bool {
        let has_slots = self.slots.is_elastic && !self.streams.is_empty();
        self.job_state.is_ended() || (self.slots.is_leave_acknowledged && !has_slots)
    }

    /// Whether the coordinator may grant more slots.
    pub(super) fn may_receive_slots(&self) -> bool {
        self.slots.is_elastic && !self.slots.is_leaving
    }

    /// Returns the slots that have not stopped, in order.
    pub(crate) fn active_slots(&self) -> Vec<u32> {
        let streams = self.streams.as_slice().iter();
        let mut slots: Vec<u32> =
            streams.filter(|stream| !stream.is_stopped).map(|stream| stream.id).collect();
        slots.sort_unstable();
        slots
    }

    /// Adds a measurement of the time that the user needs for a batch.
    pub(super) fn add_batch_time(&mut self, ns: u64) {
        let next = self.layout.as_ref().zip(self.streams.next_index());
        let next = next.map(|(layout, index)| self.streams.get(index).batch_position(layout));
        self.slots.batch_time.add(ns, next.is_none() || next > self.slots.last_batch);
    }

    /// Sets the time that the user needs for a batch. It replaces measurements.
    pub(crate) fn set_batch_time(&mut self, ns: u64) {
        self.slots.batch_time = SlotBatchTime::fixed(ns);
    }
}
