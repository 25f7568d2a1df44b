//! Pools of workers: each pool is a type of worker, and a scaler sets the size of each pool without the loss of a row.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use feedline_client::audit::Audit;
use feedline_client::{ClientSettings, Job, WorkerDirectory};
use feedline_coordinator::{
    CoordinatorContext, CoordinatorSettings, PoolChange, PoolLimits, RunningCoordinator, Scaler, start_in,
};
use feedline_data::ids::{SessionId, WorkerId};
use feedline_data::messages::{JobSpec, ServiceError, ServiceErrorKind, WorkerAddress};
use feedline_data::pipeline::Pipeline;
use feedline_proto::{CoordinatorService, WorkerService};
use feedline_tests::embedded::worker_settings;
use feedline_tests::process::Role;
use feedline_tests::{Scratch, call, wait_for};
use feedline_worker::{ProcessClock, RunningWorker, WorkerSettings};
use tokio::sync::Notify;

const SHARDS: usize = 24;
const ROWS_PER_SHARD: usize = 250;
/// The pools with their smallest and largest numbers of workers.
const POOLS: [(&str, u32, u32); 2] = [("spot", 0, 1), ("base", 1, 2)];

/// A worker of a pool in this process.
struct PoolWorker {
    pool: String,
    running: RunningWorker,
    is_draining: bool,
}

/// A scaler that starts and drains workers in this process.
#[derive(Default)]
struct LocalPools {
    coordinator: OnceLock<Arc<dyn CoordinatorService>>,
    /// By host.
    workers: Mutex<BTreeMap<String, PoolWorker>>,
    /// The changes so far, as pool and wanted number.
    changes: Mutex<Vec<(String, u32)>>,
    changed: Notify,
}

impl fmt::Debug for LocalPools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalPools")
    }
}

impl LocalPools {
    fn size(&self, pool: &str) -> u32 {
        let workers = self.workers.lock().expect("no test panics with the lock");
        workers.values().filter(|worker| worker.pool == pool && !worker.is_draining).count() as u32
    }

    fn sizes(&self) -> [u32; 2] {
        POOLS.map(|(pool, ..)| self.size(pool))
    }

    fn start_worker(&self, pool: &str) {
        let coordinator = self.coordinator.get().expect("the coordinator runs");
        let mut workers = self.workers.lock().expect("no test panics with the lock");
        let id = workers.len() as u64 + 1;
        let host = format!("worker-{id}");
        let settings = WorkerSettings {
            address: format!("http://{host}:7071"),
            pool: pool.to_owned(),
            ..worker_settings(256 << 20)
        };
        let running =
            feedline_worker::start(WorkerId(id), settings, ProcessClock::new(), Arc::clone(coordinator));
        let running = running.expect("threads start");
        workers.insert(host, PoolWorker { pool: pool.to_owned(), running, is_draining: false });
    }

    /// Waits until the pools have these sizes.
    async fn wait_for(&self, sizes: [u32; 2]) {
        let reached = async {
            loop {
                let changed = self.changed.notified();
                if self.sizes() == sizes {
                    return;
                }
                changed.await;
            }
        };
        let within = tokio::time::timeout(Duration::from_secs(120), reached).await;
        assert!(within.is_ok(), "the pools have the sizes {:?} instead of {sizes:?}", self.sizes());
    }

    async fn shutdown(&self) {
        let workers = std::mem::take(&mut *self.workers.lock().expect("no test panics with the lock"));
        for worker in workers.into_values() {
            worker.running.shutdown().await;
        }
    }
}

#[async_trait]
impl Scaler for LocalPools {
    fn pools(&self) -> Vec<PoolLimits> {
        let limits = |(pool, min_workers, max_workers): (&str, u32, u32)| PoolLimits {
            pool: pool.to_owned(),
            min_workers,
            max_workers,
        };
        POOLS.map(limits).into()
    }

    fn present(&self, pool: &str, _: u32) -> Option<u32> {
        self.coordinator.get().map(|_| self.size(pool))
    }

    async fn scale(&self, change: &PoolChange) -> Result<(), String> {
        let PoolChange { pool, wanted, victims } = change;
        (self.size(pool)..*wanted).for_each(|_| self.start_worker(pool));
        for host in victims {
            let mut workers = self.workers.lock().expect("no test panics with the lock");
            let victim = workers.get_mut(host).ok_or_else(|| format!("there is no worker at {host}"))?;
            victim.running.drain();
            victim.is_draining = true;
        }
        self.changes.lock().expect("no test panics with the lock").push((pool.clone(), *wanted));
        self.changed.notify_waiters();
        Ok(())
    }
}

impl WorkerDirectory for LocalPools {
    fn worker(&self, address: &WorkerAddress) -> Result<Arc<dyn WorkerService>, ServiceError> {
        let host = address.url.trim_start_matches("http://").trim_end_matches(":7071");
        let workers = self.workers.lock().expect("no test panics with the lock");
        let worker = workers.get(host).map(|worker| worker.running.service());
        worker
            .ok_or_else(|| ServiceError::new(ServiceErrorKind::NotFound, format!("unknown worker {address}")))
    }
}

/// A pipeline whose rows take 4 ms each, one at a time per worker, so that a worker computes 250 rows/s on any machine.
fn pipeline(scratch: &Scratch) -> Pipeline {
    std::fs::create_dir(scratch.file("lines")).expect("the directory is new");
    for shard in 0..SHARDS {
        let lines: Vec<String> = (0..ROWS_PER_SHARD).map(|row| format!("line {shard} {row}")).collect();
        scratch.write(&format!("lines/{shard:02}.txt"), &lines.join("\n"));
    }
    let text = format!(
        "name: lines\nsource: {{ url: \"{}/*\", format: text }}\noperators:\n  - wait: {{ ms: 4, parallelism: 1 }}\n  \
         - batch: {{ size: 20 }}\n",
        scratch.file("lines")
    );
    Pipeline::from_yaml(&text, "test.yaml").expect("the pipeline of the test is valid")
}

/// Receives all batches, and takes 30 ms for each: 667 rows/s, the rate of three workers. Returns the number of rows.
async fn consume(coordinator: &RunningCoordinator, workers: Arc<LocalPools>, pipeline: Pipeline) -> usize {
    let service = coordinator.service();
    let spec = JobSpec { audit: true, ..JobSpec::new(pipeline.clone()) };
    let job = Job::open(Arc::clone(&service), workers, spec, ClientSettings::default()).await;
    let job = job.expect("the job is valid");
    let mut consumer = job.consumer(0, SessionId(1));
    let mut batches = Vec::new();
    while let Some(batch) = consumer.next().await.expect("the job does not fail") {
        batches.push(batch);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let manifest = service.manifest(job.id()).await.expect("it is indexed");
    let layout = job.status().await.expect("the coordinator runs").layout.expect("it ran");
    consumer.close().await.expect("the coordinator runs");
    let mut audit = Audit::new(layout, &manifest, &pipeline, None);
    batches.iter().for_each(|batch| audit.add(&batch.info));
    let report = audit.report(None);
    assert!(report.is_exact(), "{report:?}");
    batches.iter().map(|batch| batch.records.num_rows()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demand_that_one_pool_cannot_serve_moves_to_another() {
    let scratch = Scratch::new();
    let pools = Arc::new(LocalPools::default());
    let settings = CoordinatorSettings {
        shrink_after_ms: 1_000,
        ..CoordinatorSettings::in_memory(scratch.file("index"))
    };
    let scaler: Arc<dyn Scaler> = Arc::<LocalPools>::clone(&pools);
    let context = CoordinatorContext { scaler: Some(scaler), ..CoordinatorContext::default() };
    let coordinator = start_in(settings, 1, context).await.expect("the directory is writable");
    assert!(pools.coordinator.set(coordinator.service()).is_ok());
    pools.wait_for([0, 1]).await;
    let (full, rows) = tokio::join!(
        async {
            pools.wait_for([1, 2]).await;
            coordinator.service().cluster().await.expect("the coordinator leads")
        },
        consume(&coordinator, Arc::clone(&pools), pipeline(&scratch)),
    );
    assert_eq!(rows, SHARDS * ROWS_PER_SHARD);
    let names: Vec<&str> = full.pools.iter().map(|pool| pool.pool.as_str()).collect();
    assert_eq!(names, ["spot", "base"], "the order of the scaler");
    assert!(full.workers.iter().any(|worker| worker.worker_type.starts_with("base: 2 cores")), "{full:?}");
    // No job needs the workers: they drain, down to the minimum of each pool.
    pools.wait_for([0, 1]).await;
    let changes = pools.changes.lock().expect("no test panics with the lock").clone();
    assert!(changes.contains(&("spot".to_owned(), 1)) && changes.contains(&("spot".to_owned(), 0)));
    pools.shutdown().await;
    coordinator.shutdown().await.expect("its log is in memory");
}

#[test]
fn a_worker_process_reports_its_pool() {
    let scratch = Scratch::new();
    let data = scratch.file("data");
    let coordinator = Role::start(&["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data], &[]);
    let url = coordinator.url();
    let worker = ["worker", "--coordinator", &url, "--cores", "1", "--memory", "64MiB"];
    let _by_flag = Role::start(&[&worker[..], &["--pool", "spot-a"]].concat(), &[]);
    let _by_variable = Role::start(&worker, &[("FEEDLINE_POOL", "base")]);
    let _without = Role::start(&worker, &[("FEEDLINE_POOL", "")]);
    let types = wait_for("three workers", || {
        let top = call(&["top", "--once", "--format", "json", "--coordinator", &url]);
        let view: serde_json::Value = serde_json::from_str(&top.stdout).ok()?;
        let kind = |worker: &serde_json::Value| worker["worker_type"].as_str().map(str::to_owned);
        let mut types: Vec<String> = view["workers"].as_array()?.iter().filter_map(kind).collect();
        types.sort();
        (types.len() == 3).then_some(types)
    });
    assert!(types[0].starts_with("1 cores"), "{types:?}");
    assert!(types[1].starts_with("base: 1 cores") && types[2].starts_with("spot-a: 1 cores"), "{types:?}");
}

#[test]
fn the_name_of_a_pool_is_a_dns_label() {
    for name in ["Spot", "spot_a", "-spot", "spot-", "spot.a", &"a".repeat(64)] {
        let worker = call(&["worker", "--coordinator", "http://127.0.0.1:1", &format!("--pool={name}")]);
        assert_eq!(worker.status, 2, "{name}: {}", worker.stderr);
        let message =
            format!("invalid pool `{name}`: expected at most 63 lowercase letters, digits and inner hyphens");
        assert!(worker.stderr.contains(&message), "{}", worker.stderr);
    }
}
