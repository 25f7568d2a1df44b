//! The state that the engine's lock guards: leases, loaded jobs, and the decisions of the plan.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::messages::{CacheDecision, JobAllocation, Lease};
use feedline_data::mix::MixChange;

use super::events::{EndedGroup, FetchRequest};
use super::job::JobContext;
use super::leases::LeaseTable;
use super::piece::StreamPieces;
use super::round::RoundCache;
use super::split::SplitState;
use crate::cache::{CacheValues, Tenant};

/// Ended jobs whose counters are still reported.
const ENDED_JOBS_MAX: usize = 16;

#[derive(Default)]
pub(super) struct EngineState {
    pub(super) leases: LeaseTable,
    /// Fetches that wait for a lease to arrive.
    pub(super) arrivals: BTreeMap<(JobId, SplitRef), Vec<FetchRequest>>,
    /// Whether the last admission had groups that did not fit.
    pub(super) is_blocked: bool,
    pub(super) jobs: BTreeMap<JobId, Arc<JobContext>>,
    /// Jobs in the order in which they were loaded.
    loaded: VecDeque<JobId>,
    /// Number of running groups.
    pub(super) groups: usize,
    /// Whether a group runs that exceeds the budget, for a consumer that has no finished piece.
    pub(super) exceeds: bool,
    pub(super) next_fetch: u64,
    /// Leases accepted so far.
    accepted: u32,
    /// Groups started so far.
    pub(super) started: u64,
    /// The job whose consumer waits for rows while its next group waits for memory.
    pub(super) memory_wait: Option<MemoryWait>,
    /// Jobs that this worker cannot load, with the error.
    pub(super) failed: BTreeMap<JobId, String>,
    /// What jobs may use. Jobs without an entry have no limits.
    pub(super) allocations: BTreeMap<JobId, JobAllocation>,
    /// Changes of the mixes of jobs with leases.
    pub(super) mixes: BTreeMap<JobId, Vec<MixChange>>,
    /// Tenants of jobs, and the bytes that each may cache. Jobs without an entry have no limit.
    pub(super) tenants: BTreeMap<JobId, (Tenant, u64)>,
    /// Cache decisions of the plan that this worker could not follow.
    pub(super) rejected_caches: BTreeMap<JobId, CacheDecision>,
    /// Pieces of rounds for streams of coordinated jobs that have no lease here yet.
    pub(super) rounds: RoundCache,
}

/// A wait of a job for memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryWait {
    pub(super) job: JobId,
    pub(super) since: Instant,
}

impl EngineState {
    /// The values of cached bytes, for all jobs with leases.
    pub(super) fn cache_values(&self) -> CacheValues {
        let mut values = CacheValues::new();
        for (id, job) in self.leases.jobs().filter_map(|(id, _)| Some((id, self.jobs.get(&id)?))) {
            if let Some(cache_point) = &job.compiled.cache_point {
                let is_requested = job.compiled.cache.is_none();
                let saved = job.saved_s_per_byte(cache_point);
                values.entry(cache_point.prefix).or_default().add_job(
                    saved,
                    is_requested,
                    self.tenants.get(&id),
                );
            }
        }
        values
    }

    /// Stores the pieces of a finished group in its split, and in the other splits of its round.
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

    /// Adds a lease that is new, and opens the fetches that wait for it.
    pub(super) fn accept(&mut self, lease: &Lease) {
        let (job, split) = (lease.job, lease.split);
        self.accepted = self.accepted.wrapping_add(1);
        let mut accepted = SplitState::new(lease.start_offset, self.accepted);
        if let Some(message) = self.failed.get(&job) {
            accepted.fail(0, message.clone());
        } else if let Some(pieces) = self.rounds.take(job, split) {
            accepted.supply(pieces);
        }
        let loaded = self.jobs.get(&job);
        accepted.set_job(loaded);
        self.leases.insert(job, split, accepted, loaded.map(|job| job.layout()));
        for request in self.arrivals.remove(&(job, split)).into_iter().flatten() {
            self.open_fetch(request);
        }
    }

    /// Drops the requests of consumers that have disconnected, or whose deadline has passed.
    pub(super) fn drop_cancelled_requests(&mut self) {
        self.arrivals.retain(|_, requests| {
            requests.retain(|request| !request.reply.is_closed());
            !requests.is_empty()
        });
    }

    /// Adds a loaded job with its present limits, and makes its leases runnable.
    pub(super) fn add_job(&mut self, job: JobContext) {
        let id = job.id();
        job.limits.apply(self.allocations.get(&id));
        if let Some(changes) = self.mixes.get(&id) {
            job.set_mix(changes);
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
            if self.leases.job(oldest).is_some() {
                self.loaded.push_back(oldest);
            } else {
                self.jobs.remove(&oldest);
            }
        }
    }

    /// The cache decision that a job should follow: the one of the plan, unless this worker has rejected it, or else the
    /// present one. `None` for a job that is unknown.
    pub(super) fn wanted_cache(&self, id: JobId) -> Option<Option<CacheDecision>> {
        let present = self.jobs.get(&id).map(|job| job.compiled.cache);
        let planned = self.allocations.get(&id).map(|allocation| allocation.cache);
        let is_rejected = |cache: &Option<CacheDecision>| {
            cache.is_some() && self.rejected_caches.get(&id) == cache.as_ref()
        };
        planned.filter(|cache| !is_rejected(cache)).or(present)
    }
}
