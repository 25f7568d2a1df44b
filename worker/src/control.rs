//! The control loop: reports to the coordinator, takes over its plan, loads the jobs that it names.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

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

use crate::engine::{Engine, JobContext};
use crate::tasks::IndexTasks;
use crate::tickets::Tickets;
use crate::{WorkerSettings, metrics, stored_index};

/// A report is repeated after this long without an answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// Pause after a failed report: from this, doubling up to the next.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
// A new leader is there within a second, and shall not wait for its workers.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// A coordinator without room for the worker is asked again after as long as it says, and this at most.
const LONGEST_BUSY_PAUSE: Duration = Duration::from_secs(10);

/// The pause after this one.
fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_PAUSE)
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
    /// Jobs that tasks are loading.
    pub(crate) loading: Mutex<BTreeSet<JobId>>,
    pub(crate) stop: CancellationToken,
}

impl ControlLoop {
    /// Runs until stopped. The leases of a worker that cannot reach its coordinator are kept for four lease times, so
    /// that consumers are served while a coordinator restarts, and dropped then: others have them.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut seen = Revision::default();
        let mut pause = FIRST_PAUSE;
        let mut lease = Duration::from_secs(3);
        let mut last_contact = Instant::now();
        while !self.stop.is_cancelled() {
            let answer = tokio::select! {
                () = self.stop.cancelled() => return,
                answer = self.report(seen) => answer,
            };
            match answer {
                Ok(plan) => {
                    pause = FIRST_PAUSE;
                    last_contact = Instant::now();
                    // A plan of no life is an answer that says nothing: ask again.
                    if plan.revision.life != 0 {
                        seen = plan.revision;
                        lease = Duration::from_millis(plan.lease_ms.max(1));
                        self.take_over(plan);
                    }
                }
                Err(least) => {
                    metrics::count_coordinator_error();
                    if last_contact.elapsed() > lease * 4 {
                        self.engine.set_leases(&[]);
                        seen = Revision::default();
                    }
                    self.pause(pause.max(least)).await;
                    pause = longer(pause);
                }
            }
        }
    }

    /// Waits before trying again, unless stopped.
    async fn pause(&self, pause: Duration) {
        let _ = self.stop.run_until_cancelled(sleep(pause)).await;
    }

    /// Reports and waits for the answer, or for news of its own that the coordinator should hear at once. Without an answer,
    /// the least time to wait before the next report.
    async fn report(&self, seen: Revision) -> Result<WorkerPlan, Duration> {
        // From before the report on, so that what changes while it is built is not missed.
        let changed = self.engine.news.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let report = self.build_report(seen);
        let (computed, full, draining) = (report.computed.len(), report.memory_full, report.draining);
        let answer = timeout(ANSWER_PATIENCE, self.coordinator.sync_worker(report));
        tokio::pin!(answer);
        loop {
            tokio::select! {
                answer = &mut answer => return match answer {
                    Ok(Ok(plan)) => Ok(plan),
                    Ok(Err(refusal)) => {
                        tracing::debug!(%refusal, "the coordinator did not take the worker's report");
                        Err(Duration::from_millis(refusal.retry_after_ms.unwrap_or(0)).min(LONGEST_BUSY_PAUSE))
                    }
                    Err(_) => Err(Duration::ZERO),
                },
                () = self.index_tasks.finished.notified() => return Ok(WorkerPlan::default()),
                () = &mut changed => {
                    changed.set(self.engine.news.notified());
                    changed.as_mut().enable();
                    let news = self.engine.computed().len() > computed
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
            caches: self.engine.caches().rooms(),
        }
    }

    fn take_over(self: &Arc<Self>, plan: WorkerPlan) {
        self.tickets.set(plan.ticket_key);
        self.engine.set_tenants(&plan.tenants);
        // First, since the new leases begin with it.
        self.engine.set_allotments(plan.cores, &plan.allotments);
        self.engine.set_mixes(plan.mixes);
        self.engine.set_leases(&plan.leases);
        self.index_tasks.set(plan.tasks);
        let unloaded = self.engine.unloaded();
        for job in unloaded {
            if self.lock_loading().insert(job) {
                let this = Arc::clone(self);
                self.tracker.spawn(async move { this.load(job).await });
            }
        }
    }

    /// Whether a job is to be loaded. If not, it is no longer being loaded: told under the lock, so that nobody relies on it.
    fn is_wanted(&self, id: JobId) -> bool {
        let mut loading = self.lock_loading();
        let is_wanted = self.engine.unloaded().contains(&id) && !self.stop.is_cancelled();
        if !is_wanted {
            loading.remove(&id);
        }
        is_wanted
    }

    fn lock_loading(&self) -> MutexGuard<'_, BTreeSet<JobId>> {
        self.loading.lock().expect("no code panics while it holds the jobs that are loaded")
    }

    /// Loads a job, trying again while the coordinator cannot be reached and the job is still wanted.
    async fn load(&self, id: JobId) {
        let mut pause = FIRST_PAUSE;
        while self.is_wanted(id) {
            match self.try_load(id).await {
                // What it is to keep may have changed meanwhile.
                Ok(job) => {
                    self.engine.add_job(job);
                    continue;
                }
                Err((true, message)) => tracing::debug!(%message, "a job could not be loaded yet"),
                Err((false, message)) => self.engine.fail_job(id, &message),
            }
            self.pause(pause).await;
            pause = longer(pause);
        }
    }

    /// As the plan has it keep rows by now. An error says whether trying again can help.
    async fn try_load(&self, id: JobId) -> Result<JobContext, (bool, String)> {
        let refused = |refusal: ServiceError| (refusal.kind.is_passing(), refusal.message);
        let (before, keep) = self.engine.wanted(id);
        let (details, manifest) = match &before {
            Some(job) => (job.details.clone(), Arc::clone(&job.manifest)),
            None => {
                let details = self.coordinator.job_details(id).await.map_err(refused)?;
                let manifest = self.manifest(id, &details.source_key, &details.dataset.fingerprint);
                let manifest = manifest.await.map_err(refused)?;
                (details, manifest)
            }
        };
        let keep = keep.unwrap_or(details.keep);
        let (caches, tracing) = (self.engine.caches(), self.engine.tracing());
        let runs = &self.engine.runs(&self.settings);
        let load = |keep| {
            let (details, manifest, stores) =
                (details.clone(), Arc::clone(&manifest), Arc::clone(&self.stores));
            JobContext::load(details, (manifest, keep), stores, (caches, runs), tracing, before.as_deref())
        };
        let loaded = load(keep).await;
        // A cache that no pipeline asks for fails no job.
        let loaded = match (loaded, keep) {
            (Err(message), Some(refused)) => {
                self.engine.refuse_keep(id, refused, &message);
                load(None).await
            }
            (loaded, _) => loaded,
        };
        loaded.map_err(|message| (false, message))
    }

    /// The dataset's index: from the cache directory if it was fetched before.
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
            let (path, kept) = (file.clone(), Arc::clone(&manifest));
            let saved = spawn_blocking(move || stored_index::save(&path, &encode_manifest(&kept))).await;
            // The cache only saves time: without it the index is fetched again.
            if let Err(error) = saved.map_err(io::Error::other).flatten() {
                tracing::warn!(file = %file.display(), %error, "the index could not be kept in the cache directory");
            }
        }
        Ok(manifest)
    }
}
