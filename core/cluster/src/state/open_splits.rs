//! Relaxed mode: the undelivered splits that were removed from the sequence, by consumer.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::layout::SplitRef;

/// An undelivered split that was removed from the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenSplit {
    /// The consumer that receives the rows; `None` for a free split.
    pub(crate) consumer: Option<u32>,
    /// The offset of the next undelivered row.
    pub(crate) offset: u32,
}

#[derive(Debug, Default)]
pub(crate) struct OpenSplits {
    splits: BTreeMap<SplitRef, OpenSplit>,
    /// The splits of each consumer. The key `None` contains the free splits.
    by_consumer: BTreeMap<Option<u32>, BTreeSet<SplitRef>>,
    /// Splits without a lease.
    unleased: BTreeSet<SplitRef>,
}

impl OpenSplits {
    pub(crate) fn get(&self, split: SplitRef) -> Option<&OpenSplit> {
        self.splits.get(&split)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SplitRef, OpenSplit)> + '_ {
        self.splits.iter().map(|(split, open)| (*split, *open))
    }

    pub(crate) fn len(&self) -> usize {
        self.splits.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.splits.is_empty()
    }

    /// The splits of one consumer; `None` returns the free splits.
    pub(crate) fn of(&self, consumer: Option<u32>) -> impl Iterator<Item = SplitRef> + '_ {
        self.by_consumer.get(&consumer).into_iter().flatten().copied()
    }

    /// The number of splits of one consumer; `None` counts the free splits.
    pub(crate) fn count_of(&self, consumer: Option<u32>) -> usize {
        self.by_consumer.get(&consumer).map_or(0, BTreeSet::len)
    }

    pub(crate) fn consumers(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_consumer.keys().flatten().copied()
    }

    /// Splits without a lease.
    pub(crate) fn unleased(&self) -> impl Iterator<Item = SplitRef> + '_ {
        self.unleased.iter().copied()
    }

    /// Adds or replaces a split. `is_leased` is whether a worker holds the split.
    pub(crate) fn insert(&mut self, split: SplitRef, open: OpenSplit, is_leased: bool) {
        self.remove(split);
        self.splits.insert(split, open);
        self.by_consumer.entry(open.consumer).or_default().insert(split);
        if !is_leased {
            self.unleased.insert(split);
        }
    }

    pub(crate) fn assign(&mut self, split: SplitRef, consumer: Option<u32>) {
        let Some(open) = self.splits.get_mut(&split) else { return };
        let before = std::mem::replace(&mut open.consumer, consumer);
        self.remove_from_consumer(split, before);
        self.by_consumer.entry(consumer).or_default().insert(split);
    }

    /// Advances the offset of a split and returns the new offset; `None` if the split is not open.
    pub(crate) fn advance(&mut self, split: SplitRef, offset: u32) -> Option<u32> {
        let open = self.splits.get_mut(&split)?;
        open.offset = open.offset.max(offset);
        Some(open.offset)
    }

    pub(crate) fn remove(&mut self, split: SplitRef) {
        if let Some(open) = self.splits.remove(&split) {
            self.remove_from_consumer(split, open.consumer);
            self.unleased.remove(&split);
        }
    }

    /// Records whether a worker holds a split.
    pub(crate) fn set_leased(&mut self, split: SplitRef, is_leased: bool) {
        if is_leased {
            self.unleased.remove(&split);
        } else if self.splits.contains_key(&split) {
            self.unleased.insert(split);
        }
    }

    fn remove_from_consumer(&mut self, split: SplitRef, consumer: Option<u32>) {
        if let Some(splits) = self.by_consumer.get_mut(&consumer) {
            splits.remove(&split);
            if splits.is_empty() {
                self.by_consumer.remove(&consumer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_indexes_equal_a_scan_of_all_splits(
            steps in proptest::collection::vec((0u8..6, 0u64..6, 0u32..4, any::<bool>()), 0..200),
        ) {
            let mut table = OpenSplits::default();
            let mut all: BTreeMap<SplitRef, (OpenSplit, bool)> = BTreeMap::new();
            for (kind, ordinal, number, flag) in steps {
                let split = SplitRef { epoch: 0, ordinal, stream: 0 };
                let consumer = (number > 0).then_some(number);
                match kind {
                    0 | 1 => {
                        let open = OpenSplit { consumer, offset: number };
                        table.insert(split, open, flag);
                        all.insert(split, (open, flag));
                    }
                    2 => {
                        table.assign(split, consumer);
                        all.entry(split).and_modify(|(open, _)| open.consumer = consumer);
                    }
                    3 => {
                        let offset = table.advance(split, number);
                        all.entry(split).and_modify(|(open, _)| open.offset = open.offset.max(number));
                        prop_assert_eq!(offset, all.get(&split).map(|(open, _)| open.offset));
                    }
                    4 => {
                        table.remove(split);
                        all.remove(&split);
                    }
                    _ => {
                        table.set_leased(split, flag);
                        all.entry(split).and_modify(|(_, is_leased)| *is_leased = flag);
                    }
                }
                let expected: Vec<_> = all.iter().map(|(split, (open, _))| (*split, *open)).collect();
                prop_assert_eq!(table.iter().collect::<Vec<_>>(), expected);
                prop_assert_eq!((table.len(), table.is_empty()), (all.len(), all.is_empty()));
                prop_assert_eq!(table.get(split), all.get(&split).map(|(open, _)| open));
                for consumer in [None, Some(1), Some(2), Some(3)] {
                    let own = all.iter().filter(|(_, (open, _))| open.consumer == consumer);
                    let own: Vec<SplitRef> = own.map(|(split, _)| *split).collect();
                    prop_assert_eq!(table.count_of(consumer), own.len());
                    prop_assert_eq!(table.of(consumer).collect::<Vec<_>>(), own);
                }
                let consumers: BTreeSet<u32> = all.values().filter_map(|(open, _)| open.consumer).collect();
                prop_assert_eq!(table.consumers().collect::<BTreeSet<_>>(), consumers);
                let unleased: Vec<SplitRef> =
                    all.iter().filter(|(_, (_, is_leased))| !is_leased).map(|(split, _)| *split).collect();
                prop_assert_eq!(table.unleased().collect::<Vec<_>>(), unleased);
            }
        }
    }
}
