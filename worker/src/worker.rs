//! A worker's life: start, run, drain, stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use feedline_data::ids::WorkerId;
use feedline_proto::local::ShmBytes;
use feedline_proto::services::{CoordinatorService, WorkerService};
use feedline_sources::Stores;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::WorkerSettings;
use crate::control::ControlLoop;
use crate::engine::{Engine, Tracing};
use crate::fetch_limit::FetchLimit;
use crate::process::ProcessClock;
use crate::server::BatchServer;
use crate::tasks::IndexTasks;
use crate::tickets::Tickets;

/// A worker that runs.
pub struct RunningWorker {
    service: Arc<dyn WorkerService>,
    engine: Arc<Engine>,
    tracker: TaskTracker,
    draining: Arc<AtomicBool>,
    stop: CancellationToken,
}

/// Starts a worker that reports to `coordinator`. `worker` must differ from the id of every other worker, earlier
/// lives of this process included; workers of one process share its `clock`.
///
/// # Errors
/// When the system refuses to start its threads.
pub fn start(
    worker: WorkerId,
    settings: WorkerSettings,
    clock: Arc<ProcessClock>,
    coordinator: Arc<dyn CoordinatorService>,
) -> std::io::Result<RunningWorker> {
    let tracing = Tracing { on: settings.trace, clock };
    let stores = Stores::with(settings.access.clone());
    let store_cache = settings.store_cache.clone().map(|place| (place, Arc::clone(&stores)));
    let caches = (settings.row_cache.clone(), store_cache);
    let engine = Engine::new(settings.cores, settings.memory_bytes, caches, tracing)?;
    let tracker = TaskTracker::new();
    let draining = Arc::new(AtomicBool::new(false));
    let stop = CancellationToken::new();
    let tickets = Arc::new(Tickets::new(settings.asks_for_tickets));
    let room = FetchLimit::new(settings.most_fetches);
    let control = ControlLoop {
        worker,
        settings,
        coordinator,
        index_tasks: IndexTasks::new(Arc::clone(&stores), tracker.clone()),
        stores,
        engine: Arc::clone(&engine),
        tickets: Arc::clone(&tickets),
        tracker: tracker.clone(),
        draining: Arc::clone(&draining),
        loading: Mutex::default(),
        stop: stop.clone(),
    };
    tracker.spawn(Arc::new(control).run());
    let (returns, stopped) = (Arc::clone(&engine).follow_returns(), stop.clone());
    tracker.spawn(async move { stopped.run_until_cancelled(returns).await });
    let service = Arc::new(BatchServer {
        engine: Arc::clone(&engine),
        tickets,
        room,
        tasks: tracker.clone(),
        stop: stop.clone(),
    });
    Ok(RunningWorker { service, engine, tracker, draining, stop })
}

impl RunningWorker {
    /// What consumers fetch from.
    pub fn service(&self) -> Arc<dyn WorkerService> {
        Arc::clone(&self.service)
    }

    /// Counts bytes against the memory budget that are lent to clients, as they change.
    pub fn count_lent(&self, lent_bytes: Arc<ShmBytes>) {
        self.engine.count_lent(Arc::clone(&lent_bytes));
        let (engine, stop) = (Arc::clone(&self.engine), self.stop.clone());
        let returns = async move {
            loop {
                lent_bytes.returned().await;
                engine.pump();
            }
        };
        self.tracker.spawn(async move { stop.run_until_cancelled(returns).await });
    }

    /// Takes no new splits; those that it holds are served until their consumers have them.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.engine.news.notify_waiters();
    }

    /// Whether it holds no splits.
    pub fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    /// Stops: ends all work and waits for its tasks.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.engine.shutdown().await;
        self.tracker.close();
        self.tracker.wait().await;
    }
}
