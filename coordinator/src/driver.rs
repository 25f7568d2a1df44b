//! The one task that owns the state machine and the log: takes what waits, steps, persists, answers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use feedline_core::cluster::messages::{ConsumerReport, JobSpec, Refusal, RefusalKind, WorkerReport};
use feedline_core::cluster::records::Record;
use feedline_core::cluster::samples::{Samples, WorkerShare};
use feedline_core::cluster::{Cluster, Input, Ready, Reply, RequestId};
use feedline_core::ids::{JobId, Millis, WorkerId};
use feedline_core::manifest::Manifest;
use metrics::{gauge, histogram};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Duration, Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::error::CoordinatorError;
use crate::index_store::IndexStore;
use crate::log::RecordLog;
use crate::metrics::{Gauges, LOG_APPEND_SECONDS, LOG_BYTES};

/// Requests that wait for the driver; more wait in their connections.
pub(crate) const QUEUED_REQUESTS: usize = 1024;
/// Requests that share one commit.
const REQUESTS_PER_COMMIT: usize = 256;

/// What the driver is told.
#[derive(Debug)]
pub(crate) enum Command {
    /// A request, and who waits for its answer.
    Ask { request: Request, reply: oneshot::Sender<Reply> },
    /// Whoever plans wants to know what was reported; with the state machine's time.
    Observe { reply: oneshot::Sender<(Millis, Box<Samples>)> },
    /// Whoever plans has decided what jobs may use of workers.
    Share { shares: BTreeMap<WorkerId, WorkerShare> },
}

/// What can be asked: an [`Input`] without its number.
#[derive(Debug)]
pub(crate) enum Request {
    OpenJob { spec: Box<JobSpec>, saved: Option<Arc<Manifest>> },
    CancelJob(JobId),
    Worker(WorkerReport),
    Consumer(ConsumerReport),
    JobDetails(JobId),
    JobStatus(Option<JobId>),
}

impl Request {
    fn into_input(self, request: RequestId) -> Input {
        match self {
            Self::OpenJob { spec, saved } => Input::OpenJob { request, spec, saved },
            Self::CancelJob(job) => Input::CancelJob { request, job },
            Self::Worker(report) => Input::Worker { request, report },
            Self::Consumer(report) => Input::Consumer { request, report },
            Self::JobDetails(job) => Input::JobDetails { request, job },
            Self::JobStatus(job) => Input::JobStatus { request, job },
        }
    }
}

/// What must be persisted before anything that follows from it is told to anyone.
#[derive(Debug, Default)]
struct Pending {
    manifests: Vec<(String, Arc<Manifest>)>,
    records: Vec<Record>,
}

pub(crate) struct Driver {
    cluster: Cluster,
    /// `None` only while a blocking task has it.
    log: Option<Box<dyn RecordLog>>,
    store: Arc<IndexStore>,
    commands: mpsc::Receiver<Command>,
    waiting: HashMap<RequestId, oneshot::Sender<Reply>>,
    next_request: RequestId,
    clock: Clock,
    now: Millis,
    tick: Duration,
    worker_lease_ms: u64,
    pending: Pending,
    /// Why `pending` could not be persisted, and when that was tried last.
    stuck: Option<(Refusal, Instant)>,
    gauges: Gauges,
}

impl Driver {
    pub(crate) fn new(
        cluster: Cluster,
        log: Box<dyn RecordLog>,
        store: Arc<IndexStore>,
        commands: mpsc::Receiver<Command>,
        tick_ms: u64,
        worker_lease_ms: u64,
        gauges: Gauges,
    ) -> Self {
        Self {
            cluster,
            log: Some(log),
            store,
            commands,
            waiting: HashMap::new(),
            next_request: 1,
            clock: Clock::new(tick_ms),
            now: 0,
            tick: Duration::from_millis(tick_ms),
            worker_lease_ms,
            pending: Pending::default(),
            stuck: None,
            gauges,
        }
    }

    /// Runs until `stop`; then answers what has arrived, persists it, and closes the log.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), CoordinatorError> {
        let mut ticks = tokio::time::interval(self.tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut commands = Vec::with_capacity(REQUESTS_PER_COMMIT);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                taken = self.commands.recv_many(&mut commands, REQUESTS_PER_COMMIT) => {
                    if taken == 0 {
                        break;
                    }
                }
                _ = ticks.tick() => {}
            }
            self.turn(&mut commands).await?;
        }
        self.commands.close();
        while self.commands.recv_many(&mut commands, REQUESTS_PER_COMMIT).await > 0 {
            self.turn(&mut commands).await?;
        }
        self.refuse_waiting(&shutting_down());
        match self.stuck {
            // Nothing of it was acknowledged.
            Some((refusal, _)) => Err(CoordinatorError::Stopped(refusal.message)),
            None => Ok(()),
        }
    }

    /// Takes everything in `commands` at one time, decides what follows, persists what follows in one commit, and answers.
    async fn turn(&mut self, commands: &mut Vec<Command>) -> Result<(), CoordinatorError> {
        if self.stuck.is_some() {
            self.try_again().await?;
        }
        if let Some((refusal, _)) = &self.stuck {
            for command in commands.drain(..) {
                match command {
                    // Who no longer waits needs no answer.
                    Command::Ask { reply, .. } => drop(reply.send(Reply::Refused(refusal.clone()))),
                    Command::Observe { reply } => {
                        let _ = reply.send((self.now, Box::new(self.cluster.samples())));
                    }
                    // Told again with the next plan that differs.
                    Command::Share { .. } => {}
                }
            }
            return Ok(());
        }
        self.now = self.clock.advance();
        let mut ready = Ready::default();
        for command in commands.drain(..) {
            self.step(command, &mut ready);
        }
        self.cluster.step(self.now, Input::Tick, &mut ready);
        for record in &ready.records {
            self.gauges.on_record(record);
        }
        self.gauges.publish(self.now, self.worker_lease_ms);
        self.pending.manifests.append(&mut ready.manifests);
        self.pending.records.append(&mut ready.records);
        self.persist().await?;
        if self.stuck.is_none() {
            for (request, reply) in ready.replies {
                if let Some(waiting) = self.waiting.remove(&request) {
                    let _ = waiting.send(reply);
                }
            }
            self.compact_if_due().await?;
        }
        Ok(())
    }

    fn step(&mut self, command: Command, ready: &mut Ready) {
        match command {
            Command::Ask { request, reply } => self.ask(request, reply, ready),
            Command::Observe { reply } => {
                let _ = reply.send((self.now, Box::new(self.cluster.samples())));
            }
            Command::Share { shares } => self.cluster.take(self.now, Input::Shares { shares }, ready),
        }
    }

    fn ask(&mut self, asked: Request, reply: oneshot::Sender<Reply>, ready: &mut Ready) {
        let request = self.next_request;
        self.next_request += 1;
        self.waiting.insert(request, reply);
        if let Request::Worker(report) = &asked {
            self.gauges.on_worker(report.worker, self.now);
        }
        self.cluster.take(self.now, asked.into_input(request), ready);
    }

    /// Tries once in every tick to persist what is pending.
    async fn try_again(&mut self) -> Result<(), CoordinatorError> {
        if self.stuck.as_ref().is_some_and(|(_, tried)| tried.elapsed() < self.tick) {
            return Ok(());
        }
        self.persist().await?;
        if self.stuck.is_none() {
            tracing::info!("the coordinator's log can be written again");
            // The time in between was the coordinator's silence, not its workers'.
            self.now = self.clock.advance();
        }
        Ok(())
    }

    /// Persists what is pending. Where that fails, everyone who waits is refused.
    async fn persist(&mut self) -> Result<(), CoordinatorError> {
        if self.pending.manifests.is_empty() && self.pending.records.is_empty() {
            self.stuck = None;
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        let store = Arc::clone(&self.store);
        let (pending, written) = self
            .with_log(move |log| {
                let written = write(&pending, &store, log);
                (pending, written)
            })
            .await?;
        match written {
            Ok(()) => {
                Gauges::count(&pending.records);
                self.stuck = None;
            }
            Err(message) => {
                if self.stuck.is_none() {
                    tracing::error!("{message}");
                }
                self.pending = pending;
                let refusal = Refusal::new(RefusalKind::Unavailable, message);
                self.refuse_waiting(&refusal);
                self.stuck = Some((refusal, Instant::now()));
            }
        }
        Ok(())
    }

    async fn compact_if_due(&mut self) -> Result<(), CoordinatorError> {
        if !self.log.as_ref().is_some_and(|log| log.wants_compaction()) {
            return Ok(());
        }
        let snapshot = self.cluster.snapshot();
        if let Err(error) = self.with_log(move |log| log.compact(&snapshot)).await? {
            tracing::warn!(%error, "the log cannot be compacted; it goes on growing");
        }
        Ok(())
    }

    /// Runs `work` on the log where blocking is allowed.
    async fn with_log<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut dyn RecordLog) -> T + Send + 'static,
    ) -> Result<T, CoordinatorError> {
        let mut log =
            self.log.take().expect("put back by the last call, unless that failed and ended the driver");
        let worked = tokio::task::spawn_blocking(move || {
            let result = work(log.as_mut());
            (log, result)
        });
        let (log, result) = worked.await.map_err(|error| CoordinatorError::Stopped(error.to_string()))?;
        gauge!(LOG_BYTES).set(log.len_bytes() as f64);
        self.log = Some(log);
        Ok(result)
    }

    fn refuse_waiting(&mut self, refusal: &Refusal) {
        for (_, waiting) in self.waiting.drain() {
            let _ = waiting.send(Reply::Refused(refusal.clone()));
        }
    }
}

fn write(pending: &Pending, store: &IndexStore, log: &mut dyn RecordLog) -> Result<(), String> {
    for (key, manifest) in &pending.manifests {
        store.save(key, manifest)?;
    }
    let start = std::time::Instant::now();
    log.append(&pending.records).map_err(|error| error.to_string())?;
    histogram!(LOG_APPEND_SECONDS).record(start.elapsed().as_secs_f64());
    Ok(())
}

/// What a coordinator says that is about to end.
pub(crate) fn shutting_down() -> Refusal {
    Refusal::new(RefusalKind::Unavailable, "the coordinator is shutting down; try again once it is back")
}

#[cfg(test)]
mod tests;
