//! Deferred delivery: a session that ends without a request for the next batch leaves its last batch to the next session.

use super::*;

/// Takes `count` batches with deferred delivery, reports, and ends the session.
async fn interrupted(mut first: Consumer, count: usize) -> Vec<Batch> {
    first.defer_delivery();
    let mut batches = Vec::new();
    for _ in 0..count {
        batches.push(next(&mut first).await.unwrap().expect("a batch is left"));
    }
    first.flush().await.unwrap();
    batches
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_delivered_when_the_next_one_is_requested() {
    let layout = layout(64, 4, 1, 4);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    consumer.defer_delivery();
    for rows in [0, 4, 8] {
        next(&mut consumer).await.unwrap().unwrap();
        consumer.flush().await.unwrap();
        assert_eq!(coordinator.script(|script| script.positions[0].row), rows);
        let after = StreamPosition { epoch: 0, row: rows + 4 };
        assert_eq!(consumer.positions(), [(0, after)], "the position after the batch");
    }
    drain_all(&mut consumer).await;
    assert_eq!(coordinator.script(|script| script.state.clone()), JobState::Completed);
}

#[tokio::test(start_paused = true)]
async fn the_next_session_receives_the_last_batch_again() {
    let layout = layout(32, 4, 2, 2);
    let all = expected(&layout);
    for count in 1..=all.len() {
        let (coordinator, worker, first) = single(&layout, FakeWorker::new(&layout, 4));
        let mut batches = interrupted(first, count).await;
        batches.pop();
        let mut second = consumer_of(&coordinator, &FakeWorkers::new([(1, worker)]));
        batches.extend(drain_all(&mut second).await);
        let taken: Vec<_> = batches.iter().map(|batch| (batch.info.stream, ids(batch))).collect();
        assert_eq!(taken, all, "after {count} batches");
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_session_of_a_relaxed_job_receives_the_last_batch_again() {
    let layout = layout(32, 4, 1, 2);
    for count in 1..=8 {
        let coordinator = FakeCoordinator::new(layout.clone(), true, &[1]);
        let workers = FakeWorkers::new([(1, Arc::new(FakeWorker::new(&layout, 4)))]);
        let first = consumer(&coordinator, &workers, true, ClientSettings::default());
        let mut batches = interrupted(first, count).await;
        batches.pop();
        let mut second = consumer(&coordinator, &workers, true, ClientSettings::default());
        batches.extend(drain_all(&mut second).await);
        let mut taken = all_ids(&batches);
        taken.sort_unstable();
        assert_eq!(taken, (0..32).collect::<Vec<_>>(), "after {count} batches");
    }
}
