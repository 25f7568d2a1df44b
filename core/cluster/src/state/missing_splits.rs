//! The splits of one job that should be leased but are not. A step recomputes them only for changed streams.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use feedline_data::layout::SplitRef;

#[derive(Debug, Default)]
pub(crate) struct MissingSplits {
    ordered: BTreeSet<SplitRef>,
    by_stream: BTreeMap<u32, Vec<SplitRef>>,
}

impl MissingSplits {
    /// Replaces the missing splits of a stream.
    pub(crate) fn set(&mut self, stream: u32, splits: Vec<SplitRef>) {
        for split in self.by_stream.remove(&stream).unwrap_or_default() {
            self.ordered.remove(&split);
        }
        if !splits.is_empty() {
            self.ordered.extend(splits.iter().copied());
            self.by_stream.insert(stream, splits);
        }
    }

    pub(crate) fn of_stream(&self, stream: u32) -> &[SplitRef] {
        self.by_stream.get(&stream).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the first missing split after `split`, or the first missing split for `None`.
    pub(crate) fn after(&self, split: Option<SplitRef>) -> Option<SplitRef> {
        let start = split.map_or(Bound::Unbounded, Bound::Excluded);
        self.ordered.range((start, Bound::Unbounded)).next().copied()
    }

    /// The missing splits of one round, by stream.
    pub(crate) fn of_round(&self, epoch: u32, ordinal: u64) -> impl Iterator<Item = SplitRef> + '_ {
        let at = |stream| SplitRef { epoch, ordinal, stream };
        self.ordered.range(at(0)..=at(u32::MAX)).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.ordered.len()
    }

    pub(crate) fn clear(&mut self) {
        self.ordered.clear();
        self.by_stream.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_ordered_over_all_streams() {
        let split = |stream, ordinal| SplitRef { epoch: 0, ordinal, stream };
        let mut missing = MissingSplits::default();
        missing.set(1, vec![split(1, 0), split(1, 1)]);
        missing.set(0, vec![split(0, 1)]);
        assert_eq!(missing.after(None), Some(split(1, 0)));
        assert_eq!(missing.after(Some(split(1, 0))), Some(split(0, 1)));
        assert_eq!(missing.after(Some(split(1, 1))), None);
        assert_eq!(missing.of_round(0, 1).collect::<Vec<_>>(), [split(0, 1), split(1, 1)]);
        assert_eq!(missing.len(), 3);
        missing.set(1, vec![split(1, 4)]);
        assert_eq!((missing.of_stream(1), missing.len()), (&[split(1, 4)][..], 2));
        missing.set(1, Vec::new());
        assert_eq!((missing.of_stream(1), missing.len()), (&[][..], 1));
        missing.clear();
        assert_eq!((missing.after(None), missing.len(), missing.of_stream(0)), (None, 0, &[][..]));
    }
}
