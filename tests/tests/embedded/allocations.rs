//! Allocations of a worker change constantly while jobs run: every batch is equal, and each row is delivered once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use feedline_client::audit::{Audit, AuditReport};
use feedline_client::{ClientSettings, Job};
use feedline_coordinator::CoordinatorSettings;
use feedline_data::ids::{JobId, SessionId, WorkerId};
use feedline_data::messages::{
    CacheDecision, JobAllocation, JobSpec, ServiceError, WorkerPlan, WorkerReport,
};
use feedline_data::pipeline::{CacheEncoding, CacheTier, Pipeline};
use feedline_data::random::mix64;
use feedline_proto::{CoordinatorReply, CoordinatorRequest, CoordinatorService};
use feedline_tests::Scratch;
use feedline_tests::embedded::{OneWorker, worker_settings};
use feedline_worker::{ProcessClock, RowCacheSettings, StoreCacheSettings, WorkerSettings};

/// Maximum interval between changes of allocations. The coordinator also changes them with every answer.
const CHANGE: Duration = Duration::from_millis(5);
/// Number of epochs of each job.
const EPOCHS: u32 = 4;
/// Number of allocation changes after which a job's cache also changes.
const KEPT_FOR: u64 = 8;
/// The seed with constant caches, so that rows are found however long a change takes.
const STEADY: u64 = 1;
/// The seed whose worker caches in memory only.
const BARE: u64 = 2;

struct Fickle {
    inner: Arc<dyn CoordinatorService>,
    seed: u64,
    changes: AtomicU64,
    /// Whether the first operator of a job is random.
    draws: Mutex<BTreeMap<JobId, bool>>,
    /// The same for jobs with cache hits.
    found: Mutex<BTreeSet<bool>>,
    /// The plan without allocations.
    plan: Mutex<WorkerPlan>,
}

impl Fickle {
    fn allocation(&self, job: u64, change: u64) -> JobAllocation {
        let dice = |number: u64| mix64(mix64(self.seed * 10_000 + change) + job * 100 + number);
        let one_of = |number: u64, values: &[u64]| values[dice(number) as usize % values.len()];
        let names = ["burn", "wait", "filter", "random_resized_crop", "batch", "nobody"];
        let limits = (0..).zip(names).filter(|(number, _)| dice(10 + number).is_multiple_of(2));
        JobAllocation {
            job: JobId(job),
            max_cores: one_of(32, &[0, 0, 1, 6]) as f64 / 4.0,
            cores: one_of(0, &[0, 1, 2, 7]) as f64 / 4.0,
            operator_limits: limits
                .map(|(number, name)| (name.to_owned(), one_of(number, &[0, 1, 2, 5]) as u32))
                .collect(),
            read_concurrency: one_of(30, &[0, 1, 2, 40]) as u32,
            prefetch_bytes: one_of(31, &[0, 1, 100 << 10, 64 << 20]),
            cache: self.cache_decision(job, change / KEPT_FOR),
        }
    }

    /// Returns the cache decision of a job: before random operators, and also in encodings or tiers that are not available.
    fn cache_decision(&self, job: u64, change: u64) -> Option<CacheDecision> {
        let dice = |number: u64| mix64(mix64(self.seed * 7_000 + change) + job * 100 + number);
        let is_drawn = *self.draws.lock().expect("nothing panics with it").get(&JobId(job))?;
        if self.seed == STEADY {
            return Some(CacheDecision {
                operators_before: 0,
                tier: CacheTier::Memory,
                encoding: CacheEncoding::AsIs,
            });
        }
        let after = if is_drawn { 0 } else { dice(1) as u32 % 4 };
        let tier = CacheTier::ALL[[0, 0, 0, 1, 2][dice(2) as usize % 5]];
        let encoding =
            [CacheEncoding::AsIs, CacheEncoding::Indexed, CacheEncoding::Pixels][dice(3) as usize % 3];
        (!dice(4).is_multiple_of(4)).then_some(CacheDecision { operators_before: after, tier, encoding })
    }

    fn change(&self, plan: &mut WorkerPlan, jobs: &[JobId]) {
        let change = self.changes.fetch_add(1, Ordering::Relaxed);
        plan.cores = (mix64(self.seed + change) % 3) as u32;
        let is_told = |job: &&JobId| self.seed == STEADY || !mix64(change + job.0).is_multiple_of(4);
        let allotted = jobs.iter().filter(is_told);
        plan.allocations = allotted.map(|job| self.allocation(job.0, change)).collect();
    }
}

#[async_trait]
impl CoordinatorService for Fickle {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        match request {
            CoordinatorRequest::GetJobDetails { job } => {
                let details = self.inner.job_details(job).await?;
                let is_drawn = details.pipeline.operators[0].kind.is_random();
                self.draws.lock().expect("nothing panics with it").insert(job, is_drawn);
                Ok(CoordinatorReply::GetJobDetails(details))
            }
            CoordinatorRequest::SyncWorker { report } => {
                self.sync_worker(*report).await.map(CoordinatorReply::SyncWorker)
            }
            other => self.inner.call(other).await,
        }
    }
}

impl Fickle {
    async fn sync_worker(&self, report: WorkerReport) -> Result<WorkerPlan, ServiceError> {
        let draws = self.draws.lock().expect("nothing panics with it").clone();
        for stats in &report.stats {
            let has_found =
                stats.operators.iter().any(|operator| operator.name == "cache" && operator.rows_out > 0);
            if let Some(is_drawn) = draws.get(&stats.job).filter(|_| has_found) {
                self.found.lock().expect("nothing panics with it").insert(*is_drawn);
            }
        }
        let jobs: Vec<JobId> = report.stats.iter().map(|stats| stats.job).collect();
        let answer = tokio::time::timeout(CHANGE, self.inner.sync_worker(report)).await;
        let mut held = self.plan.lock().expect("not poisoned");
        // Without an answer, only the allocations change.
        if let Ok(plan) = answer {
            let plan = plan?;
            if plan.revision.incarnation == 0 {
                return Ok(plan);
            }
            *held = plan;
        }
        let mut plan = held.clone();
        self.change(&mut plan, &jobs);
        Ok(plan)
    }
}

/// The batches of one job, and its audit.
async fn take_all(
    coordinator: Arc<dyn CoordinatorService>,
    worker: Arc<OneWorker>,
    pipeline: Pipeline,
) -> (Vec<RecordBatch>, AuditReport) {
    let spec = JobSpec { epochs: EPOCHS, audit: true, ..JobSpec::new(pipeline.clone()) };
    let job = Job::open(Arc::clone(&coordinator), worker, spec, ClientSettings::default()).await;
    let job = job.expect("it is sound");
    let mut consumer = job.consumer(0, SessionId(1));
    let (mut batches, mut infos) = (Vec::new(), Vec::new());
    while let Some(batch) = consumer.next().await.expect("the job does not fail") {
        batches.push(batch.records);
        infos.push(batch.info);
    }
    infos.push(consumer.trailing());
    let layout = job.status().await.expect("the coordinator runs").layout.expect("it ran");
    let manifest = coordinator.manifest(job.id()).await.expect("it ran");
    let mut audit = Audit::new(layout, &manifest, &pipeline, None);
    infos.iter().for_each(|info| audit.add(info));
    consumer.close().await.expect("the coordinator runs");
    (batches, audit.report(None))
}

/// The results of the jobs, the number of changes, and the jobs with cache hits.
struct Ran {
    taken: Vec<(Vec<RecordBatch>, AuditReport)>,
    changes: u64,
    found: BTreeSet<bool>,
}

/// Runs the jobs together on one worker. With a seed, allocations change.
async fn run(directory: &Path, pipelines: &[Pipeline], seed: Option<u64>) -> Ran {
    let mut settings = CoordinatorSettings::in_memory(directory.join("index"));
    settings.cluster.auto_cache = seed.is_some();
    let running = feedline_coordinator::start(settings, 1).await.expect("the directory is writable");
    let fickle = Arc::new(Fickle {
        inner: running.service(),
        seed: seed.unwrap_or_default(),
        changes: AtomicU64::new(0),
        draws: Mutex::default(),
        found: Mutex::default(),
        plan: Mutex::default(),
    });
    // A worker without these tiers ignores the decision.
    let has_places = seed != Some(BARE);
    let service: Arc<dyn CoordinatorService> =
        if seed.is_some() { fickle.clone() } else { running.service() };
    let settings = WorkerSettings {
        row_cache: has_places.then(|| RowCacheSettings {
            folder: directory.join("rows"),
            limit_bytes: 8 << 20,
            folder_bytes: 8 << 20,
            allows_planned_caches: true,
        }),
        store_cache: has_places.then(|| StoreCacheSettings {
            url: directory.join("store").display().to_string(),
            limit_bytes: 8 << 20,
        }),
        ..worker_settings(64 << 20)
    };
    let worker = feedline_worker::start(WorkerId(1), settings, ProcessClock::new(), service);
    let worker = worker.expect("threads start");
    let directory = Arc::new(OneWorker(worker.service()));
    let jobs = pipelines
        .iter()
        .map(|pipeline| take_all(running.service(), Arc::clone(&directory), pipeline.clone()));
    let taken = futures::future::join_all(jobs).await;
    worker.shutdown().await;
    running.shutdown().await.expect("its log is in memory");
    let found = fickle.found.lock().expect("nothing panics with it").clone();
    Ran { taken, changes: fickle.changes.load(Ordering::Relaxed), found }
}

#[test]
fn changing_allocations_do_not_change_rows() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "4000", "--shards", "5"]);
    scratch.make_data("images", "images", &["--format", "tfrecord", "--rows", "60", "--shards", "3"]);
    let pipeline = |name: &str, text: String| Pipeline::from_yaml(&text, name).expect("it is right");
    let table = scratch.file("table");
    let pipelines = [
        pipeline(
            "table.yaml",
            format!(
                "name: table\nsource: {{ url: \"{table}/*\", format: jsonl }}\nshuffle: {{ window: 300 }}\noperators: [ filter: {{ where: \"label < 7\" }}, burn: {{ cpu_us: 60 }}, wait: {{ ms: 0, parallelism: 2 }}, batch: {{ size: 16 }} ]"
            ),
        ),
        pipeline(
            "images.yaml",
            format!(
                "name: images\nsource: {{ url: \"{}/*\", format: tfrecord, features: {{ image: image/encoded }} }}\nshuffle: {{ window: 20 }}\noperators: [ random_resized_crop: {{ column: image, size: [32, 32] }}, burn: {{ cpu_us: 300 }}, batch: {{ size: 4 }} ]",
                scratch.file("images")
            ),
        ),
    ];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let plain = runtime.block_on(run(scratch.path(), &pipelines, None)).taken;
    assert!(plain.iter().all(|(batches, audit)| batches.len() > 10 && audit.is_exact()), "{:?}", plain[0].1);
    let mut found = BTreeSet::new();
    for seed in 1..=3 {
        let changed = runtime.block_on(run(scratch.path(), &pipelines, Some(seed)));
        assert!(changed.changes > 20, "seed {seed}: {} changes", changed.changes);
        for ((batches, audit), (wanted, exact)) in changed.taken.iter().zip(&plain) {
            assert_eq!(audit, exact, "seed {seed}");
            assert!(batches == wanted, "seed {seed}: batches differ");
        }
        found.extend(changed.found);
    }
    assert_eq!(found.len(), 2, "rows of both jobs came from caches");
}
