//! The leases of one job: totals over its splits, its streams, and the splits with a group to start.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::layout::{Layout, SplitRef};

use crate::engine::pool::Priority;
use crate::engine::split::SplitState;

/// A round of a coordinated job: epoch and ordinal.
type RoundId = (u32, u64);

/// The leases of one job.
#[derive(Debug, Default)]
pub(in crate::engine) struct JobLeases {
    /// `None` until the job is loaded: until then no group starts.
    pub(super) layout: Option<Layout>,
    /// All leases in the order of the job; the index of a lease is its rank.
    pub(super) order: Vec<SplitRef>,
    pub(super) streams: BTreeMap<u32, StreamLeases>,
    /// Splits with a group to start, of streams that are not parked.
    open: BTreeSet<SplitRef>,
    /// Splits with a group to start whose consumer waits for rows that no group computes.
    starving: BTreeSet<SplitRef>,
    /// Running groups of each round; empty for a job that is not coordinated.
    running_rounds: BTreeMap<RoundId, usize>,
    held_bytes: u64,
    running: usize,
    /// Number of splits whose consumer waits and that have no finished piece.
    awaited: usize,
    /// Streams that are parked.
    pub(super) parked: BTreeSet<u32>,
    /// The share and the group size for which streams were parked.
    parked_for: StreamShare,
}

/// The memory that each stream of a job may hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine) struct StreamShare {
    pub(in crate::engine) bytes: u64,
    /// Bytes of the job's next group.
    pub(in crate::engine) group_bytes: u64,
}

/// The leases of one stream of a job.
#[derive(Debug, Default)]
pub(super) struct StreamLeases {
    pub(super) splits: BTreeMap<SplitRef, LeasedSplit>,
    /// Splits with running groups.
    running: BTreeSet<SplitRef>,
    held_bytes: u64,
}

/// A split with its part of the totals.
#[derive(Debug)]
pub(super) struct LeasedSplit {
    pub(super) split: SplitState,
    pub(super) counted: SplitTotals,
}

/// The part of the totals that one split contributes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SplitTotals {
    held_bytes: u64,
    running: usize,
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
            is_ready,
            is_starving: is_ready && split.is_starving(),
            is_awaited: split.is_awaited(),
            is_computed: len.is_some_and(|len| split.is_computed(len)),
        }
    }
}

impl JobLeases {
    pub(in crate::engine) fn get(&self, split: SplitRef) -> Option<&SplitState> {
        Some(&self.streams.get(&split.stream)?.splits.get(&split)?.split)
    }

    /// Bytes of the running groups and of the pieces that wait for consumers.
    pub(in crate::engine) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Bytes of a stream's running groups and of its pieces that wait for the consumer.
    pub(in crate::engine) fn stream_bytes(&self, stream: u32) -> u64 {
        self.streams.get(&stream).map_or(0, |stream| stream.held_bytes)
    }

    pub(in crate::engine) fn running_groups(&self) -> usize {
        self.running
    }

    /// Whether a consumer waits for rows that are not finished.
    pub(in crate::engine) fn has_waiting_consumer(&self) -> bool {
        self.awaited > 0
    }

    /// Whether any split has a group to start, regardless of limits.
    pub(in crate::engine) fn is_ready(&self) -> bool {
        !self.open.is_empty() || !self.parked.is_empty()
    }

    /// The number of leases before this one.
    pub(in crate::engine) fn rank(&self, split: SplitRef) -> usize {
        self.order.partition_point(|other| *other < split)
    }

    /// The first split with a group to start, of streams that are not parked.
    pub(in crate::engine) fn first_open(&self) -> Option<SplitRef> {
        self.first_idle(&self.open)
    }

    /// The first split with a group to start whose consumer waits for rows that no group computes.
    pub(in crate::engine) fn first_starving(&self) -> Option<SplitRef> {
        self.first_idle(&self.starving)
    }

    /// The first of these splits whose round no other stream computes: a round yields pieces for all streams.
    fn first_idle(&self, splits: &BTreeSet<SplitRef>) -> Option<SplitRef> {
        let mut first = *splits.first()?;
        while self.running_rounds.contains_key(&(first.epoch, first.ordinal)) {
            let next = SplitRef { ordinal: first.ordinal + 1, stream: 0, ..first };
            first = *splits.range(next..).next()?;
        }
        Some(first)
    }

    /// Whether any stream of the round that a split is a part of has a lease.
    pub(in crate::engine) fn has_round(&self, epoch: u32, ordinal: u64) -> bool {
        let first = SplitRef { epoch, ordinal, stream: 0 };
        let found = self.order.get(self.rank(first));
        found.is_some_and(|found| (found.epoch, found.ordinal) == (epoch, ordinal))
    }

    /// The most urgent priority of the running groups in later splits of the same stream.
    pub(in crate::engine) fn first_later_priority(&self, split: SplitRef) -> Option<Priority> {
        let stream = self.streams.get(&split.stream)?;
        let later = stream.running.range(split..).filter(|other| **other > split);
        later.filter_map(|other| stream.splits.get(other)?.split.priority()).min()
    }

    /// The progress of a stream's splits up to this one.
    pub(in crate::engine) fn progress(&self, split: SplitRef) -> u64 {
        let stream = self.streams.get(&split.stream);
        let own = stream.into_iter().flat_map(|stream| stream.splits.range(..=split));
        own.map(|(_, lease)| lease.split.progress.count()).sum()
    }

    /// Excludes a stream that holds its share of the memory, until it holds fewer bytes.
    pub(in crate::engine) fn park(&mut self, stream: u32) {
        let Some(leases) = self.streams.get(&stream) else { return };
        for (split, lease) in &leases.splits {
            if lease.counted.is_ready {
                self.open.remove(split);
            }
        }
        self.parked.insert(stream);
    }

    fn unpark(&mut self, stream: u32) {
        if self.parked.remove(&stream)
            && let Some(leases) = self.streams.get(&stream)
        {
            let ready = leases.splits.iter().filter(|(_, lease)| lease.counted.is_ready);
            self.open.extend(ready.map(|(split, _)| *split));
        }
    }

    /// Includes parked streams again if the share of a stream or the bytes of a group have changed.
    pub(in crate::engine) fn set_share(&mut self, share: StreamShare) {
        if self.parked_for != share {
            self.parked_for = share;
            while let Some(stream) = self.parked.first().copied() {
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
        self.awaited = self.awaited - usize::from(before.is_awaited) + usize::from(after.is_awaited);
        set_member(&mut self.starving, split, after.is_starving);
        set_member(&mut self.open, split, after.is_ready && !self.parked.contains(&split.stream));
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

fn set_member(set: &mut BTreeSet<SplitRef>, split: SplitRef, is_member: bool) {
    if is_member {
        set.insert(split);
    } else {
        set.remove(&split);
    }
}
