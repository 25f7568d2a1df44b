//! The positions of all consumers at a step, behind a filter. A new service that starts at these positions delivers the remaining rows of
//! each slot.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::AsArray;
use feedline_client::{Batch, ClientSettings, Consumer, Job};
use feedline_coordinator::{CoordinatorSettings, RunningCoordinator};
use feedline_data::checkpoint::Position;
use feedline_data::checkpoint::StepId;
use feedline_data::ids::{SessionId, WorkerId};
use feedline_data::layout::StreamPosition;
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::Pipeline;
use feedline_tests::Scratch;
use feedline_tests::embedded::{OneWorker, worker_settings};
use feedline_worker::{ProcessClock, RunningWorker};

const SLOTS: u32 = 6;
const WAIT: Duration = Duration::from_secs(120);

/// Each slot's rows, batch by batch.
type Slots = BTreeMap<u32, Vec<Vec<String>>>;

/// All roles in this process, and all consumers.
struct Scene {
    coordinator: RunningCoordinator,
    worker: RunningWorker,
    job: Job,
}

impl Scene {
    async fn start(folder: &Path, spec: JobSpec) -> Self {
        let settings = CoordinatorSettings::in_memory(folder.join("index"));
        let coordinator = feedline_coordinator::start(settings, 1).await.expect("the directory is writable");
        let (settings, clock) = (worker_settings(256 << 20), ProcessClock::new());
        let worker = feedline_worker::start(WorkerId(1), settings, clock, coordinator.service());
        let worker = worker.expect("threads start");
        let workers = Arc::new(OneWorker(worker.service()));
        let job = Job::open(coordinator.service(), workers, spec, ClientSettings::default()).await;
        Self { coordinator, worker, job: job.expect("it is sound") }
    }

    fn consumers(&self, count: u32) -> Vec<Consumer> {
        (0..count).map(|rank| self.job.consumer(rank, SessionId(1))).collect()
    }

    async fn end(self) {
        self.worker.shutdown().await;
        self.coordinator.shutdown().await.expect("its log is in memory");
    }
}

fn spec(folder: &Scratch, consumers: u32, start: Option<Position>) -> JobSpec {
    let lines: Vec<String> = (0..3_000).map(|number| format!("line {number}")).collect();
    let file = folder.file("lines.txt");
    if !Path::new(&file).exists() {
        folder.write("lines.txt", &lines.join("\n"));
    }
    let pipeline = format!(
        "name: lines\nsource: {{ url: {file}, format: text }}\nseed: 5\nshuffle: {{ window: 64 }}\noperators: [ filter: {{ where: \"text LIKE '%7%'\" }}, batch: {{ size: 8 }} ]"
    );
    let pipeline = Pipeline::from_yaml(&pipeline, "test.yaml").expect("the test's pipeline is right");
    JobSpec { consumers, virtual_consumers: SLOTS, start, epochs: 2, ..JobSpec::new(pipeline) }
}

async fn take(consumer: &mut Consumer, batches: u32, taken: &mut Slots) {
    for _ in 0..batches {
        let batch = tokio::time::timeout(WAIT, consumer.next()).await.expect("nothing hangs");
        let Some(batch) = batch.expect("the job does not fail") else { return };
        taken.entry(batch.info.stream).or_default().push(rows(&batch));
    }
}

fn rows(batch: &Batch) -> Vec<String> {
    batch.records.column(0).as_string::<i32>().iter().flatten().map(str::to_owned).collect()
}

async fn rest(consumers: Vec<Consumer>, taken: &mut Slots) {
    for mut consumer in consumers {
        take(&mut consumer, u32::MAX, taken).await;
        consumer.close().await.expect("the coordinator runs");
    }
}

async fn position_of(job: &Job, streams: Vec<(u32, StreamPosition)>) -> Position {
    let position = job.position().await.expect("the coordinator runs").expect("the data is known");
    Position { streams: streams.into_iter().map(|(_, at)| at).collect(), ..position }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_service_resumes_at_the_positions_of_a_step() {
    let scratch = Scratch::new();
    let scene = Scene::start(scratch.path(), spec(&scratch, 1, None)).await;
    let mut whole = Slots::new();
    rest(scene.consumers(1), &mut whole).await;
    scene.end().await;
    for (before, steps, after) in [(2, 5, 3), (3, 9, 1), (6, 14, 2)] {
        let scene = Scene::start(scratch.path(), spec(&scratch, before, None)).await;
        let mut consumers = scene.consumers(before);
        let mut taken = Slots::new();
        let own = SLOTS / before;
        for consumer in &mut consumers {
            take(consumer, own * (steps - 1), &mut taken).await;
        }
        let step = StepId { epochs: None, batches_per_stream: u64::from(steps), extra_batches: 0 };
        let mut answers = Vec::new();
        for consumer in &mut consumers {
            // Other ranks have not reached the step.
            take(consumer, own, &mut taken).await;
            answers.push(scene.job.positions_at(step, WAIT).await.expect("the coordinator runs"));
        }
        assert!(
            answers.iter().all(|answer| *answer == answers[0] && answer.missing.is_empty()),
            "{answers:?}"
        );
        let start = position_of(&scene.job, answers.swap_remove(0).positions).await;
        let following = StepId { batches_per_stream: u64::from(steps) + 1, ..step };
        let ahead = scene.job.positions_at(following, WAIT).await.expect("the coordinator runs");
        assert!(ahead.missing.is_empty(), "the next step is known once its rows have arrived");
        for consumer in consumers {
            consumer.close().await.expect("the coordinator runs");
        }
        let closed = scene.job.positions_at(following, WAIT).await.expect("the coordinator runs");
        assert_eq!(closed, ahead, "a consumer that closes reports its next position");
        let far = scene
            .job
            .positions_at(StepId { batches_per_stream: 1_000, ..step }, WAIT)
            .await
            .expect("the coordinator runs");
        assert_eq!(
            (far.missing.len() as u32, far.is_retryable),
            (before, false),
            "all consumers have closed"
        );
        scene.end().await;
        let again = Scene::start(scratch.path(), spec(&scratch, after, Some(start))).await;
        rest(again.consumers(after), &mut taken).await;
        again.end().await;
        assert_eq!(taken, whole, "{before} consumers until step {steps}, then {after}");
    }
}
