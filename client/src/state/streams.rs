//! The splits of each stream: which ones it expects, which ones are missing, and when its next batch can never be full.

use feedline_data::layout::{Layout, SplitRef};
use feedline_data::messages::MAX_WANTED_SPLITS;

use super::ConsumerState;
use super::stream_state::StreamState;

impl ConsumerState {
    /// Expects the next splits of a deterministic stream, and queues them for fetching.
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

    /// Ends the stream of a relaxed job when all splits have arrived and the coordinator has no others, so that the last rows
    /// form a smaller batch.
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

    /// The error where the next batch of a stream can never be full. A relaxed consumer waits instead, and logs a warning,
    /// while other consumers may use up the data: then its last rows form a smaller batch.
    pub(super) fn underfull_batch_error(&mut self, index: usize) -> Option<String> {
        let message = self.too_few_rows(index)?;
        if !self.identity.is_relaxed || self.consumers == 1 {
            return Some(message);
        }
        if !self.has_warned_underfull {
            self.has_warned_underfull = true;
            tracing::warn!("waiting until other consumers have used up the data: {message}");
        }
        None
    }

    /// The message where the largest possible number of splits has arrived, and their rows do not fill the next batch of a
    /// stream. The coordinator plans further splits only after this batch.
    fn too_few_rows(&self, index: usize) -> Option<String> {
        let (stream, layout) = (self.streams.get(index), self.layout.as_ref()?);
        let (splits, max) = (stream.complete_splits(), self.max_splits);
        if layout.coordinated || max == 0 || splits < max as usize {
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

    /// Splits of a stream that have not arrived, in the order of delivery, each with the offset to fetch from.
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

    /// The offset to fetch a split from; `None` where the split is not wanted, or has arrived.
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
        "a batch of {batch} rows needs {needed} splits of {split_rows} rows, because operators remove most rows, and a consumer \
         holds at most {max} splits: use a smaller batch, remove fewer rows{fewer_consumers}"
    )
}
