//! The leases of one job, ordered by stream, so that the progress of a consumer affects only the leases of its own streams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use feedline_data::ids::{Millis, WorkerId};
use feedline_data::layout::SplitRef;

/// A worker that holds a lease, with the time of the grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseHolder {
    pub(crate) worker: WorkerId,
    pub(crate) granted_at: Millis,
}

/// The holders of one split. A split nearly always has a single holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseState {
    first: LeaseHolder,
    others: Vec<LeaseHolder>,
}

impl LeaseState {
    pub(crate) fn holders(&self) -> impl Iterator<Item = LeaseHolder> + '_ {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// Returns the holder if the split has exactly one holder.
    pub(crate) fn only_holder(&self) -> Option<LeaseHolder> {
        self.others.is_empty().then_some(self.first)
    }

    pub(crate) fn is_held_by(&self, worker: WorkerId) -> bool {
        self.holders().any(|holder| holder.worker == worker)
    }
}

/// Sort key of splits: by stream, then by position in the stream.
type StreamOrder = (u32, u32, u64);

fn stream_order(split: SplitRef) -> StreamOrder {
    (split.stream, split.epoch, split.ordinal)
}

fn split_at(&(stream, epoch, ordinal): &StreamOrder) -> SplitRef {
    SplitRef { epoch, ordinal, stream }
}

fn whole_stream(stream: u32) -> std::ops::RangeInclusive<StreamOrder> {
    (stream, 0, 0)..=(stream, u32::MAX, u64::MAX)
}

/// Leased splits and their holders.
#[derive(Debug, Default)]
pub(crate) struct LeaseIndex {
    leases: BTreeMap<StreamOrder, LeaseState>,
    /// Coordinated jobs: the holders of each round, with their numbers of splits.
    rounds: Option<BTreeMap<(u32, u64), BTreeMap<WorkerId, u32>>>,
}

impl LeaseIndex {
    /// Enables the index of leases by round, for coordinated jobs.
    pub(crate) fn index_rounds(&mut self) {
        self.rounds.get_or_insert_default();
    }

    pub(crate) fn get(&self, split: SplitRef) -> Option<&LeaseState> {
        self.leases.get(&stream_order(split))
    }

    pub(crate) fn contains(&self, split: SplitRef) -> bool {
        self.leases.contains_key(&stream_order(split))
    }

    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// All leases, ordered by stream.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SplitRef, &LeaseState)> {
        self.leases.iter().map(|(at, lease)| (split_at(at), lease))
    }

    /// The leases of one stream, in stream order.
    pub(crate) fn of_stream(&self, stream: u32) -> impl Iterator<Item = (SplitRef, &LeaseState)> {
        self.leases.range(whole_stream(stream)).map(|(at, lease)| (split_at(at), lease))
    }

    /// Groups all leases by worker.
    pub(crate) fn by_worker(&self) -> BTreeMap<WorkerId, Vec<SplitRef>> {
        let mut by_worker: BTreeMap<WorkerId, Vec<SplitRef>> = BTreeMap::new();
        for (split, lease) in self.iter() {
            for holder in lease.holders() {
                by_worker.entry(holder.worker).or_default().push(split);
            }
        }
        by_worker
    }

    /// Returns the workers that hold splits of a round of a coordinated job.
    pub(crate) fn holders_of_round(&self, epoch: u32, ordinal: u64) -> impl Iterator<Item = WorkerId> + '_ {
        let round = self.rounds.as_ref().and_then(|rounds| rounds.get(&(epoch, ordinal)));
        round.into_iter().flat_map(|holders| holders.keys().copied())
    }

    /// Adds a holder. A worker that already holds the split keeps the time of its first grant.
    pub(crate) fn grant(&mut self, split: SplitRef, worker: WorkerId, now: Millis) {
        let holder = LeaseHolder { worker, granted_at: now };
        match self.leases.get_mut(&stream_order(split)) {
            None => {
                let lease = LeaseState { first: holder, others: Vec::new() };
                self.leases.insert(stream_order(split), lease);
            }
            Some(lease) if lease.is_held_by(worker) => return,
            Some(lease) => lease.others.push(holder),
        }
        if let Some(rounds) = &mut self.rounds {
            let round = rounds.entry((split.epoch, split.ordinal)).or_default();
            *round.entry(worker).or_default() += 1;
        }
    }

    /// Removes a holder. Removes the lease after its last holder.
    pub(crate) fn revoke(&mut self, split: SplitRef, worker: WorkerId) {
        let at = stream_order(split);
        let Some(lease) = self.leases.get_mut(&at) else { return };
        if let Some(index) = lease.others.iter().position(|holder| holder.worker == worker) {
            lease.others.remove(index);
        } else if lease.first.worker != worker {
            return;
        } else if lease.others.is_empty() {
            self.leases.remove(&at);
        } else {
            lease.first = lease.others.remove(0);
        }
        self.remove_from_round(split, worker);
    }

    pub(crate) fn remove(&mut self, split: SplitRef) -> Option<LeaseState> {
        let lease = self.leases.remove(&stream_order(split))?;
        for holder in lease.holders() {
            self.remove_from_round(split, holder.worker);
        }
        Some(lease)
    }

    /// Removes and returns the leases of a stream before `head`. `None` removes all leases of the stream.
    pub(crate) fn take_before(&mut self, stream: u32, head: Option<SplitRef>) -> Vec<(SplitRef, LeaseState)> {
        let mut done = Vec::new();
        while let Some((at, _)) = self.leases.range(whole_stream(stream)).next() {
            let split = split_at(at);
            if head.is_some_and(|head| split >= head) {
                break;
            }
            done.extend(self.remove(split).map(|lease| (split, lease)));
        }
        done
    }

    fn remove_from_round(&mut self, split: SplitRef, worker: WorkerId) {
        let Some(rounds) = &mut self.rounds else { return };
        let key = (split.epoch, split.ordinal);
        let Some(round) = rounds.get_mut(&key) else { return };
        if let Some(splits) = round.get_mut(&worker) {
            *splits -= 1;
            if *splits == 0 {
                round.remove(&worker);
            }
        }
        if round.is_empty() {
            rounds.remove(&key);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.leases.clear();
        if let Some(rounds) = &mut self.rounds {
            rounds.clear();
        }
    }
}

/// Pairs of a split and a worker from which its consumer could not fetch the split.
#[derive(Debug, Default)]
pub(crate) struct UnreachableHolders(BTreeSet<(StreamOrder, WorkerId)>);

impl UnreachableHolders {
    pub(crate) fn insert(&mut self, split: SplitRef, worker: WorkerId) {
        self.0.insert((stream_order(split), worker));
    }

    pub(crate) fn contains(&self, split: SplitRef, worker: WorkerId) -> bool {
        self.0.contains(&(stream_order(split), worker))
    }

    /// Whether a consumer failed to fetch this split from any worker.
    pub(crate) fn has_split(&self, split: SplitRef) -> bool {
        let at = stream_order(split);
        self.0.range((at, WorkerId(0))..=(at, WorkerId(u64::MAX))).next().is_some()
    }

    pub(crate) fn remove_split(&mut self, split: SplitRef) {
        let at = stream_order(split);
        self.0.retain(|(other, _)| *other != at);
    }

    /// Removes the splits of a stream before `head`. `None` removes all splits of the stream.
    pub(crate) fn remove_before(&mut self, stream: u32, head: Option<SplitRef>) {
        let is_done = |at: &StreamOrder| at.0 == stream && head.is_none_or(|head| split_at(at) < head);
        if !self.0.is_empty() {
            self.0.retain(|(at, _)| !is_done(at));
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Leases in the order of their grants, so that a step finds old leases without a scan. The first queue contains leases that
/// are not late yet, and the second queue contains leases that are not recallable yet. Callers skip ended leases.
#[derive(Debug, Default)]
pub(crate) struct LeaseAges {
    not_late: VecDeque<(Millis, SplitRef)>,
    not_recallable: VecDeque<(Millis, SplitRef)>,
}

impl LeaseAges {
    pub(crate) fn push(&mut self, granted_at: Millis, split: SplitRef) {
        self.not_late.push_back((granted_at, split));
        self.not_recallable.push_back((granted_at, split));
    }

    /// Removes and returns the next lease that has reached `age_ms` and is therefore late.
    pub(crate) fn pop_late(&mut self, now: Millis, age_ms: u64) -> Option<SplitRef> {
        self.not_late.pop_front_if(|(at, _)| now >= at.saturating_add(age_ms)).map(|(_, split)| split)
    }

    /// Removes and returns the next lease that has reached `age_ms` and can therefore be recalled.
    pub(crate) fn pop_recallable(&mut self, now: Millis, age_ms: u64) -> Option<SplitRef> {
        self.not_recallable.pop_front_if(|(at, _)| now >= at.saturating_add(age_ms)).map(|(_, split)| split)
    }

    /// Returns the time at which the next lease becomes late or recallable.
    pub(crate) fn next_deadline(&self, late_ms: u64, recall_ms: u64) -> Option<Millis> {
        let late = self.not_late.front().map(|(at, _)| at.saturating_add(late_ms));
        let recallable = self.not_recallable.front().map(|(at, _)| at.saturating_add(recall_ms));
        late.into_iter().chain(recallable).min()
    }

    pub(crate) fn clear(&mut self) {
        self.not_late.clear();
        self.not_recallable.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(stream: u32, epoch: u32, ordinal: u64) -> SplitRef {
        SplitRef { epoch, ordinal, stream }
    }

    proptest! {
        /// Compares the index with a table that is fully scanned for each report.
        #[test]
        fn the_index_equals_a_table_that_is_scanned(
            steps in proptest::collection::vec((0u8..8, 0u32..5, 0u32..3, 0u64..6, 1u64..4), 0..300),
        ) {
            let mut table = LeaseIndex::default();
            table.index_rounds();
            let mut all: BTreeMap<SplitRef, Vec<WorkerId>> = BTreeMap::new();
            for (kind, stream, epoch, ordinal, worker) in steps {
                let (split, worker) = (split(stream, epoch, ordinal), WorkerId(worker));
                match kind {
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
                        let head = (ordinal > 0).then_some(split);
                        let is_done = |other: &SplitRef| {
                            other.stream == stream && head.is_none_or(|head| *other < head)
                        };
                        let mut done: Vec<SplitRef> =
                            table.take_before(stream, head).into_iter().map(|lease| lease.0).collect();
                        done.sort_unstable();
                        let scanned: Vec<SplitRef> =
                            all.extract_if(.., |split, _| is_done(split)).map(|lease| lease.0).collect();
                        prop_assert_eq!(done, scanned);
                    }
                }
                let holders = |lease: &LeaseState| lease.holders().map(|holder| holder.worker).collect::<Vec<_>>();
                let mut left: Vec<(SplitRef, Vec<WorkerId>)> =
                    table.iter().map(|(split, lease)| (split, holders(lease))).collect();
                left.sort_unstable();
                prop_assert_eq!(left, all.clone().into_iter().collect::<Vec<_>>());
                prop_assert_eq!(table.len(), all.len());
                let own: Vec<SplitRef> = table.of_stream(stream).map(|(split, _)| split).collect();
                let expected: Vec<SplitRef> = all.keys().copied().filter(|split| split.stream == stream).collect();
                prop_assert_eq!(own, expected);
                let of_round: BTreeSet<WorkerId> = table.holders_of_round(epoch, ordinal).collect();
                let is_mate = |split: &SplitRef| (split.epoch, split.ordinal) == (epoch, ordinal);
                let expected: BTreeSet<WorkerId> =
                    all.iter().filter(|(split, _)| is_mate(split)).flat_map(|(_, holders)| holders.clone()).collect();
                prop_assert_eq!(of_round, expected);
                let held: usize = table.by_worker().values().map(Vec::len).sum();
                prop_assert_eq!(held, all.values().map(Vec::len).sum::<usize>());
            }
        }
    }

    #[test]
    fn a_holder_keeps_the_time_of_its_first_grant() {
        let mut table = LeaseIndex::default();
        let split = split(0, 0, 1);
        table.grant(split, WorkerId(1), 5);
        table.grant(split, WorkerId(1), 9);
        let holder = LeaseHolder { worker: WorkerId(1), granted_at: 5 };
        assert_eq!(table.get(split).and_then(LeaseState::only_holder), Some(holder));
        table.grant(split, WorkerId(2), 9);
        assert_eq!(table.get(split).and_then(LeaseState::only_holder), None);
        table.revoke(split, WorkerId(1));
        let holder = LeaseHolder { worker: WorkerId(2), granted_at: 9 };
        assert_eq!(table.get(split).and_then(LeaseState::only_holder), Some(holder));
        assert!(table.contains(split));
        table.clear();
        assert!(!table.contains(split));
    }

    #[test]
    fn unreachable_holders_are_forgotten_with_their_splits() {
        let mut unreachable = UnreachableHolders::default();
        for ordinal in 0..3 {
            unreachable.insert(split(1, 0, ordinal), WorkerId(7));
        }
        unreachable.insert(split(2, 0, 0), WorkerId(8));
        assert!(unreachable.contains(split(1, 0, 0), WorkerId(7)));
        assert!(!unreachable.contains(split(1, 0, 0), WorkerId(8)));
        unreachable.remove_before(1, Some(split(1, 0, 1)));
        let left = |of: &UnreachableHolders| -> Vec<bool> {
            [split(1, 0, 0), split(1, 0, 1), split(1, 0, 2), split(2, 0, 0)]
                .map(|split| of.has_split(split))
                .into()
        };
        assert_eq!(left(&unreachable), [false, true, true, true]);
        unreachable.remove_split(split(1, 0, 1));
        assert_eq!(left(&unreachable), [false, false, true, true]);
        unreachable.remove_before(1, None);
        assert_eq!(left(&unreachable), [false, false, false, true]);
        unreachable.clear();
        assert_eq!(left(&unreachable), [false; 4]);
    }

    #[test]
    fn leases_become_late_and_recallable() {
        let mut ages = LeaseAges::default();
        ages.push(10, split(0, 0, 0));
        ages.push(20, split(0, 0, 1));
        assert_eq!(ages.next_deadline(100, 200), Some(110));
        assert_eq!(ages.pop_late(109, 100), None);
        assert_eq!(ages.pop_late(110, 100), Some(split(0, 0, 0)));
        assert_eq!(ages.pop_late(110, 100), None);
        assert_eq!(ages.next_deadline(100, 200), Some(120));
        assert_eq!(ages.pop_late(130, 100), Some(split(0, 0, 1)));
        assert_eq!((ages.pop_recallable(209, 200), ages.next_deadline(100, 200)), (None, Some(210)));
        assert_eq!(ages.pop_recallable(210, 200), Some(split(0, 0, 0)));
        ages.push(30, split(0, 0, 2));
        ages.clear();
        assert_eq!(ages.next_deadline(100, 200), None);
    }
}
