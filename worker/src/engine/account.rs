//! The engine's report to the coordinator: computed leases, memory in use, and job counters.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::memory::{MemoryAccount, MemoryUsage};
use feedline_data::messages::{ProcessCpu, WorkerJobStats};

use super::Engine;
use super::job::JobContext;
use super::settings::EngineSettings;
use super::state::EngineState;
use super::trace::Tracing;
use crate::WorkerSettings;

/// The part of a worker's report that comes from the engine.
pub(crate) struct EngineReport {
    /// Nanoseconds since the worker started.
    pub(crate) elapsed_ns: u64,
    /// CPU time of the worker process.
    pub(crate) cpu: ProcessCpu,
    /// Counters of every loaded job.
    pub(crate) stats: Vec<WorkerJobStats>,
    /// Leases whose rows are all computed.
    pub(crate) computed: Vec<(JobId, SplitRef)>,
    /// Whether the memory budget has no bytes left for the next group.
    pub(crate) is_memory_full: bool,
}

impl Engine {
    /// Whether the memory budget has no bytes left for the next group.
    pub(crate) fn is_memory_full(&self) -> bool {
        let state = self.lock();
        self.is_full(&state)
    }

    pub(super) fn is_full(&self, state: &EngineState) -> bool {
        let next_group_bytes = |job: &Arc<JobContext>| job.group_bytes(job.group_rows(self.memory_bytes()));
        let next_bytes = state.jobs.values().map(next_group_bytes).max().unwrap_or(0);
        let is_full = || self.used_bytes_without_idle() + next_bytes > self.memory_bytes();
        is_full() && (!self.resources.caches.free_inactive() || is_full())
    }

    /// Requests the memory of graphs that no job uses. They are evicted later, by a task that does not hold the lock.
    pub(super) fn release_unused_graphs(&self) {
        if let Some(graphs) = self.graphs.get() {
            graphs.release_unused();
        }
    }

    /// Returns the settings for building the operators of jobs.
    pub(crate) fn operator_settings(&self, settings: &WorkerSettings) -> EngineSettings {
        let function_bytes = Arc::clone(self.resources.budget.counter(MemoryAccount::Functions));
        EngineSettings {
            threads: settings.cores,
            functions: settings.functions.clone(),
            function_bytes,
            graphs: self.graphs.get().cloned(),
        }
    }

    /// Returns the tracing configuration of this worker.
    pub(crate) fn tracing(&self) -> &Tracing {
        &self.tracing
    }

    /// Creates the current report. If the report says that memory is full, `report_due` is notified when memory is free
    /// again.
    pub(crate) async fn report(self: &Arc<Self>) -> EngineReport {
        let elapsed_ns = self.started.elapsed().as_nanos() as u64;
        // Sampling also divides the CPU time of blocking calls among the jobs, so it happens before their counters are
        // read.
        let cpu = if self.tracing.is_on { self.tracing.clock.sample() } else { ProcessCpu::default() };
        let peak_rss_bytes = feedline_common::process::peak_rss_bytes();
        let this = Arc::clone(self);
        let read = self.read_state(move |state| {
            // The estimated value of cached rows improves with each computed row.
            this.resources.caches.set_active(state.cache_values());
            let is_memory_full = this.is_full(state);
            this.has_reported_full.store(is_memory_full, Ordering::Relaxed);
            crate::metrics::set_engine(state.groups, state.leases.len());
            let jobs: Vec<Arc<JobContext>> = state.jobs.values().cloned().collect();
            (jobs, state.leases.computed().iter().copied().collect(), is_memory_full)
        });
        let (jobs, computed, is_memory_full) = read.await;
        self.update_metrics();
        let job_stats = |job: &Arc<JobContext>| WorkerJobStats {
            job: job.id(),
            operators: job.stats(),
            store: job.counters.store.snapshot(),
            memory_wait_ns: job.counters.memory_wait_ns.load(Ordering::Relaxed),
            graph: job.compiled.graph.as_ref().map(|graph| graph.stats()),
            encodings: job.counters.trials.as_ref().map(|trials| trials.stats()).unwrap_or_default(),
            peak_rss_bytes,
            elapsed_ns,
            cpu,
        };
        let stats: Vec<WorkerJobStats> = jobs.iter().map(job_stats).collect();
        self.operator_meter.lock().unwrap_or_else(PoisonError::into_inner).update(&stats);
        EngineReport { elapsed_ns, cpu, stats, computed, is_memory_full }
    }

    /// Bytes that each account of the memory budget uses.
    pub(crate) fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.resources.budget.usage()
    }

    /// The size of the memory budget.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.resources.budget.budget_bytes()
    }

    /// Bytes that all accounts of the memory budget use.
    pub(super) fn used_bytes(&self) -> u64 {
        self.resources.budget.total_used_bytes()
    }

    /// Bytes in use, not counting idle batch buffers, which the next group may reuse.
    pub(super) fn used_bytes_without_idle(&self) -> u64 {
        self.used_bytes().saturating_sub(self.resources.slabs.idle_bytes())
    }

    fn update_metrics(&self) {
        crate::metrics::set_lock_wait(self.lock_wait());
        crate::metrics::set_memory(&self.memory_usage(), self.memory_bytes());
        let caches = &self.resources.caches;
        crate::metrics::set_cache(caches.memory_bytes(), caches.disk_bytes());
    }
}
