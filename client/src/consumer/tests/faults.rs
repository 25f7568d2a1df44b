//! Interrupted fetches, failed rows and lost coordinators: retries, reports, and errors of the consumer.

use feedline_data::ids::WorkerId;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_data::pipeline::OrderMode;

use super::*;
use crate::job::Job;
use crate::testing::spec;

fn unreachable(coordinator: &FakeCoordinator) -> Vec<(u64, WorkerId)> {
    let mut reported: Vec<(u64, WorkerId)> = coordinator.script(|script| {
        let reports = script.reports.iter();
        reports
            .flat_map(|report| &report.unreachable)
            .map(|(split, worker)| (split.ordinal, *worker))
            .collect()
    });
    reported.dedup();
    reported
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_fetch_resumes_and_is_reported() {
    for act in [Act::FailAfter(2), Act::EndAfter(2)] {
        let layout = layout(64, 4, 1, 4);
        let worker = FakeWorker::new(&layout, 3).with_act_for(1, act);
        let (coordinator, worker, mut consumer) = single(&layout, worker);
        assert_eq!(all_ids(&drain_all(&mut consumer).await), (0..64).collect::<Vec<_>>());
        let of_second: Vec<_> = worker.fetched().into_iter().filter(|(ordinal, _)| *ordinal == 1).collect();
        assert_eq!(of_second, [(1, 0), (1, 6)], "two pieces of three rows have arrived");
        assert_eq!(unreachable(&coordinator), [(1, WorkerId(1))]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_fetch_is_retried_at_another_worker() {
    let layout = layout(64, 4, 1, 4);
    let failing =
        Arc::new(FakeWorker::new(&layout, 4).with_act(Act::FailAfter(0)).with_act(Act::FailAfter(0)));
    let good = Arc::new(FakeWorker::new(&layout, 5));
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1, 2]);
    let workers = FakeWorkers::new([(1, failing), (2, Arc::clone(&good))]);
    let mut consumer = consumer_of(&coordinator, &workers);
    assert_eq!(all_ids(&drain_all(&mut consumer).await), (0..64).collect::<Vec<_>>());
    assert_eq!(good.fetched().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_missing_lease_is_retried_and_not_reported() {
    let layout = layout(16, 4, 1, 4);
    let worker = FakeWorker::new(&layout, 4).with_act(Act::NotFound).with_act(Act::NotFound);
    let (coordinator, worker, mut consumer) = single(&layout, worker);
    let start = Instant::now();
    assert_eq!(drain_all(&mut consumer).await.len(), 4);
    assert_eq!(worker.fetched().len(), 3);
    assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
    assert_eq!(unreachable(&coordinator), []);
}

#[tokio::test(start_paused = true)]
async fn a_silent_worker_is_hedged_by_the_second_holder() {
    let layout = layout(64, 4, 1, 4);
    let silent = Arc::new(FakeWorker::new(&layout, 4).with_act_for(0, Act::Silent));
    let quick = Arc::new(FakeWorker::new(&layout, 4));
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1, 2]);
    let workers = FakeWorkers::new([(1, silent), (2, Arc::clone(&quick))]);
    let mut consumer = consumer_of(&coordinator, &workers);
    let start = Instant::now();
    assert_eq!(all_ids(&drain_all(&mut consumer).await), (0..64).collect::<Vec<_>>());
    let took = start.elapsed();
    assert!((200..400).contains(&took.as_millis()), "{took:?}");
    assert_eq!(quick.fetched(), [(0, 0)], "only the silent split is fetched twice");
    assert_eq!(unreachable(&coordinator), []);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_from_a_silent_worker_is_aborted() {
    let layout = layout(16, 4, 1, 4);
    let worker = FakeWorker::new(&layout, 4).with_act(Act::Silent).with_act(Act::Silent);
    let (coordinator, _, mut consumer) = single(&layout, worker);
    let start = Instant::now();
    assert_eq!(drain_all(&mut consumer).await.len(), 4);
    let took = start.elapsed().as_secs();
    assert!((30..32).contains(&took), "10 s, then 20 s: {took}");
    assert_eq!(unreachable(&coordinator), [(0, WorkerId(1))]);
}

#[tokio::test(start_paused = true)]
async fn working_frames_extend_the_idle_limit_up_to_a_bound() {
    let layout = layout(16, 4, 1, 4);
    let worker = FakeWorker::new(&layout, 4).with_act(Act::WorkingFor(Some(100)));
    let (coordinator, _, mut consumer) = single(&layout, worker);
    let start = Instant::now();
    assert_eq!(drain_all(&mut consumer).await.len(), 4);
    assert_eq!(start.elapsed().as_secs(), 100);
    assert_eq!(unreachable(&coordinator), []);

    let worker = FakeWorker::new(&layout, 4).with_act(Act::WorkingFor(None));
    let (coordinator, _, mut consumer) = single(&layout, worker);
    let start = Instant::now();
    assert_eq!(drain_all(&mut consumer).await.len(), 4);
    assert!((640..642).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_eq!(unreachable(&coordinator), [(0, WorkerId(1))]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_the_user_does_not_abort_fetches() {
    let layout = layout(1 << 17, 1024, 1, 64);
    let mut worker = FakeWorker::new(&layout, 2048);
    worker.chunk_bytes = 4096;
    let worker = Arc::new(worker);
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1]);
    let workers = FakeWorkers::new([(1, Arc::clone(&worker))]);
    let settings = ClientSettings { buffer_bytes: 256 << 10, ..ClientSettings::default() };
    let mut consumer = consumer(&coordinator, &workers, false, settings);
    next(&mut consumer).await.unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(drain_all(&mut consumer).await.len(), 127);
    assert_eq!(unreachable(&coordinator), []);
    assert_eq!(worker.fetched().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failed_row_fails_the_job_after_all_batches_before_it() {
    let layout = layout(64, 4, 1, 4);
    let worker = FakeWorker::new(&layout, 4).with_act_for(1, Act::FailRow(9));
    let (coordinator, _, mut consumer) = single(&layout, worker);
    let (batches, end) = drain(&mut consumer).await;
    assert_eq!(all_ids(&batches), (0..24).collect::<Vec<_>>());
    let failure = ClientError::JobFailed("row 9 cannot be read".to_owned());
    assert_eq!(end, Err(failure.clone()));
    assert_eq!(next(&mut consumer).await.unwrap_err(), failure, "further calls return the same error");
    let (state, row) = coordinator.script(|script| (script.state.clone(), script.positions[0].row));
    assert_eq!(state, JobState::Failed("row 9 cannot be read".to_owned()));
    assert_eq!(row, 24, "the coordinator has all deliveries before the row");
}

#[tokio::test(start_paused = true)]
async fn a_failed_job_delivers_arrived_batches() {
    let layout = layout(64, 4, 1, 4);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    next(&mut consumer).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    coordinator.script(|script| script.state = JobState::Failed("shard 3 is gone".to_owned()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (batches, end) = drain(&mut consumer).await;
    assert_eq!(batches.len(), 15);
    assert_eq!(end, Err(ClientError::JobFailed("shard 3 is gone".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_job_ends_at_once() {
    let layout = layout(64, 4, 1, 4);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    next(&mut consumer).await.unwrap();
    coordinator.script(|script| script.state = JobState::Cancelled);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(next(&mut consumer).await.unwrap_err(), ClientError::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn repeated_invalid_frames_fail_the_consumer() {
    let layout = layout(16, 4, 1, 4);
    let mut worker = FakeWorker::new(&layout, 4);
    for _ in 0..3 {
        worker = worker.with_act(Act::SendInvalid);
    }
    let (_, _, mut consumer) = single(&layout, worker);
    let error = next(&mut consumer).await.unwrap_err().to_string();
    assert!(
        error.starts_with("split 0 of epoch 0, stream 0 cannot be read: the batch is corrupt"),
        "{error}"
    );
}

fn unavailable() -> ServiceError {
    ServiceError::new(ServiceErrorKind::Unavailable, "cannot reach coordinator at c: refused")
}

#[tokio::test(start_paused = true)]
async fn a_lost_coordinator_fails_the_consumer_after_a_timeout() {
    let layout = layout(64, 4, 1, 1);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    next(&mut consumer).await.unwrap();
    coordinator.script(|script| script.error = Some(unavailable()));
    tokio::time::sleep(Duration::from_secs(50)).await;
    coordinator.script(|script| script.error = None);
    for _ in 0..8 {
        next(&mut consumer).await.unwrap().unwrap();
    }
    coordinator.script(|script| script.error = Some(unavailable()));
    let start = Instant::now();
    let (_, end) = drain(&mut consumer).await;
    let took = start.elapsed().as_secs();
    assert!((60..63).contains(&took), "{took}");
    let expected = "no coordinator responded for 60 s: cannot reach coordinator at c: refused; check that a coordinator is running, and reopen the job to resume";
    assert_eq!(end.unwrap_err().to_string(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_newer_session_supersedes_the_older_one() {
    let layout = layout(64, 4, 1, 4);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    next(&mut consumer).await.unwrap();
    let taken = "a newer session of consumer 0 of job `run` has replaced this session";
    coordinator.script(|script| script.error = Some(ServiceError::new(ServiceErrorKind::Superseded, taken)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let error = next(&mut consumer).await.unwrap_err();
    assert_eq!(error, ClientError::Superseded(taken.to_owned()));
    assert_eq!(consumer.flush().await.unwrap_err(), error);
}

#[tokio::test(start_paused = true)]
async fn opening_retries_and_returns_permanent_errors() {
    let layout = layout(8, 4, 1, 2);
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1]);
    let workers = FakeWorkers::new([(1, Arc::new(FakeWorker::new(&layout, 4)))]);
    let open = |settings: ClientSettings| {
        Job::open(
            Arc::clone(&coordinator) as _,
            Arc::clone(&workers) as _,
            spec(OrderMode::Deterministic),
            settings,
        )
    };
    coordinator.script(|script| script.error = Some(unavailable()));
    let lost = open(ClientSettings { patience_ms: 3000, ..ClientSettings::default() }).await.err().unwrap();
    assert!(lost.is_retryable(), "{lost}");
    coordinator.script(|script| script.error = Some(ServiceError::new(ServiceErrorKind::Invalid, "no")));
    assert_eq!(open(ClientSettings::default()).await.err(), Some(ClientError::Refused("no".to_owned())));
    let invalid = ClientSettings { splits_ahead: 0, ..ClientSettings::default() };
    assert!(matches!(open(invalid).await.err(), Some(ClientError::Setting(_))));
    coordinator.script(|script| script.error = None);
    let job = open(ClientSettings::default()).await.unwrap();
    let mut consumer = job.consumer(0, SessionId(1));
    assert_eq!(drain_all(&mut consumer).await.len(), 2);
}

fn busy() -> ServiceError {
    ServiceError::busy("tenant `a` runs 2 jobs, as many as it may; wait until one has ended", 2_000)
}

#[tokio::test(start_paused = true)]
async fn opening_retries_at_a_busy_coordinator_until_a_timeout() {
    let layout = layout(8, 4, 1, 2);
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1]);
    let workers = FakeWorkers::new([(1, Arc::new(FakeWorker::new(&layout, 4)))]);
    let open = |admission_ms: u64| {
        let settings = ClientSettings { admission_ms, ..ClientSettings::default() };
        let spec = spec(OrderMode::Deterministic);
        Job::open(Arc::clone(&coordinator) as _, Arc::clone(&workers) as _, spec, settings)
    };
    coordinator.script(|script| script.error = Some(busy()));
    let start = Instant::now();
    let error = open(30_000).await.err().unwrap();
    assert!((24..=30).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert!(error.is_retryable());
    let message = error.to_string();
    let expected = "tenant `a` runs 2 jobs, as many as it may; wait until one has ended; the client stopped retrying after ";
    assert!(message.starts_with(expected), "{message}");
    let freed = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        coordinator.script(|script| script.error = None);
    };
    let (opened, ()) = futures::join!(open(60_000), freed);
    assert!(opened.is_ok());
    coordinator.script(|script| script.error = Some(busy()));
    let start = Instant::now();
    assert!(matches!(open(0).await.err(), Some(ClientError::Busy { seconds: 0, .. })));
    assert_eq!(start.elapsed(), Duration::ZERO, "a timeout of 0 disables retries");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_retries_at_a_busy_coordinator_until_a_timeout() {
    let layout = layout(64, 4, 1, 4);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    coordinator.script(|script| script.error = Some(busy()));
    tokio::time::sleep(Duration::from_secs(50)).await;
    coordinator.script(|script| script.error = None);
    assert_eq!(drain_all(&mut consumer).await.len(), 16);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    coordinator.script(|script| script.error = Some(busy()));
    let start = Instant::now();
    let (_, end) = drain(&mut consumer).await;
    assert!(matches!(end, Err(ClientError::Busy { seconds: 60..=63, .. })), "{end:?}");
    assert!((60..64).contains(&start.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn a_busy_worker_is_retried_and_not_reported() {
    let layout = layout(16, 4, 1, 4);
    let worker = FakeWorker::new(&layout, 4).with_act(Act::Busy(1_000)).with_act(Act::Busy(1_000));
    let (coordinator, worker, mut consumer) = single(&layout, worker);
    let start = Instant::now();
    assert_eq!(drain_all(&mut consumer).await.len(), 4);
    assert_eq!(worker.fetched().len(), 3);
    let took = start.elapsed().as_millis();
    assert!((2_000..3_200).contains(&took), "{took} ms");
    assert_eq!(unreachable(&coordinator), [], "the worker still holds the split");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_stays_busy_is_reported() {
    let layout = layout(16, 4, 1, 4);
    let worker = (0..7).fold(FakeWorker::new(&layout, 4), |worker, _| worker.with_act(Act::Busy(2_000)));
    let (coordinator, _, mut consumer) = single(&layout, worker);
    assert_eq!(drain_all(&mut consumer).await.len(), 4);
    assert_eq!(unreachable(&coordinator), [(0, WorkerId(1))], "after the idle limit");
}
