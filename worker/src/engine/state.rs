//! The state that the engine's lock guards: leases, loaded jobs, and the allocations and cache decisions of the plan.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::messages::{
    CacheDecision, GraphJobLoad, GraphLoadState, JobAllocation, JobSegments, Lease,
};
use feedline_data::mix::MixChange;
use tokio::sync::oneshot;

use super::job::JobContext;
use super::leases::LeaseTable;
use super::piece::StreamPieces;
use super::round::RoundCache;
use super::split::{OpenFetch, SplitState};
use crate::cache::{CacheValues, TenantCacheLimit};

/// Maximum number of loaded jobs before jobs without leases are dropped. Until then their counters are still reported.
const ENDED_JOBS_MAX: usize = 16;

#[derive(Default)]
pub(super) struct EngineState {
    pub(super) leases: LeaseTable,
    /// Fetch requests that wait for the lease of their split.
    pub(super) pending_fetches: BTreeMap<(JobId, SplitRef), Vec<PendingFetch>>,
    pub(super) jobs: BTreeMap<JobId, Arc<JobContext>>,
    /// Loaded jobs, in the order in which they were loaded.
    loaded: VecDeque<JobId>,
    /// Number of running groups.
    pub(super) groups: usize,
    /// Whether a group that exceeds the memory budget is running, for a consumer that has no finished piece.
    pub(super) has_exceeding_group: bool,
    pub(super) next_fetch: u64,
    /// Number of leases accepted so far.
    accepted: u32,
    /// Number of groups started so far.
    pub(super) started: u64,
    /// The job whose consumer is waiting for rows while the job's next group waits for memory.
    pub(super) memory_wait: Option<MemoryWait>,
    /// Error messages for the jobs that this worker cannot load.
    pub(super) failed: BTreeMap<JobId, String>,
    /// The allocation of each job. Jobs without an entry have no limits.
    pub(super) allocations: BTreeMap<JobId, JobAllocation>,
    /// Changes to the mix weights, for each job with leases.
    pub(super) mixes: BTreeMap<JobId, Vec<MixChange>>,
    /// The segments of each unbounded job with leases.
    pub(super) segments: BTreeMap<JobId, JobSegments>,
    /// Jobs of the plan that sample a graph. They are loaded before they receive leases, and keep their graphs.
    pub(super) graph_jobs: BTreeSet<JobId>,
    /// The tenant of each job, with its cache limit. Jobs without an entry have no limit.
    pub(super) cache_limits: BTreeMap<JobId, TenantCacheLimit>,
    /// Planned cache decisions that this worker could not apply.
    pub(super) rejected_caches: BTreeMap<JobId, CacheDecision>,
    /// Pieces of computed rounds for streams that have no lease on this worker yet.
    pub(super) rounds: RoundCache,
}

/// The start of a job's current wait for memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryWait {
    pub(super) job: JobId,
    pub(super) since: Instant,
}

/// A fetch request, which waits until the lease of its split has arrived.
pub(super) struct PendingFetch {
    pub(super) job: JobId,
    pub(super) split: SplitRef,
    /// Offset of the first row to deliver.
    pub(super) from: u32,
    pub(super) reply: oneshot::Sender<OpenFetch>,
}

/// Identifies a group that has ended.
pub(super) struct EndedGroup {
    pub(super) job: JobId,
    pub(super) split: SplitRef,
    /// The generation of the split when the group started.
    pub(super) generation: u64,
    /// First offset of the group in the split.
    pub(super) start: u32,
    /// Whether the group exceeded the memory budget.
    pub(super) exceeds_budget: bool,
}

impl EngineState {
    /// Returns the prefixes of all jobs with leases, with the values of their cached rows.
    pub(super) fn cache_values(&self) -> CacheValues {
        let mut values = CacheValues::new();
        for (id, job) in self.leases.jobs().filter_map(|(id, _)| Some((id, self.jobs.get(&id)?))) {
            if let Some(cache_point) = &job.compiled.cache_point {
                let is_requested = job.compiled.cache.is_none();
                let saved = job.saved_s_per_byte(cache_point);
                values.entry(cache_point.prefix).or_default().add_job(
                    saved,
                    is_requested,
                    self.cache_limits.get(&id),
                );
            }
        }
        values
    }

    /// Adds the pieces of a finished group to its split, and to the splits of other streams in the same round.
    pub(super) fn finish_group(&mut self, group: &EndedGroup, result: Result<Vec<StreamPieces>, String>) {
        let EndedGroup { job, split, generation, start, .. } = *group;
        let streams = match result {
            Ok(streams) => streams,
            Err(message) => {
                self.leases.update(job, split, |lease| lease.fail_group(generation, start, message));
                return;
            }
        };
        for StreamPieces { stream, pieces } in streams {
            let other = SplitRef { stream, ..split };
            if stream == split.stream {
                self.leases.update(job, split, |lease| lease.finish_group(generation, start, pieces));
            } else if self.leases.contains(job, other) {
                self.leases.update(job, other, |lease| lease.supply(pieces));
            } else {
                self.rounds.insert(job, other, pieces);
            }
        }
    }

    /// Adds a new lease, and opens the fetches that wait for the lease.
    pub(super) fn accept(&mut self, lease: &Lease) {
        let (job, split) = (lease.job, lease.split);
        self.accepted = self.accepted.wrapping_add(1);
        let mut accepted = SplitState::new(lease.start_offset, self.accepted);
        accepted.set_lost_workers(lease.lost_workers);
        if let Some(message) = self.failed.get(&job) {
            accepted.fail(0, message.clone());
        } else if let Some(pieces) = self.rounds.take(job, split) {
            accepted.supply(pieces);
        }
        let loaded = self.jobs.get(&job);
        accepted.set_job(loaded);
        self.leases.insert(job, split, accepted, loaded.map(|job| job.layout()));
        for request in self.pending_fetches.remove(&(job, split)).into_iter().flatten() {
            self.open_fetch(request);
        }
    }

    /// Drops waiting fetch requests whose consumer has disconnected or whose deadline has passed.
    pub(super) fn drop_cancelled_requests(&mut self) {
        self.pending_fetches.retain(|_, requests| {
            requests.retain(|request| !request.reply.is_closed());
            !requests.is_empty()
        });
    }

    /// Adds a loaded job, applies its current allocation, and makes its leases runnable.
    pub(super) fn add_job(&mut self, job: JobContext) {
        let id = job.id();
        job.limits.apply(self.allocations.get(&id));
        if let Some(changes) = self.mixes.get(&id) {
            job.set_mix(changes);
        }
        if let Some(segments) = self.segments.get(&id) {
            job.set_segments(segments);
        }
        self.leases.set_layout(id, job.layout());
        let job = Arc::new(job);
        self.leases.update_job(id, |split| split.set_job(Some(&job)));
        if self.jobs.insert(id, job).is_none() {
            self.loaded.push_back(id);
        }
        if self.loaded.len() > ENDED_JOBS_MAX
            && let Some(oldest) = self.loaded.pop_front()
        {
            if self.leases.job(oldest).is_some() || self.graph_jobs.contains(&oldest) {
                self.loaded.push_back(oldest);
            } else {
                self.jobs.remove(&oldest);
            }
        }
    }

    /// Replaces the jobs that are loaded before they receive leases. A job that leaves the plan is loaded again if it returns, even if
    /// it has failed: another job may have used the memory for its graph.
    pub(super) fn set_graph_jobs(&mut self, jobs: &[JobId]) {
        let planned = jobs.iter().copied().collect();
        let before = std::mem::replace(&mut self.graph_jobs, planned);
        for id in before.difference(&self.graph_jobs).filter(|id| self.leases.job(**id).is_none()) {
            self.failed.remove(id);
        }
    }

    /// How far the jobs are loaded that the plan contains because they sample a graph.
    pub(super) fn graph_loads(&self) -> Vec<GraphJobLoad> {
        let state = |id: &JobId| match (self.failed.contains_key(id), self.jobs.contains_key(id)) {
            (true, _) => GraphLoadState::Failed,
            (false, true) => GraphLoadState::Loaded,
            (false, false) => GraphLoadState::Loading,
        };
        self.graph_jobs.iter().map(|id| GraphJobLoad { job: *id, state: state(id) }).collect()
    }

    /// Removes the jobs that sample graphs and have no leases, so that their graphs can be evicted. Their counters are not reported
    /// any longer. `keeps_planned` keeps those of the plan, which may receive leases again.
    pub(super) fn remove_idle_graph_jobs(&mut self, keeps_planned: bool) {
        let (leases, allocations, graph_jobs) = (&self.leases, &self.allocations, &self.graph_jobs);
        self.jobs.retain(|id, job| {
            let is_planned = keeps_planned && allocations.contains_key(id) || graph_jobs.contains(id);
            job.compiled.graph.is_none() || leases.job(*id).is_some() || is_planned
        });
        self.loaded.retain(|id| self.jobs.contains_key(id));
    }

    /// The cache decision that a job should follow: the planned decision, or the current decision if this worker has
    /// rejected the planned one. `None` if the job is unknown.
    pub(super) fn wanted_cache(&self, id: JobId) -> Option<Option<CacheDecision>> {
        let current = self.jobs.get(&id).map(|job| job.compiled.cache);
        let planned = self.allocations.get(&id).map(|allocation| allocation.cache);
        let is_rejected = |cache: &Option<CacheDecision>| {
            cache.is_some() && self.rejected_caches.get(&id) == cache.as_ref()
        };
        planned.filter(|cache| !is_rejected(cache)).or(current)
    }

    /// Opens a fetch, or stores the request until the lease arrives.
    pub(super) fn open_fetch(&mut self, request: PendingFetch) {
        if request.reply.is_closed() {
            return;
        }
        let PendingFetch { job, split, from, .. } = request;
        let Some(shared) = self.leases.shared(job, split) else {
            self.pending_fetches.entry((job, split)).or_default().push(request);
            return;
        };
        self.next_fetch += 1;
        let number = self.next_fetch;
        let changed = self.leases.update(job, split, |lease| {
            lease.open_fetch(number, from);
            Arc::clone(&lease.changed)
        });
        let Some(changed) = changed else { return };
        if request.reply.send(OpenFetch { job, split, number, changed, shared }).is_err() {
            // The consumer has disconnected, and the fetch has closed itself.
            self.leases.update(job, split, |_| ());
        }
    }
}
