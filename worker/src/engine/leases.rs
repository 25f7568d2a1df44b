//! The leases of a worker, with the totals that admission needs: held bytes for each job and stream, running groups, and
//! the splits with a group to start, in the order of the job.
//!
//! Each change of a split updates the totals by the difference, so that no decision scans splits, streams or fetches.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::JobId;
use feedline_data::layout::{Layout, SplitRef};
use feedline_data::messages::Lease;

use super::pool::Priority;
use super::split::SplitState;

/// A round of a coordinated job: epoch and ordinal.
type RoundId = (u32, u64);

/// All leases of a worker.
#[derive(Debug, Default)]
pub(super) struct LeaseTable {
    jobs: BTreeMap<JobId, JobLeases>,
    /// Number of leases.
    count: usize,
    /// Number of streams that have leases.
    streams: usize,
    /// Leases whose rows are all computed.
    computed: BTreeSet<(JobId, SplitRef)>,
}

/// The difference between a plan and the present leases.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LeaseChanges {
    pub(super) granted: Vec<Lease>,
    pub(super) revoked: Vec<(JobId, SplitRef)>,
}

/// The leases of one job.
#[derive(Debug, Default)]
pub(super) struct JobLeases {
    /// `None` until the job is loaded: until then no group starts.
    layout: Option<Layout>,
    /// All leases in the order of the job; the index of a lease is its rank.
    order: Vec<SplitRef>,
    streams: BTreeMap<u32, StreamLeases>,
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
    parked: BTreeSet<u32>,
    /// The share and the group size for which streams were parked.
    parked_for: StreamShare,
}

/// The memory that each stream of a job may hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StreamShare {
    pub(super) bytes: u64,
    /// Bytes of the job's next group.
    pub(super) group_bytes: u64,
}

/// The leases of one stream of a job.
#[derive(Debug, Default)]
struct StreamLeases {
    splits: BTreeMap<SplitRef, LeasedSplit>,
    /// Splits with running groups.
    running: BTreeSet<SplitRef>,
    held_bytes: u64,
}

#[derive(Debug)]
struct LeasedSplit {
    split: SplitState,
    /// The split's part of the totals.
    counted: SplitTotals,
}

/// The part of the totals that one split contributes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SplitTotals {
    held_bytes: u64,
    running: usize,
    is_ready: bool,
    is_starving: bool,
    is_awaited: bool,
    is_computed: bool,
}

impl SplitTotals {
    fn new(split: &SplitState, len: Option<u32>) -> Self {
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

impl LeaseTable {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Streams with leases, at least one.
    pub(super) fn streams(&self) -> u64 {
        (self.streams as u64).max(1)
    }

    /// The jobs that have leases.
    pub(super) fn jobs(&self) -> impl Iterator<Item = (JobId, &JobLeases)> {
        self.jobs.iter().map(|(id, leases)| (*id, leases))
    }

    pub(super) fn job(&self, job: JobId) -> Option<&JobLeases> {
        self.jobs.get(&job)
    }

    pub(super) fn job_mut(&mut self, job: JobId) -> Option<&mut JobLeases> {
        self.jobs.get_mut(&job)
    }

    pub(super) fn get(&self, job: JobId, split: SplitRef) -> Option<&SplitState> {
        self.jobs.get(&job)?.get(split)
    }

    pub(super) fn contains(&self, job: JobId, split: SplitRef) -> bool {
        self.get(job, split).is_some()
    }

    /// All leases, ordered by job and split.
    pub(super) fn keys(&self) -> Vec<(JobId, SplitRef)> {
        let of = |(job, leases): (&JobId, &JobLeases)| {
            leases.order.iter().map(|split| (*job, *split)).collect::<Vec<_>>()
        };
        self.jobs.iter().flat_map(of).collect()
    }

    /// Compares the table with the leases of a plan, in O(n log n) of the plan's leases.
    pub(super) fn changes(&self, wanted: &[Lease]) -> LeaseChanges {
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable_by_key(|lease| (lease.job, lease.split));
        wanted.dedup_by_key(|lease| (lease.job, lease.split));
        let mut changes = LeaseChanges::default();
        let mut present = self.keys().into_iter().peekable();
        for lease in wanted {
            let key = (lease.job, lease.split);
            changes.revoked.extend(std::iter::from_fn(|| present.next_if(|other| *other < key)));
            if present.next_if_eq(&key).is_none() {
                changes.granted.push(lease);
            }
        }
        changes.revoked.extend(present);
        changes
    }

    /// Leases whose rows are all computed.
    pub(super) fn computed(&self) -> &BTreeSet<(JobId, SplitRef)> {
        &self.computed
    }

    /// Adds a lease that is not in the table. `layout` is the job's, where it is loaded.
    pub(super) fn insert(&mut self, job: JobId, split: SplitRef, state: SplitState, layout: Option<&Layout>) {
        let leases = self.jobs.entry(job).or_default();
        let Err(rank) = leases.order.binary_search(&split) else { return };
        leases.order.insert(rank, split);
        let stream = match leases.streams.entry(split.stream) {
            Entry::Vacant(entry) => {
                self.streams += 1;
                entry.insert(StreamLeases::default())
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        stream.splits.insert(split, LeasedSplit { split: state, counted: SplitTotals::default() });
        self.count += 1;
        if let Some(layout) = layout {
            self.set_layout(job, layout);
        }
        self.update(job, split, |_| ());
    }

    /// Removes a lease.
    pub(super) fn remove(&mut self, job: JobId, split: SplitRef) -> Option<SplitState> {
        let leases = self.jobs.get_mut(&job)?;
        let stream = leases.streams.get_mut(&split.stream)?;
        // The totals change first: unparking the stream must not find this lease ready.
        let counted = std::mem::take(&mut stream.splits.get_mut(&split)?.counted);
        leases.replace_totals(split, counted, SplitTotals::default());
        self.computed.remove(&(job, split));
        let stream = leases.streams.get_mut(&split.stream)?;
        let lease = stream.splits.remove(&split)?;
        self.count -= 1;
        if stream.splits.is_empty() {
            leases.streams.remove(&split.stream);
            leases.parked.remove(&split.stream);
            self.streams -= 1;
        }
        if let Ok(rank) = leases.order.binary_search(&split) {
            leases.order.remove(rank);
        }
        if leases.order.is_empty() {
            self.jobs.remove(&job);
        }
        Some(lease.split)
    }

    /// Changes a split and updates the totals. Returns `None` if the table does not contain the lease.
    pub(super) fn update<T>(
        &mut self,
        job: JobId,
        split: SplitRef,
        change: impl FnOnce(&mut SplitState) -> T,
    ) -> Option<T> {
        let leases = self.jobs.get_mut(&job)?;
        let len = leases.layout.as_ref().map(|layout| layout.split_len(split));
        let lease = leases.streams.get_mut(&split.stream)?.splits.get_mut(&split)?;
        let result = change(&mut lease.split);
        let (before, after) = (lease.counted, SplitTotals::new(&lease.split, len));
        lease.counted = after;
        leases.replace_totals(split, before, after);
        match (before.is_computed, after.is_computed) {
            (false, true) => _ = self.computed.insert((job, split)),
            (true, false) => _ = self.computed.remove(&(job, split)),
            _ => {}
        }
        Some(result)
    }

    /// Changes all splits of a job.
    pub(super) fn update_job(&mut self, job: JobId, mut change: impl FnMut(&mut SplitState)) {
        let splits = self.jobs.get(&job).map(|leases| leases.order.clone()).unwrap_or_default();
        for split in splits {
            self.update(job, split, &mut change);
        }
    }

    /// Makes the leases of a loaded job runnable.
    pub(super) fn set_layout(&mut self, job: JobId, layout: &Layout) {
        if let Some(leases) = self.jobs.get_mut(&job)
            && leases.layout.is_none()
        {
            leases.layout = Some(layout.clone());
            self.update_job(job, |_| ());
        }
    }
}

impl JobLeases {
    pub(super) fn get(&self, split: SplitRef) -> Option<&SplitState> {
        Some(&self.streams.get(&split.stream)?.splits.get(&split)?.split)
    }

    /// Bytes of the running groups and of the pieces that wait for consumers.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Bytes of a stream's running groups and of its pieces that wait for the consumer.
    pub(super) fn stream_bytes(&self, stream: u32) -> u64 {
        self.streams.get(&stream).map_or(0, |stream| stream.held_bytes)
    }

    pub(super) fn running_groups(&self) -> usize {
        self.running
    }

    /// Whether a consumer waits for rows that are not finished.
    pub(super) fn has_waiting_consumer(&self) -> bool {
        self.awaited > 0
    }

    /// Whether any split has a group to start, regardless of limits.
    pub(super) fn is_ready(&self) -> bool {
        !self.open.is_empty() || !self.parked.is_empty()
    }

    /// The number of leases before this one.
    pub(super) fn rank(&self, split: SplitRef) -> usize {
        self.order.partition_point(|other| *other < split)
    }

    /// The first split with a group to start, of streams that are not parked.
    pub(super) fn first_open(&self) -> Option<SplitRef> {
        self.first_idle(&self.open)
    }

    /// The first split with a group to start whose consumer waits for rows that no group computes.
    pub(super) fn first_starving(&self) -> Option<SplitRef> {
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
    pub(super) fn has_round(&self, epoch: u32, ordinal: u64) -> bool {
        let first = SplitRef { epoch, ordinal, stream: 0 };
        let found = self.order.get(self.rank(first));
        found.is_some_and(|found| (found.epoch, found.ordinal) == (epoch, ordinal))
    }

    /// The most urgent priority of the running groups in later splits of the same stream.
    pub(super) fn first_later_priority(&self, split: SplitRef) -> Option<Priority> {
        let stream = self.streams.get(&split.stream)?;
        let later = stream.running.range(split..).filter(|other| **other > split);
        later.filter_map(|other| stream.splits.get(other)?.split.priority()).min()
    }

    /// The progress of a stream's splits up to this one.
    pub(super) fn progress(&self, split: SplitRef) -> u64 {
        let stream = self.streams.get(&split.stream);
        let own = stream.into_iter().flat_map(|stream| stream.splits.range(..=split));
        own.map(|(_, lease)| lease.split.progress.count()).sum()
    }

    /// Excludes a stream that holds its share of the memory, until it holds fewer bytes.
    pub(super) fn park(&mut self, stream: u32) {
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
    pub(super) fn set_share(&mut self, share: StreamShare) {
        if self.parked_for != share {
            self.parked_for = share;
            while let Some(stream) = self.parked.first().copied() {
                self.unpark(stream);
            }
        }
    }

    /// Replaces the contribution of one split to the totals.
    fn replace_totals(&mut self, split: SplitRef, before: SplitTotals, after: SplitTotals) {
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

#[cfg(test)]
mod tests;
