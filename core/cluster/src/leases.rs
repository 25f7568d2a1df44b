//! The leases of one job, ordered by stream, so that a consumer's progress touches the leases of its own streams only.

use std::collections::BTreeMap;

use super::job::LeaseHolder;
use feedline_data::ids::{Millis, WorkerId};
use feedline_data::layout::SplitRef;

/// Who holds a split.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LeaseState {
    pub(super) holders: Vec<LeaseHolder>,
}

/// Orders splits by stream, then by their order within it.
type StreamOrder = (u32, u32, u64);

fn stream_order(split: SplitRef) -> StreamOrder {
    (split.stream, split.epoch, split.ordinal)
}

fn split_at(&(stream, epoch, ordinal): &StreamOrder) -> SplitRef {
    SplitRef { epoch, ordinal, stream }
}

/// Leased splits and their holders.
#[derive(Debug, Default)]
pub(super) struct LeaseIndex {
    leases: BTreeMap<StreamOrder, LeaseState>,
}

impl LeaseIndex {
    pub(super) fn get(&self, split: SplitRef) -> Option<&LeaseState> {
        self.leases.get(&stream_order(split))
    }

    pub(super) fn contains(&self, split: SplitRef) -> bool {
        self.leases.contains_key(&stream_order(split))
    }

    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// All leases, ordered by stream.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SplitRef, &LeaseState)> {
        self.leases.iter().map(|(at, lease)| (split_at(at), lease))
    }

    /// Adds a holder; one that holds the split already keeps its time.
    pub(super) fn grant(&mut self, split: SplitRef, worker: WorkerId, now: Millis) {
        let lease = self.leases.entry(stream_order(split)).or_default();
        if lease.holders.iter().all(|holder| holder.worker != worker) {
            lease.holders.push(LeaseHolder { worker, granted_at: now });
        }
    }

    /// Removes a holder, and the lease with its last holder.
    pub(super) fn revoke(&mut self, split: SplitRef, worker: WorkerId) {
        let at = stream_order(split);
        if let Some(lease) = self.leases.get_mut(&at) {
            lease.holders.retain(|holder| holder.worker != worker);
            if lease.holders.is_empty() {
                self.leases.remove(&at);
            }
        }
    }

    pub(super) fn remove(&mut self, split: SplitRef) -> Option<LeaseState> {
        self.leases.remove(&stream_order(split))
    }

    /// Removes the first leases of a stream as long as they are done. Looks at one lease beyond them.
    pub(super) fn take_done(
        &mut self,
        stream: u32,
        is_done: impl Fn(SplitRef) -> bool,
    ) -> Vec<(SplitRef, LeaseState)> {
        let mut done = Vec::new();
        while let Some((at, _)) = self.leases.range((stream, 0, 0)..=(stream, u32::MAX, u64::MAX)).next()
            && is_done(split_at(at))
        {
            let at = *at;
            done.extend(self.leases.remove(&at).map(|lease| (split_at(&at), lease)));
        }
        done
    }

    pub(super) fn clear(&mut self) {
        self.leases.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a table that looks at every lease for each report.
        #[test]
        fn progress_in_a_stream_removes_what_a_scan_of_all_leases_removes(
            steps in proptest::collection::vec((0u8..8, 0u32..5, 0u32..3, 0u64..6, 1u64..4), 0..300),
        ) {
            let mut table = LeaseIndex::default();
            let mut all: BTreeMap<SplitRef, Vec<WorkerId>> = BTreeMap::new();
            for (what, stream, epoch, ordinal, worker) in steps {
                let (split, worker) = (SplitRef { epoch, ordinal, stream }, WorkerId(worker));
                match what {
                    0..4 => {
                        table.grant(split, worker, 1);
                        let holders = all.entry(split).or_default();
                        if !holders.contains(&worker) {
                            holders.push(worker);
                        }
                    }
                    4 => {
                        table.revoke(split, worker);
                        if let Some(holders) = all.get_mut(&split) {
                            holders.retain(|holder| *holder != worker);
                        }
                        all.retain(|_, holders| !holders.is_empty());
                    }
                    5 => prop_assert_eq!(table.remove(split).is_some(), all.remove(&split).is_some()),
                    _ => {
                        let head = (epoch, ordinal);
                        let is_done = |split: &SplitRef| {
                            split.stream == stream && (split.epoch, split.ordinal) < head
                        };
                        let mut done: Vec<SplitRef> =
                            table.take_done(stream, |split| is_done(&split)).into_iter().map(|it| it.0).collect();
                        done.sort_unstable();
                        let scanned: Vec<SplitRef> =
                            all.extract_if(.., |split, _| is_done(split)).map(|it| it.0).collect();
                        prop_assert_eq!(done, scanned);
                    }
                }
                let mut left: Vec<(SplitRef, Vec<WorkerId>)> = table
                    .iter()
                    .map(|(split, lease)| (split, lease.holders.iter().map(|it| it.worker).collect()))
                    .collect();
                left.sort_unstable();
                prop_assert_eq!(left, all.clone().into_iter().collect::<Vec<_>>());
                prop_assert_eq!(table.len(), all.len());
            }
        }
    }
}
