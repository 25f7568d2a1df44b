//! The control loop: reports to the coordinator, applies the coordinator's plan, and loads the jobs of the plan.

mod group_commits;
mod offset_committer;

use std::collections::BTreeSet;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use feedline_common::backoff::{Backoff, spread};
use feedline_data::ids::{JobId, WorkerId};
use feedline_data::manifest::Manifest;
use feedline_data::messages::{Revision, ServiceError, WorkerPlan, WorkerReport};
use feedline_proto::encode_manifest;
use feedline_proto::services::CoordinatorService;
use feedline_sources::Stores;
use futures::FutureExt;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use self::offset_committer::OffsetCommitter;
use crate::engine::{CompileContext, Engine, EngineReport, JobContext, JobSource};
use crate::graphs::JobPartitions;
use crate::tasks::IndexTasks;
use crate::tickets::Tickets;
use crate::{WorkerSettings, metrics, stored_index};

/// Timeout for a report. After the timeout, the worker sends a new report.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Pauses between retries while the coordinator is unavailable. A new leader is elected within a second.
const COORDINATOR_BACKOFF: Backoff = Backoff::from_millis(50, 250);
/// Minimum interval between reports that only announce computed splits, per lease. Reports contain all computed splits
/// and plans contain all leases, so without this interval, workers with thousands of short leases would spend much of
/// their time on reports.
const INTERVAL_PER_LEASE: Duration = Duration::from_micros(8);
/// Minimum time between two reports because a store rejected requests.
const MIN_REJECTION_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum pause that a busy coordinator can request.
const MAX_BUSY_PAUSE: Duration = Duration::from_secs(10);

/// The error of a failed attempt to load a job.
struct LoadError {
    is_retryable: bool,
    message: String,
}

pub(crate) struct ControlLoop {
    pub(crate) worker: WorkerId,
    pub(crate) settings: WorkerSettings,
    pub(crate) coordinator: Arc<dyn CoordinatorService>,
    pub(crate) stores: Arc<Stores>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) index_tasks: Arc<IndexTasks>,
    pub(crate) group_commits: OffsetCommitter,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) partitions: Arc<JobPartitions>,
    pub(crate) tracker: TaskTracker,
    pub(crate) draining: Arc<AtomicBool>,
    /// Jobs that are being loaded.
    pub(crate) loading: Mutex<BTreeSet<JobId>>,
    /// Notified after a plan was applied.
    pub(crate) plan_applied: Notify,
    pub(crate) stop: CancellationToken,
}

impl ControlLoop {
    /// Runs until the worker stops. If the coordinator is unavailable, the worker keeps its leases for four lease
    /// durations, so that consumers receive batches while the coordinator restarts. After that time, the coordinator
    /// has granted the leases to other workers.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut last_revision = Revision::default();
        let mut backoff = COORDINATOR_BACKOFF;
        let mut lease_duration = Duration::from_secs(3);
        let mut last_contact = Instant::now();
        let mut interval = Duration::ZERO;
        while !self.stop.is_cancelled() {
            let result = tokio::select! {
                () = self.stop.cancelled() => return,
                result = self.report(last_revision, interval) => result,
            };
            match result {
                Ok(plan) => {
                    backoff.reset();
                    last_contact = Instant::now();
                    // An empty plan has no revision. After an empty plan, the next report is sent immediately.
                    if plan.revision.incarnation != 0 {
                        last_revision = plan.revision;
                        lease_duration = Duration::from_millis(plan.lease_ms.max(1));
                        interval = INTERVAL_PER_LEASE * u32::try_from(plan.leases.len()).unwrap_or(u32::MAX);
                        self.apply(plan);
                    }
                }
                Err(min_pause) => {
                    metrics::count_coordinator_error();
                    if last_contact.elapsed() > lease_duration * 4 {
                        self.engine.set_leases(&[]);
                        last_revision = Revision::default();
                    }
                    self.pause(backoff.next_pause().max(spread(min_pause))).await;
                }
            }
        }
    }

    /// Sleeps until the pause has passed or the worker stops.
    async fn pause(&self, pause: Duration) {
        let _ = self.stop.run_until_cancelled(sleep(pause)).await;
    }

    /// Sends a report and waits for the plan. Returns an empty plan early if the worker must report a change: newly computed splits
    /// after `interval`, rejections by stores after a short time, and other changes immediately. An error contains the minimum pause before the next report.
    async fn report(&self, last_revision: Revision, interval: Duration) -> Result<WorkerPlan, Duration> {
        let started = Instant::now();
        let earliest = started + interval;
        // Register for changes before building the report, so that no change is missed.
        let changed = self.engine.report_due.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let ended_loads = self.engine.ended_loads();
        let report = self.build_report(last_revision).await;
        let (computed, full, draining) = (report.computed.len(), report.memory_full, report.draining);
        let reply = timeout(REPLY_TIMEOUT, self.coordinator.sync_worker(report));
        tokio::pin!(reply);
        let mut has_computed = false;
        loop {
            tokio::select! {
                reply = &mut reply => return match reply {
                    Ok(Ok(plan)) => Ok(plan),
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "the coordinator rejected the worker's report");
                        Err(Duration::from_millis(error.retry_after_ms.unwrap_or(0)).min(MAX_BUSY_PAUSE))
                    }
                    Err(_) => Err(Duration::ZERO),
                },
                () = self.index_tasks.finished.notified() => return Ok(WorkerPlan::default()),
                () = self.stores.governors().rejected(), if started.elapsed() >= MIN_REJECTION_INTERVAL => {
                    return Ok(WorkerPlan::default());
                }
                () = sleep_until(started + MIN_REJECTION_INTERVAL), if started.elapsed() < MIN_REJECTION_INTERVAL => {}
                () = &mut changed => {
                    changed.set(self.engine.report_due.notified());
                    changed.as_mut().enable();
                    has_computed = self.engine.computed_count() > computed;
                    let must_report = self.engine.ended_loads() > ended_loads
                        || (full && !self.engine.is_memory_full())
                        || (!draining && self.draining.load(Ordering::Relaxed));
                    if must_report {
                        return Ok(WorkerPlan::default());
                    }
                }
                () = sleep_until(earliest), if has_computed => return Ok(WorkerPlan::default()),
            }
        }
    }

    async fn build_report(&self, last_revision: Revision) -> WorkerReport {
        let EngineReport { elapsed_ns, cpu, stats, computed, is_memory_full } = self.engine.report().await;
        metrics::set_draining(self.draining.load(Ordering::Relaxed));
        WorkerReport {
            worker: self.worker,
            address: self.settings.address.clone(),
            tls_name: self.settings.tls_name.clone(),
            pool: self.settings.pool.clone(),
            cores: self.settings.cores,
            memory_bytes: self.settings.memory_bytes,
            machine: self.settings.machine.clone(),
            nic_bytes_per_s: self.settings.nic_bytes_per_s,
            plan_revision: last_revision,
            computed,
            memory_full: is_memory_full,
            draining: self.draining.load(Ordering::Relaxed),
            tasks: self.index_tasks.results(),
            task_progress: self.index_tasks.progress(),
            elapsed_ns,
            cpu,
            stats,
            memory: self.engine.memory_usage(),
            caches: self.engine.caches().capacities(),
            stores: self.stores.governors().reports(),
            graphs: Some(self.engine.graph_report()),
        }
    }

    fn apply(self: &Arc<Self>, mut plan: WorkerPlan) {
        self.tickets.set_key(std::mem::take(&mut plan.ticket_key));
        self.partitions.apply(std::mem::take(&mut plan.partitioned_jobs));
        self.stores.governors().set_shares(&plan.stores);
        self.apply_commits(&plan.group_commits);
        let unloaded = self.engine.apply_plan(&plan);
        self.plan_applied.notify_waiters();
        self.index_tasks.set_tasks(plan.tasks);
        for job in unloaded {
            if self.lock_loading().insert(job) {
                let this = Arc::clone(self);
                self.tracker.spawn(async move { this.load(job).await });
            }
        }
    }

    /// Returns whether a job must still be loaded. If not, removes the job from `loading` under the same lock.
    fn needs_loading(&self, id: JobId) -> bool {
        let mut loading = self.lock_loading();
        let is_needed = self.engine.unloaded().contains(&id) && !self.stop.is_cancelled();
        if !is_needed {
            loading.remove(&id);
        }
        is_needed
    }

    fn lock_loading(&self) -> MutexGuard<'_, BTreeSet<JobId>> {
        self.loading.lock().expect("no thread panics while it holds the loading jobs")
    }

    /// Loads a job. Retries until the job is loaded or the plan no longer contains the job.
    async fn load(&self, id: JobId) {
        let mut backoff = COORDINATOR_BACKOFF;
        while self.needs_loading(id) {
            // Loading a graph may take minutes. A stopping worker does not wait for it, and a worker whose plan no longer contains
            // the job does not continue.
            let loaded = tokio::select! {
                loaded = self.try_load_contained(id) => loaded,
                () = self.stop.cancelled() => continue,
                () = self.until_unneeded(id) => continue,
            };
            match loaded {
                // The plan may have changed the cache point while the job was loading. Then `needs_loading` is true again.
                Ok(job) => {
                    self.engine.add_job(job);
                    continue;
                }
                Err(error) if error.is_retryable => {
                    tracing::debug!(error = error.message, "failed to load a job; retrying");
                }
                Err(error) => self.engine.fail_job(id, &error.message),
            }
            self.pause(backoff.next_pause()).await;
        }
    }

    /// Loads a job. A panic fails the job, and the worker continues with other jobs.
    async fn try_load_contained(&self, id: JobId) -> Result<JobContext, LoadError> {
        let loaded = AssertUnwindSafe(self.try_load(id)).catch_unwind().await;
        loaded.unwrap_or_else(|_| {
            let message = "the worker panicked while it loaded the job: please report this bug".to_owned();
            Err(LoadError { is_retryable: false, message })
        })
    }

    /// Waits until a job that is being loaded need not be loaded any longer.
    async fn until_unneeded(&self, id: JobId) {
        loop {
            let applied = self.plan_applied.notified();
            if !self.engine.unloaded().contains(&id) {
                return;
            }
            applied.await;
        }
    }

    /// Compiles a job with the cache decision of the current plan.
    async fn try_load(&self, id: JobId) -> Result<JobContext, LoadError> {
        let service_error = |error: ServiceError| LoadError {
            is_retryable: error.kind.is_retryable(),
            message: error.message,
        };
        let (previous, cache) = (self.engine.job(id), self.engine.wanted_cache(id));
        let (details, manifest) = match &previous {
            Some(job) => (job.compiled.details.clone(), Arc::clone(&job.compiled.manifest)),
            None => {
                let details = self.coordinator.job_details(id).await.map_err(service_error)?;
                let manifest = self.manifest(id, &details.source_key, details.dataset.index_reference());
                let manifest = manifest.await.map_err(service_error)?;
                (details, manifest)
            }
        };
        let cache = cache.unwrap_or(details.cache);
        let settings = self.engine.operator_settings(&self.settings);
        let context = CompileContext {
            caches: self.engine.caches(),
            settings: &settings,
            tracing: self.engine.tracing(),
        };
        let load = |cache| {
            let (details, manifest) = (details.clone(), Arc::clone(&manifest));
            let source = JobSource { details, manifest, cache, stores: Arc::clone(&self.stores) };
            JobContext::load(source, context, previous.as_deref())
        };
        let loaded = load(cache).await;
        // If the planned cache cannot be used, load the job without a cache.
        let loaded = match (loaded, cache) {
            (Err(message), Some(rejected)) => {
                self.engine.reject_cache(id, rejected, &message);
                load(None).await
            }
            (loaded, _) => loaded,
        };
        loaded.map_err(|message| LoadError { is_retryable: false, message })
    }

    /// Loads the index of a dataset from the cache directory, or fetches the index from the coordinator.
    async fn manifest(&self, id: JobId, key: &str, reference: &str) -> Result<Arc<Manifest>, ServiceError> {
        let file = self.settings.cache_dir.as_ref().map(|dir| stored_index::path(dir, key, reference));
        if let Some(file) = file.clone() {
            let reference = reference.to_owned();
            let loaded = spawn_blocking(move || stored_index::load(&file, &reference)).await;
            if let Ok(Some(manifest)) = loaded {
                return Ok(Arc::new(manifest));
            }
        }
        let manifest = self.coordinator.manifest(id).await?;
        if let Some(file) = file {
            let (path, stored) = (file.clone(), Arc::clone(&manifest));
            let saved = spawn_blocking(move || stored_index::save(&path, &encode_manifest(&stored))).await;
            // A failed write is harmless, because the worker fetches the index again after a restart.
            if let Err(error) = saved.map_err(io::Error::other).flatten() {
                tracing::warn!(file = %file.display(), %error, "cannot store the index in the cache directory");
            }
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests;
