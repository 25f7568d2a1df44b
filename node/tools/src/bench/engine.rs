//! `feedline bench engine`: measures the CPU time per batch of a worker's engine, with one stream and with many
//! streams, and the time that threads wait for the engine's lock. The rows of the benchmark need no processing.

mod coordinator;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use feedline_command::output::ReportFormat;
use feedline_command::{Failure, process_cpu_time};
use feedline_data::ids::WorkerId;
use feedline_data::layout::SplitRef;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::WorkerService;
use feedline_proto::services::{FetchOpen, FetchRequest, Frame};
use feedline_worker::{ObjectAccess, ProcessClock, RunningWorker, WorkerSettings};
use futures::StreamExt;
use serde::Serialize;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;

use self::coordinator::{BATCH_ROWS, JOB, LeaseCoordinator, internal};
use super::load_threads::{LoadThreads, load_cpu_time};

/// Memory budget of the worker.
const MEMORY_BYTES: u64 = 4 << 30;
/// Warm-up time before each measurement.
const WARM_UP: Duration = Duration::from_secs(2);
/// Credit of a fetch, which is larger than any split.
const CREDIT_BYTES: u64 = 1 << 40;

/// Arguments of `feedline bench engine`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Example:\n  feedline bench engine --streams 4096 --cores 64 --report json")]
pub(super) struct EngineArgs {
    /// Number of streams to compare with one stream.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(2..=65_536))]
    streams: u32,
    /// Number of threads of the worker's CPU pool, and of its runtime.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    cores: u32,
    /// Repetitions for each number of streams, interleaved; the report shows the median.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: u32,
    /// Duration of each repetition in seconds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Format of the report; json prints one object on one line.
    #[arg(long, alias = "format", value_enum, value_name = "FORMAT", default_value_t)]
    report: ReportFormat,
}

/// The report. Field names are the keys of the JSON report.
#[derive(Debug, Serialize)]
struct EngineReport {
    cores: u32,
    streams: u32,
    one_stream: EngineCost,
    many_streams: EngineCost,
    /// CPU time per batch with many streams, divided by the CPU time per batch with one stream.
    cost_ratio: f64,
}

/// Costs of the engine with a given number of streams.
#[derive(Debug, Clone, Copy, Serialize)]
struct EngineCost {
    batches_per_s: f64,
    cpu_us_per_batch: f64,
    /// Time that threads wait for the engine's lock, divided by the sum of this time and their CPU time.
    lock_wait_share: f64,
}

/// Runs the benchmark and prints its report.
pub(super) async fn run(args: EngineArgs) -> Result<(), Failure> {
    let scratch = tempfile::tempdir()
        .map_err(|error| Failure::failed(format!("cannot create a temporary directory: {error}")))?;
    let text = scratch.path().join("rows.txt");
    coordinator::write_rows(&text)
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", text.display())))?;
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for _ in 0..args.turns {
        one.push(measure(&args, 1, &text).await?);
        many.push(measure(&args, args.streams, &text).await?);
    }
    let (one_stream, many_streams) = (EngineCost::median(&one), EngineCost::median(&many));
    let cost_ratio = many_streams.cpu_us_per_batch / one_stream.cpu_us_per_batch;
    let report =
        EngineReport { cores: args.cores, streams: args.streams, one_stream, many_streams, cost_ratio };
    args.report.print(&report, EngineReport::text)
}

impl EngineCost {
    fn median(turns: &[Self]) -> Self {
        let median = |value: fn(&Self) -> f64| {
            let mut values: Vec<f64> = turns.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Self {
            batches_per_s: median(|cost| cost.batches_per_s),
            cpu_us_per_batch: median(|cost| cost.cpu_us_per_batch),
            lock_wait_share: median(|cost| cost.lock_wait_share),
        }
    }

    fn text(&self, streams: u32) -> String {
        let (rate, cost) = (self.batches_per_s, self.cpu_us_per_batch);
        format!("{streams:>8} {rate:>12.0} {cost:>18.1} {:>12.1} %\n", 100.0 * self.lock_wait_share)
    }
}

impl EngineReport {
    fn text(&self) -> String {
        let (one, many) = (self.one_stream.text(1), self.many_streams.text(self.streams));
        let title = " streams    batches/s   CPU us per batch     lock waits";
        format!("{title}\n{one}{many}CPU time per batch, relative to one stream: {:.2}\n", self.cost_ratio)
    }
}

/// One repetition. The worker has its own runtime. The coordinator and the consumers run on the load threads.
struct Repetition {
    worker: RunningWorker,
    /// The worker's threads.
    runtime: Runtime,
    batches: Arc<AtomicU64>,
    consumers: JoinSet<Result<(), ServiceError>>,
    _load: LoadThreads,
}

impl Repetition {
    async fn start(args: &EngineArgs, streams: u32, text: &Path) -> Result<Self, Failure> {
        let no_threads =
            |error| Failure::failed(format!("cannot start threads: {error}; stop other processes"));
        let runtime = Builder::new_multi_thread()
            .worker_threads(args.cores as usize)
            .thread_name("feedline-engine")
            .enable_all()
            .build()
            .map_err(no_threads)?;
        let load = LoadThreads::start(2)?;
        let coordinator = Arc::new(LeaseCoordinator::new(text, streams));
        let worker = {
            let _guard = runtime.enter();
            let (settings, clock) = (worker_settings(args.cores), ProcessClock::new());
            let service = Arc::clone(&coordinator) as Arc<_>;
            feedline_worker::start(WorkerId(1), settings, clock, service).map_err(no_threads)?
        };
        let batches = Arc::new(AtomicU64::new(0));
        let mut consumers = JoinSet::new();
        for stream in 0..streams {
            let consumer = StreamConsumer {
                stream,
                coordinator: Arc::clone(&coordinator),
                worker: worker.service(),
                worker_threads: runtime.handle().clone(),
                batches: Arc::clone(&batches),
            };
            consumers.spawn_on(consumer.run(), load.handle());
        }
        Ok(Self { worker, runtime, batches, consumers, _load: load })
    }

    fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }
}

async fn measure(args: &EngineArgs, streams: u32, text: &Path) -> Result<EngineCost, Failure> {
    let mut repetition = Repetition::start(args, streams, text).await?;
    tokio::time::sleep(WARM_UP).await;
    let engine_cpu = || process_cpu_time().saturating_sub(load_cpu_time());
    let (started, batches, cpu) = (Instant::now(), repetition.batches(), engine_cpu());
    let lock_wait = repetition.worker.engine_lock_wait();
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let (seconds, batches) = (started.elapsed().as_secs_f64(), repetition.batches() - batches);
    let cpu = engine_cpu().saturating_sub(cpu).as_secs_f64();
    let lock_wait = (repetition.worker.engine_lock_wait() - lock_wait).as_secs_f64();
    if let Some(ended) = repetition.consumers.try_join_next() {
        ended.map_err(Failure::failed)?.map_err(Failure::failed)?;
    }
    repetition.consumers.abort_all();
    let Repetition { worker, runtime, .. } = repetition;
    worker.shutdown().await;
    runtime.shutdown_background();
    if batches == 0 {
        return Err(Failure::failed("the engine delivered no batch; use fewer --streams, or more --seconds"));
    }
    Ok(EngineCost {
        batches_per_s: batches as f64 / seconds,
        cpu_us_per_batch: 1e6 * cpu / batches as f64,
        lock_wait_share: lock_wait / (lock_wait + cpu),
    })
}

/// Fetches the splits of one stream, and discards the rows.
struct StreamConsumer {
    stream: u32,
    coordinator: Arc<LeaseCoordinator>,
    worker: Arc<dyn WorkerService>,
    worker_threads: Handle,
    batches: Arc<AtomicU64>,
}

impl StreamConsumer {
    async fn run(self) -> Result<(), ServiceError> {
        self.coordinator.wait_until_indexed().await;
        let mut next = Some(SplitRef { epoch: 0, ordinal: 0, stream: self.stream });
        while let Some(split) = next {
            match self.fetch(split).await {
                Ok(()) => next = self.coordinator.finish(split),
                // The worker received the lease too late, after the fetch had timed out.
                Err(error) if error.kind == ServiceErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn fetch(&self, split: SplitRef) -> Result<(), ServiceError> {
        let open = FetchOpen {
            job: JOB,
            split,
            start_offset: 0,
            credit_bytes: CREDIT_BYTES,
            ticket: String::new(),
            cached_features: Vec::new(),
        };
        let requests = futures::stream::once(async move { FetchRequest::Open(open) }).boxed();
        let worker = Arc::clone(&self.worker);
        // The fetch, and the groups that it starts, run on the worker's threads.
        let fetch = self.worker_threads.spawn(async move { worker.fetch(requests).await });
        let mut frames = fetch.await.map_err(|error| internal(error.to_string()))??;
        while let Some(frame) = frames.next().await {
            match frame? {
                Frame::Piece(header) => {
                    let batches = header.rows.div_ceil(BATCH_ROWS);
                    self.batches.fetch_add(u64::from(batches), Ordering::Relaxed);
                }
                Frame::Failed(message) => return Err(internal(message)),
                Frame::End => return Ok(()),
                Frame::Schema(_) | Frame::Chunk { .. } | Frame::Working => {}
            }
        }
        Err(internal("the fetch ended without its last frame"))
    }
}

fn worker_settings(cores: u32) -> WorkerSettings {
    WorkerSettings {
        address: "local:0".to_owned(),
        tls_name: None,
        pool: String::new(),
        machine: String::new(),
        nic_bytes_per_s: 0,
        cores,
        memory_bytes: MEMORY_BYTES,
        graph_memory_bytes: MEMORY_BYTES / 2,
        graph_disk: None,
        access: ObjectAccess::default(),
        cache_dir: None,
        row_cache: None,
        store_cache: None,
        max_fetches: u32::MAX,
        requires_tickets: false,
        functions: None,
        trace: false,
    }
}
