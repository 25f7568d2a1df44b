//! The engine of a worker: computes the rows of leased splits within a memory budget, and holds finished pieces until a
//! consumer fetches them.
//!
//! A group passes through the modules in one direction: `admission.rs` selects it, `read.rs` reads its blocks,
//! `stages.rs` runs operators on its chunks, `assemble.rs`, `round.rs` or `graph_batches.rs` combines the chunks into pieces,
//! and `fetches.rs` hands the pieces to consumers. One lock guards the state (`lock.rs`), and no code blocks while it holds
//! the lock. Every allocated byte counts against the memory budget.

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
mod events;
mod failures;
mod fetches;
mod given_up;
mod graph_batches;
mod graph_job;
mod group;
mod job;
mod leases;
mod loaded_graph;
mod lock;
mod memory_budget;
mod outages;
mod pace;
mod piece;
mod piece_features;
mod plan;
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

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use feedline_data::graph::description::GraphHash;
use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::memory::MemoryAccount;
use feedline_data::messages::{CacheDecision, GraphReport};
use feedline_operators::DecodeMemory;
use feedline_proto::local::ShmBytes;
use feedline_sources::{Decoders, Stores};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

pub(crate) use self::account::EngineReport;
pub(crate) use self::job::{CompileContext, JobContext, JobSource};
pub(crate) use self::loaded_graph::{
    FeatureRef, FetchedRows, GatherableFeature, GraphLoader, LoadedGraph, MissingRows,
};
use self::lock::{StateGuard, StateLock};
pub(crate) use self::memory_budget::{MemoryBudget, MemoryReservation};
pub(crate) use self::piece::{FinishedPiece, PieceLookup};
use self::pool::Pool;
use self::read::ReadResources;
pub(crate) use self::settings::EngineSettings;
pub(crate) use self::split::OpenFetch;
use self::task::WorkerResources;
pub(crate) use self::trace::Tracing;
use crate::cache::Caches;
use crate::operator_meter::OperatorMeter;
use crate::{RowCacheSettings, StoreCacheSettings};

pub(crate) struct Engine {
    started: Instant,
    tracing: Tracing,
    threads: usize,
    resources: WorkerResources,
    state: StateLock,
    /// The leases of the last plan, in order. The engine compares them with a new plan before it locks the state.
    planned_leases: Mutex<Vec<(JobId, SplitRef)>>,
    /// Wakes the control loop when all rows of a lease are computed, when memory is free again, or when the worker
    /// drains.
    pub(crate) report_due: Notify,
    /// Whether the last report to the coordinator said that memory is full.
    has_reported_full: AtomicBool,
    operator_meter: Mutex<OperatorMeter>,
    /// The number of loads of jobs that have ended.
    ended_loads: AtomicU64,
    /// Provides the graphs that jobs sample. Set once, before the first job.
    graphs: OnceLock<Arc<dyn GraphLoader>>,
    tasks: TaskTracker,
}

/// The locations of a worker's row caches on disk and in a store.
#[derive(Default)]
pub(crate) struct CacheLocations {
    pub(crate) disk: Option<RowCacheSettings>,
    pub(crate) store: Option<(StoreCacheSettings, Arc<Stores>)>,
}

impl Engine {
    pub(crate) fn new(
        cores: u32,
        budget: MemoryBudget,
        caches: CacheLocations,
        tracing: Tracing,
    ) -> std::io::Result<Arc<Self>> {
        let budget = Arc::new(budget);
        let limits = budget.limits();
        let decoding = DecodeMemory::new(limits.decode_bytes());
        let resources = WorkerResources {
            caches: Arc::new(Caches::new(limits.cache_bytes(), caches.disk, caches.store)?),
            pool: Arc::new(Pool::new(cores, &decoding)?),
            slabs: Arc::default(),
            reading: Arc::new(ReadResources::new(
                limits.block_cache_bytes(),
                limits.read_bytes(),
                budget.budget_bytes(),
            )),
            budget,
        };
        resources.register_accounts(decoding);
        Ok(Arc::new(Self {
            started: Instant::now(),
            tracing,
            threads: cores as usize,
            resources,
            state: StateLock::default(),
            planned_leases: Mutex::default(),
            report_due: Notify::new(),
            has_reported_full: AtomicBool::new(false),
            operator_meter: Mutex::default(),
            ended_loads: AtomicU64::new(0),
            graphs: OnceLock::new(),
            tasks: TaskTracker::new(),
        }))
    }

    /// Counts the memory shared with consumers on this host against the memory budget. Only the first call has an
    /// effect.
    pub(crate) fn count_shared_memory(&self, shared: Arc<ShmBytes>) {
        self.resources.budget.add_source(MemoryAccount::SharedMemory, move || shared.current());
    }

    /// Counts the decoders of compressed shards against the memory budget. Limits the memory of one decoder and of paused ones, the
    /// decoders that run at a time to the cores of the worker, and the rows that indexing holds in memory. Only the first call changes
    /// the number of cores.
    pub(crate) fn count_decoders(&self, decoders: &Arc<Decoders>) {
        let limits = self.resources.budget.limits();
        decoders.set_limit(limits.paused_decoder_bytes());
        decoders.set_decoder_limit(limits.decoder_bytes());
        decoders.set_sampled_row_limit(limits.sampled_row_bytes());
        decoders.set_cores(self.threads);
        self.resources.reading.set_decoders(Arc::clone(decoders));
    }

    /// Sets the provider of graphs. Only the first call has an effect.
    pub(crate) fn set_graphs(&self, graphs: Arc<dyn GraphLoader>) {
        let _ = self.graphs.set(graphs);
    }

    /// The memory budget of the worker.
    pub(crate) fn memory_budget(&self) -> &Arc<MemoryBudget> {
        &self.resources.budget
    }

    fn lock(&self) -> StateGuard<'_> {
        self.state.lock()
    }

    /// Total time that threads have waited for the state lock.
    pub(crate) fn lock_wait(&self) -> Duration {
        self.state.wait()
    }

    /// The row caches.
    pub(crate) fn caches(&self) -> &Caches {
        &self.resources.caches
    }

    /// Jobs of the plan that must be loaded, either for the first time or because the cache decision has changed.
    pub(crate) fn unloaded(&self) -> BTreeSet<JobId> {
        self.lock().unloaded()
    }

    /// The graphs that the worker holds, and how far the jobs of the plan that sample a graph are loaded.
    pub(crate) fn graph_report(&self) -> GraphReport {
        let held = self.graphs.get().map_or_else(Vec::new, |graphs| graphs.held());
        GraphReport { held, jobs: self.lock().graph_loads() }
    }

    /// The number of loads of jobs that have ended.
    pub(crate) fn ended_loads(&self) -> u64 {
        self.ended_loads.load(Ordering::Relaxed)
    }

    /// Announces the end of a load. A job that samples a graph receives leases after the next report.
    fn on_load_ended(&self) {
        self.ended_loads.fetch_add(1, Ordering::Relaxed);
        self.report_due.notify_waiters();
    }

    /// Returns a job, or `None` if it is not loaded.
    pub(crate) fn job(&self, id: JobId) -> Option<Arc<JobContext>> {
        self.lock().jobs.get(&id).cloned()
    }

    /// Returns a feature of a job if other workers may request its rows. Returns `None` if the job is not loaded.
    pub(crate) fn gatherable_feature(
        &self,
        id: JobId,
        content: GraphHash,
    ) -> Option<Arc<dyn GatherableFeature>> {
        self.job(id)?.compiled.graph.as_ref()?.graph.gatherable(content)
    }

    /// Records that all leases of a job make progress, although no group runs: the job is being loaded.
    pub(crate) fn record_progress(&self, id: JobId) {
        self.lock().leases.update_job(id, |split| split.progress.increment());
    }

    /// Removes the jobs that have no leases and sample graphs. If such a job receives leases again, it is loaded again.
    pub(crate) fn remove_idle_graph_jobs(&self) {
        self.lock().remove_idle_graph_jobs(false);
    }

    /// The cache decision that a job should follow. `None` if the job is unknown.
    pub(crate) fn wanted_cache(&self, id: JobId) -> Option<Option<CacheDecision>> {
        self.lock().wanted_cache(id)
    }

    /// Makes the leases of a loaded job runnable.
    pub(crate) fn add_job(self: &Arc<Self>, job: JobContext) {
        job.limit_expected_bytes(self.resources.budget.budget_bytes());
        let mut state = self.lock();
        state.add_job(job);
        self.resources.caches.set_active(state.cache_values());
        self.pump_locked(state);
        self.on_load_ended();
    }

    /// Records that this worker cannot apply the planned cache decision. The job runs without the cache.
    pub(crate) fn reject_cache(&self, id: JobId, cache: CacheDecision, message: &str) {
        tracing::warn!(job = %id, "cannot cache rows as planned: {message}");
        self.lock().rejected_caches.insert(id, cache);
    }

    /// Marks a job that cannot be loaded as failed. Each of its splits fails at its first row.
    pub(crate) fn fail_job(&self, id: JobId, message: &str) {
        let mut state = self.lock();
        state.failed.insert(id, message.to_owned());
        state.leases.update_job(id, |split| split.fail(0, message.to_owned()));
        drop(state);
        self.on_load_ended();
    }

    /// The number of leases whose rows are all computed.
    pub(crate) fn computed_count(&self) -> usize {
        self.state.computed_count()
    }

    /// Whether the worker has no leases.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().leases.is_empty()
    }

    /// Revokes all leases and waits until no groups are running.
    pub(crate) async fn shutdown(self: &Arc<Self>) {
        self.set_leases(&[]);
        self.tasks.close();
        self.tasks.wait().await;
        self.apply_events();
        self.resources.caches.flush().await;
    }
}

#[cfg(test)]
mod tests;
