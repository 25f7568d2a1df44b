//! The leases of one job: totals over its splits, its streams, and the splits whose next group can start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use feedline_data::layout::{Layout, SplitRef};

use crate::engine::pool::Priority;
use crate::engine::split::{SharedSplit, SplitState};

/// Identifies a round of a coordinated job by its epoch and ordinal.
type RoundId = (u32, u64);

/// The leases of one job.
#[derive(Default)]
pub(in crate::engine) struct JobLeases {
    /// `None` until the job is loaded. Groups start only after that.
    pub(super) layout: Option<Layout>,
    /// All leases, in job order.
    pub(super) order: BTreeSet<SplitRef>,
    pub(super) streams: BTreeMap<u32, StreamLeases>,
    /// The next groups of splits whose stream is not parked.
    startable: BTreeSet<NextGroup>,
    /// The next groups of splits whose consumer is waiting for rows that no running group computes.
    starving: BTreeSet<NextGroup>,
    /// Number of running groups of each round. Empty if the job is not coordinated.
    running_rounds: BTreeMap<RoundId, usize>,
    held_bytes: u64,
    running: usize,
    /// Number of splits whose next group can start.
    ready_splits: usize,
    /// Number of splits whose consumer is waiting and that have no finished piece.
    awaited_splits: usize,
    /// Streams whose groups may not start because the stream holds its share of the memory.
    pub(super) parked_streams: BTreeSet<u32>,
    /// The memory share and group size when streams were parked.
    parked_share: StreamShare,
}

/// The next group of a split. Groups start in the order of this type: a consumer of all streams takes batches from each
/// stream in turn, so the streams must advance together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) struct NextGroup {
    epoch: u32,
    ordinal: u64,
    /// First offset of the group in the split.
    offset: u32,
    stream: u32,
}

impl NextGroup {
    pub(super) fn new(split: SplitRef, offset: u32) -> Self {
        Self { epoch: split.epoch, ordinal: split.ordinal, offset, stream: split.stream }
    }

    pub(in crate::engine) fn split(self) -> SplitRef {
        SplitRef { epoch: self.epoch, ordinal: self.ordinal, stream: self.stream }
    }
}

/// The memory share of each stream of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine) struct StreamShare {
    pub(in crate::engine) bytes: u64,
    /// Bytes of the job's next group.
    pub(in crate::engine) group_bytes: u64,
}

/// The leases of one stream of a job.
#[derive(Default)]
pub(super) struct StreamLeases {
    pub(super) splits: BTreeMap<SplitRef, LeasedSplit>,
    /// Splits with running groups.
    pub(super) running: BTreeSet<SplitRef>,
    held_bytes: u64,
}

/// A leased split, and its contribution to the totals.
pub(super) struct LeasedSplit {
    pub(super) split: Arc<SharedSplit>,
    pub(super) totals: SplitTotals,
}

/// The contribution of one split to the totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SplitTotals {
    held_bytes: u64,
    running: usize,
    /// First offset of the next group.
    next: u32,
    is_ready: bool,
    is_starving: bool,
    is_awaited: bool,
    pub(super) is_computed: bool,
}

impl SplitTotals {
    pub(super) fn new(split: &SplitState, len: Option<u32>) -> Self {
        let is_ready = len.is_some_and(|len| split.has_next(len));
        Self {
            held_bytes: split.held_bytes(),
            running: split.running_groups(),
            next: split.next_offset(),
            is_ready,
            is_starving: is_ready && split.is_starving(),
            is_awaited: split.is_awaited(),
            is_computed: len.is_some_and(|len| split.is_computed(len)),
        }
    }
}

impl JobLeases {
    pub(in crate::engine) fn get(&self, split: SplitRef) -> Option<&Arc<SharedSplit>> {
        Some(&self.streams.get(&split.stream)?.splits.get(&split)?.split)
    }

    /// Returns the bytes of running groups and of pieces that wait for consumers.
    pub(in crate::engine) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns the bytes of a stream's running groups and of its pieces that wait for the consumer.
    pub(in crate::engine) fn stream_bytes(&self, stream: u32) -> u64 {
        self.streams.get(&stream).map_or(0, |stream| stream.held_bytes)
    }

    pub(in crate::engine) fn running_groups(&self) -> usize {
        self.running
    }

    /// Whether any consumer is waiting for rows that are not finished.
    pub(in crate::engine) fn has_waiting_consumer(&self) -> bool {
        self.awaited_splits > 0
    }

    /// Whether any split has a group that has not started, regardless of limits.
    pub(in crate::engine) fn is_ready(&self) -> bool {
        !self.startable.is_empty() || !self.parked_streams.is_empty()
    }

    /// Returns the number of splits whose groups have all started, which shows how far the job is ahead of its
    /// consumers.
    pub(in crate::engine) fn started_splits(&self) -> usize {
        self.order.len() - self.ready_splits
    }

    /// Returns the first group that may start, among the streams that are not parked.
    pub(in crate::engine) fn first_startable(&self) -> Option<NextGroup> {
        self.first_idle(&self.startable)
    }

    /// Returns the first group of a split whose consumer is waiting for rows that no running group computes.
    pub(in crate::engine) fn first_starving(&self) -> Option<NextGroup> {
        self.first_idle(&self.starving)
    }

    /// Returns the first of these groups whose round is not being computed for another stream. One group computes its
    /// round for all streams.
    fn first_idle(&self, groups: &BTreeSet<NextGroup>) -> Option<NextGroup> {
        let mut first = *groups.first()?;
        while self.running_rounds.contains_key(&(first.epoch, first.ordinal)) {
            let next = NextGroup { ordinal: first.ordinal + 1, offset: 0, stream: 0, ..first };
            first = *groups.range(next..).next()?;
        }
        Some(first)
    }

    /// Whether any stream of this round has a lease.
    pub(in crate::engine) fn has_round(&self, epoch: u32, ordinal: u64) -> bool {
        let first = SplitRef { epoch, ordinal, stream: 0 };
        let found = self.order.range(first..).next();
        found.is_some_and(|found| (found.epoch, found.ordinal) == (epoch, ordinal))
    }

    /// Returns the most urgent priority of the running groups in later splits of the same stream.
    pub(in crate::engine) fn first_later_priority(&self, split: SplitRef) -> Option<Priority> {
        let stream = self.streams.get(&split.stream)?;
        let later = stream.running.range(split..).filter(|other| **other > split);
        later.filter_map(|other| stream.splits.get(other)?.split.lock().priority()).min()
    }

    /// Returns the total progress of a split and of the earlier splits of its stream.
    pub(in crate::engine) fn progress(&self, split: SplitRef) -> u64 {
        let stream = self.streams.get(&split.stream);
        let own = stream.into_iter().flat_map(|stream| stream.splits.range(..=split));
        own.map(|(_, lease)| lease.split.lock().progress.count()).sum()
    }

    /// Parks a stream that holds its share of the memory: its groups do not start until it holds fewer bytes.
    pub(in crate::engine) fn park(&mut self, stream: u32) {
        let Some(leases) = self.streams.get(&stream) else { return };
        for (split, lease) in &leases.splits {
            if lease.totals.is_ready {
                self.startable.remove(&NextGroup::new(*split, lease.totals.next));
            }
        }
        self.parked_streams.insert(stream);
    }

    fn unpark(&mut self, stream: u32) {
        if self.parked_streams.remove(&stream)
            && let Some(leases) = self.streams.get(&stream)
        {
            let ready = leases.splits.iter().filter(|(_, lease)| lease.totals.is_ready);
            self.startable.extend(ready.map(|(split, lease)| NextGroup::new(*split, lease.totals.next)));
        }
    }

    /// Unparks all streams if the memory share of a stream or the size of a group has changed.
    pub(in crate::engine) fn set_share(&mut self, share: StreamShare) {
        if self.parked_share != share {
            self.parked_share = share;
            while let Some(stream) = self.parked_streams.first().copied() {
                self.unpark(stream);
            }
        }
    }

    /// Replaces the contribution of one split to the totals.
    pub(super) fn replace_totals(&mut self, split: SplitRef, before: SplitTotals, after: SplitTotals) {
        let Some(stream) = self.streams.get_mut(&split.stream) else { return };
        stream.held_bytes = stream.held_bytes - before.held_bytes + after.held_bytes;
        set_member(&mut stream.running, split, after.running > 0);
        self.held_bytes = self.held_bytes - before.held_bytes + after.held_bytes;
        self.running = self.running - before.running + after.running;
        self.ready_splits = self.ready_splits - usize::from(before.is_ready) + usize::from(after.is_ready);
        self.awaited_splits =
            self.awaited_splits - usize::from(before.is_awaited) + usize::from(after.is_awaited);
        let (group_before, group_after) =
            (NextGroup::new(split, before.next), NextGroup::new(split, after.next));
        if group_before != group_after {
            self.starving.remove(&group_before);
            self.startable.remove(&group_before);
        }
        set_member(&mut self.starving, group_after, after.is_starving);
        set_member(
            &mut self.startable,
            group_after,
            after.is_ready && !self.parked_streams.contains(&split.stream),
        );
        if self.layout.as_ref().is_some_and(|layout| layout.coordinated) {
            self.count_round((split.epoch, split.ordinal), before.running, after.running);
        }
        if after.held_bytes < before.held_bytes {
            self.unpark(split.stream);
        }
    }

    fn count_round(&mut self, round: RoundId, before: usize, after: usize) {
        if before == after {
            return;
        }
        let running = self.running_rounds.entry(round).or_default();
        *running = *running - before + after;
        if *running == 0 {
            self.running_rounds.remove(&round);
        }
    }
}

fn set_member<T: Ord>(set: &mut BTreeSet<T>, item: T, is_member: bool) {
    if is_member {
        set.insert(item);
    } else {
        set.remove(&item);
    }
}
