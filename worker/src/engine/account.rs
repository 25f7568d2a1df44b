//! What the engine says of itself: leases that are computed, memory in use, counts of jobs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::messages::{ProcessCpu, WorkerJobStats};

use super::Engine;
use super::job::JobContext;
use super::settings::EngineSettings;
use super::state::EngineState;
use super::trace::Tracing;
use crate::WorkerSettings;

impl Engine {
    /// Leases whose rows are all computed.
    pub(crate) fn computed(&self) -> Vec<(JobId, SplitRef)> {
        self.lock().leases.computed().iter().copied().collect()
    }

    /// Whether there is no room for the next group.
    pub(crate) fn is_memory_full(&self) -> bool {
        let state = self.lock();
        self.is_full(&state)
    }

    pub(super) fn is_full(&self, state: &EngineState) -> bool {
        let next = |job: &Arc<JobContext>| job.group_bytes(job.group_rows(self.memory_bytes));
        let typical = state.jobs.values().map(next).max();
        let full = || {
            let used = self.used_bytes(state).saturating_sub(self.resources.slabs.idle_bytes());
            used + typical.unwrap_or(0) > self.memory_bytes
        };
        full() && (!self.resources.caches.free_inactive() || full())
    }

    /// With what a worker of these settings runs its jobs.
    pub(crate) fn runs(&self, settings: &WorkerSettings) -> EngineSettings {
        let function_bytes = Arc::clone(&self.resources.function_bytes);
        EngineSettings { threads: settings.cores, functions: settings.functions.clone(), function_bytes }
    }

    /// Whether it traces, and the clock of its process.
    pub(crate) fn tracing(&self) -> &Tracing {
        &self.tracing
    }

    /// When these counts are taken, in nanoseconds since the worker started; CPU time; and the counts of every job that
    /// it has worked on.
    pub(crate) fn stats(&self) -> (u64, ProcessCpu, Vec<WorkerJobStats>) {
        let elapsed_ns = self.started.elapsed().as_nanos() as u64;
        self.update_metrics();
        // First, since it shares out among the jobs what blocking calls took.
        let cpu = if self.tracing.on { self.tracing.clock.sample() } else { ProcessCpu::default() };
        let peak_rss_bytes = feedline_common::process::peak_rss_bytes();
        let state = self.lock();
        let jobs: Vec<Arc<JobContext>> = state.jobs.values().cloned().collect();
        // What rows save is known better as more of them are made.
        self.resources.caches.set_active(state.cache_values());
        drop(state);
        let of = |job: &Arc<JobContext>| WorkerJobStats {
            job: job.id(),
            operators: job.stats(),
            store: job.counters.store.snapshot(),
            memory_wait_ns: job.counters.memory_wait_ns.load(Ordering::Relaxed),
            forms: job.counters.trials.as_ref().map(|trials| trials.stats()).unwrap_or_default(),
            peak_rss_bytes,
            elapsed_ns,
            cpu,
        };
        (elapsed_ns, cpu, jobs.iter().map(of).collect())
    }

    pub(super) fn used_bytes(&self, state: &EngineState) -> u64 {
        let planned = self.resources.planned_bytes.load(Ordering::Relaxed);
        let images = self.resources.image_bytes.load(Ordering::Relaxed);
        let functions = self.resources.function_bytes.load(Ordering::Relaxed);
        let blocks = self.resources.reading.held_bytes();
        let kept = self.resources.caches.memory_bytes();
        let passing = self.lent_now() + self.decoding.reserved_bytes();
        let working = planned + state.reading_bytes + images + functions;
        self.resources.slabs.allocated_bytes() + working + blocks + kept + passing
    }

    fn lent_now(&self) -> u64 {
        self.lent_bytes.get().map_or(0, |lent| lent.current())
    }

    fn update_metrics(&self) {
        let state = self.lock();
        let used = self.used_bytes(&state);
        crate::metrics::set_lent(self.lent_now());
        crate::metrics::set_engine(used, self.memory_bytes, state.groups, state.leases.len());
        let caches = &self.resources.caches;
        crate::metrics::set_cache(caches.memory_bytes(), caches.disk_bytes());
    }
}
