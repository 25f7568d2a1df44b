//! A queue of splits, ordered by their first missing rows.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::layout::{SplitRef, StreamPosition};

/// A split and the position of its first missing row. Sorting these tuples yields the order in which batches need the
/// rows.
pub(super) type QueuedSplit = (StreamPosition, SplitRef);

/// Splits ordered by their first missing rows. Contains at most one entry per split.
#[derive(Debug, Default)]
pub(super) struct SplitQueue {
    in_order: BTreeSet<QueuedSplit>,
    positions: BTreeMap<SplitRef, StreamPosition>,
}

impl SplitQueue {
    /// Adds a split, or moves it to this position.
    pub(super) fn insert(&mut self, position: StreamPosition, split: SplitRef) {
        if let Some(before) = self.positions.insert(split, position) {
            self.in_order.remove(&(before, split));
        }
        self.in_order.insert((position, split));
    }

    pub(super) fn first(&self) -> Option<QueuedSplit> {
        self.in_order.first().copied()
    }

    /// Removes and returns the first split.
    pub(super) fn pop_first(&mut self) -> Option<QueuedSplit> {
        let first = self.in_order.pop_first()?;
        self.positions.remove(&first.1);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(row: u64) -> StreamPosition {
        StreamPosition { epoch: 0, row }
    }

    fn split(ordinal: u64, stream: u32) -> SplitRef {
        SplitRef { epoch: 0, ordinal, stream }
    }

    #[test]
    fn splits_are_ordered_by_row_then_stream_and_move() {
        let mut queue = SplitQueue::default();
        queue.insert(at(8), split(0, 1));
        queue.insert(at(4), split(0, 2));
        queue.insert(at(4), split(0, 0));
        queue.insert(at(12), split(0, 0));
        assert_eq!(queue.first(), Some((at(4), split(0, 2))));
        let order: Vec<QueuedSplit> = std::iter::from_fn(|| queue.pop_first()).collect();
        assert_eq!(order, [(at(4), split(0, 2)), (at(8), split(0, 1)), (at(12), split(0, 0))]);
        assert!(queue.positions.is_empty());
    }
}
