//! The load of `feedline bench decisions`: workers and consumers that only send reports. They immediately report each
//! leased split as computed and delivered.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use feedline_command::Failure;
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

/// Pause of a worker or consumer after a failed request.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Number of splits that a consumer requests for each of its streams.
const REQUESTED_SPLITS: u32 = 4;
/// Number of blocks in the dataset. No measurement delivers all of them.
const BLOCKS: u64 = 1_000;
const BLOCK_ROWS: u32 = 1_000_000;
const ROW_BYTES: u64 = 100;
/// Interval between the reports of a consumer with a limited pace.
const PACED_REPORT_INTERVAL: Duration = Duration::from_millis(10);
/// Shape of the jobs that are opened to measure latencies. No consumer joins them.
const LATENCY_JOB: JobShape = JobShape { consumers: 1, streams: 8 };

/// Settings and counters of the load.
#[derive(Default)]
pub(super) struct Load {
    /// Maximum splits per second of each consumer; `None` means unlimited.
    pace: Option<f64>,
    /// Number of splits leased since the last reset.
    grants: AtomicU64,
    /// Number of splits leased since the start.
    total_grants: AtomicU64,
    /// Number of reports answered since the last reset.
    reports: AtomicU64,
    /// Number of consumers that have received a split.
    active_consumers: watch::Sender<u32>,
    shape: JobShape,
}

/// Number of consumers and streams of a job.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct JobShape {
    pub(super) consumers: u32,
    pub(super) streams: u32,
}

impl Load {
    /// Creates a load whose consumers consume at most `pace` splits per second each.
    pub(super) fn new(pace: Option<f64>, shape: JobShape) -> Self {
        Self { pace, shape, ..Self::default() }
    }

    /// Waits until `consumers` consumers have received a split.
    pub(super) async fn wait_for_consumers(&self, consumers: u32) {
        // `self` owns the sender, so the channel stays open.
        let _ = self.active_consumers.subscribe().wait_for(|active| *active >= consumers).await;
    }

    /// Resets the counters that [`Self::counters`] returns.
    pub(super) fn reset_counters(&self) {
        self.grants.store(0, Ordering::Relaxed);
        self.reports.store(0, Ordering::Relaxed);
    }

    /// Returns the number of splits leased since the start.
    pub(super) fn total_grants(&self) -> u64 {
        self.total_grants.load(Ordering::Relaxed)
    }

    /// Returns the numbers of splits leased and of reports answered since the last reset.
    pub(super) fn counters(&self) -> (u64, u64) {
        (self.grants.load(Ordering::Relaxed), self.reports.load(Ordering::Relaxed))
    }

    /// Runs a worker, which reports every leased split as computed.
    pub(super) async fn run_worker(self: Arc<Self>, coordinator: Arc<dyn CoordinatorService>, number: u32) {
        let (mut seen, mut tasks) = (Revision::default(), Vec::new());
        let mut held: BTreeSet<Lease> = BTreeSet::new();
        loop {
            let report = WorkerReport {
                worker: WorkerId(1 + u64::from(number)),
                address: format!("http://127.0.0.1:1/{number}"),
                tls_name: None,
                pool: String::new(),
                cores: 1,
                memory_bytes: 1 << 30,
                machine: String::new(),
                nic_bytes_per_s: 0,
                plan_revision: seen,
                computed: held.iter().map(|lease| (lease.job, lease.split)).collect(),
                memory_full: false,
                draining: false,
                tasks: std::mem::take(&mut tasks),
                task_progress: Vec::new(),
                elapsed_ns: 0,
                cpu: ProcessCpu::default(),
                stats: Vec::new(),
                caches: Vec::new(),
                memory: Vec::new(),
                stores: Vec::new(),
                graphs: None,
            };
            let Ok(plan) = coordinator.sync_worker(report).await else {
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            };
            self.reports.fetch_add(1, Ordering::Relaxed);
            seen = plan.revision;
            tasks = plan.tasks.iter().map(prepare).collect();
            let known: BTreeSet<_> = held.iter().map(|lease| (lease.job, lease.split)).collect();
            held = plan.leases.into_iter().collect();
            let new = held.iter().filter(|lease| !known.contains(&(lease.job, lease.split))).count();
            self.grants.fetch_add(new as u64, Ordering::Relaxed);
            self.total_grants.fetch_add(new as u64, Ordering::Relaxed);
        }
    }

    /// Runs a consumer of a job. It opens the job, unless another consumer has opened it.
    pub(super) async fn run_consumer(
        self: Arc<Self>,
        coordinator: Arc<dyn CoordinatorService>,
        number: u32,
        consumer: u32,
    ) {
        let job = loop {
            match coordinator.open_job(spec(&format!("load {number}"), self.shape)).await {
                Ok(job) => break job,
                Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        };
        let (mut seen, mut positions, mut is_active) = (Revision::default(), Vec::new(), false);
        let (started, mut taken) = (Instant::now(), 0);
        loop {
            let report = report(job, consumer, seen, &positions);
            let Ok(plan) = coordinator.sync_consumer(report).await else {
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            };
            self.reports.fetch_add(1, Ordering::Relaxed);
            seen = plan.revision;
            let max_splits = match self.pace {
                None => usize::MAX,
                Some(pace) => {
                    tokio::time::sleep(PACED_REPORT_INTERVAL).await;
                    ((started.elapsed().as_secs_f64() * pace) as usize).saturating_sub(taken)
                }
            };
            taken += deliver(&plan, &mut positions, max_splits);
            if !is_active && !plan.splits.is_empty() {
                is_active = true;
                self.active_consumers.send_modify(|active| *active += 1);
            }
        }
    }

    /// Opens and cancels jobs, one at a time, and returns the time that each took to open.
    pub(super) async fn measure_latencies(
        &self,
        coordinator: &dyn CoordinatorService,
        time: Duration,
    ) -> Result<Vec<Duration>, Failure> {
        let (mut latencies, started) = (Vec::new(), Instant::now());
        while started.elapsed() < time {
            let requested = Instant::now();
            let spec = spec(&format!("latency {}", latencies.len()), LATENCY_JOB);
            let job = coordinator.open_job(spec).await;
            let job = job.map_err(|error: ServiceError| Failure::failed(error))?;
            latencies.push(requested.elapsed());
            coordinator.cancel_job(job).await?;
        }
        Ok(latencies)
    }
}

fn spec(name: &str, shape: JobShape) -> JobSpec {
    let pipeline = Pipeline::builder("load").source(Source::text("load/*")).batch(64).build();
    JobSpec {
        tenant: String::new(),
        name: name.to_owned(),
        pipeline: pipeline.expect("the pipeline is valid"),
        epochs: 1_000,
        virtual_consumers: shape.streams,
        consumers: shape.consumers,
        start: None,
        audit: false,
        reindex: false,
        accept_reuploaded: false,
        accept_changed_pipeline: false,
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
        plan_revision: seen,
        positions: positions.to_vec(),
        open_splits: Vec::new(),
        wanted_splits: REQUESTED_SPLITS,
        unreachable: Vec::new(),
        batch_error: None,
        stats: ConsumerStats::default(),
        slots: Default::default(),
        history: Default::default(),
        known_growth: feedline_data::growth::KnownGrowth::default(),
    }
}

/// Advances the positions past at most `max_splits` splits that workers have leased. Returns the number of splits.
fn deliver(plan: &ConsumerPlan, positions: &mut Vec<(u32, StreamPosition)>, max_splits: usize) -> usize {
    let Some(layout) = &plan.layout else { return 0 };
    let (mut streams, mut taken) = (plan.streams.clone(), 0);
    for (stream, position) in &mut streams {
        let own = positions.iter().find(|(other, _)| other == stream).map(|(_, position)| *position);
        *position = own.map_or(*position, |own| own.max(*position));
        for planned in plan.splits.iter().filter(|it| it.split.stream == *stream && !it.workers.is_empty()) {
            let is_next = layout.locate(*stream, *position).is_some_and(|(split, _)| split == planned.split);
            if is_next && taken < max_splits {
                *position = layout.position_in(planned.split, layout.split_len(planned.split));
                taken += 1;
            }
        }
    }
    *positions = streams;
    taken
}

/// Answers a listing or indexing task with a dataset of one large shard.
fn prepare(task: &Task) -> TaskResult {
    let output = match &task.shards {
        None => TaskOutput::Listed(vec![ShardRef {
            url: "file:///load/0".to_owned(),
            size_bytes: BLOCKS * u64::from(BLOCK_ROWS) * ROW_BYTES,
            version: "1".to_owned(),
            ..ShardRef::default()
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
                ..ShardIndex::default()
            };
            TaskOutput::Indexed(shards.iter().map(|_| index().into()).collect())
        }
    };
    TaskResult { id: task.id, outcome: Ok(output) }
}
