//! The control loop: sends reports to the coordinator, applies its plan, and loads the jobs of the plan.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use feedline_common::backoff::Backoff;
use feedline_data::ids::{JobId, WorkerId};
use feedline_data::manifest::Manifest;
use feedline_data::messages::{Revision, ServiceError, WorkerPlan, WorkerReport};
use feedline_proto::encode_manifest;
use feedline_proto::services::CoordinatorService;
use feedline_sources::Stores;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::{CompileContext, Engine, JobContext, JobSource};
use crate::tasks::IndexTasks;
use crate::tickets::Tickets;
use crate::{WorkerSettings, metrics, stored_index};

/// Time after which a report without a reply is sent again.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Pauses between requests to a coordinator that cannot be reached. A new leader is elected within a second.
const COORDINATOR_BACKOFF: Backoff = Backoff::from_millis(50, 250);
/// Longest pause that a busy coordinator can request.
const LONGEST_BUSY_PAUSE: Duration = Duration::from_secs(10);

/// Why a job cannot be loaded.
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
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) tracker: TaskTracker,
    pub(crate) draining: Arc<AtomicBool>,
    /// Jobs that are being loaded.
    pub(crate) loading: Mutex<BTreeSet<JobId>>,
    pub(crate) stop: CancellationToken,
}

impl ControlLoop {
    /// Runs until the worker stops. A worker that cannot reach its coordinator keeps its leases for four lease times, so that it
    /// serves consumers while the coordinator restarts. Then it drops them, because other workers have acquired them.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut seen = Revision::default();
        let mut backoff = COORDINATOR_BACKOFF;
        let mut lease = Duration::from_secs(3);
        let mut last_contact = Instant::now();
        while !self.stop.is_cancelled() {
            let answer = tokio::select! {
                () = self.stop.cancelled() => return,
                answer = self.report(seen) => answer,
            };
            match answer {
                Ok(plan) => {
                    backoff.reset();
                    last_contact = Instant::now();
                    // An empty plan has no revision: the next report follows at once.
                    if plan.revision.life != 0 {
                        seen = plan.revision;
                        lease = Duration::from_millis(plan.lease_ms.max(1));
                        self.apply(plan);
                    }
                }
                Err(least) => {
                    metrics::count_coordinator_error();
                    if last_contact.elapsed() > lease * 4 {
                        self.engine.set_leases(&[]);
                        seen = Revision::default();
                    }
                    self.pause(backoff.next_pause().max(least)).await;
                }
            }
        }
    }

    /// Waits before the next retry, unless the worker stops.
    async fn pause(&self, pause: Duration) {
        let _ = self.stop.run_until_cancelled(sleep(pause)).await;
    }

    /// Sends a report and waits for the plan. Returns early with an empty plan if the worker has news that the coordinator needs
    /// at once. An error is the shortest pause before the next report.
    async fn report(&self, seen: Revision) -> Result<WorkerPlan, Duration> {
        // Registered before the report is built, so that no change is missed.
        let changed = self.engine.news.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let report = self.build_report(seen);
        let (computed, full, draining) = (report.computed.len(), report.memory_full, report.draining);
        let answer = timeout(REPLY_TIMEOUT, self.coordinator.sync_worker(report));
        tokio::pin!(answer);
        loop {
            tokio::select! {
                answer = &mut answer => return match answer {
                    Ok(Ok(plan)) => Ok(plan),
                    Ok(Err(refusal)) => {
                        tracing::debug!(%refusal, "the coordinator rejected the worker's report");
                        Err(Duration::from_millis(refusal.retry_after_ms.unwrap_or(0)).min(LONGEST_BUSY_PAUSE))
                    }
                    Err(_) => Err(Duration::ZERO),
                },
                () = self.index_tasks.finished.notified() => return Ok(WorkerPlan::default()),
                () = &mut changed => {
                    changed.set(self.engine.news.notified());
                    changed.as_mut().enable();
                    let news = self.engine.computed_count() > computed
                        || (full && !self.engine.is_memory_full())
                        || (!draining && self.draining.load(Ordering::Relaxed));
                    if news {
                        return Ok(WorkerPlan::default());
                    }
                }
            }
        }
    }

    fn build_report(&self, seen: Revision) -> WorkerReport {
        let (elapsed_ns, cpu, stats) = self.engine.stats();
        WorkerReport {
            worker: self.worker,
            address: self.settings.address.clone(),
            cores: self.settings.cores,
            memory_bytes: self.settings.memory_bytes,
            machine: self.settings.machine.clone(),
            nic_bytes_per_s: self.settings.nic_bytes_per_s,
            seen,
            computed: self.engine.computed(),
            memory_full: self.engine.report_memory_full(),
            draining: self.draining.load(Ordering::Relaxed),
            tasks: self.index_tasks.results(),
            elapsed_ns,
            cpu,
            stats,
            memory: self.engine.memory_usage(),
            caches: self.engine.caches().rooms(),
        }
    }

    fn apply(self: &Arc<Self>, plan: WorkerPlan) {
        self.tickets.set_key(plan.ticket_key);
        self.engine.set_tenants(&plan.tenants);
        // Allocations are set before the leases that depend on them.
        self.engine.set_allocations(plan.cores, &plan.allocations);
        self.engine.set_mixes(plan.mixes);
        self.engine.set_leases(&plan.leases);
        self.index_tasks.set_tasks(plan.tasks);
        let unloaded = self.engine.unloaded();
        for job in unloaded {
            if self.lock_loading().insert(job) {
                let this = Arc::clone(self);
                self.tracker.spawn(async move { this.load(job).await });
            }
        }
    }

    /// Whether a job must still be loaded. If not, removes the job from the loading ones, under the same lock.
    fn needs_loading(&self, id: JobId) -> bool {
        let mut loading = self.lock_loading();
        let is_needed = self.engine.unloaded().contains(&id) && !self.stop.is_cancelled();
        if !is_needed {
            loading.remove(&id);
        }
        is_needed
    }

    fn lock_loading(&self) -> MutexGuard<'_, BTreeSet<JobId>> {
        self.loading.lock().expect("no code panics while it holds the loading jobs")
    }

    /// Loads a job. Retries while the coordinator is unavailable and the plan contains the job.
    async fn load(&self, id: JobId) {
        let mut backoff = COORDINATOR_BACKOFF;
        while self.needs_loading(id) {
            match self.try_load(id).await {
                // The cache decision may have changed while the job was being loaded.
                Ok(job) => {
                    self.engine.add_job(job);
                    continue;
                }
                Err(error) if error.is_retryable => {
                    tracing::debug!(error = error.message, "loading a job failed; it is retried");
                }
                Err(error) => self.engine.fail_job(id, &error.message),
            }
            self.pause(backoff.next_pause()).await;
        }
    }

    /// Compiles a job with the present cache decision of the plan. An error says whether a retry can help.
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
                let manifest = self.manifest(id, &details.source_key, &details.dataset.fingerprint);
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
        // A cache that only the plan wants must not fail the job.
        let loaded = match (loaded, cache) {
            (Err(message), Some(rejected)) => {
                self.engine.reject_cache(id, rejected, &message);
                load(None).await
            }
            (loaded, _) => loaded,
        };
        loaded.map_err(|message| LoadError { is_retryable: false, message })
    }

    /// The index of a dataset: from the cache directory, or else from the coordinator.
    async fn manifest(&self, id: JobId, key: &str, fingerprint: &str) -> Result<Arc<Manifest>, ServiceError> {
        let file = self.settings.cache_dir.as_ref().map(|dir| stored_index::path(dir, key, fingerprint));
        if let Some(file) = file.clone() {
            let wanted = fingerprint.to_owned();
            let loaded = spawn_blocking(move || stored_index::load(&file, &wanted)).await;
            if let Ok(Some(manifest)) = loaded {
                return Ok(Arc::new(manifest));
            }
        }
        let manifest = self.coordinator.manifest(id).await?;
        if let Some(file) = file {
            let (path, stored) = (file.clone(), Arc::clone(&manifest));
            let saved = spawn_blocking(move || stored_index::save(&path, &encode_manifest(&stored))).await;
            // Without the stored index, the worker only fetches the index again.
            if let Err(error) = saved.map_err(io::Error::other).flatten() {
                tracing::warn!(file = %file.display(), %error, "cannot store the index in the cache directory");
            }
        }
        Ok(manifest)
    }
}
