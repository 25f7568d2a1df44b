//! Elastic jobs: slots are granted and revoked while batches arrive.

use feedline_data::messages::{ServiceError, ServiceErrorKind};

use super::indivisible::listed;
use super::*;

/// A consumer of an elastic job with these slots, in generation 1.
fn elastic(layout: &Layout, slots: &[u32]) -> (Arc<FakeCoordinator>, Consumer) {
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1]);
    coordinator.script(|script| script.slots = Some(slots.iter().map(|slot| (*slot, (1, false))).collect()));
    let workers = FakeWorkers::new([(1, Arc::new(FakeWorker::new(layout, 4)))]);
    let consumer = consumer_of(&coordinator, &workers);
    (coordinator, consumer)
}

fn slot_and_step(batch: &Batch) -> (u32, u64) {
    (batch.info.stream, batch.info.step.expect("the layout determines steps"))
}

async fn next_batch(consumer: &mut Consumer) -> Batch {
    next(consumer).await.unwrap().expect("a batch is left")
}

/// Waits until the session has reported and received a plan.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

fn row(coordinator: &FakeCoordinator, slot: usize) -> u64 {
    coordinator.script(|script| script.positions[slot].row)
}

#[tokio::test(start_paused = true)]
async fn a_rank_without_slots_waits_for_a_grant() {
    let layout = layout(32, 4, 2, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[]);
    assert!(tokio::time::timeout(Duration::from_secs(60), consumer.next()).await.is_err());
    coordinator.script(|script| {
        script.positions[1] = StreamPosition { epoch: 0, row: 8 };
        script.slots = Some([(1, (3, false))].into());
    });
    assert_eq!(slot_and_step(&next_batch(&mut consumer).await), (1, 2));
    assert_eq!(consumer.slots(), [1]);
    assert_eq!(slot_and_step(&next_batch(&mut consumer).await), (1, 3));
    assert!(
        tokio::time::timeout(Duration::from_secs(60), consumer.next()).await.is_err(),
        "the job continues"
    );
    coordinator.script(|script| script.positions[0] = StreamPosition { epoch: 1, row: 0 });
    coordinator.script(|script| script.state = JobState::Completed);
    assert!(next(&mut consumer).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_granted_slot_is_delivered_in_the_order_of_steps() {
    let layout = layout(48, 4, 2, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0]);
    let mut steps = Vec::new();
    for _ in 0..3 {
        steps.push(slot_and_step(&next_batch(&mut consumer).await));
    }
    coordinator.script(|script| {
        script.positions[1] = StreamPosition { epoch: 0, row: 12 };
        script.slots.as_mut().unwrap().insert(1, (7, false));
    });
    settle().await;
    while let Some(batch) = next(&mut consumer).await.unwrap() {
        steps.push(slot_and_step(&batch));
    }
    assert_eq!(steps, [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (0, 4), (1, 4), (0, 5), (1, 5)]);
    assert_eq!(coordinator.script(|script| script.state.clone()), JobState::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_revoked_slot_stops_after_the_present_step() {
    let divisible = layout(96, 4, 2, 2);
    check_revoked_slot(&divisible).await;
    check_revoked_slot(&Layout { indivisible: true, ..divisible }).await;
}

/// Revokes the second of two slots within a step, and grants it again after another rank has delivered its next batch.
async fn check_revoked_slot(layout: &Layout) {
    let (coordinator, mut consumer) = elastic(layout, &[0, 1]);
    for expected in [(0, 0), (1, 0), (0, 1)] {
        assert_eq!(slot_and_step(&next_batch(&mut consumer).await), expected);
    }
    let revoke =
        |slot: u32| coordinator.script(|script| script.slots.as_mut().unwrap().insert(slot, (1, true)));
    revoke(1);
    settle().await;
    assert_eq!(consumer.slots(), [0, 1], "the rank is within a step");
    assert_eq!(slot_and_step(&next_batch(&mut consumer).await), (1, 1));
    settle().await;
    assert_eq!((consumer.slots(), row(&coordinator, 1)), (vec![0], 8));
    assert_eq!(
        coordinator.script(|script| script.slots.clone().unwrap().len()),
        1,
        "the coordinator knows that the slot stopped"
    );
    assert_eq!(slot_and_step(&next_batch(&mut consumer).await), (0, 2));
    // Another rank has returned the slot at a later position.
    coordinator.script(|script| {
        script.positions[1] = StreamPosition { epoch: 0, row: 12 };
        script.slots.as_mut().unwrap().insert(1, (5, false));
    });
    settle().await;
    assert_eq!(slot_and_step(&next_batch(&mut consumer).await), (0, 3));
    let batch = next_batch(&mut consumer).await;
    assert_eq!(slot_and_step(&batch), (1, 3));
    let first = number(layout, SplitRef { epoch: 0, ordinal: 1, stream: 1 }, 4);
    let rows = if layout.indivisible { listed(&batch) } else { ids(&batch) };
    assert_eq!(rows[0], first, "rows that another rank has delivered are not repeated");
}

#[tokio::test(start_paused = true)]
async fn a_removed_slot_is_not_delivered() {
    let layout = layout(96, 4, 2, 4);
    let (coordinator, mut consumer) = elastic(&layout, &[0, 1]);
    for _ in 0..4 {
        next_batch(&mut consumer).await;
    }
    consumer.flush().await.unwrap();
    coordinator.script(|script| script.slots.as_mut().unwrap().remove(&1));
    settle().await;
    assert_eq!(consumer.slots(), [0]);
    assert_eq!(slot_and_step(&next_batch(&mut consumer).await), (0, 2));
    assert_eq!(slot_and_step(&next_batch(&mut consumer).await), (0, 3));
    let claims = coordinator.script(|script| script.reports.last().unwrap().slots.claims.clone());
    assert_eq!(claims.iter().map(|claim| claim.stream).collect::<Vec<_>>(), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_delivers_rows_of_other_ranks_is_superseded() {
    let layout = layout(96, 4, 1, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0]);
    next_batch(&mut consumer).await;
    let message = "its slots were granted to other ranks";
    coordinator
        .script(|script| script.error = Some(ServiceError::new(ServiceErrorKind::Superseded, message)));
    settle().await;
    assert!(matches!(next(&mut consumer).await, Err(ClientError::Superseded(_))));
}

#[tokio::test(start_paused = true)]
async fn a_leaving_rank_reports_its_deliveries_and_releases_its_slots() {
    let layout = layout(96, 4, 3, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0, 2]);
    for _ in 0..5 {
        next_batch(&mut consumer).await;
    }
    let before = Instant::now();
    consumer.leave().await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(1), "leaving does not wait");
    assert!(next(&mut consumer).await.unwrap().is_none());
    assert_eq!((row(&coordinator, 0), row(&coordinator, 2)), (12, 8));
    coordinator.script(|script| {
        assert_eq!(script.slots, Some([].into()));
        let last = script
            .reports
            .iter()
            .rev()
            .find(|report| report.slots.leaving)
            .expect("the rank reports that it leaves");
        assert!(last.slots.claims.iter().all(|claim| claim.stopped));
    });
}

#[tokio::test(start_paused = true)]
async fn leaving_returns_after_the_end_and_before_the_start_of_a_job() {
    let layout = layout(8, 4, 1, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0]);
    drain_all(&mut consumer).await;
    consumer.leave().await.unwrap();
    assert_eq!(coordinator.script(|script| script.state.clone()), JobState::Completed);
    let (coordinator, mut consumer) = elastic(&layout, &[]);
    let preparing = JobState::Preparing { indexed: 0, shards: 0, read_bytes: 0, total_bytes: 0, workers: 0 };
    coordinator.script(|script| script.state = preparing);
    consumer.leave().await.unwrap();
    let (_coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    consumer.leave().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_weights_of_a_step_sum_to_one() {
    for rows in [96, 95, 50, 41, 34] {
        let layout = Layout { epochs: 2, ..layout(rows, 4, 3, 2) };
        let (_coordinator, mut consumer) = elastic(&layout, &[0, 1, 2]);
        let mut weights = std::collections::BTreeMap::new();
        for batch in drain_all(&mut consumer).await {
            *weights.entry((batch.info.epoch, batch.info.step.unwrap())).or_insert(0.0) += batch.info.weight;
        }
        assert_eq!(weights.len() as u64, 2 * layout.steps().unwrap());
        for (step, weight) in weights {
            assert!((weight - 1.0).abs() < 1e-9, "{rows} rows, step {step:?}: {weight}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_after_the_last_slot_of_a_step_does_not_raise_the_batch_time() {
    let layout = layout(160, 4, 2, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0, 1]);
    let reported_ms = |coordinator: &FakeCoordinator| {
        coordinator.script(|script| script.reports.last().unwrap().slots.slot_ns / 1_000_000)
    };
    for _ in 0..8 {
        let batch = next_batch(&mut consumer).await;
        // After the second slot, ranks wait for each other.
        let ms = if batch.info.stream == 0 { 100 } else { 900 };
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    settle().await;
    assert_eq!(reported_ms(&coordinator), 100);
    consumer.set_batch_time(Duration::from_millis(7));
    next_batch(&mut consumer).await;
    settle().await;
    assert_eq!(reported_ms(&coordinator), 7);
}

/// The coordinator grants a slot before it receives that the rank leaves.
#[tokio::test(start_paused = true)]
async fn a_leaving_rank_releases_slots_that_it_receives_meanwhile() {
    let layout = layout(96, 4, 2, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0]);
    next_batch(&mut consumer).await;
    coordinator.script(|script| script.slots.as_mut().unwrap().insert(1, (4, false)));
    consumer.leave().await.unwrap();
    assert_eq!(coordinator.script(|script| script.slots.clone()), Some([].into()));
}

#[tokio::test(start_paused = true)]
async fn a_revoked_slot_is_released_after_its_last_batch_counts_as_delivered() {
    let layout = layout(48, 4, 2, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0]);
    consumer.defer_delivery();
    for _ in 0..3 {
        next_batch(&mut consumer).await;
    }
    coordinator.script(|script| script.slots = Some([(0, (1, true))].into()));
    settle().await;
    assert_eq!(row(&coordinator, 0), 8);
    assert!(coordinator.script(|script| script.slots.as_ref().is_some_and(|slots| slots.contains_key(&0))));
    assert!(tokio::time::timeout(Duration::from_secs(60), consumer.next()).await.is_err());
    assert_eq!(row(&coordinator, 0), 12);
    assert!(coordinator.script(|script| script.slots.as_ref().is_some_and(|slots| slots.is_empty())));
}
