//! A scripted coordinator and scripted workers in this process. Each row of the dataset contains its own number.

mod worker;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use feedline_data::checkpoint::StepId;
use feedline_data::ids::{JobId, WorkerId};
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, JobSpec, JobState, PlannedSplit, Revision, ServiceError, ServiceErrorKind,
    SlotGrant, WorkerAddress,
};
use feedline_data::pipeline::{OrderMode, Pipeline, Remainder, Source};
use feedline_proto::{CoordinatorReply, CoordinatorRequest, CoordinatorService, WorkerService};
use tokio::sync::Notify;
use tokio::time::Duration;

use self::worker::FakeWorkerService;
pub(crate) use self::worker::{Act, FakeWorker};
use crate::workers::WorkerDirectory;

/// How long a report waits for a new plan.
const HOLD: Duration = Duration::from_millis(500);

pub(crate) fn layout(rows: u64, batch: u32, streams: u32, split_batches: u64) -> Layout {
    Layout {
        dataset_rows: rows,
        passes: 1,
        epochs: 1,
        streams,
        batch_rows: batch,
        remainder: Remainder::Emit,
        changes_rows: false,
        split_rows: split_batches * u64::from(batch),
        group_rows: batch,
        coordinated: false,
        runs: Default::default(),
        mix_changes: Vec::new(),
        unbounded: false,
        indivisible: false,
    }
}

pub(crate) fn spec(order: OrderMode) -> JobSpec {
    let pipeline = Pipeline::builder("p")
        .source(Source::text("d/*"))
        .batch(4)
        .order(order)
        .build()
        .expect("the pipeline is valid");
    JobSpec {
        tenant: String::new(),
        name: "run".to_owned(),
        pipeline,
        epochs: 1,
        virtual_consumers: 1,
        consumers: 1,
        start: None,
        audit: true,
        reindex: false,
        accept_reuploaded: false,
        accept_changed_pipeline: false,
        index_only: false,
        weight: 1.0,
        elastic: false,
    }
}

/// The number of a row over all epochs.
pub(crate) fn number(layout: &Layout, split: SplitRef, offset: u32) -> u64 {
    u64::from(split.epoch) * layout.epoch_rows() + layout.split_range(split).start + u64::from(offset)
}

/// A coordinator with one consumer. A script determines its plans.
pub(crate) struct FakeCoordinator {
    layout: Layout,
    relaxed: bool,
    script: Mutex<Script>,
    changed: Notify,
}

/// The reports that a [`FakeCoordinator`] has received, and the content of its plans.
pub(crate) struct Script {
    pub(crate) state: JobState,
    pub(crate) workers: Vec<WorkerId>,
    /// Whether each split has one of the workers in turn, instead of all.
    pub(crate) is_spread: bool,
    /// Maximum number of splits of each stream in a plan.
    pub(crate) most_splits: u32,
    /// Consumers of the job, including those that do not exist.
    pub(crate) consumers: u32,
    /// Steps at which a client queries the position of the consumer.
    pub(crate) step_queries: Vec<StepId>,
    /// The error that the coordinator returns.
    pub(crate) error: Option<ServiceError>,
    pub(crate) reports: Vec<ConsumerReport>,
    pub(crate) positions: Vec<StreamPosition>,
    /// Elastic jobs: the consumer's slots, each with its generation and whether it is revoked.
    pub(crate) slots: Option<BTreeMap<u32, (u64, bool)>>,
    /// Relaxed mode: splits of the consumer, and the next undelivered offset of each.
    pub(crate) held: BTreeMap<SplitRef, u32>,
    /// Relaxed mode: the first unassigned split.
    pub(crate) next: Option<SplitRef>,
    revision: u64,
}

impl FakeCoordinator {
    pub(crate) fn new(layout: Layout, relaxed: bool, workers: &[u64]) -> Arc<Self> {
        let script = Script {
            state: JobState::Running,
            workers: workers.iter().map(|&worker| WorkerId(worker)).collect(),
            is_spread: false,
            most_splits: u32::MAX,
            consumers: 1,
            step_queries: Vec::new(),
            error: None,
            reports: Vec::new(),
            positions: vec![StreamPosition::default(); layout.streams as usize],
            slots: None,
            held: BTreeMap::new(),
            next: Some(SplitRef { epoch: 0, ordinal: 0, stream: 0 }),
            revision: 1,
        };
        Arc::new(Self { layout, relaxed, script: Mutex::new(script), changed: Notify::new() })
    }

    /// Changes or reads the script.
    pub(crate) fn script<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        let mut script = locked(&self.script);
        script.revision += 1;
        let result = change(&mut script);
        self.changed.notify_waiters();
        result
    }

    fn on_report(&self, script: &mut Script, report: &ConsumerReport) {
        let before = (script.positions.clone(), script.held.clone());
        script.reports.push(report.clone());
        if let Some(message) = &report.batch_error {
            let failed = JobState::Failed(message.clone());
            script.revision += u64::from(script.state != failed);
            script.state = failed;
            return;
        }
        for (stream, position) in &report.positions {
            script.positions[*stream as usize] = *position;
        }
        if let Some(slots) = &mut script.slots {
            for claim in &report.slots.claims {
                if slots.get(&claim.stream).is_some_and(|(generation, _)| *generation == claim.generation) {
                    script.positions[claim.stream as usize] = claim.position;
                    if claim.stopped {
                        slots.remove(&claim.stream);
                        script.revision += 1;
                    }
                }
            }
        }
        for (split, offset) in &report.open_splits {
            if let Some(held) = script.held.get_mut(split) {
                *held = (*held).max(*offset);
            }
        }
        script.held.retain(|split, offset| *offset < self.layout.split_len(*split));
        while self.relaxed
            && script.held.len() < report.wanted_splits.min(script.most_splits) as usize
            && let Some(split) = script.next
        {
            script.held.insert(split, 0);
            script.next = self.layout.next_split(split);
        }
        let streams = (0..).zip(&script.positions);
        let done = if self.relaxed {
            script.held.is_empty() && script.next.is_none()
        } else {
            streams.clone().all(|(stream, position)| self.layout.is_end(stream, *position))
        };
        if done && script.state == JobState::Running {
            script.state = JobState::Completed;
            script.revision += 1;
        }
        script.revision += u64::from(before != (script.positions.clone(), script.held.clone()));
    }

    fn plan(&self, script: &Script, wants: u32) -> ConsumerPlan {
        let mut splits: Vec<(SplitRef, u32)> = Vec::new();
        if self.relaxed {
            splits.extend(script.held.iter().map(|(split, from)| (*split, *from)));
        } else {
            for (stream, position) in (0..).zip(&script.positions) {
                let mut next = self.layout.locate(stream, self.layout.normalise(stream, *position));
                for _ in 0..wants.min(script.most_splits) {
                    let Some((split, from)) = next else { break };
                    splits.push((split, from));
                    next = self.layout.next_split(split).map(|split| (split, 0));
                }
            }
        }
        let workers: Vec<_> =
            script.workers.iter().map(|worker| (*worker, WorkerAddress::new(address(worker.0)))).collect();
        let planned = |(split, from): (SplitRef, u32)| {
            let mut workers = workers.clone();
            if script.is_spread && !workers.is_empty() {
                let holder = split.ordinal as usize % workers.len();
                workers = vec![workers.swap_remove(holder)];
            }
            PlannedSplit { split, start_offset: from, workers }
        };
        ConsumerPlan {
            revision: Revision { incarnation: 1, number: script.revision },
            state: script.state.clone(),
            layout: (!matches!(script.state, JobState::Preparing { .. })).then(|| self.layout.clone()),
            streams: if self.relaxed || script.slots.is_some() {
                Vec::new()
            } else {
                (0..).zip(script.positions.iter().copied()).collect()
            },
            splits: splits.into_iter().map(planned).collect(),
            exhausted: self.relaxed && script.next.is_none(),
            max_splits: script.most_splits,
            consumers: script.consumers,
            ticket: String::new(),
            slots: script.slots.as_ref().map(|slots| slots.iter().map(|slot| grant(script, slot)).collect()),
            has_rows: true,
            step_queries: script.step_queries.clone(),
            growth: None,
        }
    }
}

#[async_trait]
impl CoordinatorService for FakeCoordinator {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        match request {
            CoordinatorRequest::OpenJob { .. } => match self.script(|script| script.error.clone()) {
                Some(error) => Err(error),
                None => Ok(CoordinatorReply::OpenJob(JobId(1))),
            },
            CoordinatorRequest::CancelJob { .. } => {
                self.script(|script| script.state = JobState::Cancelled);
                Ok(CoordinatorReply::CancelJob(()))
            }
            CoordinatorRequest::SyncConsumer { report } => {
                self.sync(*report).await.map(CoordinatorReply::SyncConsumer)
            }
            other => panic!("no test sends {other:?}"),
        }
    }
}

impl FakeCoordinator {
    async fn sync(&self, report: ConsumerReport) -> Result<ConsumerPlan, ServiceError> {
        let changed = self.changed.notified();
        {
            let mut script = locked(&self.script);
            if let Some(error) = &script.error {
                return Err(error.clone());
            }
            self.on_report(&mut script, &report);
            if report.plan_revision.number != script.revision {
                return Ok(self.plan(&script, report.wanted_splits));
            }
        }
        // Waits for a change of the script.
        let _ = tokio::time::timeout(HOLD, changed).await;
        let script = locked(&self.script);
        match &script.error {
            Some(error) => Err(error.clone()),
            None => Ok(self.plan(&script, report.wanted_splits)),
        }
    }
}

fn grant(script: &Script, (stream, (generation, release)): (&u32, &(u64, bool))) -> SlotGrant {
    let position = script.positions[*stream as usize];
    SlotGrant { stream: *stream, generation: *generation, position, release: *release }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test panics with a lock")
}

fn address(worker: u64) -> String {
    format!("http://w{worker}")
}

/// Workers by number.
#[derive(Default)]
pub(crate) struct FakeWorkers(HashMap<String, Arc<FakeWorker>>);

impl FakeWorkers {
    pub(crate) fn new(workers: impl IntoIterator<Item = (u64, Arc<FakeWorker>)>) -> Arc<Self> {
        Arc::new(Self(workers.into_iter().map(|(number, worker)| (address(number), worker)).collect()))
    }
}

impl WorkerDirectory for FakeWorkers {
    fn worker(&self, address: &WorkerAddress) -> Result<Arc<dyn WorkerService>, ServiceError> {
        let missing = || ServiceError::new(ServiceErrorKind::Invalid, format!("no worker at {address}"));
        let worker = self.0.get(&address.url).ok_or_else(missing)?;
        Ok(Arc::new(FakeWorkerService(Arc::clone(worker))))
    }
}
