//! Starts, drains and stops a worker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use feedline_common::metric_table::start_counters;
use feedline_data::ids::{JobId, WorkerId};
use feedline_data::memory::MemoryAccount;
use feedline_proto::local::ShmBytes;
use feedline_proto::services::{CoordinatorService, WorkerService};
use feedline_sources::{ReadMemory, Stores};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::WorkerSettings;
use crate::control::{ControlLoop, OffsetCommitter};
use crate::engine::{CacheLocations, Engine, MemoryBudget, Tracing};
use crate::fetch_limit::FetchLimit;
use crate::gather_server::{GatherServer, GatherSource};
use crate::graphs::{GraphHost, GraphLimits, JobPartitions, PeerWorkers, WorkerGraphs};
use crate::process::ProcessClock;
use crate::server::BatchServer;
use crate::tasks::IndexTasks;
use crate::tickets::Tickets;

/// A running worker.
pub struct RunningWorker {
    service: Arc<dyn WorkerService>,
    engine: Arc<Engine>,
    partitions: Arc<JobPartitions>,
    tracker: TaskTracker,
    health: WorkerHealth,
    draining: Arc<AtomicBool>,
    stop: CancellationToken,
}

/// Whether the tasks of a worker run that must run until it stops.
#[derive(Debug, Clone, Default)]
pub struct WorkerHealth {
    tasks: Arc<Mutex<Vec<(&'static str, AbortHandle)>>>,
    stop: CancellationToken,
}

impl WorkerHealth {
    fn watch(&self, name: &'static str, task: AbortHandle) {
        self.lock().push((name, task));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(&'static str, AbortHandle)>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that all tasks run.
    ///
    /// # Errors
    /// Returns a message if a task has ended, although the worker has not been stopped.
    pub fn check(&self) -> Result<(), String> {
        if self.stop.is_cancelled() {
            return Ok(());
        }
        let ended = self.lock().iter().find(|(_, task)| task.is_finished()).map(|(name, _)| *name);
        let problem =
            |name| format!("the {name} of the worker has ended after an internal error; restart the process");
        ended.map_or(Ok(()), |name| Err(problem(name)))
    }
}

/// Starts a worker. The worker ID must be unique, and a restarted worker needs a new ID. All workers of a process share
/// one `clock`.
///
/// # Errors
/// Returns an error if the system cannot start threads.
pub fn start(
    worker: WorkerId,
    settings: WorkerSettings,
    clock: Arc<ProcessClock>,
    coordinator: Arc<dyn CoordinatorService>,
) -> std::io::Result<RunningWorker> {
    for table in [crate::metrics::METRICS, feedline_sources::METRICS, feedline_sources::COMPRESSION_METRICS] {
        start_counters(table);
    }
    let tracing = Tracing { is_on: settings.trace, clock };
    let budget = MemoryBudget::new(settings.memory_bytes);
    let used_bytes = Arc::clone(budget.counter(MemoryAccount::Blocks));
    let memory = ReadMemory { limits: budget.limits(), used_bytes };
    let stores = Stores::with_memory(settings.access.clone(), memory);
    let store_cache = settings.store_cache.clone().map(|settings| (settings, Arc::clone(&stores)));
    let caches = CacheLocations { disk: settings.row_cache.clone(), store: store_cache };
    let engine = Engine::new(settings.cores, budget, caches, tracing)?;
    engine.count_decoders(stores.decoders());
    let (budget, host) = (Arc::clone(engine.memory_budget()), EngineHost(Arc::downgrade(&engine)));
    let disk = settings.graph_disk.clone();
    let limits = GraphLimits { disk, ..GraphLimits::new(settings.graph_memory_bytes) };
    let graphs = WorkerGraphs::new(budget, limits, host);
    let partitions = JobPartitions::new(worker);
    graphs.set_partitions(Arc::clone(&partitions));
    engine.set_graphs(graphs.clone());
    let tracker = TaskTracker::new();
    let draining = Arc::new(AtomicBool::new(false));
    let stop = CancellationToken::new();
    let tickets = Arc::new(Tickets::new(settings.requires_tickets));
    let fetch_limit = FetchLimit::new(settings.max_fetches);
    let index_tasks =
        IndexTasks::new(Arc::clone(&stores), tracker.clone(), settings.cores, settings.memory_bytes);
    let control = ControlLoop {
        worker,
        settings,
        coordinator,
        index_tasks,
        group_commits: OffsetCommitter::default(),
        stores,
        engine: Arc::clone(&engine),
        tickets: Arc::clone(&tickets),
        partitions: Arc::clone(&partitions),
        tracker: tracker.clone(),
        draining: Arc::clone(&draining),
        loading: Mutex::default(),
        plan_applied: Notify::new(),
        stop: stop.clone(),
    };
    let health = WorkerHealth { stop: stop.clone(), ..WorkerHealth::default() };
    health.watch("control loop", tracker.spawn(Arc::new(control).run()).abort_handle());
    let (start_groups, stopped) = (Arc::clone(&engine).start_groups_on_release(), stop.clone());
    let starting = tracker.spawn(async move { stopped.run_until_cancelled(start_groups).await });
    health.watch("task that starts work", starting.abort_handle());
    let (evict, stopped) = (graphs.evict_on_demand(), stop.clone());
    let evicting = tracker.spawn(async move { stopped.run_until_cancelled(evict).await });
    health.watch("task that evicts graphs", evicting.abort_handle());
    let source = Arc::clone(&engine) as Arc<dyn GatherSource>;
    let budget = Arc::clone(engine.memory_budget());
    let service = Arc::new(BatchServer {
        engine: Arc::clone(&engine),
        gather: GatherServer::new(source, Arc::clone(&tickets), budget),
        tickets,
        fetch_limit,
        tasks: tracker.clone(),
        stop: stop.clone(),
    });
    Ok(RunningWorker { service, engine, partitions, tracker, health, draining, stop })
}

/// The engine, for its graphs.
struct EngineHost(Weak<Engine>);

impl GraphHost for EngineHost {
    fn remove_idle_jobs(&self) {
        if let Some(engine) = self.0.upgrade() {
            engine.remove_idle_graph_jobs();
        }
    }

    fn on_loading(&self, job: JobId) {
        if let Some(engine) = self.0.upgrade() {
            engine.record_progress(job);
        }
    }

    fn on_evicted(&self) {
        if let Some(engine) = self.0.upgrade() {
            engine.on_memory_released();
        }
    }
}

impl RunningWorker {
    /// The service that consumers fetch from.
    pub fn service(&self) -> Arc<dyn WorkerService> {
        Arc::clone(&self.service)
    }

    /// Sets how the worker finds other workers, from which it requests rows of partitioned features. Without other workers, it reads
    /// all rows from the graph. Only the first call has an effect.
    pub fn set_peers(&self, peers: Arc<dyn PeerWorkers>) {
        self.partitions.set_directory(peers);
    }

    /// Counts the memory shared with consumers on this host against the worker's memory budget.
    pub fn count_shared_memory(&self, shared: Arc<ShmBytes>) {
        self.engine.count_shared_memory(Arc::clone(&shared));
        let (engine, stop) = (Arc::clone(&self.engine), self.stop.clone());
        let start_groups = async move {
            loop {
                shared.wait_for_decrease().await;
                engine.on_memory_released();
            }
        };
        let task = self.tracker.spawn(async move { stop.run_until_cancelled(start_groups).await });
        self.health.watch("task that observes shared memory", task.abort_handle());
    }

    /// Returns the health of the worker, for a liveness probe.
    pub fn health(&self) -> WorkerHealth {
        self.health.clone()
    }

    /// Total time that threads have waited for the engine's lock, for benchmarks.
    pub fn engine_lock_wait(&self) -> Duration {
        self.engine.lock_wait()
    }

    /// Stops accepting leases. The worker still sends the splits that it has leased.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.engine.report_due.notify_waiters();
    }

    /// Whether the worker has no leases.
    pub fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    /// Stops the worker and waits until its tasks have ended.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.engine.shutdown().await;
        self.tracker.close();
        self.tracker.wait().await;
    }
}
