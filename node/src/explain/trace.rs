//! Runs a job for several seconds, and observes the reports of its workers and its consumer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use feedline_client::{ClientSettings, Consumer, Job};
use feedline_coordinator::RunningCoordinator;
use feedline_data::ids::JobId;
use feedline_data::messages::JobSpec;
use feedline_data::messages::samples::{Samples, WorkerReportSample};
use feedline_data::pipeline::CacheTier;
use feedline_data::pipeline::Pipeline;
use feedline_planner::model::{CacheCapacity, JobModel, JobObservation, JobResources, WorkerTypeResources};
use feedline_planner::observe::{Observer, worker_type};
use feedline_planner::plan;
use feedline_planner::plan::{CachePolicy, Plan, PlannerSettings};
use tokio_util::sync::CancellationToken;

use super::long_runs::LongRuns;
use super::probe::{ArrivalWindow, ProbePhase};
use crate::cluster::LocalCluster;
use crate::entropy;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::run::consume::cancel_job;
use crate::trace_file::TraceInput;

/// Interval between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// Time after the first batch in which rows are not counted, because buffers and caches are filling.
const WARM_UP: Duration = Duration::from_millis(500);
/// Number of epochs of the traced job. It is so large that no trace reaches the end.
const TRACE_EPOCHS: u32 = 1_000_000;
/// Time limit for the planner.
const PLANNING_TIMEOUT: Duration = Duration::from_secs(2);

/// Limits of a trace, and the settings of its job.
#[derive(Debug, Clone, Copy)]
pub(super) struct TraceLimits {
    pub(super) rows: u64,
    pub(super) time: Duration,
    /// Time that the consumer spends on a batch.
    pub(super) step: Duration,
    /// Size of the disk cache of each worker.
    pub(super) disk_bytes: u64,
}

/// The observations of a trace.
pub(super) struct TraceResult {
    /// Rows delivered.
    pub(super) rows: u64,
    /// Time in which the rows were delivered, in seconds.
    pub(super) seconds: f64,
    /// Rows per second before the allocations were changed.
    pub(super) rows_per_s: f64,
    pub(super) model: JobModel,
    /// Resources that the job used.
    pub(super) resources: JobResources,
    /// Capacities of the available cache tiers.
    pub(super) cache_capacities: Vec<CacheCapacity>,
    /// The plan; `None` if the planner fails.
    pub(super) plan: Option<Plan>,
    /// The long runs of compressed files.
    pub(super) long_runs: Option<LongRuns>,
}

impl TraceResult {
    /// Returns the values to write to a trace file.
    pub(super) fn input(&self) -> TraceInput<'_> {
        let worker_type = self.resources.workers.first().map_or("", |share| share.worker_type.as_str());
        TraceInput { worker_type, rows: self.rows, seconds: self.seconds, model: &self.model }
    }
}

/// Runs a job until it reaches a limit.
///
/// # Errors
/// Returns an error if the job fails or delivers no rows.
pub(super) async fn trace(
    cluster: &LocalCluster,
    pipeline: Pipeline,
    limits: TraceLimits,
    stop: &CancellationToken,
) -> Result<TraceResult, Failure> {
    let window = pipeline.shuffle.window;
    let coordinator = cluster.local_coordinator().expect("a trace runs in this process");
    let name = format!("explain-{}-{}", pipeline.name, entropy::name_suffix());
    // A trace of new records only would measure how fast they arrive. The job itself reads each record once, and caches none.
    let is_unbounded = pipeline.source.is_unbounded();
    let cache_policy = if is_unbounded { CachePolicy::Never } else { CachePolicy::Free };
    let pipeline = Pipeline { source: pipeline.source.bounded(), ..pipeline };
    let spec = JobSpec { name, epochs: TRACE_EPOCHS, ..JobSpec::new(pipeline) };
    let progress = Progress::start();
    let job =
        Job::open(Arc::clone(&cluster.coordinator), cluster.directory(), spec, ClientSettings::default())
            .await?;
    let consumer = job.consumer(0, entropy::session_id());
    let traced =
        observe(coordinator, &job, consumer, (limits, cluster.local_worker_count()), stop, &progress).await;
    let long_runs = find_long_runs(cluster, &job, window).await;
    cancel_job(&job).await;
    let TraceObservation { observer, samples, first_half, rows, seconds, rows_per_s } = traced?;
    let long_runs = long_runs?;
    let waits_for_store = first_half.is_some() || observer.waits_for_store(job.id());
    let model = build_model(&observer, job.id(), first_half)
        .ok_or_else(|| Failure::failed("the trace received no rows: allow more time with --seconds"))?;
    // Rows that arrive in bursts are counted where they are computed.
    let rows_per_s = rows_per_s.unwrap_or(model.rows_per_s);
    let problem = observer.problem(PlannerSettings::default(), cache_policy);
    let started = Instant::now();
    let plan = plan::solve(&problem, None, &|| started.elapsed() > PLANNING_TIMEOUT).ok();
    let (mut resources, mut cache_capacities) =
        resources(&samples, &problem.worker_types, &problem.settings, limits.disk_bytes);
    if is_unbounded {
        cache_capacities.clear();
    }
    if waits_for_store {
        // The store was the only limit, so the job used the highest concurrency.
        resources.read_concurrency = model.store_concurrency;
    }
    Ok(TraceResult { rows, seconds, rows_per_s, model, resources, cache_capacities, plan, long_runs })
}

async fn find_long_runs(cluster: &LocalCluster, job: &Job, window: u64) -> Result<Option<LongRuns>, Failure> {
    let status = job.status().await?;
    let (Some(dataset), Some(layout)) = (&status.dataset, &status.layout) else { return Ok(None) };
    if dataset.runs.is_empty() {
        return Ok(None);
    }
    let manifest = cluster.coordinator.manifest(job.id()).await?;
    Ok(LongRuns::of(&manifest, layout, window))
}

/// Reports and deliveries of a trace.
struct TraceObservation {
    observer: Observer,
    samples: Samples,
    /// The observation of the first half, if the second half had more concurrent reads.
    first_half: Option<JobObservation>,
    rows: u64,
    seconds: f64,
    /// Rows per second that arrived before the allocations were changed. `None` if they arrived in a burst.
    rows_per_s: Option<f64>,
}

/// Builds the model of the job. If the second half of the trace was not faster, uses only its observations of the store.
fn build_model(observer: &Observer, job: JobId, first_half: Option<JobObservation>) -> Option<JobModel> {
    let observed = observer.observation(job)?;
    JobModel::build(&match first_half {
        Some(first_half) => JobObservation {
            bandwidth_observations: observed.bandwidth_observations,
            total: observed.total,
            ..first_half
        },
        None => observed,
    })
}

/// Consumes batches and polls reports until a limit is reached.
async fn observe(
    coordinator: &RunningCoordinator,
    job: &Job,
    mut consumer: Consumer,
    (limits, workers): (TraceLimits, usize),
    stop: &CancellationToken,
    progress: &Progress,
) -> Result<TraceObservation, Failure> {
    let mut observer = Observer::with_workers_per_process(workers);
    let mut samples = Samples::default();
    let mut counted = ArrivalWindow::default();
    let mut probe = ProbePhase::new(WARM_UP, limits.time, REPORT_INTERVAL);
    let mut first: Option<Instant> = None;
    let mut last_report = Instant::now();
    // Number of delivered rows and time when counting began.
    let mut begun: Option<(u64, Instant)> = None;
    let mut reports = 0;
    loop {
        let batch = tokio::select! {
            () = stop.cancelled() => return Err(Failure::Interrupted("interrupted".to_owned())),
            batch = tokio::time::timeout(REPORT_INTERVAL, consumer.next()) => batch,
        };
        match batch {
            Ok(Ok(Some(_))) => {
                let now = Instant::now();
                first.get_or_insert(now);
                if begun.is_some() && !probe.is_settling() {
                    counted.record(now, consumer.stats().rows);
                }
                // Skip a sleep of zero, which would take a millisecond.
                if !limits.step.is_zero() {
                    tokio::select! {
                        () = stop.cancelled() => return Err(Failure::Interrupted("interrupted".to_owned())),
                        () = tokio::time::sleep(limits.step.min(limits.time)) => {}
                    }
                }
            }
            Ok(Ok(None)) => break,
            Ok(Err(error)) => return Err(error.into()),
            // No batch arrived in time.
            Err(_) if first.is_none() => progress.show_state(&job.status().await?.state),
            Err(_) => {}
        }
        if last_report.elapsed() < REPORT_INTERVAL || first.is_none_or(|first| first.elapsed() < WARM_UP) {
            continue;
        }
        last_report = Instant::now();
        if probe.is_settling() {
            continue;
        }
        let Some((now, reported)) = coordinator.samples().await else { break };
        if probe.take_settled() {
            observer.reset_counters(job.id());
            (counted, reports) = (ArrivalWindow::new(last_report), 0);
        }
        reports += 1;
        observer.push(now, &reported);
        samples = reported;
        let delivered = consumer.stats().rows;
        let (before, start) = *begun.get_or_insert_with(|| {
            counted = ArrivalWindow::new(last_report);
            (delivered, last_report)
        });
        progress.show(format!("tracing: {} rows", delivered - before));
        let elapsed = first.map_or(Duration::ZERO, |first| first.elapsed());
        if let Some(allocations) = probe.begin(elapsed, (&observer, &samples), job.id(), &counted) {
            coordinator.allocate(allocations).await;
            continue;
        }
        let is_enough = delivered - before >= limits.rows || start.elapsed() >= limits.time;
        // A rate needs two reports.
        if is_enough && reports > 1 {
            break;
        }
    }
    let (before, start) = begun.unwrap_or_else(|| (0, Instant::now()));
    let (rows, seconds) = (consumer.stats().rows - before, start.elapsed().as_secs_f64());
    let counted = counted.until(Instant::now());
    let first_half = probe.end(&counted);
    let rows_per_s = first_half.as_ref().map_or(counted, |(_, counted)| *counted).rate();
    let first_half = first_half.map(|(observation, _)| observation);
    Ok(TraceObservation { observer, samples, first_half, rows, seconds, rows_per_s })
}

/// Returns the resources and the caches of the workers in this process.
fn resources(
    samples: &Samples,
    types: &[plan::WorkerType],
    settings: &PlannerSettings,
    disk_bytes: u64,
) -> (JobResources, Vec<CacheCapacity>) {
    let share = |kind: &plan::WorkerType| WorkerTypeResources {
        worker_type: kind.name.clone(),
        count: samples.workers.iter().filter(|worker| worker_type(worker).name == kind.name).count() as u32,
        cores: kind.cores,
        nic_bytes_per_s: kind.nic_bytes_per_s,
    };
    let memory_bytes: f64 = samples.workers.iter().map(|worker| worker.memory_bytes as f64).sum();
    let resources =
        JobResources { workers: types.iter().map(share).collect(), memory_bytes, ..JobResources::default() };
    // Each worker has its own copy of a cache, so the smallest worker is the limit.
    let least_bytes = samples.workers.iter().map(|worker| worker.memory_bytes).min().unwrap_or(0) as f64;
    let capacity = |tier: CacheTier, bytes: f64, read_bytes_per_s: f64| CacheCapacity {
        tier: tier.name().to_owned(),
        bytes,
        read_bytes_per_s,
        read_cpu_s_per_byte: settings.cache_read_cpu_s_per_byte[tier as usize],
        is_in_store: tier == CacheTier::Store,
    };
    let disks_bytes_per_s: f64 =
        samples.workers.iter().map(|worker| worker_type(worker).disk_read_bytes_per_s).sum();
    let mut cache_capacities = vec![
        capacity(CacheTier::Memory, settings.cache_memory_share * least_bytes, f64::INFINITY),
        capacity(CacheTier::Disk, disk_bytes as f64, disks_bytes_per_s),
    ];
    let in_store = |worker: &WorkerReportSample| {
        worker.caches.iter().find(|cache| cache.tier == CacheTier::Store).map(|cache| cache.capacity_bytes)
    };
    // All workers share one cache in the store.
    if let Some(bytes) = samples.workers.iter().filter_map(in_store).min() {
        cache_capacities.push(capacity(CacheTier::Store, bytes as f64, f64::INFINITY));
    }
    (resources, cache_capacities)
}
