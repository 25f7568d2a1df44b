//! The engine of a worker: computes the rows of leased splits within a memory budget, and holds finished pieces until a
//! consumer fetches them.
//!
//! A group goes through the files in one direction: `admission.rs` chooses it, `read.rs` reads its blocks, `stages.rs` runs
//! operators on its chunks, `assemble.rs` or `round.rs` makes pieces of them, and `fetches.rs` hands these to consumers.
//! One lock guards the state, and no code waits while it holds the lock. Every allocated byte counts against the budget.

mod account;
mod admission;
mod allocation;
mod assemble;
mod batches;
mod blocks;
mod cache_point;
mod chunk;
mod coordination;
mod encoded;
mod encodings;
mod failures;
mod fetches;
mod group;
mod job;
mod leases;
mod memory_budget;
mod pace;
mod piece;
mod pool;
mod progress;
mod read;
mod round;
mod run;
mod semaphore;
mod settings;
mod slab;
mod split;
mod stages;
mod state;
mod task;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::memory::MemoryAccount;
use feedline_data::messages::{CacheDecision, JobAllocation, JobMixChanges, Lease, TenantCacheQuota};
use feedline_operators::DecodeMemory;
use feedline_proto::local::ShmBytes;
use feedline_sources::Stores;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

pub(crate) use self::fetches::{OpenFetch, PieceLookup};
pub(crate) use self::job::{CompileContext, JobContext, JobSource};
use self::leases::LeaseChanges;
use self::memory_budget::MemoryBudget;
use self::pool::Pool;
use self::read::ReadResources;
use self::state::EngineState;
use self::task::WorkerResources;
pub(crate) use self::trace::Tracing;
use crate::cache::{Caches, Tenant};
use crate::{RowCacheSettings, StoreCacheSettings};

pub(crate) struct Engine {
    started: Instant,
    tracing: Tracing,
    threads: usize,
    resources: WorkerResources,
    state: Mutex<EngineState>,
    /// The leases of the last plan, in order. They are compared without the lock of the state.
    planned: Mutex<Vec<(JobId, SplitRef)>>,
    /// Nanoseconds that threads have waited for the lock of the state.
    lock_wait_ns: AtomicU64,
    /// Notifies the control loop: a lease is computed, memory is free again, or the worker drains.
    pub(crate) news: Notify,
    /// Whether the last report said that memory is full.
    has_reported_full: AtomicBool,
    tasks: TaskTracker,
}

/// The row caches of a worker besides its memory.
#[derive(Default)]
pub(crate) struct CacheLocations {
    pub(crate) disk: Option<RowCacheSettings>,
    pub(crate) store: Option<(StoreCacheSettings, Arc<Stores>)>,
}

impl Engine {
    pub(crate) fn new(
        cores: u32,
        memory_bytes: u64,
        caches: CacheLocations,
        tracing: Tracing,
    ) -> std::io::Result<Arc<Self>> {
        let budget = Arc::new(MemoryBudget::new(memory_bytes));
        let limits = budget.limits();
        let decoding = DecodeMemory::new(limits.decode_bytes());
        let resources = WorkerResources {
            caches: Arc::new(Caches::new(limits.cache_bytes(), caches.disk, caches.store)?),
            pool: Arc::new(Pool::new(cores, &decoding)?),
            slabs: Arc::default(),
            reading: Arc::new(ReadResources::new(limits.block_cache_bytes(), limits.read_bytes())),
            budget,
        };
        resources.register_accounts(decoding);
        Ok(Arc::new(Self {
            started: Instant::now(),
            tracing,
            threads: cores as usize,
            resources,
            state: Mutex::default(),
            planned: Mutex::default(),
            lock_wait_ns: AtomicU64::new(0),
            news: Notify::new(),
            has_reported_full: AtomicBool::new(false),
            tasks: TaskTracker::new(),
        }))
    }

    /// Counts the memory shared with consumers on this host in the budget. A second call has no effect.
    pub(crate) fn count_shared_memory(&self, shared: Arc<ShmBytes>) {
        self.resources.budget.add_source(MemoryAccount::SharedMemory, move || shared.current());
    }

    /// Locks the state, and measures the wait if another thread holds the lock.
    fn lock(&self) -> MutexGuard<'_, EngineState> {
        if let Ok(state) = self.state.try_lock() {
            return state;
        }
        let started = Instant::now();
        let state = self.state.lock().expect("no code panics while it holds the engine's state");
        self.lock_wait_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        state
    }

    /// Time that threads have waited for the lock of the state.
    pub(crate) fn lock_wait(&self) -> Duration {
        Duration::from_nanos(self.lock_wait_ns.load(Ordering::Relaxed))
    }

    /// The row caches.
    pub(crate) fn caches(&self) -> &Caches {
        &self.resources.caches
    }

    /// Jobs with leases that must be loaded: for the first time, or with another cache decision.
    pub(crate) fn unloaded(&self) -> BTreeSet<JobId> {
        let state = self.lock();
        let is_loaded = |id: &JobId| {
            let is_current = |job: &Arc<JobContext>| Some(job.compiled.cache) == state.wanted_cache(*id);
            state.failed.contains_key(id) || state.jobs.get(id).is_some_and(is_current)
        };
        state.leases.jobs().map(|(id, _)| id).filter(|id| !is_loaded(id)).collect()
    }

    /// A job if it is loaded.
    pub(crate) fn job(&self, id: JobId) -> Option<Arc<JobContext>> {
        self.lock().jobs.get(&id).cloned()
    }

    /// The cache decision that a job should follow; `None` where the plan has not decided.
    pub(crate) fn wanted_cache(&self, id: JobId) -> Option<Option<CacheDecision>> {
        self.lock().wanted_cache(id)
    }

    /// Makes the leases of a loaded job runnable.
    pub(crate) fn add_job(self: &Arc<Self>, job: JobContext) {
        let mut state = self.lock();
        state.add_job(job);
        self.resources.caches.set_active(state.cache_values());
        self.pump_locked(state);
    }

    /// Records that this worker cannot follow a cache decision of the plan. The job runs without the cache.
    pub(crate) fn reject_cache(&self, id: JobId, cache: CacheDecision, message: &str) {
        tracing::warn!(job = %id, "the worker cannot cache rows as planned: {message}");
        self.lock().rejected_caches.insert(id, cache);
    }

    /// Fails a job that cannot be loaded, at the first row of each of its splits.
    pub(crate) fn fail_job(&self, id: JobId, message: &str) {
        let mut state = self.lock();
        state.failed.insert(id, message.to_owned());
        state.leases.update_job(id, |split| split.fail(0, message.to_owned()));
    }

    /// Replaces the tenants of all jobs. Cached rows are attributed to them with the next leases.
    pub(crate) fn set_tenants(&self, parts: &[TenantCacheQuota]) {
        let mut tenants = BTreeMap::new();
        for part in parts {
            let tenant = Tenant::from(part.tenant.as_str());
            let limit_bytes = part.cache_bytes.unwrap_or(u64::MAX);
            tenants.extend(part.jobs.iter().map(|job| (*job, (Arc::clone(&tenant), limit_bytes))));
        }
        self.lock().tenants = tenants;
    }

    /// Replaces the allocations of all jobs, also for running groups. `cores` is the number of threads to use; 0 for all.
    pub(crate) fn set_allocations(self: &Arc<Self>, cores: u32, allocations: &[JobAllocation]) {
        let shared = allocations.iter().filter(|allocation| allocation.cores > 0.0);
        let shares = shared.map(|allocation| (allocation.job, allocation.cores)).collect();
        let limited = allocations.iter().filter(|allocation| allocation.max_cores > 0.0);
        let limits = limited.map(|allocation| (allocation.job, allocation.max_cores)).collect();
        self.resources.pool.set_shares(cores, shares, limits);
        let wanted: BTreeMap<JobId, JobAllocation> =
            allocations.iter().map(|allocation| (allocation.job, allocation.clone())).collect();
        let mut state = self.lock();
        for (id, job) in &state.jobs {
            if state.allocations.get(id) != wanted.get(id) {
                job.limits.apply(wanted.get(id));
            }
        }
        state.allocations = wanted;
    }

    /// Replaces the changes of all mixes. Call this before leases of rows after a change arrive.
    pub(crate) fn set_mixes(&self, mixes: Vec<JobMixChanges>) {
        let mut state = self.lock();
        for JobMixChanges { job, changes } in &mixes {
            if let Some(job) = state.jobs.get(job) {
                job.set_mix(changes);
            }
        }
        state.mixes = mixes.into_iter().map(|mix| (mix.job, mix.changes)).collect();
    }

    /// Replaces all leases: those that are not in the list are revoked.
    pub(crate) fn set_leases(self: &Arc<Self>, leases: &[Lease]) {
        let mut planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = LeaseChanges::new(&planned, leases);
        *planned = changes.planned;
        let mut state = self.lock();
        let jobs_before: BTreeSet<JobId> = state.leases.jobs().map(|(id, _)| id).collect();
        for (job, split) in changes.revoked {
            if let Some(revoked) = state.leases.remove(job, split) {
                revoked.revoke();
            }
        }
        for lease in &changes.granted {
            state.accept(lease);
        }
        let EngineState { leases, rounds, .. } = &mut *state;
        rounds.retain(|round| {
            leases.job(round.job).is_some_and(|leases| leases.has_round(round.epoch, round.ordinal))
        });
        let jobs: BTreeSet<JobId> = leases.jobs().map(|(id, _)| id).collect();
        if jobs != jobs_before {
            self.resources.reading.blocks.retain_jobs(|job| jobs.contains(&job));
            self.resources.caches.set_active(state.cache_values());
        }
        self.pump_locked(state);
    }

    /// Whether the next report says that memory is full. `news` notifies when memory is free again.
    pub(crate) fn report_memory_full(&self) -> bool {
        let is_full = self.is_memory_full();
        self.has_reported_full.store(is_full, Ordering::Relaxed);
        is_full
    }

    /// The number of leases whose rows are all computed.
    pub(crate) fn computed_count(&self) -> usize {
        self.lock().leases.computed().len()
    }

    /// Whether the worker has no leases.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().leases.is_empty()
    }

    /// Revokes all leases and waits for running groups.
    pub(crate) async fn shutdown(self: &Arc<Self>) {
        self.set_leases(&[]);
        self.tasks.close();
        self.tasks.wait().await;
        self.resources.caches.flush().await;
    }
}

#[cfg(test)]
mod tests;
