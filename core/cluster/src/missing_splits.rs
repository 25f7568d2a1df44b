//! Splits of one job that should be leased and are not, kept between looks, so that a look computes them anew for streams that
//! have changed only.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::layout::SplitRef;

/// Missing splits in order, and those of each stream.
#[derive(Debug, Default)]
pub(super) struct MissingSplits {
    ordered: BTreeSet<SplitRef>,
    of_stream: BTreeMap<u32, Vec<SplitRef>>,
}

impl MissingSplits {
    /// Replaces what is missing of a stream.
    pub(super) fn set(&mut self, stream: u32, splits: Vec<SplitRef>) {
        for split in self.of_stream.remove(&stream).unwrap_or_default() {
            self.ordered.remove(&split);
        }
        if !splits.is_empty() {
            self.ordered.extend(splits.iter().copied());
            self.of_stream.insert(stream, splits);
        }
    }

    pub(super) fn of_stream(&self, stream: u32) -> &[SplitRef] {
        self.of_stream.get(&stream).map(Vec::as_slice).unwrap_or_default()
    }

    /// The first missing split after `split`, or of all.
    pub(super) fn after(&self, split: Option<SplitRef>) -> Option<SplitRef> {
        match split {
            None => self.ordered.first().copied(),
            Some(split) => {
                let behind = (std::ops::Bound::Excluded(split), std::ops::Bound::Unbounded);
                self.ordered.range(behind).next().copied()
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ordered.len()
    }

    pub(super) fn clear(&mut self) {
        self.ordered.clear();
        self.of_stream.clear();
    }
}
