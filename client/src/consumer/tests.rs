//! A consumer with scripted workers and a scripted coordinator, in paused time: waits are instant, and a hang fails at once.

mod bounds;
mod chaos;
mod deferred;
mod faults;
mod history;
mod indivisible;
mod slots;
mod upgrade;

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use feedline_data::ids::{JobId, SessionId};
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::messages::JobState;
use feedline_data::pipeline::Remainder;
use futures::FutureExt;
use tokio::time::{Duration, Instant};

use super::Consumer;
use crate::batch::Batch;
use crate::error::ClientError;
use crate::settings::ClientSettings;
use crate::state::ConsumerIdentity;
use crate::testing::{Act, FakeCoordinator, FakeWorker, FakeWorkers, layout, number};

/// Longer than every test.
const DEADLINE: Duration = Duration::from_secs(3600);

fn consumer(
    coordinator: &Arc<FakeCoordinator>,
    workers: &Arc<FakeWorkers>,
    relaxed: bool,
    settings: ClientSettings,
) -> Consumer {
    let identity =
        ConsumerIdentity { job: JobId(1), consumer: 0, session: SessionId(1), is_relaxed: relaxed };
    Consumer::start(identity, Arc::clone(coordinator) as _, Arc::clone(workers) as _, settings)
}

/// One worker, numbered 1, and a deterministic job.
fn single(layout: &Layout, worker: FakeWorker) -> (Arc<FakeCoordinator>, Arc<FakeWorker>, Consumer) {
    let worker = Arc::new(worker);
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1]);
    let workers = FakeWorkers::new([(1, Arc::clone(&worker))]);
    let consumer = consumer(&coordinator, &workers, false, ClientSettings::default());
    (coordinator, worker, consumer)
}

fn ids(batch: &Batch) -> Vec<u64> {
    batch.records.column(0).as_primitive::<Int64Type>().values().iter().map(|&id| id as u64).collect()
}

async fn next(consumer: &mut Consumer) -> Result<Option<Batch>, ClientError> {
    tokio::time::timeout(DEADLINE, consumer.next()).await.expect("no call hangs")
}

/// Reads batches up to the end or an error.
async fn drain(consumer: &mut Consumer) -> (Vec<Batch>, Result<(), ClientError>) {
    let mut batches = Vec::new();
    loop {
        match next(consumer).await {
            Ok(Some(batch)) => batches.push(batch),
            Ok(None) => return (batches, Ok(())),
            Err(error) => return (batches, Err(error)),
        }
    }
}

async fn drain_all(consumer: &mut Consumer) -> Vec<Batch> {
    let (batches, end) = drain(consumer).await;
    end.unwrap();
    batches
}

fn all_ids(batches: &[Batch]) -> Vec<u64> {
    batches.iter().flat_map(ids).collect()
}

/// The batches of one consumer of all streams: each from the stream that is furthest behind.
fn expected(layout: &Layout) -> Vec<(u32, Vec<u64>)> {
    let mut batches = Vec::new();
    for epoch in 0..layout.epochs {
        for step in 0..layout.steps().expect("the job keeps all rows") {
            for stream in 0..layout.streams {
                let first = step * u64::from(layout.batch_rows);
                let end = (first + u64::from(layout.batch_rows)).min(layout.stream_rows(stream));
                let row = |row: u64| {
                    let split = SplitRef { epoch, ordinal: row / layout.split_rows, stream };
                    number(layout, split, (row % layout.split_rows) as u32)
                };
                batches.push((stream, (first..end).map(row).collect()));
            }
        }
    }
    batches
}

#[tokio::test(start_paused = true)]
async fn batches_of_several_streams_follow_the_order_of_steps() {
    for (rows, streams) in [(50, 1), (50, 3), (49, 2), (64, 4), (17, 2)] {
        let layout = Layout { epochs: 2, ..layout(rows, 4, streams, 2) };
        let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 3));
        let batches = drain_all(&mut consumer).await;
        let taken: Vec<_> = batches.iter().map(|batch| (batch.info.stream, ids(batch))).collect();
        assert_eq!(taken, expected(&layout), "{rows} rows, {streams} streams");
        assert_eq!(
            coordinator.script(|script| script.state.clone()),
            JobState::Completed,
            "the coordinator knows the end"
        );
        assert_eq!(consumer.stats().rows, 2 * rows);
        consumer.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_starts_at_the_planned_positions() {
    let layout = layout(40, 4, 2, 2);
    let (coordinator, worker, consumer) = single(&layout, FakeWorker::new(&layout, 4));
    drop(consumer);
    coordinator.script(|script| script.positions[1] = StreamPosition { epoch: 0, row: 12 });
    coordinator.script(|script| script.positions[0] = StreamPosition { epoch: 0, row: 4 });
    let workers = FakeWorkers::new([(1, worker)]);
    let mut consumer = consumer_of(&coordinator, &workers);
    let steps: Vec<_> = drain_all(&mut consumer).await.iter().map(|batch| batch.info.stream).collect();
    assert_eq!(steps, [0, 0, 0, 1, 0, 1]);
}

fn consumer_of(coordinator: &Arc<FakeCoordinator>, workers: &Arc<FakeWorkers>) -> Consumer {
    consumer(coordinator, workers, false, ClientSettings::default())
}

#[tokio::test(start_paused = true)]
async fn a_batch_contains_the_ids_of_its_input_rows() {
    let layout = Layout { changes_rows: true, ..layout(32, 4, 1, 2) };
    let mut worker = FakeWorker::new(&layout, 5);
    worker.keep = Some(|row| row % 3 == 0 && row < 24);
    let (_, _, mut consumer) = single(&layout, worker);
    let batches = drain_all(&mut consumer).await;
    assert_eq!(all_ids(&batches), [0, 3, 6, 9, 12, 15, 18, 21]);
    let mut input_ids: Vec<u64> = batches.iter().flat_map(|batch| batch.info.row_ids.clone()).collect();
    input_ids.extend(consumer.trailing().row_ids);
    assert_eq!(input_ids, (0..32).collect::<Vec<_>>());
    let ranges = |info: &crate::BatchInfo| {
        info.inputs.iter().map(|(split, range)| (split.ordinal, range.clone())).collect::<Vec<_>>()
    };
    assert_eq!(ranges(&batches[0].info), [(0, 0..8), (1, 0..4)], "up to the next remaining row");
}

#[tokio::test(start_paused = true)]
async fn a_batch_may_need_more_splits_than_are_fetched_at_a_time() {
    let layout = Layout { changes_rows: true, ..layout(400, 4, 1, 1) };
    let mut worker = FakeWorker::new(&layout, 4);
    worker.keep = Some(|row| row % 50 == 0);
    let (_, _, mut consumer) = single(&layout, worker);
    let batches = drain_all(&mut consumer).await;
    assert_eq!(batches.iter().map(ids).collect::<Vec<_>>(), [[0, 50, 100, 150], [200, 250, 300, 350]]);
}

#[tokio::test(start_paused = true)]
async fn dropped_rows_are_counted() {
    let layout = Layout { changes_rows: true, remainder: Remainder::Drop, ..layout(20, 8, 1, 1) };
    let mut worker = FakeWorker::new(&layout, 4);
    worker.keep = Some(|row| row < 18);
    let (_, _, mut consumer) = single(&layout, worker);
    assert_eq!(all_ids(&drain_all(&mut consumer).await), (0..16).collect::<Vec<_>>());
    let trailing = consumer.trailing();
    assert_eq!((trailing.dropped_rows, trailing.row_ids), (2, (16..20).collect()));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_future_loses_no_batch() {
    let layout = layout(60, 4, 2, 2);
    let mut worker = FakeWorker::new(&layout, 3);
    worker.pause = Duration::from_millis(1);
    let (_, _, mut consumer) = single(&layout, worker);
    let mut batches = Vec::new();
    let mut dropped = 0;
    loop {
        // Polled once and dropped, as in a `select!` whose other arm is ready.
        match consumer.next().now_or_never() {
            Some(Ok(Some(batch))) => batches.push((batch.info.stream, ids(&batch))),
            Some(Ok(None)) => break,
            Some(Err(error)) => panic!("{error}"),
            None => {
                dropped += 1;
                assert!(dropped < 100_000, "the loop ends");
                tokio::task::yield_now().await;
                tokio::time::advance(Duration::from_micros(100)).await;
            }
        }
    }
    assert!(dropped > 10, "the test drops futures");
    assert_eq!(batches, expected(&layout));
}

#[tokio::test(start_paused = true)]
async fn the_coordinator_has_all_deliveries_after_a_flush() {
    let layout = layout(64, 4, 1, 4);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    next(&mut consumer).await.unwrap();
    next(&mut consumer).await.unwrap();
    let before = Instant::now();
    consumer.flush().await.unwrap();
    assert!(before.elapsed() < Duration::from_millis(100), "a flush is not delayed");
    assert_eq!(consumer.positions(), [(0, StreamPosition { epoch: 0, row: 8 })]);
    assert_eq!(coordinator.script(|script| script.positions[0].row), 8);
    next(&mut consumer).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(coordinator.script(|script| script.positions[0].row), 12, "without a flush, within 200 ms");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_waits_while_the_job_is_preparing() {
    let layout = layout(8, 4, 1, 2);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    let preparing = JobState::Preparing { indexed: 3, shards: 9, read_bytes: 1, total_bytes: 2, workers: 2 };
    coordinator.script(|script| script.state = preparing.clone());
    assert!(tokio::time::timeout(Duration::from_secs(5), consumer.next()).await.is_err());
    assert_eq!(consumer.state(), preparing);
    assert!(consumer.stats().stall_ns >= 5_000_000_000, "a dropped wait counts as a stall");
    coordinator.script(|script| script.state = JobState::Running);
    assert_eq!(drain_all(&mut consumer).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_time_between_batches_is_step_time() {
    let layout = layout(8, 4, 1, 2);
    let (_coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    for _ in 0..2 {
        next(&mut consumer).await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let stalled = consumer.stats().stall_ns;
    assert_eq!(consumer.stats().step_ns / 1_000_000_000, 3, "the second step has not ended");
    assert!(next(&mut consumer).await.unwrap().is_none());
    assert_eq!(consumer.stats().step_ns / 1_000_000_000, 6);
    assert!(consumer.stats().stall_ns - stalled < 1_000_000_000);
}

#[tokio::test(start_paused = true)]
async fn a_relaxed_consumer_receives_ready_rows_and_every_row_once() {
    let layout = layout(100, 4, 1, 2);
    let slow = Arc::new(FakeWorker::new(&layout, 3).with_act_for(0, Act::Silent));
    let coordinator = FakeCoordinator::new(layout.clone(), true, &[1]);
    let workers = FakeWorkers::new([(1, slow)]);
    let mut consumer = consumer(&coordinator, &workers, true, ClientSettings::default());
    let first = next(&mut consumer).await.unwrap().unwrap();
    assert_eq!(ids(&first), [8, 9, 10, 11], "the second split does not wait for the silent first split");
    let mut batches = vec![first];
    batches.extend(drain_all(&mut consumer).await);
    let mut taken = all_ids(&batches);
    taken.sort_unstable();
    assert_eq!(taken, (0..100).collect::<Vec<_>>());
    assert!(batches[..24].iter().all(|batch| batch.info.rows == 4));
    assert_eq!(coordinator.script(|script| script.state.clone()), JobState::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_relaxed_batch_contains_rows_of_many_splits() {
    let layout = Layout { changes_rows: true, ..layout(400, 4, 1, 1) };
    let mut worker = FakeWorker::new(&layout, 4);
    worker.keep = Some(|row| row % 50 == 0);
    let coordinator = FakeCoordinator::new(layout.clone(), true, &[1]);
    let workers = FakeWorkers::new([(1, Arc::new(worker))]);
    let mut consumer = consumer(&coordinator, &workers, true, ClientSettings::default());
    let batches = drain_all(&mut consumer).await;
    let mut taken = all_ids(&batches);
    taken.sort_unstable();
    assert_eq!(taken, (0..8).map(|number| number * 50).collect::<Vec<_>>());
    assert_eq!(batches.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_relaxed_consumer_discards_a_reassigned_split() {
    let layout = layout(64, 4, 1, 4);
    let coordinator = FakeCoordinator::new(layout.clone(), true, &[1]);
    let workers = FakeWorkers::new([(1, Arc::new(FakeWorker::new(&layout, 4)))]);
    let mut consumer = consumer(&coordinator, &workers, true, ClientSettings::default());
    let mut batches = vec![next(&mut consumer).await.unwrap().unwrap()];
    let lost = SplitRef { epoch: 0, ordinal: 2, stream: 0 };
    tokio::time::sleep(Duration::from_secs(2)).await;
    coordinator.script(|script| script.held.remove(&lost).expect("the consumer has four splits"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    batches.extend(drain_all(&mut consumer).await);
    let mut taken = all_ids(&batches);
    taken.sort_unstable();
    assert_eq!(taken, (0..32).chain(48..64).collect::<Vec<_>>());
}
