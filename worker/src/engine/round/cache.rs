//! What was computed of rounds for streams whose leases have not come yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;

use super::super::group::FinishedPiece;

/// A round: its job, epoch and place in the epoch.
pub(in crate::engine) type RoundKey = (JobId, u32, u64);

/// Pieces of streams that have no lease here, as long as another stream of their round has one.
#[derive(Debug, Default)]
pub(in crate::engine) struct RoundCache {
    kept: BTreeMap<RoundKey, BTreeMap<u32, Vec<Arc<FinishedPiece>>>>,
}

impl RoundCache {
    /// The round that a split is a part of.
    pub(in crate::engine) fn key(job: JobId, split: SplitRef) -> RoundKey {
        (job, split.epoch, split.ordinal)
    }

    pub(in crate::engine) fn keep(&mut self, key: RoundKey, stream: u32, pieces: Vec<Arc<FinishedPiece>>) {
        self.kept.entry(key).or_default().insert(stream, pieces);
    }

    /// What a lease that has come begins with.
    pub(in crate::engine) fn take(&mut self, job: JobId, split: SplitRef) -> Option<Vec<Arc<FinishedPiece>>> {
        self.kept.get_mut(&Self::key(job, split))?.remove(&split.stream)
    }

    /// Forgets the rounds of which nothing is leased.
    pub(in crate::engine) fn retain(&mut self, is_leased: impl Fn(&RoundKey) -> bool) {
        self.kept.retain(|key, _| is_leased(key));
    }
}
