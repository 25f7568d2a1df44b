//! Applies the coordinator's plans.

use feedline_data::layout::SplitRef;
use feedline_data::messages::{ConsumerPlan, PlannedSplit};
use tokio::time::Instant;

use super::ConsumerState;
use super::stream_state::StreamState;
use super::stream_table::ConsumerStreams;

impl ConsumerState {
    /// Applies a plan.
    pub(crate) fn apply_plan(&mut self, mut plan: ConsumerPlan, now: Instant) {
        self.history_recorder.set_queries(std::mem::take(&mut plan.step_queries));
        self.revision = plan.revision;
        self.job_state = plan.state.clone();
        let is_first = self.apply_layout(&plan);
        if self.job_state.is_ended() {
            // Deliver the batches that have arrived, and fetch no more splits.
            self.planned.clear();
            self.fetches.abort_all();
        } else {
            self.replace_planned(std::mem::take(&mut plan.splits));
        }
        if let Some(update) = plan.growth.take() {
            self.apply_growth(*update);
        }
        self.is_exhausted = plan.exhausted;
        self.job_has_rows = plan.has_rows;
        self.max_splits = plan.max_splits;
        self.consumers = plan.consumers;
        self.ticket = std::mem::take(&mut plan.ticket);
        if self.raise_splits_ahead() || is_first {
            (0..self.streams.len()).for_each(|index| self.extend_stream(index));
        }
        match &plan.slots {
            Some(_) if self.job_state.is_ended() => self.end_slots(),
            Some(grants) => self.apply_grants(grants),
            None => {}
        }
        if self.identity.is_relaxed && !self.job_state.is_ended() {
            self.discard_reassigned();
            self.reports.retain_delivered(&self.planned);
        }
        self.end_exhausted();
        self.grant_credit(now);
    }

    /// Applies the layout of a plan. The first layout creates the streams, and later layouts change only the mix. Returns whether this is
    /// the first layout.
    fn apply_layout(&mut self, plan: &ConsumerPlan) -> bool {
        let Some(planned) = &plan.layout else { return false };
        if let Some(layout) = &mut self.layout {
            layout.mix_changes.clone_from(&planned.mix_changes);
            return false;
        }
        let streams = match self.identity.is_relaxed {
            true => vec![StreamState::relaxed(planned)],
            false => {
                let streams = plan.streams.iter();
                streams.map(|(stream, from)| StreamState::new(planned, *stream, *from)).collect()
            }
        };
        self.streams = ConsumerStreams::new(streams, planned);
        self.layout = Some(planned.clone());
        self.start_history(plan.consumers, plan.slots.is_some());
        true
    }

    /// Replaces the planned splits, and queues the splits whose workers have changed.
    fn replace_planned(&mut self, splits: Vec<PlannedSplit>) {
        let planned = splits.into_iter().map(|planned| (planned.split, planned)).collect();
        let before = std::mem::replace(&mut self.planned, planned);
        let is_new = |planned: &&PlannedSplit| {
            before.get(&planned.split).is_none_or(|before| before.workers != planned.workers)
        };
        let new: Vec<SplitRef> = self.planned.values().filter(is_new).map(|planned| planned.split).collect();
        new.into_iter().for_each(|split| self.queue_for_start(split));
    }

    /// Relaxed mode: discards splits that the coordinator has assigned to another consumer. The other splits are fetched again from
    /// their next undelivered rows.
    fn discard_reassigned(&mut self) {
        let Some(layout) = &self.layout else { return };
        let planned = &self.planned;
        self.fetches.retain(|split| planned.contains_key(&split));
        let Some(stream) = self.streams.as_slice().first() else { return };
        let order: Vec<(SplitRef, u32)> = stream.assembler.undelivered_splits().collect();
        if order.iter().all(|(split, _)| planned.contains_key(split)) {
            return;
        }
        tracing::warn!("discarding splits that the coordinator assigned to another consumer");
        let mut stream = StreamState::relaxed(layout);
        for (split, offset) in order.into_iter().filter(|(split, _)| planned.contains_key(split)) {
            stream.assembler.expect_split(split, offset, false);
        }
        self.streams = ConsumerStreams::new(vec![stream], layout);
        self.fetches.clear();
        self.remove_all_buffered();
        let splits: Vec<SplitRef> = self.planned.keys().copied().collect();
        splits.into_iter().for_each(|split| self.queue_for_start(split));
    }
}
