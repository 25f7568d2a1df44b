//! The engine: decides which group of rows is computed next within the memory budget, and keeps finished pieces until
//! a consumer fetches them.
//!
//! One lock guards its state; nothing waits while holding it. Every byte that it allocates is counted against the
//! budget: buffers by the slab pool, encoded rows by the groups in flight, blocks by their caches.

mod account;
mod admission;
mod allocation;
mod assemble;
mod blocks;
mod cache_point;
mod chunk;
mod encodings;
mod fetches;
mod group;
mod job;
mod leases;
mod pace;
mod pool;
mod read;
mod round;
mod semaphore;
mod settings;
mod slab;
mod split;
mod stages;
mod trace;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::messages::CACHE_MEMORY_SHARE;
use feedline_data::messages::{CacheDecision, JobAllocation, JobMixChanges, Lease, TenantPart};
use feedline_data::mix::MixChange;
use feedline_operators::DecodeMemory;
use feedline_proto::local::ShmBytes;
use feedline_sources::Stores;
use futures::FutureExt;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use self::admission::AdmittedGroup;
pub(crate) use self::fetches::{OpenFetch, PieceLookup};
use self::group::{FinishedPiece, GroupOutput, WorkerResources, run_group};
pub(crate) use self::job::JobContext;
use self::leases::LeaseTable;
use self::pool::Pool;
use self::read::ReadResources;
use self::round::{RoundCache, RoundOutput};
pub(crate) use self::settings::EngineSettings;
use self::split::SplitState;
use self::trace::CpuCharged;
pub(crate) use self::trace::Tracing;
use crate::cache::{CacheValues, Caches, Tenant};
use crate::{RowCacheSettings, StoreCacheSettings};

/// Part of the budget that kept blocks may use, and part for blocks while they are read.
const CACHE_PART: u64 = 4;
const READING_PART: u64 = 8;
/// Part of the budget that decoding may use beyond what a usual image takes each thread.
const DECODING_PART: u64 = 8;
/// Ended jobs whose counters are still reported.
const KEPT_JOBS: usize = 16;

pub(crate) struct Engine {
    started: Instant,
    tracing: Tracing,
    memory_bytes: u64,
    threads: usize,
    tools: WorkerResources,
    /// What large images take while they are decoded.
    decoding: Arc<DecodeMemory>,
    state: Mutex<State>,
    /// Bytes lent to clients; none where nobody said otherwise.
    lent_bytes: OnceLock<Arc<ShmBytes>>,
    /// Wakes whoever reports to the coordinator: a lease is computed, memory is free again, or the worker drains.
    pub(crate) news: Notify,
    /// Whether the last report said that memory is full.
    has_reported_full: AtomicBool,
    tasks: TaskTracker,
}

#[derive(Default)]
struct State {
    leases: LeaseTable,
    /// Fetches that wait for their lease to arrive.
    arrivals: BTreeMap<(JobId, SplitRef), Arc<Notify>>,
    /// Whether the last admission left groups that did not fit.
    is_blocked: bool,
    jobs: BTreeMap<JobId, Arc<JobContext>>,
    /// Order in which jobs were loaded, for forgetting the oldest.
    loaded: VecDeque<JobId>,
    /// Encoded bytes that groups in flight may hold.
    reading_bytes: u64,
    groups: usize,
    /// A group that exceeds the budget runs, for a consumer that waits and has nothing.
    exceeds: bool,
    next_fetch: u64,
    /// Leases accepted so far.
    accepted: u32,
    /// Groups started so far.
    started: u64,
    /// The job whose next group waits for memory while its consumer waits for rows, and since when.
    waits_for_memory: Option<(JobId, Instant)>,
    /// Jobs that cannot be worked on here, and why.
    failed: BTreeMap<JobId, String>,
    /// What jobs may use; no limits for those that are not named.
    allotments: BTreeMap<JobId, JobAllocation>,
    /// How the mixes of jobs with leases have changed.
    mixes: BTreeMap<JobId, Vec<MixChange>>,
    /// Whose jobs are, and how many bytes may be kept for those; no limit for those that are not named.
    tenants: BTreeMap<JobId, (Tenant, u64)>,
    /// What could not be kept of jobs, though the plan wanted it.
    refused_keeps: BTreeMap<JobId, CacheDecision>,
    /// What was computed for streams of coordinated jobs that have no lease here yet.
    rounds: RoundCache,
}

impl State {
    /// What a byte of kept rows saves, for the caches of jobs with leases.
    fn worth(&self) -> CacheValues {
        let mut worth = CacheValues::new();
        for (id, job) in self.leases.jobs().filter_map(|(id, _)| Some((id, self.jobs.get(&id)?))) {
            if let Some(cut) = &job.cut {
                let of_all = worth.entry(cut.prefix).or_default();
                of_all.add_job(job.saved_s_per_byte(cut), job.keep.is_none(), self.tenants.get(&id));
            }
        }
        worth
    }

    /// A round that was computed for one stream's lease serves those of the others.
    fn deal_round(&mut self, (split, job): (SplitRef, JobId), streams: RoundOutput, own: (u64, u32)) {
        for (stream, pieces) in (0..).zip(streams) {
            let pieces: Vec<Arc<FinishedPiece>> = pieces.into_iter().map(Arc::new).collect();
            let other = SplitRef { stream, ..split };
            if !self.leases.contains(job, other) {
                self.rounds.keep(RoundCache::key(job, split), stream, pieces);
                continue;
            }
            self.leases.update(job, other, |lease| match stream == split.stream {
                true => lease.finish_round(own.0, own.1, pieces),
                false => lease.supply(pieces),
            });
        }
    }

    /// Adds a lease that is new, and wakes the fetches that wait for it.
    fn accept(&mut self, lease: &Lease) {
        let (job, split) = (lease.job, lease.split);
        self.accepted = self.accepted.wrapping_add(1);
        let mut accepted = SplitState::new(lease.from, self.accepted);
        if let Some(message) = self.failed.get(&job) {
            accepted.fail(0, message.clone());
        } else if let Some(pieces) = self.rounds.take(job, split) {
            accepted.supply(pieces);
        }
        let layout = self.jobs.get(&job).map(|job| &job.details.layout);
        self.leases.insert(job, split, accepted, layout);
        if let Some(arrival) = self.arrivals.remove(&(job, split)) {
            arrival.notify_waiters();
        }
    }

    /// What a job shall keep: what the plan says, unless that was tried in vain, or else what it keeps; `None` for a job of
    /// which nothing is known.
    fn wanted_keep(&self, id: JobId) -> Option<Option<CacheDecision>> {
        let loaded = self.jobs.get(&id).map(|job| job.keep);
        let said = self.allotments.get(&id).map(|allotment| allotment.keep);
        let is_refused =
            |keep: &Option<CacheDecision>| keep.is_some() && self.refused_keeps.get(&id) == keep.as_ref();
        said.filter(|keep| !is_refused(keep)).or(loaded)
    }
}

impl Engine {
    pub(crate) fn new(
        cores: u32,
        memory_bytes: u64,
        (disk, store): (Option<RowCacheSettings>, Option<(StoreCacheSettings, Arc<Stores>)>),
        tracing: Tracing,
    ) -> std::io::Result<Arc<Self>> {
        let decoding = DecodeMemory::new(memory_bytes / DECODING_PART);
        let tools = WorkerResources {
            caches: Arc::new(Caches::new((memory_bytes as f64 * CACHE_MEMORY_SHARE) as u64, disk, store)?),
            pool: Arc::new(Pool::new(cores, &decoding)?),
            slabs: Arc::default(),
            reading: Arc::new(ReadResources::new(memory_bytes / CACHE_PART, memory_bytes / READING_PART)),
            planned_bytes: Arc::default(),
            image_bytes: Arc::default(),
            function_bytes: Arc::default(),
        };
        Ok(Arc::new(Self {
            started: Instant::now(),
            tracing,
            memory_bytes,
            threads: cores as usize,
            tools,
            decoding,
            state: Mutex::default(),
            lent_bytes: OnceLock::new(),
            news: Notify::new(),
            has_reported_full: AtomicBool::new(false),
            tasks: TaskTracker::new(),
        }))
    }

    /// Counts these bytes against the budget, as they change. A second call changes nothing.
    pub(crate) fn count_lent(&self, lent_bytes: Arc<ShmBytes>) {
        let _ = self.lent_bytes.set(lent_bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the engine's state")
    }

    /// What pipelines' caches keep.
    pub(crate) fn caches(&self) -> &Caches {
        &self.tools.caches
    }

    /// Jobs with leases that have not been loaded, or that keep other rows than they shall.
    pub(crate) fn unloaded(&self) -> BTreeSet<JobId> {
        let state = self.lock();
        let known = |job: &JobId| {
            let is_as_wanted = |loaded: &Arc<JobContext>| Some(loaded.keep) == state.wanted_keep(*job);
            state.failed.contains_key(job) || state.jobs.get(job).is_some_and(is_as_wanted)
        };
        state.leases.jobs().map(|(job, _)| job).filter(|job| !known(job)).collect()
    }

    /// A job as it is loaded, and what it shall keep, where something was said.
    pub(crate) fn wanted(&self, id: JobId) -> (Option<Arc<JobContext>>, Option<Option<CacheDecision>>) {
        let state = self.lock();
        (state.jobs.get(&id).cloned(), state.wanted_keep(id))
    }

    /// Makes a loaded job's leases runnable.
    pub(crate) fn add_job(self: &Arc<Self>, job: JobContext) {
        let id = job.details.job;
        let mut state = self.lock();
        job.limits.obey(state.allotments.get(&id));
        if let Some(changes) = state.mixes.get(&id) {
            job.remix(changes);
        }
        state.leases.set_layout(id, &job.details.layout);
        let is_new = state.jobs.insert(id, Arc::new(job)).is_none();
        self.tools.caches.set_active(state.worth());
        if is_new {
            state.loaded.push_back(id);
        }
        if state.loaded.len() > KEPT_JOBS
            && let Some(oldest) = state.loaded.pop_front()
        {
            if state.leases.job(oldest).is_some() {
                state.loaded.push_back(oldest);
            } else {
                state.jobs.remove(&oldest);
            }
        }
        drop(state);
        self.pump();
    }

    /// What a plan has a job keep cannot be kept here: it goes on without.
    pub(crate) fn refuse_keep(&self, id: JobId, keep: CacheDecision, message: &str) {
        tracing::warn!(job = %id, "its rows are not kept as planned: {message}");
        self.lock().refused_keeps.insert(id, keep);
    }

    /// A job that cannot be loaded fails at the first row of each of its splits.
    pub(crate) fn fail_job(&self, id: JobId, message: &str) {
        let mut state = self.lock();
        state.failed.insert(id, message.to_owned());
        state.leases.update_job(id, |split| split.fail(0, message.to_owned()));
    }

    /// Takes over whose jobs are, complete. What is kept follows with the leases.
    pub(crate) fn set_tenants(&self, parts: &[TenantPart]) {
        let mut tenants = BTreeMap::new();
        for part in parts {
            let tenant = Tenant::from(part.tenant.as_str());
            let limit_bytes = part.cache_bytes.unwrap_or(u64::MAX);
            tenants.extend(part.jobs.iter().map(|job| (*job, (Arc::clone(&tenant), limit_bytes))));
        }
        self.lock().tenants = tenants;
    }

    /// Takes over what jobs may use, complete: at once, whatever runs. `cores` are the pool's threads to use, 0 all.
    pub(crate) fn set_allotments(self: &Arc<Self>, cores: u32, allotments: &[JobAllocation]) {
        let shared = allotments.iter().filter(|allotment| allotment.cores > 0.0);
        let shares = shared.map(|allotment| (allotment.job, allotment.cores)).collect();
        let limited = allotments.iter().filter(|allotment| allotment.most_cores > 0.0);
        let limits = limited.map(|allotment| (allotment.job, allotment.most_cores)).collect();
        self.tools.pool.set_shares(cores, shares, limits);
        let wanted: BTreeMap<JobId, JobAllocation> =
            allotments.iter().map(|allotment| (allotment.job, allotment.clone())).collect();
        let mut state = self.lock();
        for (id, job) in &state.jobs {
            if state.allotments.get(id) != wanted.get(id) {
                job.limits.obey(wanted.get(id));
            }
        }
        state.allotments = wanted;
    }

    /// Takes over how the mixes of jobs have changed, before leases that lie behind a change.
    pub(crate) fn set_mixes(&self, mixes: Vec<JobMixChanges>) {
        let mut state = self.lock();
        for JobMixChanges { job, changes } in &mixes {
            if let Some(job) = state.jobs.get(job) {
                job.remix(changes);
            }
        }
        state.mixes = mixes.into_iter().map(|mix| (mix.job, mix.changes)).collect();
    }

    /// Applies the desired leases. The list is complete: leases that it does not name are revoked.
    pub(crate) fn set_leases(self: &Arc<Self>, leases: &[Lease]) {
        let wanted: BTreeSet<(JobId, SplitRef)> =
            leases.iter().map(|lease| (lease.job, lease.split)).collect();
        let mut state = self.lock();
        let jobs_before: BTreeSet<JobId> = state.leases.jobs().map(|(id, _)| id).collect();
        for (job, split) in state.leases.keys() {
            if !wanted.contains(&(job, split))
                && let Some(revoked) = state.leases.remove(job, split)
            {
                revoked.revoke();
            }
        }
        for lease in leases {
            if !state.leases.contains(lease.job, lease.split) {
                state.accept(lease);
            }
        }
        let State { leases, rounds, .. } = &mut *state;
        rounds.retain(|(job, epoch, ordinal)| {
            leases.job(*job).is_some_and(|leases| leases.has_round(*epoch, *ordinal))
        });
        let jobs: BTreeSet<JobId> = leases.jobs().map(|(id, _)| id).collect();
        if jobs != jobs_before {
            self.tools.reading.blocks.keep_jobs(|job| jobs.contains(&job));
            self.tools.caches.set_active(state.worth());
        }
        self.pump_locked(state);
    }

    /// Starts as many groups as fit.
    pub(crate) fn pump(self: &Arc<Self>) {
        self.pump_locked(self.lock());
    }

    fn pump_locked(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let admitted = self.admit(&mut state);
        let has_room_again = self.has_reported_full.load(Ordering::Relaxed) && !self.is_full(&state);
        drop(state);
        for group in admitted {
            let engine = Arc::clone(self);
            self.tasks.spawn(async move { engine.run(group).await });
        }
        if has_room_again {
            self.has_reported_full.store(false, Ordering::Relaxed);
            self.news.notify_waiters();
        }
    }

    /// Whether the next report says that memory is full. If so, `news` tells when it no longer is.
    pub(crate) fn report_memory_full(&self) -> bool {
        let is_full = self.is_memory_full();
        self.has_reported_full.store(is_full, Ordering::Relaxed);
        is_full
    }

    /// Starts groups as readers let go of the buffers that kept them from starting, until dropped.
    pub(crate) async fn follow_returns(self: Arc<Self>) {
        loop {
            self.tools.slabs.returned.notified().await;
            self.pump();
        }
    }

    async fn run(self: Arc<Self>, chosen: AdmittedGroup) {
        let AdmittedGroup { job, split, offsets, generation, course, cancel, source_bytes, planned, exceeds } =
            chosen;
        let key = (split, job.details.job);
        let work = run_group(Arc::clone(&job), self.tools.clone(), course, (split, offsets.clone()), planned);
        // A decoder that panics fails its rows, not the worker.
        let work = AssertUnwindSafe(work).catch_unwind();
        let work = CpuCharged::new(work, &job.source_counters, &self.tracing.clock);
        let result = cancel.run_until_cancelled(work).await;
        let crashed = |_| Err("a decoder crashed on these rows; please report this".to_owned());
        let result = result.map(|result| result.unwrap_or_else(crashed));
        let mut state = self.lock();
        state.groups -= 1;
        state.reading_bytes -= source_bytes;
        state.exceeds &= !exceeds;
        let computed_before = state.leases.computed().len();
        match result {
            Some(Ok(GroupOutput::Round(streams))) => {
                state.deal_round(key, streams, (generation, offsets.start));
            }
            Some(result) => {
                let piece = result.and_then(|finished| match finished {
                    GroupOutput::Piece(piece) => Ok(piece),
                    GroupOutput::Round(_) => Err("a round came for a piece; please report this".to_owned()),
                });
                state.leases.update(key.1, key.0, |lease| lease.finish(generation, &offsets, piece));
            }
            None => {}
        }
        let has_computed = state.leases.computed().len() > computed_before;
        self.pump_locked(state);
        if has_computed {
            self.news.notify_waiters();
        }
    }

    /// Whether it holds no splits.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().leases.is_empty()
    }

    /// Drops all leases and waits for what runs.
    pub(crate) async fn shutdown(self: &Arc<Self>) {
        self.set_leases(&[]);
        self.tasks.close();
        self.tasks.wait().await;
        self.tools.caches.flush().await;
    }
}
