//! Elastic jobs: ranks join, leave and fail within an epoch, and the batches of each slot do not change.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use feedline_client::audit::Audit;
use feedline_client::digest::StreamDigest;
use feedline_client::{Batch, ClientSettings, Consumer, Job};
use feedline_coordinator::{CoordinatorSettings, RunningCoordinator};
use feedline_data::ids::{SessionId, WorkerId};
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::Pipeline;
use feedline_tests::embedded::{OneWorker, worker_settings};
use feedline_tests::process::Processes;
use feedline_tests::running::Running;
use feedline_tests::{Scratch, wait_for_rows};
use feedline_worker::{ProcessClock, RunningWorker};

const SLOTS: u32 = 12;
const LINES: u64 = 12_007;

/// A coordinator, a worker and a job in this process.
struct Scene {
    coordinator: RunningCoordinator,
    worker: RunningWorker,
    job: Job,
    pipeline: Pipeline,
}

impl Scene {
    async fn start(folder: &Path, spec: JobSpec) -> Self {
        let mut settings = CoordinatorSettings::in_memory(folder.join("index"));
        settings.cluster.consumer_lease_ms = 1_500;
        let coordinator = feedline_coordinator::start(settings, 1).await.expect("the directory is writable");
        let (settings, clock) = (worker_settings(256 << 20), ProcessClock::new());
        let worker = feedline_worker::start(WorkerId(1), settings, clock, coordinator.service());
        let worker = worker.expect("threads start");
        let workers = Arc::new(OneWorker(worker.service()));
        let pipeline = spec.pipeline.clone();
        let job = Job::open(coordinator.service(), workers, spec, ClientSettings::default()).await;
        Self { coordinator, worker, job: job.expect("it is sound"), pipeline }
    }

    /// Returns the audit of a completed job.
    async fn end(self, batches: &[Batch]) {
        let manifest = self.coordinator.service().manifest(self.job.id()).await.expect("it is indexed");
        let layout = self.job.status().await.expect("the coordinator runs").layout.expect("it ran");
        let mut audit = Audit::new(layout, &manifest, &self.pipeline, None);
        batches.iter().for_each(|batch| audit.add(&batch.info));
        let report = audit.report(None);
        assert!(report.is_exact(), "{report:?}");
        self.worker.shutdown().await;
        self.coordinator.shutdown().await.expect("its log is in memory");
    }

    fn rank(&self, rank: u32) -> Consumer {
        self.job.consumer(rank, SessionId(u64::from(rank) + 1))
    }
}

fn spec(folder: &Scratch, consumers: u32, elastic: bool) -> JobSpec {
    let lines: Vec<String> = (0..LINES).map(|number| format!("line {number}")).collect();
    // Both jobs read the same file.
    let file = folder.file("lines.txt");
    if !Path::new(&file).exists() {
        folder.write("lines.txt", &lines.join("\n"));
    }
    let pipeline = format!(
        "name: lines\nsource: {{ url: {file}, format: text }}\nseed: 5\nshuffle: {{ window: 512 }}\noperators: [ batch: {{ size: 8 }} ]"
    );
    let pipeline = Pipeline::from_yaml(&pipeline, "test.yaml").expect("the test's pipeline is right");
    JobSpec { consumers, virtual_consumers: SLOTS, audit: true, elastic, ..JobSpec::new(pipeline) }
}

/// Returns the digest of each slot's batches in the order of delivery.
fn digests(batches: &[Batch]) -> BTreeMap<u32, String> {
    let mut digests: BTreeMap<u32, StreamDigest> = BTreeMap::new();
    for batch in batches {
        digests.entry(batch.info.stream).or_default().add(&batch.records);
    }
    digests.into_iter().map(|(stream, digest)| (stream, digest.to_hex())).collect()
}

async fn next(rank: &mut Consumer) -> Option<Batch> {
    let within = tokio::time::timeout(Duration::from_secs(120), rank.next());
    within.await.expect("a batch comes within a minute").expect("the job does not fail")
}

/// Ranks take turns receiving batches until each has received `count` batches. Ranks without a slot are skipped.
async fn take(ranks: &mut [Consumer], count: usize, batches: &mut Vec<Batch>) {
    let mut taken = vec![0; ranks.len()];
    while taken.iter().any(|taken| *taken < count) {
        for (rank, taken) in ranks.iter_mut().zip(&mut taken) {
            // Dropping the future loses no batch.
            let Ok(batch) = tokio::time::timeout(Duration::from_millis(20), rank.next()).await else {
                continue;
            };
            batches.push(batch.expect("the job does not fail").expect("the epoch goes on"));
            *taken += 1;
        }
    }
}

/// Receives the remaining batches.
async fn finish(mut ranks: Vec<Consumer>, batches: &mut Vec<Batch>) {
    let drain = |mut rank: Consumer| async move {
        let mut taken = Vec::new();
        while let Some(batch) = next(&mut rank).await {
            taken.push(batch);
        }
        rank.close().await.expect("the coordinator runs");
        taken
    };
    let tasks: Vec<_> = ranks.drain(..).map(|rank| tokio::spawn(drain(rank))).collect();
    for task in tasks {
        batches.extend(task.await.expect("no rank panics"));
    }
}

async fn leave(mut rank: Consumer) {
    rank.leave().await.expect("the coordinator runs");
    assert!(next(&mut rank).await.is_none());
}

/// Returns the digests of a job with constant ranks.
async fn fixed(scratch: &Scratch) -> BTreeMap<u32, String> {
    let scene = Scene::start(scratch.path(), spec(scratch, 2, false)).await;
    let mut batches = Vec::new();
    finish(vec![scene.rank(0), scene.rank(1)], &mut batches).await;
    scene.end(&batches).await;
    digests(&batches)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_then_five_then_three_then_one_rank_deliver_the_same_slots() {
    let scratch = Scratch::new();
    let expected = fixed(&scratch).await;
    assert_eq!(expected.len(), SLOTS as usize);
    let scene = Scene::start(scratch.path(), spec(&scratch, 2, true)).await;
    let mut batches = Vec::new();
    let mut ranks = vec![scene.rank(0), scene.rank(1)];
    take(&mut ranks, 40, &mut batches).await;
    // Three ranks join, and receive batches as soon as they have a slot.
    ranks.extend([7, 3, 12].map(|rank| scene.rank(rank)));
    take(&mut ranks, 40, &mut batches).await;
    let owners = scene.job.status().await.unwrap().slot_owners;
    assert_eq!(owners.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 1, 3, 7, 12], "{owners:?}");
    // Two ranks leave, including the first one.
    for place in [3, 0] {
        leave(ranks.remove(place)).await;
    }
    take(&mut ranks, 40, &mut batches).await;
    let owners = scene.job.status().await.unwrap().slot_owners;
    assert_eq!(owners.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [1, 7, 12], "{owners:?}");
    for _ in 0..2 {
        leave(ranks.remove(0)).await;
    }
    finish(ranks, &mut batches).await;
    assert_eq!(digests(&batches), expected);
    assert_eq!(batches.iter().map(|batch| batch.records.num_rows() as u64).sum::<u64>(), LINES);
    scene.end(&batches).await;
}

/// A rank fails with its last batches. Its slots continue at the last reported position, and no slot's order changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_of_a_failed_rank_continue_at_its_last_report() {
    let scratch = Scratch::new();
    let expected = fixed(&scratch).await;
    let scene = Scene::start(scratch.path(), spec(&scratch, 2, true)).await;
    let mut batches = Vec::new();
    let mut ranks = vec![scene.rank(0), scene.rank(1)];
    take(&mut ranks, 30, &mut batches).await;
    let mut lost = ranks.remove(0);
    lost.flush().await.expect("the coordinator runs");
    // The coordinator may not receive the report of these batches.
    let mut last = Vec::new();
    for _ in 0..9 {
        last.push(next(&mut lost).await.expect("the epoch goes on"));
    }
    drop(lost);
    let mut others = Vec::new();
    finish(ranks, &mut others).await;
    let begins = |batch: &Batch| batch.info.inputs.first().map(|(split, input)| (*split, input.start));
    let again: Vec<_> = others.iter().map(begins).collect();
    last.retain(|batch| !again.contains(&begins(batch)));
    batches.extend(last);
    batches.extend(others);
    assert_eq!(digests(&batches), expected);
    scene.end(&batches).await;
}

/// An elastic job as processes: a coordinator, two workers and ranks.
struct Cluster {
    processes: Processes,
    url: String,
    pipeline: String,
    _scratch: Scratch,
}

impl Cluster {
    fn start() -> Self {
        let scratch = Scratch::new();
        spec(&scratch, 2, true);
        let file = scratch.file("lines.txt");
        let pipeline = format!(
            "name: lines\nsource: {{ url: {file}, format: text }}\nseed: 5\noperators: [ batch: {{ size: 8 }} ]"
        );
        let pipeline = scratch.write("pipeline.yaml", &pipeline);
        let processes = Processes::start(scratch.path().join("cluster"), 2);
        Self { url: processes.url(), processes, pipeline, _scratch: scratch }
    }

    fn rank(&self, rank: &str) -> Running {
        let shape = ["--elastic", "--virtual-consumers", "12", "--consumers", "2", "--rank", rank];
        let mut arguments = vec!["run", &self.pipeline, "--coordinator", &self.url, "--job", "train"];
        arguments.extend(shape);
        arguments.extend(["--report", "json", "--step-ms", "4"]);
        Running::start(&arguments)
    }
}

/// Returns the rows of each rank.
fn rows_of(ranks: Vec<Running>) -> Vec<u64> {
    let rows = |rank: Running| rank.wait().report()["rows"].as_u64().expect("rows are a number");
    ranks.into_iter().map(rows).collect()
}

#[test]
fn rank_processes_leave_and_join() {
    let cluster = Cluster::start();
    let (first, second) = (cluster.rank("0"), cluster.rank("5"));
    wait_for_rows(&cluster.url, 1_000);
    first.interrupt();
    let first = first.wait();
    assert!(
        first.stderr.contains("left the job, which continues with the remaining ranks"),
        "{}",
        first.stderr
    );
    let mut taken = vec![first.report()["rows"].as_u64().expect("rows are a number")];
    taken.extend(rows_of(vec![second, cluster.rank("2")]));
    assert_eq!(taken.iter().sum::<u64>(), LINES, "{taken:?}");
    assert!(taken.iter().all(|rows| *rows > 0), "{taken:?}");
}

#[test]
fn slots_move_while_workers_and_the_coordinator_are_killed() {
    let mut cluster = Cluster::start();
    let (first, second) = (cluster.rank("0"), cluster.rank("1"));
    wait_for_rows(&cluster.url, 500);
    cluster.processes.workers[0].kill();
    cluster.processes.restart_coordinator(0);
    let third = cluster.rank("2");
    cluster.processes.replace_worker(0);
    wait_for_rows(&cluster.url, 3_000);
    first.interrupt();
    cluster.processes.restart_coordinator(0);
    cluster.processes.workers[1].kill();
    let mut taken = vec![first.wait().report()["rows"].as_u64().expect("rows are a number")];
    taken.extend(rows_of(vec![second, third, cluster.rank("3")]));
    assert_eq!(taken.iter().sum::<u64>(), LINES, "every row comes once: {taken:?}");
}
