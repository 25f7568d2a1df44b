//! The rows at the start of a job's row sequence that are all delivered.

use super::{Layout, SplitRef, StreamPosition};

/// The length of the longest prefix of a job's row sequence that is delivered completely.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveredPrefix {
    /// The epoch of the first undelivered row, from 0. All earlier epochs are delivered.
    pub epoch: u32,
    /// The offset of this row in the row sequence of the epoch.
    pub rows: u64,
}

impl Layout {
    /// Returns the delivered prefix of a job. `streams` are the positions of all streams, and `open` are splits before these
    /// positions that are not delivered, each with the offset of its first undelivered row. Takes O(streams) time.
    pub fn delivered_rows(
        &self,
        streams: &[StreamPosition],
        open: impl Iterator<Item = (SplitRef, u32)>,
    ) -> DeliveredPrefix {
        let next =
            (0..).zip(streams).filter_map(|(stream, position)| self.locate(stream, *position)).chain(open);
        let row = |(split, offset): (SplitRef, u32)| DeliveredPrefix {
            epoch: split.epoch,
            rows: self.split_range(split).start + u64::from(offset),
        };
        next.map(row).min().unwrap_or(DeliveredPrefix { epoch: self.epochs, rows: 0 })
    }

    /// Returns the number of rows of the first epoch that no consumer has received. In later epochs, all rows were received.
    /// Takes O(streams) time.
    pub fn undelivered_rows(
        &self,
        streams: &[StreamPosition],
        open: impl Iterator<Item = (SplitRef, u32)>,
    ) -> u64 {
        let of_stream = |(stream, position): (u32, &StreamPosition)| match position.epoch {
            0 => self.stream_rows(stream).saturating_sub(position.row),
            _ => 0,
        };
        let streams = (0..).zip(streams).map(of_stream);
        let left: u64 = if self.coordinated { streams.max().unwrap_or(0) } else { streams.sum() };
        let of_split = |(split, offset): (SplitRef, u32)| match split.epoch {
            0 => u64::from(self.split_len(split).saturating_sub(offset)),
            _ => 0,
        };
        left + open.map(of_split).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::Remainder;

    fn layout(rows: u64, streams: u32) -> Layout {
        Layout {
            dataset_rows: rows,
            passes: 1,
            epochs: 2,
            streams,
            batch_rows: 2,
            remainder: Remainder::Emit,
            changes_rows: true,
            split_rows: 6,
            group_rows: 2,
            coordinated: false,
            mix_changes: Vec::new(),
            runs: Default::default(),
            unbounded: false,
            indivisible: false,
        }
    }

    proptest! {
        #[test]
        fn all_rows_before_the_result_are_delivered_and_the_next_one_is_not(
            rows in 0u64..200, streams in 1u32..5, delivered in prop::collection::vec(0u64..400, 5),
        ) {
            let layout = layout(rows, streams);
            let position = |stream: u32| {
                let own = layout.stream_rows(stream).max(1);
                let at = delivered[stream as usize].min(2 * own);
                layout.normalise(stream, StreamPosition { epoch: (at / own) as u32, row: at % own })
            };
            let positions: Vec<StreamPosition> = (0..streams).map(position).collect();
            let is_delivered = |epoch: u32, row: u64| {
                (0..streams).any(|stream| {
                    (0..layout.splits(stream)).any(|ordinal| {
                        let split = SplitRef { epoch, ordinal, stream };
                        let range = layout.split_range(split);
                        let at = |row: u64| StreamPosition { epoch, row: ordinal * layout.split_rows + row };
                        range.contains(&row) && at(row - range.start) < positions[stream as usize]
                    })
                })
            };
            let all = (0..2).flat_map(|epoch| (0..rows).map(move |row| (epoch, row)));
            let first = all.clone().find(|(epoch, row)| !is_delivered(*epoch, *row));
            let expected = first.map_or((2, 0), |found| found);
            let found = layout.delivered_rows(&positions, std::iter::empty());
            prop_assert_eq!((found.epoch, found.rows), expected);
            let undelivered = (0..rows).filter(|row| !is_delivered(0, *row)).count() as u64;
            prop_assert_eq!(layout.undelivered_rows(&positions, std::iter::empty()), undelivered);
        }
    }

    #[test]
    fn splits_that_wait_for_delivery_are_not_delivered() {
        let layout = layout(60, 1);
        let at = [StreamPosition { epoch: 0, row: 30 }];
        let open = [(SplitRef { epoch: 0, ordinal: 2, stream: 0 }, 4)];
        assert_eq!(layout.delivered_rows(&at, open.into_iter()), DeliveredPrefix { epoch: 0, rows: 16 });
        assert_eq!(layout.undelivered_rows(&at, open.into_iter()), 32);
    }
}
