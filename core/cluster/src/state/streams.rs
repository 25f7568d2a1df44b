//! The positions of a job's streams, and values derived from them: the next split of each stream and the number of remaining
//! splits.

use feedline_data::layout::{Layout, SplitRef, StreamPosition};

#[derive(Debug, Default)]
pub(crate) struct StreamPositions {
    /// The next undelivered row of each stream; in relaxed mode, the start of the next unassigned split.
    positions: Vec<StreamPosition>,
    /// The split of each position, with the offset in the split; `None` after a stream's last row.
    heads: Vec<Option<(SplitRef, u32)>>,
    /// The number of splits of each stream in one epoch.
    epoch_splits: Vec<u64>,
    epochs: u32,
    remaining_splits: u64,
    unfinished_streams: usize,
}

impl StreamPositions {
    pub(crate) fn new(layout: &Layout, positions: Vec<StreamPosition>) -> Self {
        let mut table = Self { epochs: layout.epochs, ..Self::default() };
        for (stream, position) in (0..layout.streams).zip(positions) {
            let splits = if layout.unbounded { 0 } else { layout.splits(stream) };
            let head = layout.locate(stream, position);
            table.remaining_splits += splits_from(head, splits, layout.epochs);
            table.unfinished_streams += usize::from(!layout.is_end(stream, position));
            table.positions.push(position);
            table.heads.push(head);
            table.epoch_splits.push(splits);
        }
        table
    }

    /// Unbounded jobs: sets the number of recorded rounds. Later splits do not exist yet.
    pub(crate) fn set_recorded(&mut self, rounds: u64) {
        self.remaining_splits = 0;
        for (head, splits) in self.heads.iter().zip(&mut self.epoch_splits) {
            *splits = rounds;
            self.remaining_splits += splits_from(*head, rounds, self.epochs);
        }
    }

    /// The first round that is not delivered to all streams; `None` after the last row.
    pub(crate) fn first_round(&self) -> Option<u64> {
        self.heads.iter().flatten().map(|(split, _)| split.ordinal).min()
    }

    /// The number of splits of a stream from its position to the end of the job, or to the last recorded round.
    pub(crate) fn splits_ahead(&self, stream: u32) -> u64 {
        let splits = self.epoch_splits.get(stream as usize).copied().unwrap_or_default();
        splits_from(self.head(stream), splits, self.epochs)
    }

    pub(crate) fn positions(&self) -> &[StreamPosition] {
        &self.positions
    }

    pub(crate) fn position(&self, stream: u32) -> Option<StreamPosition> {
        self.positions.get(stream as usize).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.positions.len()
    }

    /// Advances a stream. A position before the current position has no effect.
    pub(crate) fn advance(&mut self, layout: &Layout, stream: u32, position: StreamPosition) {
        let index = stream as usize;
        let Some(present) = self.positions.get(index).copied() else { return };
        let position = layout.normalise(stream, position);
        if position <= present {
            return;
        }
        let head = layout.locate(stream, position);
        self.remaining_splits -= splits_from(self.heads[index], self.epoch_splits[index], self.epochs);
        self.remaining_splits += splits_from(head, self.epoch_splits[index], self.epochs);
        if layout.is_end(stream, position) && !layout.is_end(stream, present) {
            self.unfinished_streams -= 1;
        }
        (self.positions[index], self.heads[index]) = (position, head);
    }

    /// Returns the split of a stream's position, with the offset in the split; `None` after the stream's last row.
    pub(crate) fn head(&self, stream: u32) -> Option<(SplitRef, u32)> {
        self.heads.get(stream as usize).copied().flatten()
    }

    /// Returns the offset of the first undelivered row of a split; `None` for a delivered split.
    pub(crate) fn next_offset(&self, split: SplitRef) -> Option<u32> {
        let (head, offset) = self.head(split.stream)?;
        match split.cmp(&head) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some(offset),
            std::cmp::Ordering::Greater => Some(0),
        }
    }

    /// Returns the splits of a stream, starting at its position.
    pub(crate) fn splits_from(&self, stream: u32) -> impl Iterator<Item = SplitRef> + use<> {
        let splits = self.epoch_splits.get(stream as usize).copied().unwrap_or_default();
        let epochs = self.epochs;
        // The head of an unbounded job may be after the last recorded split.
        let head = self.head(stream).map(|(split, _)| split).filter(|split| split.ordinal < splits);
        std::iter::successors(head, move |split| {
            if split.ordinal + 1 < splits {
                return Some(SplitRef { ordinal: split.ordinal + 1, ..*split });
            }
            (split.epoch + 1 < epochs).then_some(SplitRef { epoch: split.epoch + 1, ordinal: 0, ..*split })
        })
    }

    /// The number of splits from the positions of all streams to the end of the job.
    pub(crate) fn remaining_splits(&self) -> u64 {
        self.remaining_splits
    }

    /// Whether all streams have reached their ends.
    pub(crate) fn is_finished(&self) -> bool {
        self.unfinished_streams == 0
    }
}

fn splits_from(head: Option<(SplitRef, u32)>, epoch_splits: u64, epochs: u32) -> u64 {
    head.map_or(0, |(split, _)| {
        (u64::from(epochs - split.epoch) * epoch_splits).saturating_sub(split.ordinal)
    })
}

#[cfg(test)]
mod tests {
    use feedline_data::manifest::DatasetSummary;
    use feedline_data::pipeline::{Pipeline, Source};
    use feedline_data::schema::Schema;
    use proptest::prelude::*;

    use super::*;

    fn layout(rows: u64, epochs: u32, streams: u32) -> Layout {
        let pipeline =
            Pipeline::builder("p").source(Source::text("d/*")).batch(4).build().expect("a valid pipeline");
        let dataset = DatasetSummary {
            fingerprint: String::new(),
            rows,
            bytes: 10 * rows,
            shards: 1,
            blocks: 1,
            schema: Schema::default(),
            defects: 0,
            part_rows: Vec::new(),
            widened: Vec::new(),
            rounded: Vec::new(),
            ignored: Vec::new(),
            part_runs: Vec::new(),
            content: Default::default(),
            index: String::new(),
            changes: Default::default(),
            is_compressed: false,
            runs: Default::default(),
            ranges: None,
            batch_bytes: None,
            graph: None,
        };
        Layout::new(&pipeline, &dataset, epochs, streams)
    }

    proptest! {
        /// The totals equal the totals of a walk over all splits.
        #[test]
        fn totals_follow_every_position(
            rows in 1u64..200,
            epochs in 1u32..4,
            streams in 1u32..5,
            steps in proptest::collection::vec((0u32..5, 0u32..4, 0u64..210), 0..40),
        ) {
            let layout = layout(rows, epochs, streams);
            let begin: Vec<StreamPosition> =
                (0..streams).map(|stream| layout.normalise(stream, StreamPosition::default())).collect();
            let mut table = StreamPositions::new(&layout, begin);
            for (stream, epoch, row) in steps {
                let before = table.position(stream);
                let position = StreamPosition { epoch, row };
                table.advance(&layout, stream, position);
                prop_assert_eq!(table.position(stream), before.map(|before| before.max(layout.normalise(stream, position))));
                let mut left = 0;
                for stream in 0..streams {
                    let position = table.position(stream).expect("it exists");
                    let head = layout.locate(stream, position);
                    prop_assert_eq!(table.head(stream), head);
                    let splits: Vec<SplitRef> = std::iter::successors(
                        head.map(|(split, _)| split), |split| layout.next_split(*split),
                    ).collect();
                    let listed: Vec<SplitRef> = table.splits_from(stream).collect();
                    prop_assert_eq!(&splits, &listed);
                    left += splits.len() as u64;
                    for split in splits {
                        let offset = if Some(split) == head.map(|head| head.0) { head.map(|head| head.1) } else { Some(0) };
                        prop_assert_eq!(table.next_offset(split), offset);
                    }
                    let first = SplitRef { epoch: 0, ordinal: 0, stream };
                    prop_assert_eq!(table.next_offset(first).is_none(), head.is_none_or(|(head, _)| head > first));
                }
                prop_assert_eq!(table.remaining_splits(), left);
                let is_end = |stream| layout.is_end(stream, table.position(stream).expect("it exists"));
                prop_assert_eq!(table.is_finished(), (0..streams).all(is_end));
            }
            prop_assert_eq!((table.len(), table.positions().len()), (streams as usize, streams as usize));
            prop_assert_eq!((table.position(streams), table.head(streams)), (None, None));
        }
    }

    #[test]
    fn only_recorded_splits_of_an_unbounded_job_exist() {
        let layout = Layout { unbounded: true, ..layout(1 << 40, 1, 2) };
        let at = |rows: u64| StreamPosition { epoch: 0, row: rows * layout.split_rows };
        let mut table = StreamPositions::new(&layout, vec![at(0), at(3)]);
        let listed = |table: &StreamPositions, stream| -> Vec<u64> {
            table.splits_from(stream).map(|split| split.ordinal).collect()
        };
        assert_eq!((table.remaining_splits(), listed(&table, 0)), (0, vec![]));
        table.set_recorded(4);
        assert_eq!((listed(&table, 0), listed(&table, 1)), (vec![0, 1, 2, 3], vec![3]));
        assert_eq!((table.remaining_splits(), table.first_round()), (5, Some(0)));
        table.advance(&layout, 0, at(4));
        assert_eq!((listed(&table, 0), table.splits_ahead(0), table.remaining_splits()), (vec![], 0, 1));
        table.set_recorded(6);
        assert_eq!(
            (listed(&table, 0), table.remaining_splits(), table.first_round()),
            (vec![4, 5], 5, Some(3))
        );
        assert!(!table.is_finished());
    }
}
