//! Tests of the driver through the service, with a scripted log.

use std::sync::Mutex;

use feedline_cluster::records::Record;
use feedline_data::ids::JobId;
use feedline_data::layout::StreamPosition;
use feedline_data::manifest::{Block, IndexedShard, ShardDigest, ShardIndex, ShardRef};
use feedline_data::messages::{
    ConsumerReport, JobSpec, JobState, Task, TaskOutput, TaskResult, WorkerPlan, WorkerReport,
};
use feedline_data::pipeline::{Pipeline, Source};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use feedline_proto::{Caller, CoordinatorService, PeerService};
use feedline_raft::log::LogError;
use feedline_raft::{LogWrite, MemberId, PersistedState, files};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::disk::WriteLog;
use crate::identity::OwnIdentity;
use crate::peers::PeerDirectory;
use crate::request_queue::RequestQueue;
use crate::service::LocalCoordinator;
use crate::settings::CoordinatorSettings;
use crate::tenant_view::tests::{consuming, working};
use crate::{RunningCoordinator, start};

mod ending;
mod restart;
mod writing;

const TICK_MS: u64 = 50;

/// Stops a write. The write reports that it has begun, and continues when the test sends or drops `word`.
#[derive(Debug)]
struct Gate {
    begun: oneshot::Sender<()>,
    word: std::sync::mpsc::Receiver<()>,
}

/// The script and the calls of a log.
#[derive(Debug, Default)]
struct Script {
    full: bool,
    /// The gate that stops the next write.
    gate: Option<Gate>,
    writes: Vec<Vec<LogWrite>>,
    tries: u32,
}

struct ScriptedLog(Arc<Mutex<Script>>);

impl WriteLog for ScriptedLog {
    fn write(&mut self, writes: &mut Vec<LogWrite>) -> Result<(), LogError> {
        let mut script = self.0.lock().unwrap();
        if let Some(Gate { begun, word }) = script.gate.take() {
            drop(script);
            let _ = (begun.send(()), word.recv());
            script = self.0.lock().unwrap();
        }
        script.tries += 1;
        if script.full {
            let error = std::io::Error::from_raw_os_error(28);
            let (reason, fix) = (files::error_reason(&error), files::write_error_fix(&error));
            return Err(LogError::Write { path: "/data/records.log".into(), reason, fix });
        }
        script.writes.push(std::mem::take(writes));
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        0
    }
}

/// A directory without coordinators.
struct Nobody;

impl PeerDirectory for Nobody {
    fn peer(&self, url: &str) -> Result<Arc<dyn PeerService>, ServiceError> {
        Err(ServiceError::new(ServiceErrorKind::Invalid, format!("{url} is nobody")))
    }
}

struct Bench {
    service: Arc<dyn CoordinatorService>,
    requests: Arc<RequestQueue>,
    script: Arc<Mutex<Script>>,
    driver: Option<Driver>,
    stop: CancellationToken,
    _inbox: mpsc::Sender<PeerEvent>,
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self::within(RequestLimits::default())
    }

    fn within(limits: RequestLimits) -> Self {
        let folder = TempDir::new().unwrap();
        let store = Arc::new(IndexStore::open(folder.path().to_owned()).unwrap());
        let script = Arc::new(Mutex::new(Script::default()));
        let disk = Disk::new(Box::new(ScriptedLog(Arc::clone(&script))));
        let (sender, commands) = mpsc::channel(MAX_QUEUED_COMMANDS);
        let requests = RequestQueue::new();
        let (inbox_sender, inbox) = mpsc::channel(1);
        let id = MemberId::from_random(8);
        let founded = PersistedState::bootstrap(&Members([(id, String::new())].into()));
        let settings = feedline_raft::RaftSettings::default();
        let worker_lease_ms = settings.cluster.worker_lease_ms;
        let member = RaftNode::new(id, founded, settings, 1).unwrap();
        let own = Arc::new(OwnIdentity::new(id, String::new(), 1, true));
        let (peers, deliveries) = Peers::new(own, Arc::new(Nobody));
        let peers = Arc::new(peers);
        let parts = DriverContext {
            member,
            disk,
            store: Arc::clone(&store),
            peers: Arc::clone(&peers),
            leader: watch::channel(None).0,
            deliveries,
            commands,
            requests: RequestReceiver::new(Arc::clone(&requests)),
            limits,
            grace: Duration::from_secs(10),
            inbox,
            tick_ms: TICK_MS,
            worker_lease_ms,
        };
        let views = watch::channel(Arc::default()).1;
        Self {
            service: Arc::new(LocalCoordinator::new(Arc::clone(&requests), sender, store, peers, views)),
            requests,
            script,
            driver: Some(Driver::new(parts)),
            stop: CancellationToken::new(),
            _inbox: inbox_sender,
            folder,
        }
    }

    fn start(&mut self) -> JoinHandle<Result<(), CoordinatorError>> {
        tokio::spawn(self.driver.take().expect("started once").run(self.stop.clone()))
    }

    fn records(&self) -> Vec<Record> {
        self.script.lock().unwrap().writes.iter().flatten().flat_map(LogWrite::records).collect()
    }
}

fn spec(name: &str) -> JobSpec {
    let pipeline = Pipeline::builder("p").source(Source::text("data/*")).batch(4).build().unwrap();
    JobSpec { name: name.to_owned(), ..JobSpec::new(pipeline) }
}

fn consuming_from(job: JobId, row: u64) -> ConsumerReport {
    ConsumerReport { positions: vec![(0, StreamPosition { epoch: 0, row })], ..consuming(job) }
}

fn work(task: &Task) -> TaskResult {
    let output = match &task.shards {
        None => {
            let object = ShardRef {
                url: "file:///d/0".to_owned(),
                size_bytes: 100,
                version: "1".to_owned(),
                ..ShardRef::default()
            };
            TaskOutput::Listed(vec![object])
        }
        Some(_) => {
            let mut schema = Schema::default();
            schema.set("text", ColumnType::Scalar(ScalarType::Int64));
            let block = Block { rows: 100, offset: 0, bytes: 100, group: 0, row_bytes: Vec::new() };
            let index = ShardIndex {
                blocks: vec![block],
                schema: Some(schema),
                defects: Vec::new(),
                ..ShardIndex::default()
            };
            TaskOutput::Indexed(vec![IndexedShard { index, digest: Some(ShardDigest::of_bytes(b"rows")) }])
        }
    };
    TaskResult { id: task.id, outcome: Ok(output) }
}

/// Lets worker 1 list and index the dataset. Returns its plan with the first leases.
async fn prepare(service: &dyn CoordinatorService) -> WorkerPlan {
    let mut plan = service.sync_worker(working()).await.unwrap();
    while plan.leases.is_empty() {
        let tasks = plan.tasks.iter().map(work).collect();
        // Saving the index takes a while, so the long poll is held until the plan changes.
        let report = WorkerReport { plan_revision: plan.revision, tasks, ..working() };
        plan = service.sync_worker(report).await.unwrap();
    }
    plan
}

#[tokio::test(start_paused = true)]
async fn a_client_that_floods_the_queue_does_not_block_others() {
    let mut bench = Bench::new();
    let task = bench.start();
    let service = Arc::clone(&bench.service);
    let job = service.open_job(spec("run")).await.unwrap();
    let flooder = Caller::unique();
    // Answered and rejected requests of the flood.
    let counts: Arc<Mutex<(u64, u64)>> = Arc::default();
    let flood: Vec<_> = (0..600)
        .map(|_| {
            let (service, counts) = (Arc::clone(&service), Arc::clone(&counts));
            tokio::spawn(flooder.scope(async move {
                loop {
                    let answer = service.list_jobs().await;
                    match answer {
                        Ok(_) => counts.lock().unwrap().0 += 1,
                        Err(refusal) if refusal.kind == ServiceErrorKind::Busy => {
                            counts.lock().unwrap().1 += 1
                        }
                        Err(refusal) => panic!("{refusal}"),
                    }
                    tokio::task::yield_now().await;
                }
            }))
        })
        .collect();
    while counts.lock().unwrap().0 < 1_000 {
        tokio::task::yield_now().await;
    }
    for number in 0..100 {
        let before = counts.lock().unwrap().0;
        match number % 3 {
            0 => drop(Caller::unique().scope(service.job_status(job)).await.unwrap()),
            1 => drop(service.sync_worker(working()).await.unwrap()),
            _ => drop(service.sync_consumer(consuming_from(job, 0)).await.unwrap()),
        }
        let between = counts.lock().unwrap().0 - before;
        assert!(between <= 3 * MAX_BATCH_REQUESTS as u64, "{between} others were answered first");
    }
    assert!(counts.lock().unwrap().1 > 1_000, "what is too much is refused at once");
    flood.into_iter().for_each(|flood| flood.abort());
    bench.stop.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_silent_worker_expires_after_its_lease_time() {
    let mut bench = Bench::new();
    let task = bench.start();
    let service = Arc::clone(&bench.service);
    service.open_job(spec("run")).await.unwrap();
    prepare(service.as_ref()).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let revoked = bench.records().iter().any(|record| matches!(record, Record::Revoked { .. }));
    assert!(revoked);
    bench.stop.cancel();
    task.await.unwrap().unwrap();
}

#[test]
fn every_metric_has_a_unique_name_and_a_help_text() {
    let names: std::collections::BTreeSet<_> = crate::METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), crate::METRICS.len());
    assert!(crate::METRICS.iter().all(|metric| metric.name.starts_with("feedline_coordinator_")));
    assert!(crate::METRICS.iter().all(|metric| !metric.help.is_empty()));
}

/// The saved index is corrupted, so that reading it is an error.
#[tokio::test]
async fn a_saved_index_is_read_only_for_a_new_job() {
    let mut bench = Bench::new();
    let task = bench.start();
    let service = Arc::clone(&bench.service);
    let job = service.open_job(spec("run")).await.unwrap();
    let key = feedline_data::messages::source_key("", &spec("run").pipeline.source);
    std::fs::write(bench.folder.path().join(format!("{key}.index")), "damaged").unwrap();
    assert_eq!(service.open_job(spec("run")).await, Ok(job), "one that is joined needs none");
    assert_eq!(service.join_job(spec("run")).await, Ok(job));
    let other = JobSpec { epochs: 2, ..spec("run") };
    let refused = service.open_job(other).await.unwrap_err();
    assert!(refused.message.contains("running with different settings"), "{refused}");
    assert_eq!(service.join_job(spec("other")).await.unwrap_err().kind, ServiceErrorKind::Denied);
    let opened = service.open_job(spec("other")).await.unwrap_err();
    assert!(opened.message.contains("cannot use the saved index"), "{opened}");
    bench.stop.cancel();
    task.await.unwrap().unwrap();
}
