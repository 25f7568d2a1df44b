//! The expected and missing splits of each stream, and the error of a batch that can never become full.

use feedline_data::layout::{Layout, SplitRef};
use feedline_data::messages::MAX_WANTED_SPLITS;

use super::ConsumerState;
use super::stream_state::StreamState;

impl ConsumerState {
    /// Adds the next expected splits of a deterministic stream, and queues them for fetching.
    pub(super) fn extend_stream(&mut self, index: usize) {
        let Some(layout) = self.layout.as_ref().filter(|_| !self.identity.is_relaxed) else { return };
        let ahead = self.splits_ahead as usize;
        self.streams.update(index, layout, |stream| {
            if !stream.is_stopped {
                stream.extend(layout, ahead);
            }
        });
        let missing = self.streams.get(index).assembler.missing_splits().take(ahead).map(|(split, _)| split);
        let unfetched = missing.filter(|split| self.fetches.get(*split).is_none());
        for split in unfetched.collect::<Vec<_>>() {
            self.queue_for_start(split);
        }
    }

    /// Ends the stream of a relaxed job if all planned splits have arrived and the coordinator has no more splits. The
    /// last rows then form a smaller batch.
    pub(super) fn end_exhausted(&mut self) {
        let Some(layout) = self.layout.as_ref().filter(|_| self.identity.is_relaxed && self.is_exhausted)
        else {
            return;
        };
        for index in 0..self.streams.len() {
            let assembler = &self.streams.get(index).assembler;
            let has_arrived = |split: &SplitRef| {
                let is_complete =
                    assembler.next_arrival_offset(*split).is_some() && assembler.is_complete(*split);
                is_complete || self.reports.is_delivered(*split)
            };
            if self.planned.keys().all(has_arrived) {
                self.streams.update(index, layout, StreamState::end);
            }
        }
    }

    /// Returns an error if the next batch of a stream can never become full. If a relaxed job has other consumers, logs a warning instead,
    /// because the last rows form a smaller batch after the other consumers have received all other rows.
    pub(super) fn underfull_batch_error(&mut self, index: usize) -> Option<String> {
        let message = self.too_few_rows(index)?;
        if !self.identity.is_relaxed || self.consumers == 1 {
            return Some(message);
        }
        if !self.has_warned_underfull {
            self.has_warned_underfull = true;
            tracing::warn!("waiting until other consumers have received all other rows: {message}");
        }
        None
    }

    /// Returns an error message if the maximum number of splits has arrived, but their rows do not fill the next batch
    /// of a stream. The coordinator plans no more splits before this batch is delivered.
    fn too_few_rows(&self, index: usize) -> Option<String> {
        let (stream, layout) = (self.streams.get(index), self.layout.as_ref()?);
        let (splits, max) = (stream.complete_splits(), self.max_splits);
        if layout.coordinated || layout.indivisible || max == 0 || splits < max as usize {
            return None;
        }
        Some(too_few_rows_message(
            layout,
            self.identity.is_relaxed,
            max,
            splits,
            stream.assembler.buffered_rows(),
        ))
    }

    /// Returns the splits of a stream that have not arrived, in the order of delivery. Each split has the offset of its first missing row.
    pub(super) fn missing_splits<'a>(
        &'a self,
        stream: &'a StreamState,
    ) -> impl Iterator<Item = (SplitRef, u32)> + 'a {
        let planned = self.identity.is_relaxed.then(|| self.planned.values()).into_iter().flatten();
        let unstarted = planned.filter(|planned| self.is_unstarted(stream, planned.split));
        stream
            .assembler
            .missing_splits()
            .chain(unstarted.map(|planned| (planned.split, planned.start_offset)))
    }

    /// Whether no row of a split of a relaxed job has arrived.
    fn is_unstarted(&self, stream: &StreamState, split: SplitRef) -> bool {
        stream.assembler.next_arrival_offset(split).is_none() && !self.reports.is_delivered(split)
    }

    /// Returns the offset of the first missing row of a split. `None` if the consumer does not need the split, or the split has arrived.
    pub(super) fn missing_offset(&self, split: SplitRef) -> Option<u32> {
        let stream = self.streams.get_by_id(split.stream).filter(|stream| !stream.is_finished())?;
        match stream.assembler.next_arrival_offset(split) {
            Some(from) => (!stream.assembler.is_complete(split)).then_some(from),
            None if self.identity.is_relaxed && self.is_unstarted(stream, split) => {
                self.planned.get(&split).map(|planned| planned.start_offset)
            }
            None => None,
        }
    }
}

fn too_few_rows_message(layout: &Layout, is_relaxed: bool, max: u32, splits: usize, rows: u32) -> String {
    let (batch, split_rows) = (layout.batch_rows, layout.split_rows);
    let needed = match rows {
        0 => format!("more than {splits}"),
        _ => format!("about {}", (u64::from(batch) * splits as u64).div_ceil(u64::from(rows))),
    };
    let fewer_consumers = match is_relaxed {
        _ if max >= MAX_WANTED_SPLITS => "",
        true => ", or open the job for fewer consumers",
        false => ", or open the job for fewer virtual consumers",
    };
    format!(
        "a batch of {batch} rows needs {needed} splits of {split_rows} rows, because operators remove most rows, but a consumer can hold at most {max} splits: use a smaller batch, remove fewer rows{fewer_consumers}"
    )
}
