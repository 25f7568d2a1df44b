//! Broken fetches, failing rows, lost coordinators: what is retried, what is told, what ends the consumer.

use feedline_data::ids::WorkerId;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_data::pipeline::OrderMode;

use super::*;
use crate::job::Job;
use crate::testing::spec;

fn unreachable(coordinator: &FakeCoordinator) -> Vec<(u64, WorkerId)> {
    let mut told: Vec<(u64, WorkerId)> = coordinator.tell(|told| {
        let reports = told.reports.iter();
        reports
            .flat_map(|report| &report.unreachable)
            .map(|(split, worker)| (split.ordinal, *worker))
            .collect()
    });
    told.dedup();
    told
}

#[tokio::test(start_paused = true)]
async fn a_broken_fetch_goes_on_where_it_broke_and_is_told() {
    for act in [Act::BreakAfter(2), Act::EndAfter(2)] {
        let layout = layout(64, 4, 1, 4);
        let worker = FakeWorker::new(&layout, 3).next_fetch_of(1, act);
        let (coordinator, worker, mut consumer) = single(&layout, worker);
        assert_eq!(all_ids(&drain_all(&mut consumer).await), (0..64).collect::<Vec<_>>());
        let of_second: Vec<_> = worker.fetched().into_iter().filter(|(ordinal, _)| *ordinal == 1).collect();
        assert_eq!(of_second, [(1, 0), (1, 6)], "two pieces of three rows had come");
        assert_eq!(unreachable(&coordinator), [(1, WorkerId(1))]);
    }
}

#[tokio::test(start_paused = true)]
async fn another_worker_is_asked_when_one_breaks() {
    let layout = layout(64, 4, 1, 4);
    let broken =
        Arc::new(FakeWorker::new(&layout, 4).next_fetch(Act::BreakAfter(0)).next_fetch(Act::BreakAfter(0)));
    let good = Arc::new(FakeWorker::new(&layout, 5));
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1, 2]);
    let workers = FakeWorkers::new([(1, broken), (2, Arc::clone(&good))]);
    let mut consumer = consumer_of(&coordinator, &workers);
    assert_eq!(all_ids(&drain_all(&mut consumer).await), (0..64).collect::<Vec<_>>());
    assert_eq!(good.fetched().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_there_yet_is_asked_for_again_and_not_told() {
    let layout = layout(16, 4, 1, 4);
    let worker = FakeWorker::new(&layout, 4).next_fetch(Act::NotHere).next_fetch(Act::NotHere);
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
    let silent = Arc::new(FakeWorker::new(&layout, 4).next_fetch_of(0, Act::Silent));
    let quick = Arc::new(FakeWorker::new(&layout, 4));
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1, 2]);
    let workers = FakeWorkers::new([(1, silent), (2, Arc::clone(&quick))]);
    let mut consumer = consumer_of(&coordinator, &workers);
    let start = Instant::now();
    assert_eq!(all_ids(&drain_all(&mut consumer).await), (0..64).collect::<Vec<_>>());
    let took = start.elapsed();
    assert!((200..400).contains(&took.as_millis()), "{took:?}");
    assert_eq!(quick.fetched(), [(0, 0)], "only what was silent is fetched twice");
    assert_eq!(unreachable(&coordinator), []);
}

#[tokio::test(start_paused = true)]
async fn a_silent_worker_without_a_second_is_given_up_in_time() {
    let layout = layout(16, 4, 1, 4);
    let worker = FakeWorker::new(&layout, 4).next_fetch(Act::Silent).next_fetch(Act::Silent);
    let (coordinator, _, mut consumer) = single(&layout, worker);
    let start = Instant::now();
    assert_eq!(drain_all(&mut consumer).await.len(), 4);
    let took = start.elapsed().as_secs();
    assert!((30..32).contains(&took), "10 s, then 20 s, so that slow rows come in the end: {took}");
    assert_eq!(unreachable(&coordinator), [(0, WorkerId(1))]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_says_that_it_goes_on_is_waited_for_but_not_for_ever() {
    let layout = layout(16, 4, 1, 4);
    let worker = FakeWorker::new(&layout, 4).next_fetch(Act::WorkingFor(Some(100)));
    let (coordinator, _, mut consumer) = single(&layout, worker);
    let start = Instant::now();
    assert_eq!(drain_all(&mut consumer).await.len(), 4);
    assert_eq!(start.elapsed().as_secs(), 100);
    assert_eq!(unreachable(&coordinator), []);

    let worker = FakeWorker::new(&layout, 4).next_fetch(Act::WorkingFor(None));
    let (coordinator, _, mut consumer) = single(&layout, worker);
    let start = Instant::now();
    assert_eq!(drain_all(&mut consumer).await.len(), 4);
    assert!((640..642).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_eq!(unreachable(&coordinator), [(0, WorkerId(1))]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_the_user_is_not_taken_for_a_silent_worker() {
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
async fn a_failed_row_comes_after_every_batch_before_it() {
    let layout = layout(64, 4, 1, 4);
    let worker = FakeWorker::new(&layout, 4).next_fetch_of(1, Act::FailAt(9));
    let (coordinator, _, mut consumer) = single(&layout, worker);
    let (batches, end) = drain(&mut consumer).await;
    assert_eq!(all_ids(&batches), (0..24).collect::<Vec<_>>());
    let failure = ClientError::JobFailed("row 9 cannot be read".to_owned());
    assert_eq!(end, Err(failure.clone()));
    assert_eq!(next(&mut consumer).await.unwrap_err(), failure, "and again");
    let (state, row) = coordinator.tell(|told| (told.state.clone(), told.positions[0].row));
    assert_eq!(state, JobState::Failed("row 9 cannot be read".to_owned()));
    assert_eq!(row, 24, "what came before is held");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_fails_elsewhere_delivers_what_has_arrived() {
    let layout = layout(64, 4, 1, 4);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    next(&mut consumer).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    coordinator.tell(|told| told.state = JobState::Failed("shard 3 is gone".to_owned()));
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
    coordinator.tell(|told| told.state = JobState::Cancelled);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(next(&mut consumer).await.unwrap_err(), ClientError::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn what_is_damaged_again_and_again_is_told() {
    let layout = layout(16, 4, 1, 4);
    let mut worker = FakeWorker::new(&layout, 4);
    for _ in 0..3 {
        worker = worker.next_fetch(Act::Garbage);
    }
    let (_, _, mut consumer) = single(&layout, worker);
    let error = next(&mut consumer).await.unwrap_err().to_string();
    assert!(
        error.starts_with("split 0 of epoch 0, stream 0 cannot be read: the batch is damaged"),
        "{error}"
    );
}

fn unavailable() -> ServiceError {
    ServiceError::new(ServiceErrorKind::Unavailable, "cannot reach coordinator at c: refused")
}

#[tokio::test(start_paused = true)]
async fn a_lost_coordinator_is_waited_for_and_then_given_up() {
    let layout = layout(64, 4, 1, 1);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    next(&mut consumer).await.unwrap();
    coordinator.tell(|told| told.refusing = Some(unavailable()));
    tokio::time::sleep(Duration::from_secs(50)).await;
    coordinator.tell(|told| told.refusing = None);
    for _ in 0..8 {
        next(&mut consumer).await.unwrap().unwrap();
    }
    coordinator.tell(|told| told.refusing = Some(unavailable()));
    let start = Instant::now();
    let (_, end) = drain(&mut consumer).await;
    let took = start.elapsed().as_secs();
    assert!((60..63).contains(&took), "{took}");
    let expected = "no coordinator for 60 s: cannot reach coordinator at c: refused; check that it runs, then open the job again to resume it";
    assert_eq!(end.unwrap_err().to_string(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_newer_session_ends_the_older_one() {
    let layout = layout(64, 4, 1, 4);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    next(&mut consumer).await.unwrap();
    let taken = "consumer 0 of job `run` was taken over by a newer session";
    coordinator.tell(|told| told.refusing = Some(ServiceError::new(ServiceErrorKind::Superseded, taken)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let error = next(&mut consumer).await.unwrap_err();
    assert_eq!(error, ClientError::Superseded(taken.to_owned()));
    assert_eq!(consumer.flush().await.unwrap_err(), error);
}

#[tokio::test(start_paused = true)]
async fn opening_waits_for_a_coordinator_and_passes_refusals_on() {
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
    coordinator.tell(|told| told.refusing = Some(unavailable()));
    let lost = open(ClientSettings { patience_ms: 3000, ..ClientSettings::default() }).await.err().unwrap();
    assert!(lost.is_retryable(), "{lost}");
    coordinator.tell(|told| told.refusing = Some(ServiceError::new(ServiceErrorKind::Invalid, "no")));
    assert_eq!(open(ClientSettings::default()).await.err(), Some(ClientError::Refused("no".to_owned())));
    let odd = ClientSettings { splits_ahead: 0, ..ClientSettings::default() };
    assert!(matches!(open(odd).await.err(), Some(ClientError::Setting(_))));
    coordinator.tell(|told| told.refusing = None);
    let job = open(ClientSettings::default()).await.unwrap();
    let mut consumer = job.consumer(0, SessionId(1));
    assert_eq!(drain_all(&mut consumer).await.len(), 2);
}

fn busy() -> ServiceError {
    ServiceError::busy("tenant `a` runs 2 jobs, as many as it may; wait until one has ended", 2_000)
}

#[tokio::test(start_paused = true)]
async fn opening_waits_for_room_until_a_deadline() {
    let layout = layout(8, 4, 1, 2);
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1]);
    let workers = FakeWorkers::new([(1, Arc::new(FakeWorker::new(&layout, 4)))]);
    let open = |admission_ms: u64| {
        let settings = ClientSettings { admission_ms, ..ClientSettings::default() };
        let spec = spec(OrderMode::Deterministic);
        Job::open(Arc::clone(&coordinator) as _, Arc::clone(&workers) as _, spec, settings)
    };
    coordinator.tell(|told| told.refusing = Some(busy()));
    let start = Instant::now();
    let refused = open(30_000).await.err().unwrap();
    assert!((24..=30).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert!(refused.is_retryable());
    let said = refused.to_string();
    let expected = "tenant `a` runs 2 jobs, as many as it may; wait until one has ended; gave up after ";
    assert!(said.starts_with(expected), "{said}");
    let freed = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        coordinator.tell(|told| told.refusing = None);
    };
    let (opened, ()) = futures::join!(open(60_000), freed);
    assert!(opened.is_ok());
    coordinator.tell(|told| told.refusing = Some(busy()));
    let start = Instant::now();
    assert!(matches!(open(0).await.err(), Some(ClientError::Busy { seconds: 0, .. })));
    assert_eq!(start.elapsed(), Duration::ZERO, "who does not want to wait does not");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_without_a_place_waits_for_one_and_then_gives_up() {
    let layout = layout(64, 4, 1, 4);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    coordinator.tell(|told| told.refusing = Some(busy()));
    tokio::time::sleep(Duration::from_secs(50)).await;
    coordinator.tell(|told| told.refusing = None);
    assert_eq!(drain_all(&mut consumer).await.len(), 16);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    coordinator.tell(|told| told.refusing = Some(busy()));
    let start = Instant::now();
    let (_, end) = drain(&mut consumer).await;
    assert!(matches!(end, Err(ClientError::Busy { seconds: 60..=63, .. })), "{end:?}");
    assert!((60..64).contains(&start.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_room_is_asked_again_and_not_told_of() {
    let layout = layout(16, 4, 1, 4);
    let worker = FakeWorker::new(&layout, 4).next_fetch(Act::Busy(1_000)).next_fetch(Act::Busy(1_000));
    let (coordinator, worker, mut consumer) = single(&layout, worker);
    let start = Instant::now();
    assert_eq!(drain_all(&mut consumer).await.len(), 4);
    assert_eq!(worker.fetched().len(), 3);
    let took = start.elapsed().as_millis();
    assert!((2_000..3_200).contains(&took), "{took} ms");
    assert_eq!(unreachable(&coordinator), [], "it still holds the split");
}

#[tokio::test(start_paused = true)]
async fn the_split_of_a_worker_that_never_has_room_goes_to_others() {
    let layout = layout(16, 4, 1, 4);
    let worker = (0..7).fold(FakeWorker::new(&layout, 4), |worker, _| worker.next_fetch(Act::Busy(2_000)));
    let (coordinator, _, mut consumer) = single(&layout, worker);
    assert_eq!(drain_all(&mut consumer).await.len(), 4);
    assert_eq!(unreachable(&coordinator), [(0, WorkerId(1))], "after as long as a silent one is waited for");
}
