//! Workers and consumers that do nothing but report: whatever is leased is computed and delivered at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use feedline_data::ids::{JobId, SessionId, WorkerId};
use feedline_data::layout::StreamPosition;
use feedline_data::manifest::{Block, ShardIndex, ShardRef};
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, ConsumerStats, JobSpec, Lease, ProcessCpu, Revision, ServiceError, Task,
    TaskOutput, TaskResult, WorkerReport,
};
use feedline_data::pipeline::{Pipeline, Source};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use feedline_proto::CoordinatorService;
use tokio::sync::watch;

use crate::failure::Failure;

/// Pause of a worker or consumer that was refused.
const RETRY: Duration = Duration::from_millis(50);
/// Splits of each stream that its consumer asks for.
const WANTS: u32 = 4;
/// Blocks of the dataset, and their rows: more than are delivered in any measurement.
const BLOCKS: u64 = 1_000;
const BLOCK_ROWS: u32 = 1_000_000;
const ROW_BYTES: u64 = 100;

/// Time between two steps of consumers that take no more than they are asked for.
const STEP: Duration = Duration::from_millis(10);

/// What has happened so far.
#[derive(Default)]
pub(super) struct Load {
    /// Splits that each consumer takes per second; `None` as many as it can.
    pace: Option<f64>,
    grants: AtomicU64,
    /// Since the start.
    granted: AtomicU64,
    reports: AtomicU64,
    /// Consumers that deliver.
    begun: watch::Sender<u32>,
    shape: JobShape,
}

/// Who takes the rows of each job.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct JobShape {
    pub(super) consumers: u32,
    pub(super) streams: u32,
}

impl Load {
    /// Consumers that take so many splits per second each, or as many as they can.
    pub(super) fn new(pace: Option<f64>, shape: JobShape) -> Self {
        Self { pace, shape, ..Self::default() }
    }

    /// Waits until `consumers` deliver.
    pub(super) async fn begun(&self, consumers: u32) {
        // The other end is `self`'s, so it is there.
        let _ = self.begun.subscribe().wait_for(|begun| *begun >= consumers).await;
    }

    /// Counts from here on.
    pub(super) fn begin(&self) {
        self.grants.store(0, Ordering::Relaxed);
        self.reports.store(0, Ordering::Relaxed);
    }

    /// Splits leased since the start.
    pub(super) fn granted(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }

    /// Splits leased, and reports answered.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.grants.load(Ordering::Relaxed), self.reports.load(Ordering::Relaxed))
    }

    /// A worker.
    pub(super) async fn work(self: Arc<Self>, coordinator: Arc<dyn CoordinatorService>, number: u32) {
        let (mut seen, mut tasks) = (Revision::default(), Vec::new());
        let mut held: BTreeSet<Lease> = BTreeSet::new();
        loop {
            let report = WorkerReport {
                worker: WorkerId(1 + u64::from(number)),
                address: format!("http://127.0.0.1:1/{number}"),
                cores: 1,
                memory_bytes: 1 << 30,
                machine: String::new(),
                nic_bytes_per_s: 0,
                seen,
                computed: held.iter().map(|lease| (lease.job, lease.split)).collect(),
                memory_full: false,
                draining: false,
                tasks: std::mem::take(&mut tasks),
                elapsed_ns: 0,
                cpu: ProcessCpu::default(),
                stats: Vec::new(),
                caches: Vec::new(),
            };
            let Ok(plan) = coordinator.sync_worker(report).await else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            self.reports.fetch_add(1, Ordering::Relaxed);
            seen = plan.revision;
            tasks = plan.tasks.iter().map(prepare).collect();
            let known: BTreeSet<_> = held.iter().map(|lease| (lease.job, lease.split)).collect();
            held = plan.leases.into_iter().collect();
            let new = held.iter().filter(|lease| !known.contains(&(lease.job, lease.split))).count();
            self.grants.fetch_add(new as u64, Ordering::Relaxed);
            self.granted.fetch_add(new as u64, Ordering::Relaxed);
        }
    }

    /// One consumer of a job; the first one opens it.
    pub(super) async fn consume(
        self: Arc<Self>,
        coordinator: Arc<dyn CoordinatorService>,
        number: u32,
        consumer: u32,
    ) {
        let job = loop {
            match coordinator.open_job(spec(&format!("load {number}"), self.shape)).await {
                Ok(job) => break job,
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        };
        let (mut seen, mut positions, mut has_begun) = (Revision::default(), Vec::new(), false);
        let (started, mut taken) = (Instant::now(), 0);
        loop {
            let report = report(job, consumer, seen, &positions);
            let Ok(plan) = coordinator.sync_consumer(report).await else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            self.reports.fetch_add(1, Ordering::Relaxed);
            seen = plan.revision;
            let most = match self.pace {
                None => usize::MAX,
                Some(pace) => {
                    tokio::time::sleep(STEP).await;
                    ((started.elapsed().as_secs_f64() * pace) as usize).saturating_sub(taken)
                }
            };
            taken += deliver(&plan, &mut positions, most);
            if !has_begun && !plan.splits.is_empty() {
                has_begun = true;
                self.begun.send_modify(|begun| *begun += 1);
            }
        }
    }

    /// Opens and cancels jobs, one at a time: how long each took to be decided and kept.
    pub(super) async fn probe(
        &self,
        coordinator: &dyn CoordinatorService,
        time: Duration,
    ) -> Result<Vec<Duration>, Failure> {
        let (mut took, started) = (Vec::new(), Instant::now());
        while started.elapsed() < time {
            let asked = Instant::now();
            let job = coordinator.open_job(spec(&format!("probe {}", took.len()), PROBE)).await;
            let job = job.map_err(|refusal: ServiceError| Failure::failed(refusal))?;
            took.push(asked.elapsed());
            coordinator.cancel_job(job).await?;
        }
        Ok(took)
    }
}

/// Jobs that nobody consumes.
const PROBE: JobShape = JobShape { consumers: 1, streams: 8 };

fn spec(name: &str, shape: JobShape) -> JobSpec {
    let pipeline = Pipeline::builder("load").source(Source::text("load/*")).batch(64).build();
    JobSpec {
        tenant: String::new(),
        name: name.to_owned(),
        pipeline: pipeline.expect("nothing is wrong with it"),
        epochs: 1_000,
        virtual_consumers: shape.streams,
        consumers: shape.consumers,
        start: None,
        audit: false,
        reindex: false,
        index_only: false,
        weight: 1.0,
        elastic: false,
    }
}

fn report(job: JobId, consumer: u32, seen: Revision, positions: &[(u32, StreamPosition)]) -> ConsumerReport {
    ConsumerReport {
        job,
        consumer,
        session: SessionId(1),
        seen,
        positions: positions.to_vec(),
        open: Vec::new(),
        wants: WANTS,
        unreachable: Vec::new(),
        failed: None,
        stats: ConsumerStats::default(),
        slots: Default::default(),
        history: Default::default(),
    }
}

/// Takes what workers hold, at most so many splits; how many it took.
fn deliver(plan: &ConsumerPlan, positions: &mut Vec<(u32, StreamPosition)>, most: usize) -> usize {
    let Some(layout) = &plan.layout else { return 0 };
    let (mut streams, mut taken) = (plan.streams.clone(), 0);
    for (stream, position) in &mut streams {
        let own = positions.iter().find(|(other, _)| other == stream).map(|(_, position)| *position);
        *position = own.map_or(*position, |own| own.max(*position));
        for planned in plan.splits.iter().filter(|it| it.split.stream == *stream && !it.workers.is_empty()) {
            let is_next = layout.locate(*stream, *position).is_some_and(|(split, _)| split == planned.split);
            if is_next && taken < most {
                *position = layout.position_in(planned.split, layout.split_len(planned.split));
                taken += 1;
            }
        }
    }
    *positions = streams;
    taken
}

/// The dataset is one large shard.
fn prepare(task: &Task) -> TaskResult {
    let output = match &task.shards {
        None => TaskOutput::Listed(vec![ShardRef {
            url: "file:///load/0".to_owned(),
            size_bytes: BLOCKS * u64::from(BLOCK_ROWS) * ROW_BYTES,
            version: "1".to_owned(),
            part: 0,
        }]),
        Some(shards) => {
            let mut schema = Schema::default();
            schema.set("text", ColumnType::Scalar(ScalarType::Int64));
            let bytes = u64::from(BLOCK_ROWS) * ROW_BYTES;
            let block = |number: u64| Block {
                rows: BLOCK_ROWS,
                offset: number * bytes,
                bytes,
                group: 0,
                row_bytes: Vec::new(),
            };
            let index = || ShardIndex {
                blocks: (0..BLOCKS).map(block).collect(),
                schema: Some(schema.clone()),
                defects: Vec::new(),
            };
            TaskOutput::Indexed(shards.iter().map(|_| index()).collect())
        }
    };
    TaskResult { id: task.id, outcome: Ok(output) }
}
