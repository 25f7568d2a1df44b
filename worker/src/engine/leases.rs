//! The leases of a worker, with the totals that admission needs: bytes in use for each job and stream, running groups,
//! and the splits whose next group can start, in job order.
//!
//! Each change to a split updates the totals incrementally, so that admission does not need to scan splits, streams or
//! fetches.

mod job_leases;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use feedline_data::ids::JobId;
use feedline_data::layout::{Layout, SplitRef};
use feedline_data::messages::Lease;
use tokio::sync::Notify;

pub(super) use self::job_leases::{JobLeases, StreamShare};
use self::job_leases::{LeasedSplit, SplitTotals, StreamLeases};
use super::split::{SharedSplit, SplitState};

/// All leases of a worker.
#[derive(Default)]
pub(super) struct LeaseTable {
    jobs: BTreeMap<JobId, JobLeases>,
    /// Number of leases.
    count: usize,
    /// Number of streams that have leases.
    streams: usize,
    /// Leases whose rows are all computed.
    computed: BTreeSet<(JobId, SplitRef)>,
    /// Whether a lease was completely computed since the last call of [`Self::take_new_computed`].
    has_new_computed: bool,
    /// Fetches to notify when the lock is released.
    notifications: Vec<Arc<Notify>>,
}

/// The differences between the leases of two plans.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LeaseChanges {
    pub(super) granted: Vec<Lease>,
    pub(super) revoked: Vec<(JobId, SplitRef)>,
    /// All leases of the new plan, in order.
    pub(super) planned: Vec<(JobId, SplitRef)>,
}

impl LeaseChanges {
    /// Compares the leases of the previous plan, which must be in order, with those of a new plan, which may be in any
    /// order.
    pub(super) fn new(previous: &[(JobId, SplitRef)], wanted: &[Lease]) -> Self {
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable_by_key(|lease| (lease.job, lease.split));
        wanted.dedup_by_key(|lease| (lease.job, lease.split));
        let planned = wanted.iter().map(|lease| (lease.job, lease.split)).collect();
        let mut changes = Self { planned, ..Self::default() };
        let mut previous = previous.iter().copied().peekable();
        for lease in wanted {
            let key = (lease.job, lease.split);
            changes.revoked.extend(std::iter::from_fn(|| previous.next_if(|other| *other < key)));
            if previous.next_if_eq(&key).is_none() {
                changes.granted.push(lease);
            }
        }
        changes.revoked.extend(previous);
        changes
    }
}

impl LeaseTable {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of streams with leases, at least 1.
    pub(super) fn streams(&self) -> u64 {
        (self.streams as u64).max(1)
    }

    /// Returns the jobs that have leases.
    pub(super) fn jobs(&self) -> impl Iterator<Item = (JobId, &JobLeases)> {
        self.jobs.iter().map(|(id, leases)| (*id, leases))
    }

    pub(super) fn job(&self, job: JobId) -> Option<&JobLeases> {
        self.jobs.get(&job)
    }

    pub(super) fn job_mut(&mut self, job: JobId) -> Option<&mut JobLeases> {
        self.jobs.get_mut(&job)
    }

    /// Returns a shared reference to the state of a split.
    pub(super) fn shared(&self, job: JobId, split: SplitRef) -> Option<Arc<SharedSplit>> {
        Some(Arc::clone(self.jobs.get(&job)?.get(split)?))
    }

    pub(super) fn contains(&self, job: JobId, split: SplitRef) -> bool {
        self.jobs.get(&job).is_some_and(|leases| leases.get(split).is_some())
    }

    /// All leases, ordered by job and split.
    #[cfg(test)]
    pub(super) fn keys(&self) -> Vec<(JobId, SplitRef)> {
        let of = |(job, leases): (&JobId, &JobLeases)| {
            leases.order.iter().map(|split| (*job, *split)).collect::<Vec<_>>()
        };
        self.jobs.iter().flat_map(of).collect()
    }

    /// Leases whose rows are all computed.
    pub(super) fn computed(&self) -> &BTreeSet<(JobId, SplitRef)> {
        &self.computed
    }

    /// Adds a new lease. `layout` is the layout of the job if the job is loaded.
    pub(super) fn insert(&mut self, job: JobId, split: SplitRef, state: SplitState, layout: Option<&Layout>) {
        let leases = self.jobs.entry(job).or_default();
        if !leases.order.insert(split) {
            return;
        }
        let stream = match leases.streams.entry(split.stream) {
            Entry::Vacant(entry) => {
                self.streams += 1;
                entry.insert(StreamLeases::default())
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        let state = Arc::new(SharedSplit::new(state));
        stream.splits.insert(split, LeasedSplit { split: state, totals: SplitTotals::default() });
        self.count += 1;
        if let Some(layout) = layout {
            self.set_layout(job, layout);
        }
        self.update(job, split, |_| ());
    }

    /// Removes a lease.
    pub(super) fn remove(&mut self, job: JobId, split: SplitRef) -> Option<Arc<SharedSplit>> {
        let leases = self.jobs.get_mut(&job)?;
        let stream = leases.streams.get_mut(&split.stream)?;
        // The totals are updated first, because updating them may unpark the stream, which must not find this lease
        // ready.
        let totals = std::mem::take(&mut stream.splits.get_mut(&split)?.totals);
        leases.replace_totals(split, totals, SplitTotals::default());
        self.computed.remove(&(job, split));
        let stream = leases.streams.get_mut(&split.stream)?;
        let lease = stream.splits.remove(&split)?;
        self.count -= 1;
        if stream.splits.is_empty() {
            leases.streams.remove(&split.stream);
            leases.parked_streams.remove(&split.stream);
            self.streams -= 1;
        }
        leases.order.remove(&split);
        if leases.order.is_empty() {
            self.jobs.remove(&job);
        }
        Some(lease.split)
    }

    /// Removes a lease, cancels its running groups, and ends its fetch.
    pub(super) fn revoke(&mut self, job: JobId, split: SplitRef) {
        if let Some(revoked) = self.remove(job, split) {
            let mut revoked = revoked.lock();
            revoked.revoke();
            self.notifications.push(Arc::clone(&revoked.changed));
        }
    }

    /// Removes and returns the fetches to notify.
    pub(super) fn take_notifications(&mut self) -> Vec<Arc<Notify>> {
        std::mem::take(&mut self.notifications)
    }

    /// Whether a lease was completely computed since the last call.
    pub(super) fn take_new_computed(&mut self) -> bool {
        std::mem::take(&mut self.has_new_computed)
    }

    /// Changes a split, and updates the totals. Returns `None` if the table does not contain the lease.
    pub(super) fn update<T>(
        &mut self,
        job: JobId,
        split: SplitRef,
        change: impl FnOnce(&mut SplitState) -> T,
    ) -> Option<T> {
        let leases = self.jobs.get_mut(&job)?;
        let len = leases.layout.as_ref().map(|layout| layout.split_len(split));
        let lease = leases.streams.get_mut(&split.stream)?.splits.get_mut(&split)?;
        let mut state = lease.split.lock();
        let result = change(&mut state);
        let (before, after) = (lease.totals, SplitTotals::new(&state, len));
        if state.take_change() {
            self.notifications.push(Arc::clone(&state.changed));
        }
        drop(state);
        lease.totals = after;
        leases.replace_totals(split, before, after);
        match (before.is_computed, after.is_computed) {
            (false, true) => {
                self.computed.insert((job, split));
                self.has_new_computed = true;
            }
            (true, false) => _ = self.computed.remove(&(job, split)),
            _ => {}
        }
        Some(result)
    }

    /// Changes all splits of a job, and updates the totals.
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

#[cfg(test)]
pub(super) mod tests;
