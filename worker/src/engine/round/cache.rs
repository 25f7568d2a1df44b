//! Pieces of computed rounds for streams that have no lease on this worker yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;

use crate::engine::piece::FinishedPiece;

/// Identifies a round of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) struct RoundKey {
    pub(in crate::engine) job: JobId,
    pub(in crate::engine) epoch: u32,
    pub(in crate::engine) ordinal: u64,
}

impl RoundKey {
    /// The round that contains a split.
    fn new(job: JobId, split: SplitRef) -> Self {
        Self { job, epoch: split.epoch, ordinal: split.ordinal }
    }
}

/// Pieces by round and stream. They are kept while any stream of the round has a lease on this worker.
#[derive(Debug, Default)]
pub(in crate::engine) struct RoundCache {
    rounds: BTreeMap<RoundKey, BTreeMap<u32, Vec<Arc<FinishedPiece>>>>,
}

impl RoundCache {
    pub(in crate::engine) fn insert(&mut self, job: JobId, split: SplitRef, pieces: Vec<Arc<FinishedPiece>>) {
        self.rounds.entry(RoundKey::new(job, split)).or_default().insert(split.stream, pieces);
    }

    /// Removes and returns the pieces of a split.
    pub(in crate::engine) fn take(&mut self, job: JobId, split: SplitRef) -> Option<Vec<Arc<FinishedPiece>>> {
        self.rounds.get_mut(&RoundKey::new(job, split))?.remove(&split.stream)
    }

    /// Removes the rounds for which `is_leased` returns false.
    pub(in crate::engine) fn retain(&mut self, is_leased: impl Fn(&RoundKey) -> bool) {
        self.rounds.retain(|key, _| is_leased(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_taken_once_and_rounds_without_a_lease_are_removed() {
        let mut cache = RoundCache::default();
        let split = |ordinal, stream| SplitRef { epoch: 3, ordinal, stream };
        for ordinal in [5, 6] {
            (0..2).for_each(|stream| cache.insert(JobId(1), split(ordinal, stream), Vec::new()));
        }
        assert!(cache.take(JobId(1), split(5, 0)).is_some());
        assert!(cache.take(JobId(1), split(5, 0)).is_none() && cache.take(JobId(2), split(5, 1)).is_none());
        cache.retain(|key| *key == RoundKey { job: JobId(1), epoch: 3, ordinal: 6 });
        assert!(cache.take(JobId(1), split(5, 1)).is_none());
        assert!(cache.take(JobId(1), split(6, 1)).is_some());
    }
}
