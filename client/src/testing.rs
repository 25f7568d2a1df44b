//! A coordinator and workers for tests: scripted, in this process, over a dataset whose rows carry their own number.

mod worker;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use feedline_data::checkpoint::StepId;
use feedline_data::ids::{JobId, WorkerId};
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, JobSpec, JobState, PlannedSplit, Revision, ServiceError, ServiceErrorKind,
    SlotGrant,
};
use feedline_data::pipeline::{OrderMode, Pipeline, Remainder, Source};
use feedline_proto::{CoordinatorReply, CoordinatorRequest, CoordinatorService, WorkerService};
use tokio::sync::Notify;
use tokio::time::Duration;

use self::worker::Served;
pub(crate) use self::worker::{Act, FakeWorker};
use crate::workers::WorkerDirectory;

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
        mix: Vec::new(),
    }
}

pub(crate) fn spec(order: OrderMode) -> JobSpec {
    let pipeline = Pipeline::builder("p")
        .source(Source::text("d/*"))
        .batch(4)
        .order(order)
        .build()
        .expect("a good pipeline");
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
        index_only: false,
        weight: 1.0,
        elastic: false,
    }
}

/// The number of a row over all epochs.
pub(crate) fn number(layout: &Layout, split: SplitRef, offset: u32) -> u64 {
    u64::from(split.epoch) * layout.epoch_rows() + layout.split_range(split).start + u64::from(offset)
}

/// A coordinator with one consumer, which tells every split's workers as the test set them.
pub(crate) struct FakeCoordinator {
    layout: Layout,
    relaxed: bool,
    told: Mutex<Told>,
    changed: Notify,
}

/// What a [`FakeCoordinator`] was told and tells.
pub(crate) struct Told {
    pub(crate) state: JobState,
    pub(crate) workers: Vec<WorkerId>,
    /// Splits that a plan has at most, of each stream.
    pub(crate) most_splits: u32,
    /// Consumers of the job, of which this tells one.
    pub(crate) consumers: u32,
    /// Steps at which somebody asks where the consumer stands.
    pub(crate) asked: Vec<StepId>,
    /// Why nothing is answered.
    pub(crate) refusing: Option<ServiceError>,
    pub(crate) reports: Vec<ConsumerReport>,
    pub(crate) positions: Vec<StreamPosition>,
    /// Elastic jobs: the consumer's slots, each with its generation and whether it is to be released.
    pub(crate) slots: Option<BTreeMap<u32, (u64, bool)>>,
    /// Relaxed mode: splits that the consumer holds, and the next undelivered offset of each.
    pub(crate) held: BTreeMap<SplitRef, u32>,
    /// Relaxed mode: the first split that nobody has taken.
    pub(crate) next: Option<SplitRef>,
    revision: u64,
}

impl FakeCoordinator {
    pub(crate) fn new(layout: Layout, relaxed: bool, workers: &[u64]) -> Arc<Self> {
        let told = Told {
            state: JobState::Running,
            workers: workers.iter().map(|&worker| WorkerId(worker)).collect(),
            most_splits: u32::MAX,
            consumers: 1,
            asked: Vec::new(),
            refusing: None,
            reports: Vec::new(),
            positions: vec![StreamPosition::default(); layout.streams as usize],
            slots: None,
            held: BTreeMap::new(),
            next: Some(SplitRef { epoch: 0, ordinal: 0, stream: 0 }),
            revision: 1,
        };
        Arc::new(Self { layout, relaxed, told: Mutex::new(told), changed: Notify::new() })
    }

    /// Changes or reads what is told.
    pub(crate) fn tell<T>(&self, change: impl FnOnce(&mut Told) -> T) -> T {
        let mut told = locked(&self.told);
        told.revision += 1;
        let result = change(&mut told);
        self.changed.notify_waiters();
        result
    }

    fn on_report(&self, told: &mut Told, report: &ConsumerReport) {
        let before = (told.positions.clone(), told.held.clone());
        told.reports.push(report.clone());
        if let Some(message) = &report.failed {
            told.state = JobState::Failed(message.clone());
            told.revision += 1;
            return;
        }
        for (stream, position) in &report.positions {
            told.positions[*stream as usize] = *position;
        }
        if let Some(slots) = &mut told.slots {
            for claim in &report.slots.claims {
                if slots.get(&claim.stream).is_some_and(|(generation, _)| *generation == claim.generation) {
                    told.positions[claim.stream as usize] = claim.position;
                    if claim.stopped {
                        slots.remove(&claim.stream);
                        told.revision += 1;
                    }
                }
            }
        }
        for (split, offset) in &report.open {
            if let Some(held) = told.held.get_mut(split) {
                *held = (*held).max(*offset);
            }
        }
        told.held.retain(|split, offset| *offset < self.layout.split_len(*split));
        while self.relaxed
            && told.held.len() < report.wants.min(told.most_splits) as usize
            && let Some(split) = told.next
        {
            told.held.insert(split, 0);
            told.next = self.layout.next_split(split);
        }
        let streams = (0..).zip(&told.positions);
        let done = if self.relaxed {
            told.held.is_empty() && told.next.is_none()
        } else {
            streams.clone().all(|(stream, position)| self.layout.is_end(stream, *position))
        };
        if done && told.state == JobState::Running {
            told.state = JobState::Completed;
            told.revision += 1;
        }
        told.revision += u64::from(before != (told.positions.clone(), told.held.clone()));
    }

    fn plan(&self, told: &Told, wants: u32) -> ConsumerPlan {
        let mut splits: Vec<(SplitRef, u32)> = Vec::new();
        if self.relaxed {
            splits.extend(told.held.iter().map(|(split, from)| (*split, *from)));
        } else {
            for (stream, position) in (0..).zip(&told.positions) {
                let mut next = self.layout.locate(stream, self.layout.normalise(stream, *position));
                for _ in 0..wants.min(told.most_splits) {
                    let Some((split, from)) = next else { break };
                    splits.push((split, from));
                    next = self.layout.next_split(split).map(|split| (split, 0));
                }
            }
        }
        let workers: Vec<_> = told.workers.iter().map(|worker| (*worker, address(worker.0))).collect();
        let planned = |(split, from)| PlannedSplit { split, from, workers: workers.clone() };
        ConsumerPlan {
            revision: Revision { life: 1, number: told.revision },
            state: told.state.clone(),
            layout: (!matches!(told.state, JobState::Preparing { .. })).then(|| self.layout.clone()),
            streams: if self.relaxed || told.slots.is_some() {
                Vec::new()
            } else {
                (0..).zip(told.positions.iter().copied()).collect()
            },
            splits: splits.into_iter().map(planned).collect(),
            exhausted: self.relaxed && told.next.is_none(),
            most_splits: told.most_splits,
            consumers: told.consumers,
            ticket: String::new(),
            slots: told.slots.as_ref().map(|slots| slots.iter().map(|slot| grant(told, slot)).collect()),
            step_queries: told.asked.clone(),
        }
    }
}

#[async_trait]
impl CoordinatorService for FakeCoordinator {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        match request {
            CoordinatorRequest::OpenJob { .. } => match self.tell(|told| told.refusing.clone()) {
                Some(refusal) => Err(refusal),
                None => Ok(CoordinatorReply::OpenJob(JobId(1))),
            },
            CoordinatorRequest::CancelJob { .. } => {
                self.tell(|told| told.state = JobState::Cancelled);
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
            let mut told = locked(&self.told);
            if let Some(refusal) = &told.refusing {
                return Err(refusal.clone());
            }
            self.on_report(&mut told, &report);
            if report.seen.number != told.revision {
                return Ok(self.plan(&told, report.wants));
            }
        }
        // Held back until something changes.
        let _ = tokio::time::timeout(HOLD, changed).await;
        let told = locked(&self.told);
        match &told.refusing {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(self.plan(&told, report.wants)),
        }
    }
}

fn grant(told: &Told, (stream, (generation, release)): (&u32, &(u64, bool))) -> SlotGrant {
    let position = told.positions[*stream as usize];
    SlotGrant { stream: *stream, generation: *generation, position, release: *release }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test panics while it holds a lock")
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
    fn worker(&self, address: &str) -> Result<Arc<dyn WorkerService>, ServiceError> {
        let missing = || ServiceError::new(ServiceErrorKind::Invalid, format!("no worker at {address}"));
        let worker = self.0.get(address).ok_or_else(missing)?;
        Ok(Arc::new(Served(Arc::clone(worker))))
    }
}
