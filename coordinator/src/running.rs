//! Starting and ending a coordinator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use feedline_core::cluster::Cluster;
use feedline_core::cluster::records::Record;
use feedline_core::cluster::samples::{Samples, WorkerShare};
use feedline_core::ids::{JobId, Millis, WorkerId};
use feedline_proto::CoordinatorService;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::driver::{Command, Driver, QUEUED_REQUESTS};
use crate::error::CoordinatorError;
use crate::index_store::IndexStore;
use crate::log::{FileLog, MemoryLog, RecordLog};
use crate::metrics::Gauges;
use crate::planning;
use crate::scaling::{Scaled, Scaler};
use crate::service::Service;
use crate::settings::CoordinatorSettings;

/// A coordinator that runs. Dropping it ends its task without draining; [`Self::shutdown`] is the orderly way.
pub struct RunningCoordinator {
    service: Arc<dyn CoordinatorService>,
    commands: mpsc::Sender<Command>,
    stop: CancellationToken,
    /// `None` once its end was seen.
    task: Option<JoinHandle<Result<(), CoordinatorError>>>,
    planning: Option<JoinHandle<()>>,
}

/// Starts a coordinator: reads its log and goes on where it stood. `life` must be larger than that of every earlier
/// life on the same directory: a time in nanoseconds will do.
///
/// # Errors
/// When a directory cannot be used, another coordinator uses it, or the log is damaged: one sentence with the fix.
pub async fn start(settings: CoordinatorSettings, life: u64) -> Result<RunningCoordinator, CoordinatorError> {
    start_scaled(settings, life, None).await
}

/// The same; `scaler` brings as many workers as plans want, within [`CoordinatorSettings::scale`].
///
/// # Errors
/// As [`start`].
pub async fn start_scaled(
    settings: CoordinatorSettings,
    life: u64,
    scaler: Option<Arc<dyn Scaler>>,
) -> Result<RunningCoordinator, CoordinatorError> {
    if settings.tick_ms == 0 {
        return Err(CoordinatorError::Setting("tick_ms is 0; set it to 1 or more, 50 is usual".to_owned()));
    }
    let opened = tokio::task::spawn_blocking(move || open(&settings, life).map(|opened| (settings, opened)));
    let (settings, opened) = opened.await.map_err(|error| CoordinatorError::Stopped(error.to_string()))??;
    Ok(run(settings, opened, scaler))
}

/// What was found when starting.
struct Opened {
    cluster: Cluster,
    log: Box<dyn RecordLog>,
    store: IndexStore,
    gauges: Gauges,
}

fn open(settings: &CoordinatorSettings, life: u64) -> Result<Opened, CoordinatorError> {
    let (log, records): (Box<dyn RecordLog>, _) = match &settings.data_dir {
        Some(folder) => {
            let (log, records) = FileLog::open(folder)?;
            (Box::new(log), records)
        }
        None => (Box::new(MemoryLog), Vec::new()),
    };
    let store = IndexStore::open(settings.index_dir.clone())?;
    let mut gauges = Gauges::default();
    let mut reindexed: BTreeSet<JobId> = BTreeSet::new();
    for record in &records {
        gauges.on_record(record);
        if let Record::Opened { job, spec } = record
            && spec.reindex
        {
            reindexed.insert(*job);
        }
    }
    let mut cluster = Cluster::restore(settings.cluster.clone(), life, 0, records);
    for (job, key) in cluster.preparing().into_iter().filter(|(job, _)| !reindexed.contains(job)) {
        if let Some(saved) = store.load(&key).map_err(CoordinatorError::Index)? {
            cluster.set_saved(job, saved);
        }
    }
    Ok(Opened { cluster, log, store, gauges })
}

fn run(settings: CoordinatorSettings, opened: Opened, scaler: Option<Arc<dyn Scaler>>) -> RunningCoordinator {
    let (sender, receiver) = mpsc::channel(QUEUED_REQUESTS);
    let store = Arc::new(opened.store);
    let driver = Driver::new(
        opened.cluster,
        opened.log,
        Arc::clone(&store),
        receiver,
        settings.tick_ms,
        settings.cluster.worker_lease_ms,
        opened.gauges,
    );
    let stop = CancellationToken::new();
    let task = tokio::spawn(driver.run(stop.clone()).instrument(tracing::info_span!("coordinator")));
    let (views, seen) = watch::channel(Arc::default());
    let service = Arc::new(Service::new(sender.clone(), store, seen));
    let planning = (settings.plan_interval_ms > 0).then(|| {
        let interval = Duration::from_millis(settings.plan_interval_ms);
        let scaled = scaler.map(|scaler| Scaled::new(settings.scale, scaler));
        let work = planning::run(
            sender.clone(),
            views,
            (interval, settings.cluster.auto_cache),
            scaled,
            stop.clone(),
        );
        tokio::spawn(work.instrument(tracing::info_span!("planning")))
    });
    RunningCoordinator { service, commands: sender, stop, task: Some(task), planning }
}

impl RunningCoordinator {
    /// The coordinator's service, for local callers and for `feedline_proto::grpc::coordinator_routes`.
    pub fn service(&self) -> Arc<dyn CoordinatorService> {
        Arc::clone(&self.service)
    }

    /// What workers and consumers have reported up to now, in milliseconds of the coordinator's clock; `None` when it has
    /// ended.
    pub async fn samples(&self) -> Option<(Millis, Samples)> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Observe { reply }).await.ok()?;
        answer.await.ok().map(|(now, samples)| (now, *samples))
    }

    /// Tells workers at once what jobs may use of them: complete, so a worker that is not listed has no limits. Rows and
    /// their order do not depend on it. `false` when the coordinator has ended.
    pub async fn share(&self, shares: BTreeMap<WorkerId, WorkerShare>) -> bool {
        self.commands.send(Command::Share { shares }).await.is_ok()
    }

    /// Waits until the coordinator's task ends, which without [`Self::shutdown`] it does only when it cannot go on:
    /// the node that runs it should end too. Can be dropped and called again.
    ///
    /// # Errors
    /// Why it ended.
    pub async fn wait(&mut self) -> Result<(), CoordinatorError> {
        let Some(task) = &mut self.task else {
            return Err(CoordinatorError::Stopped("it had ended before".to_owned()));
        };
        let result = task.await;
        self.task = None;
        result.unwrap_or_else(|error| Err(CoordinatorError::Stopped(error.to_string())))
    }

    /// Takes no further requests, answers those that have arrived, persists and closes the log.
    ///
    /// # Errors
    /// When decisions could not be persisted. None of them had been acknowledged.
    pub async fn shutdown(mut self) -> Result<(), CoordinatorError> {
        self.stop.cancel();
        if let Some(planning) = self.planning.take() {
            // It ends with `stop`; where it crashed, the panic was told.
            let _ = planning.await;
        }
        self.wait().await
    }
}

impl Drop for RunningCoordinator {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        if let Some(planning) = &self.planning {
            planning.abort();
        }
    }
}
