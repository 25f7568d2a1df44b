//! Indivisible batches: each piece is one batch, which arrives whole, in order and once.

use super::chaos::{Random, job, settings, workers};
use super::*;

/// The row numbers of a batch, which is one row with a list of them.
pub(super) fn listed(batch: &Batch) -> Vec<u64> {
    let rows = u64::from(batch.info.rows);
    assert_eq!(batch.records.num_rows(), usize::from(rows > 0), "a batch is one record");
    if rows == 0 {
        return Vec::new();
    }
    assert!(batch.info.is_indivisible);
    let list = batch.records.column(0).as_list::<i32>().value(0);
    let ids: Vec<u64> = list.as_primitive::<Int64Type>().values().iter().map(|&id| id as u64).collect();
    assert_eq!(ids.len() as u64, rows, "`rows` counts the rows of the list");
    ids
}

fn listed_all(batches: &[Batch]) -> Vec<(u32, Vec<u64>)> {
    batches.iter().map(|batch| (batch.info.stream, listed(batch))).collect()
}

#[tokio::test(start_paused = true)]
async fn batches_are_whole_and_in_order_despite_faults() {
    for seed in 0..150 {
        let mut random = Random(2_000 + seed);
        let streams = 1 + random.below(4);
        let layout = Layout { indivisible: true, ..job(&mut random, streams) };
        let holders: &[u64] = if random.below(2) == 0 { &[1] } else { &[1, 2] };
        let coordinator = FakeCoordinator::new(layout.clone(), false, holders);
        let workers = workers(&layout, &mut random);
        let mut consumer = consumer(&coordinator, &workers, false, settings(&mut random));
        let batches = drain_all(&mut consumer).await;
        assert_eq!(listed_all(&batches), expected(&layout), "seed {seed}");
        assert_eq!(consumer.stats().rows, layout.epoch_rows() * u64::from(layout.epochs), "seed {seed}");
        consumer.view.shared.lock().check_indexes();
        consumer.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn relaxed_batches_are_whole_and_delivered_once_despite_faults() {
    for seed in 0..100 {
        let mut random = Random(3_000 + seed);
        let layout = Layout { indivisible: true, ..job(&mut random, 1) };
        let coordinator = FakeCoordinator::new(layout.clone(), true, &[1, 2]);
        let workers = workers(&layout, &mut random);
        let mut consumer = consumer(&coordinator, &workers, true, settings(&mut random));
        let mut taken = listed_all(&drain_all(&mut consumer).await);
        taken.sort_unstable();
        let mut all = expected(&layout);
        all.sort_unstable();
        assert_eq!(taken, all, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn removed_rows_make_batches_smaller_and_keep_steps() {
    let layout = Layout { indivisible: true, changes_rows: true, ..layout(50, 4, 2, 3) };
    let mut worker = FakeWorker::new(&layout, 4);
    worker.keep = Some(|row| row % 3 == 0 && !(8..12).contains(&row));
    let (coordinator, _, mut consumer) = single(&layout, worker);
    let batches = drain_all(&mut consumer).await;
    let mut all = expected(&layout);
    for (_, rows) in &mut all {
        rows.retain(|row| row % 3 == 0 && !(8..12).contains(row));
    }
    assert!(all.iter().any(|(_, rows)| rows.is_empty()), "operators remove all rows of a batch");
    assert_eq!(listed_all(&batches), all);
    let steps: Vec<Option<u64>> = batches.iter().map(|batch| batch.info.step).collect();
    let expected_steps: Vec<Option<u64>> = (0..7).flat_map(|step| [Some(step); 2]).collect();
    assert_eq!(steps, expected_steps);
    let mut inputs: Vec<u64> = batches.iter().flat_map(|batch| batch.info.row_ids.clone()).collect();
    inputs.sort_unstable();
    assert_eq!(inputs, (0..50).collect::<Vec<_>>(), "the audit counts removed rows");
    assert_eq!(coordinator.script(|script| script.state.clone()), JobState::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_resumes_between_any_two_batches() {
    let layout = Layout { indivisible: true, changes_rows: true, epochs: 2, ..layout(30, 4, 1, 2) };
    let keep: fn(u64) -> bool = |row| row % 2 == 0;
    let started = |position| {
        let mut worker = FakeWorker::new(&layout, 4);
        worker.keep = Some(keep);
        let coordinator = FakeCoordinator::new(layout.clone(), false, &[1]);
        coordinator.script(|script| script.positions[0] = position);
        consumer_of(&coordinator, &FakeWorkers::new([(1, Arc::new(worker))]))
    };
    let whole = listed_all(&drain_all(&mut started(StreamPosition::default())).await);
    assert_eq!(whole.len(), 16);
    for stop in 1..whole.len() {
        let mut first = started(StreamPosition::default());
        let mut taken = Vec::new();
        for _ in 0..stop {
            taken.push(next(&mut first).await.unwrap().unwrap());
        }
        let (_, position) = first.positions()[0];
        taken.extend(drain_all(&mut started(position)).await);
        assert_eq!(listed_all(&taken), whole, "after {stop} batches");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_larger_than_the_budget_arrives() {
    let layout = Layout { indivisible: true, ..layout(1 << 17, 1 << 15, 1, 1) };
    let mut worker = FakeWorker::new(&layout, 1 << 15);
    worker.chunk_bytes = 100_000;
    let worker = Arc::new(worker);
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1]);
    let workers = FakeWorkers::new([(1, Arc::clone(&worker))]);
    let settings = ClientSettings { buffer_bytes: 70 << 10, ..ClientSettings::default() };
    let mut consumer = consumer(&coordinator, &workers, false, settings);
    assert_eq!(listed_all(&drain_all(&mut consumer).await), expected(&layout));
}

#[tokio::test(start_paused = true)]
async fn a_piece_that_is_not_a_whole_batch_is_rejected() {
    let job = Layout { indivisible: true, ..layout(16, 4, 1, 4) };
    let divisible = Layout { indivisible: false, ..job.clone() };
    for worker in [FakeWorker::new(&job, 3), FakeWorker::new(&job, 8), FakeWorker::new(&divisible, 4)] {
        let (_, _, mut consumer) = single(&job, worker);
        let error = next(&mut consumer).await.unwrap_err().to_string();
        assert!(error.contains("is not a batch of the job"), "{error}");
    }
}
