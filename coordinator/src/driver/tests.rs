//! The driver through the service: restarts, commits, a log that cannot be written, and the end.

use std::sync::Mutex;

use feedline_core::cluster::messages::{
    ConsumerReport, ConsumerStats, JobSpec, JobState, ProcessCpu, Revision, Task, TaskOutput, TaskResult,
    WorkerPlan, WorkerReport,
};
use feedline_core::cluster::records::Record;
use feedline_core::ids::{JobId, SessionId, WorkerId};
use feedline_core::layout::StreamPosition;
use feedline_core::manifest::{Block, ShardIndex, ShardRef};
use feedline_core::pipeline::{Pipeline, Source};
use feedline_core::schema::{ColumnType, ScalarType, Schema};
use feedline_proto::{Caller, CoordinatorService, PeerService};
use feedline_replica::log::LogError;
use feedline_replica::{MemberId, Stored, Write, files};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::desk::Desk;
use crate::disk::WriteLog;
use crate::peers::PeerDirectory;
use crate::service::Service;
use crate::settings::CoordinatorSettings;
use crate::{RunningCoordinator, start};

const TICK_MS: u64 = 50;

/// What a test's log was asked to do, and whether it refuses.
#[derive(Debug, Default)]
struct Script {
    full: bool,
    /// A write waits for a word of it, where there is one.
    gate: Option<std::sync::mpsc::Receiver<()>>,
    writes: Vec<Vec<Write>>,
    tries: u32,
}

struct ScriptedLog(Arc<Mutex<Script>>);

impl WriteLog for ScriptedLog {
    fn write(&mut self, writes: &mut Vec<Write>) -> Result<(), LogError> {
        let mut script = self.0.lock().unwrap();
        if let Some(gate) = script.gate.take() {
            drop(script);
            // Also when nobody will say it any more.
            let _ = gate.recv();
            script = self.0.lock().unwrap();
        }
        script.tries += 1;
        if script.full {
            let error = std::io::Error::from_raw_os_error(28);
            let (reason, fix) = (files::reason(&error), files::fix(&error));
            return Err(LogError::Write { path: "/data/records.log".into(), reason, fix });
        }
        script.writes.push(std::mem::take(writes));
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        0
    }
}

/// Finds nobody.
struct Nobody;

impl PeerDirectory for Nobody {
    fn peer(&self, url: &str) -> Result<Arc<dyn PeerService>, Refusal> {
        Err(Refusal::new(RefusalKind::Invalid, format!("{url} is nobody")))
    }
}

struct Bench {
    service: Arc<Service>,
    desk: Arc<Desk>,
    script: Arc<Mutex<Script>>,
    driver: Option<Driver>,
    stop: CancellationToken,
    _inbox: mpsc::Sender<Vec<Message>>,
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self::within(Limits::default())
    }

    fn within(limits: Limits) -> Self {
        let folder = TempDir::new().unwrap();
        let store = Arc::new(IndexStore::open(folder.path().to_owned()).unwrap());
        let script = Arc::new(Mutex::new(Script::default()));
        let disk = Disk::new(Box::new(ScriptedLog(Arc::clone(&script))));
        let (sender, commands) = mpsc::channel(QUEUED_COMMANDS);
        let desk = Desk::new();
        let (inbox_sender, inbox) = mpsc::channel(1);
        let id = MemberId::from_random(8);
        let founded = Stored::founded_by(&Members([(id, String::new())].into()));
        let settings = feedline_replica::Settings::default();
        let worker_lease_ms = settings.cluster.worker_lease_ms;
        let member = Member::new(id, founded, settings, 1).unwrap();
        let (peers, deliveries) = Peers::new(id, Arc::new(Nobody));
        let peers = Arc::new(peers);
        let parts = Parts {
            member,
            disk,
            store: Arc::clone(&store),
            peers: Arc::clone(&peers),
            has_state: Arc::default(),
            leader: watch::channel(None).0,
            deliveries,
            commands,
            desk: DeskEnd::new(Arc::clone(&desk)),
            limits,
            grace: Duration::from_secs(10),
            inbox,
            tick_ms: TICK_MS,
            worker_lease_ms,
        };
        let views = watch::channel(Arc::default()).1;
        Self {
            service: Arc::new(Service::new(Arc::clone(&desk), sender, store, peers, views)),
            desk,
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
        self.script.lock().unwrap().writes.iter().flatten().flat_map(Write::records).collect()
    }
}

fn spec(name: &str) -> JobSpec {
    let pipeline = Pipeline::builder("p").source(Source::text("data/*")).batch(4).build().unwrap();
    JobSpec {
        tenant: String::new(),
        name: name.to_owned(),
        pipeline,
        epochs: 1,
        virtual_consumers: 1,
        consumers: 1,
        start: None,
        audit: false,
        reindex: false,
        index_only: false,
        weight: 1.0,
    }
}

fn worker_report() -> WorkerReport {
    WorkerReport {
        worker: WorkerId(1),
        address: "http://w1".to_owned(),
        cores: 1,
        memory_bytes: 1,
        machine: String::new(),
        nic_bytes_per_s: 0,
        seen: Revision::default(),
        computed: Vec::new(),
        memory_full: false,
        draining: false,
        tasks: Vec::new(),
        elapsed_ns: 0,
        cpu: ProcessCpu::default(),
        stats: Vec::new(),
        caches: Vec::new(),
    }
}

fn consumer_report(job: JobId, row: u64) -> ConsumerReport {
    ConsumerReport {
        job,
        consumer: 0,
        session: SessionId(1),
        seen: Revision::default(),
        positions: vec![(0, StreamPosition { epoch: 0, row })],
        open: Vec::new(),
        wants: 2,
        unreachable: Vec::new(),
        failed: None,
        stats: ConsumerStats::default(),
    }
}

fn work(task: &Task) -> TaskResult {
    let output = match &task.shards {
        None => {
            let object = ShardRef { url: "file:///d/0".to_owned(), size_bytes: 100, version: "1".to_owned() };
            TaskOutput::Listed(vec![object])
        }
        Some(_) => {
            let mut schema = Schema::default();
            schema.set("text", ColumnType::Scalar(ScalarType::Int64));
            let block = Block { rows: 100, offset: 0, bytes: 100, group: 0, row_bytes: Vec::new() };
            TaskOutput::Indexed(vec![ShardIndex {
                blocks: vec![block],
                schema: Some(schema),
                defects: Vec::new(),
            }])
        }
    };
    TaskResult { id: task.id, outcome: Ok(output) }
}

/// Has worker 1 list and index the dataset; gives its plan once it holds leases.
async fn prepare(service: &dyn CoordinatorService) -> WorkerPlan {
    let mut plan = service.sync_worker(worker_report()).await.unwrap();
    // Saving the index takes a while.
    while plan.leases.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let tasks = plan.tasks.iter().map(work).collect();
        plan = service.sync_worker(WorkerReport { tasks, ..worker_report() }).await.unwrap();
    }
    plan
}

async fn started(folder: &TempDir, life: u64) -> RunningCoordinator {
    let settings = CoordinatorSettings::durable(folder.path().join("log"), folder.path().join("index"));
    start(settings, life).await.unwrap()
}

#[tokio::test]
async fn a_restart_goes_on_where_the_job_stood() {
    let folder = TempDir::new().unwrap();
    let coordinator = started(&folder, 1).await;
    let service = coordinator.service();
    let job = service.open_job(spec("run")).await.unwrap();
    let leases = prepare(service.as_ref()).await.leases;
    service.sync_consumer(consumer_report(job, 8)).await.unwrap();
    let (before, manifest) = (service.job_status(job).await.unwrap(), service.manifest(job).await.unwrap());
    coordinator.shutdown().await.unwrap();
    let refused = service.list_jobs().await.unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Unavailable);

    let coordinator = started(&folder, 2).await;
    let service = coordinator.service();
    let after = service.job_status(job).await.unwrap();
    assert_eq!((after.state, after.position), (JobState::Running, before.position));
    assert_eq!(service.manifest(job).await.unwrap(), manifest);
    assert_eq!(service.open_job(spec("run")).await.unwrap(), job, "the same job is joined");
    let plan = service.sync_consumer(consumer_report(job, 0)).await.unwrap();
    assert_eq!(plan.streams, [(0, StreamPosition { epoch: 0, row: 8 })], "an old position changes nothing");
    let kept = service.sync_worker(worker_report()).await.unwrap().leases;
    let splits = |leases: &[feedline_core::cluster::messages::Lease]| -> Vec<_> {
        leases.iter().map(|lease| lease.split).filter(|split| split.ordinal >= 2).collect()
    };
    assert_eq!(splits(&kept)[..splits(&leases).len()], splits(&leases), "the worker keeps what it holds");
    coordinator.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_restart_while_a_dataset_is_prepared_uses_the_saved_index() {
    let folder = TempDir::new().unwrap();
    let coordinator = started(&folder, 1).await;
    coordinator.service().open_job(spec("first")).await.unwrap();
    prepare(coordinator.service().as_ref()).await;
    let second = coordinator.service().open_job(spec("second")).await.unwrap();
    coordinator.shutdown().await.unwrap();
    let coordinator = started(&folder, 2).await;
    let service = coordinator.service();
    let plan = service.sync_worker(worker_report()).await.unwrap();
    let tasks = plan.tasks.iter().map(work).collect();
    let plan = service.sync_worker(WorkerReport { tasks, ..worker_report() }).await.unwrap();
    assert_eq!(plan.tasks, [], "listing was enough");
    // That others keep the index, too, is made sure of first.
    let state = loop {
        match service.job_status(second).await.unwrap().state {
            JobState::Preparing { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
            state => break state,
        }
    };
    assert_eq!(state, JobState::Running);
}

#[tokio::test]
async fn a_second_coordinator_on_the_same_directory_is_refused() {
    let folder = TempDir::new().unwrap();
    let first = started(&folder, 1).await;
    let settings = CoordinatorSettings::durable(folder.path().join("log"), folder.path().join("index"));
    let Err(CoordinatorError::Log(LogError::Locked { .. })) = start(settings, 2).await else {
        panic!("two coordinators on one log")
    };
    first.shutdown().await.unwrap();
    started(&folder, 3).await.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_waits_together_is_committed_together() {
    let mut bench = Bench::new();
    // Every request is in the queue before the driver looks at it.
    let opening: Vec<_> = (0..100)
        .map(|number| {
            let spec = Box::new(spec(&format!("run {number}")));
            bench.desk.put(Request::OpenJob { spec, saved: None }).unwrap()
        })
        .collect();
    let task = bench.start();
    for opened in opening {
        assert!(matches!(opened.await.unwrap(), Reply::Opened(_)));
    }
    let script = bench.script.lock().unwrap();
    let records = |writes: &Vec<Write>| writes.iter().flat_map(Write::records).count();
    let together: Vec<usize> = script.writes.iter().map(records).filter(|records| *records > 0).collect();
    assert_eq!(together, [100]);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_acknowledged_while_the_log_cannot_be_written() {
    let mut bench = Bench::new();
    let task = bench.start();
    let service = Arc::clone(&bench.service);
    let job = service.open_job(spec("first")).await.unwrap();
    prepare(service.as_ref()).await;
    bench.script.lock().unwrap().full = true;
    let refused = service.open_job(spec("second")).await.unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Unavailable);
    assert_eq!(
        refused.message,
        "cannot write the coordinator's log at /data/records.log: No space left on device; free some space, nothing acknowledged is lost"
    );
    assert_eq!(service.list_jobs().await.unwrap_err(), refused, "what is not durable is not shown either");
    let tries = bench.script.lock().unwrap().tries;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let more = bench.script.lock().unwrap().tries - tries;
    assert!((600..=1300).contains(&more), "about once in every tick: {more}");

    bench.script.lock().unwrap().full = false;
    tokio::time::sleep(Duration::from_millis(2 * TICK_MS)).await;
    let jobs = service.list_jobs().await.unwrap();
    assert_eq!(jobs.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    assert_eq!(
        service.open_job(spec("second")).await.unwrap(),
        jobs[1].job,
        "asking again is the same as once"
    );
    let plan = service.sync_consumer(consumer_report(job, 0)).await.unwrap();
    assert!(plan.splits.iter().all(|split| !split.workers.is_empty()), "the worker is not taken for lost");
    let revoked = bench.records().iter().any(|record| matches!(record, Record::Revoked { .. }));
    assert!(!revoked);
    bench.stop.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_answers_whoever_waits() {
    let mut bench = Bench::new();
    let task = bench.start();
    let service = Arc::clone(&bench.service);
    let plan = service.sync_worker(worker_report()).await.unwrap();
    let report = WorkerReport { seen: plan.revision, ..worker_report() };
    let held = tokio::spawn({
        let service = Arc::clone(&service);
        async move { service.sync_worker(report).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!held.is_finished(), "an unchanged plan is held back");
    bench.stop.cancel();
    task.await.unwrap().unwrap();
    assert_eq!(held.await.unwrap().unwrap_err(), shutting_down());
    assert_eq!(service.list_jobs().await.unwrap_err(), shutting_down());
}

/// A second write waits until the first is done, which takes longer than another coordinator has to take over.
#[tokio::test]
async fn what_was_asked_before_the_end_is_kept_and_answered_within_the_grace_time() {
    let mut bench = Bench::new();
    let task = bench.start();
    let service = Arc::clone(&bench.service);
    service.list_jobs().await.unwrap();
    let (word, gate) = std::sync::mpsc::sync_channel(1);
    bench.script.lock().unwrap().gate = Some(gate);
    let opening = tokio::spawn({
        let service = Arc::clone(&service);
        async move { service.open_job(spec("last")).await }
    });
    while bench.script.lock().unwrap().gate.is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bench.stop.cancel();
    tokio::time::sleep(HAND_OVER + Duration::from_millis(100)).await;
    assert!(!opening.is_finished() && !task.is_finished());
    word.send(()).unwrap();
    let opened = opening.await.unwrap().unwrap();
    task.await.unwrap().unwrap();
    let kept =
        bench.records().iter().any(|record| matches!(record, Record::Opened { job, .. } if *job == opened));
    assert!(kept, "what was answered is kept");
}

#[tokio::test(start_paused = true)]
async fn one_who_floods_does_not_keep_others_from_being_answered() {
    let mut bench = Bench::new();
    let task = bench.start();
    let service = Arc::clone(&bench.service);
    let job = service.open_job(spec("run")).await.unwrap();
    let flooder = Caller::next();
    // Requests of the flood that were answered, and that were refused.
    let counts: Arc<Mutex<(u64, u64)>> = Arc::default();
    let flood: Vec<_> = (0..600)
        .map(|_| {
            let (service, counts) = (Arc::clone(&service), Arc::clone(&counts));
            tokio::spawn(flooder.answers(async move {
                loop {
                    let answer = service.list_jobs().await;
                    match answer {
                        Ok(_) => counts.lock().unwrap().0 += 1,
                        Err(refusal) if refusal.kind == RefusalKind::Busy => counts.lock().unwrap().1 += 1,
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
            0 => drop(Caller::next().answers(service.job_status(job)).await.unwrap()),
            1 => drop(service.sync_worker(worker_report()).await.unwrap()),
            _ => drop(service.sync_consumer(consumer_report(job, 0)).await.unwrap()),
        }
        let between = counts.lock().unwrap().0 - before;
        assert!(between <= 3 * REQUESTS_TOGETHER as u64, "{between} others were answered first");
    }
    assert!(counts.lock().unwrap().1 > 1_000, "what is too much is refused at once");
    flood.into_iter().for_each(|flood| flood.abort());
    bench.stop.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_behind_opens_no_jobs_and_takes_reports() {
    let mut bench = Bench::within(Limits { log_bytes: 1, ..Limits::default() });
    let task = bench.start();
    let service = Arc::clone(&bench.service);
    let refused = loop {
        // The first entry is the leader's own.
        match service.open_job(spec("run")).await {
            Ok(_) => {}
            Err(refusal) => break refusal,
        }
    };
    assert_eq!((refused.kind, refused.retry_after_ms), (RefusalKind::Busy, Some(1_000)));
    assert!(refused.message.starts_with("the coordinator's log has "), "{refused}");
    service.sync_worker(worker_report()).await.unwrap();
    service.list_jobs().await.unwrap();
    bench.stop.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_silent_worker_is_lost_after_its_lease_time() {
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
fn every_metric_has_a_name_of_its_own_and_a_text() {
    let names: std::collections::BTreeSet<_> = crate::METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), crate::METRICS.len());
    assert!(crate::METRICS.iter().all(|metric| metric.name.starts_with("feedline_coordinator_")));
    assert!(crate::METRICS.iter().all(|metric| !metric.text.is_empty()));
}

/// The saved index cannot be read, which is said where it is read.
#[tokio::test]
async fn a_saved_index_is_read_for_a_job_that_is_opened_and_no_other() {
    let mut bench = Bench::new();
    let task = bench.start();
    let service = Arc::clone(&bench.service);
    let job = service.open_job(spec("run")).await.unwrap();
    let key = feedline_core::cluster::messages::source_key("", &spec("run").pipeline.source);
    std::fs::write(bench.folder.path().join(format!("{key}.index")), "damaged").unwrap();
    assert_eq!(service.open_job(spec("run")).await, Ok(job), "one that is joined needs none");
    assert_eq!(service.join_job(spec("run")).await, Ok(job));
    let other = JobSpec { epochs: 2, ..spec("run") };
    let refused = service.open_job(other).await.unwrap_err();
    assert!(refused.message.contains("running with other settings"), "{refused}");
    assert_eq!(service.join_job(spec("other")).await.unwrap_err().kind, RefusalKind::Denied);
    let opened = service.open_job(spec("other")).await.unwrap_err();
    assert!(opened.message.contains("cannot be used"), "{opened}");
    bench.stop.cancel();
    task.await.unwrap().unwrap();
}
