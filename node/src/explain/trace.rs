//! Runs a job for some seconds and takes what its worker and its consumer report.

use std::sync::Arc;
use std::time::{Duration, Instant};

use feedline_client::{ClientSettings, Consumer, Job};
use feedline_coordinator::RunningCoordinator;
use feedline_core::cluster::messages::{JobSpec, JobState};
use feedline_core::cluster::samples::Samples;
use feedline_core::model::{Allocation, CacheRoom, JobModel, WorkerShare};
use feedline_core::observe::Observer;
use feedline_core::pipeline::Pipeline;
use feedline_core::plan::{self, Plan, Settings, Tier};
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;
use crate::entropy;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::run::consume::abandon;

/// How often reports are taken.
const LOOK: Duration = Duration::from_millis(250);
/// Rows flow for so long before they count: caches of the machine and buffers fill meanwhile.
const WARM_UP: Duration = Duration::from_millis(500);
/// A trace has room for as many passes as it has time for.
const EPOCHS: u32 = 1_000_000;
/// Longest that the planner may take.
const PLANNING: Duration = Duration::from_secs(2);

/// How long a trace lasts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) rows: u64,
    pub(super) time: Duration,
    /// Time that the consumer spends on a batch.
    pub(super) step: Duration,
}

/// What was seen.
pub(super) struct Traced {
    /// Rows delivered.
    pub(super) rows: u64,
    pub(super) model: JobModel,
    /// What the job worked with.
    pub(super) allocation: Allocation,
    /// Room for caches.
    pub(super) rooms: Vec<CacheRoom>,
    /// What the planner would do; `None` where it finds nothing to plan.
    pub(super) plan: Option<Plan>,
}

/// Runs a job until a limit is reached.
///
/// # Errors
/// What made the job fail, or that it gave no rows.
pub(super) async fn trace(
    cluster: &Cluster,
    pipeline: Pipeline,
    limits: Limits,
    stop: &CancellationToken,
) -> Result<Traced, Failure> {
    let coordinator = cluster.local_coordinator().expect("a trace runs in this process");
    let name = format!("explain-{}-{}", pipeline.name, entropy::name_suffix());
    let spec = JobSpec { name, epochs: EPOCHS, ..JobSpec::new(pipeline) };
    let progress = Progress::start();
    let job =
        Job::open(Arc::clone(&cluster.coordinator), cluster.directory(), spec, ClientSettings::default())
            .await?;
    let consumer = job.consumer(0, entropy::session_id());
    let traced = observe(coordinator, &job, consumer, limits, stop, &progress).await;
    abandon(&job).await;
    let (observer, samples, rows) = traced?;
    let model = observer.model(job.id()).ok_or_else(|| {
        Failure::failed("no rows came while the pipeline was traced; give it more time with --seconds")
    })?;
    let problem = observer.problem(Settings::default());
    let started = Instant::now();
    let plan = plan::solve(&problem, None, &|| started.elapsed() > PLANNING).ok();
    let (allocation, rooms) = resources(&samples, &problem.worker_types, &problem.settings);
    Ok(Traced { rows, model, allocation, rooms, plan })
}

/// Takes batches and reports in turn until a limit is reached.
async fn observe(
    coordinator: &RunningCoordinator,
    job: &Job,
    mut consumer: Consumer,
    limits: Limits,
    stop: &CancellationToken,
    progress: &Progress,
) -> Result<(Observer, Samples, u64), Failure> {
    let mut observer = Observer::default();
    let mut last = Samples::default();
    let mut first: Option<Instant> = None;
    let mut looked = Instant::now();
    let mut since = consumer.stats().rows;
    loop {
        let batch = tokio::select! {
            () = stop.cancelled() => return Err(Failure::Interrupted("interrupted".to_owned())),
            batch = tokio::time::timeout(LOOK, consumer.next()) => batch,
        };
        match batch {
            Ok(Ok(Some(_))) => tokio::time::sleep(limits.step).await,
            Ok(Ok(None)) => break,
            Ok(Err(error)) => return Err(error.into()),
            // None came in time.
            Err(_) => {
                let state = job.status().await?.state;
                if matches!(state, JobState::Preparing { .. }) {
                    progress.show_state(&state);
                }
            }
        }
        let rows = consumer.stats().rows - since;
        if rows == 0 && first.is_none() {
            continue;
        }
        let begun = *first.get_or_insert_with(Instant::now);
        if looked.elapsed() < LOOK {
            continue;
        }
        looked = Instant::now();
        if begun.elapsed() < WARM_UP {
            since = consumer.stats().rows;
            continue;
        }
        let Some((now, samples)) = coordinator.samples().await else { break };
        observer.push(now, &samples);
        last = samples;
        progress.show(format!("tracing: {rows} rows"));
        if rows >= limits.rows || begun.elapsed() >= limits.time + WARM_UP {
            break;
        }
    }
    Ok((observer, last, consumer.stats().rows - since))
}

/// What the workers of this process are.
fn resources(
    samples: &Samples,
    types: &[plan::WorkerType],
    settings: &Settings,
) -> (Allocation, Vec<CacheRoom>) {
    let share = |kind: &plan::WorkerType| WorkerShare {
        worker_type: kind.name.clone(),
        count: samples.workers.iter().filter(|worker| Observer::type_of(worker).name == kind.name).count()
            as u32,
        cores: kind.cores,
        nic_bytes_per_s: kind.nic_bytes_per_s,
    };
    let memory_bytes: f64 = samples.workers.iter().map(|worker| worker.memory_bytes as f64).sum();
    let allocation =
        Allocation { workers: types.iter().map(share).collect(), memory_bytes, ..Allocation::default() };
    let [memory_cpu, disk_cpu, _] = settings.cache_read_cpu_s_per_byte;
    let room = |tier: Tier, bytes: f64, read_cpu_s_per_byte: f64| CacheRoom {
        tier: tier.name().to_owned(),
        bytes,
        read_bytes_per_s: f64::INFINITY,
        read_cpu_s_per_byte,
        is_in_store: false,
    };
    let rooms = vec![
        room(Tier::Memory, settings.cache_memory_share * memory_bytes, memory_cpu),
        room(Tier::Disk, f64::INFINITY, disk_cpu),
    ];
    (allocation, rooms)
}
