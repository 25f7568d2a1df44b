//! Elastic jobs: slots come and go while batches flow.

use feedline_data::messages::{ServiceError, ServiceErrorKind};

use super::*;

/// A consumer of an elastic job with these slots, in generation 1.
fn elastic(layout: &Layout, slots: &[u32]) -> (Arc<FakeCoordinator>, Consumer) {
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1]);
    coordinator.tell(|told| told.slots = Some(slots.iter().map(|slot| (*slot, (1, false))).collect()));
    let workers = FakeWorkers::new([(1, Arc::new(FakeWorker::new(layout, 4)))]);
    let consumer = consumer_of(&coordinator, &workers);
    (coordinator, consumer)
}

fn place(batch: &Batch) -> (u32, u64) {
    (batch.info.stream, batch.info.step.expect("steps are known"))
}

async fn some(consumer: &mut Consumer) -> Batch {
    next(consumer).await.unwrap().expect("there is more")
}

/// Lets the session say and hear what there is.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

fn row(coordinator: &FakeCoordinator, slot: usize) -> u64 {
    coordinator.tell(|told| told.positions[slot].row)
}

#[tokio::test(start_paused = true)]
async fn a_rank_without_slots_waits_until_it_gets_one() {
    let layout = layout(32, 4, 2, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[]);
    assert!(tokio::time::timeout(Duration::from_secs(60), consumer.next()).await.is_err());
    coordinator.tell(|told| {
        told.positions[1] = StreamPosition { epoch: 0, row: 8 };
        told.slots = Some([(1, (3, false))].into());
    });
    assert_eq!(place(&some(&mut consumer).await), (1, 2));
    assert_eq!(consumer.slots(), [1]);
    assert_eq!(place(&some(&mut consumer).await), (1, 3));
    assert!(tokio::time::timeout(Duration::from_secs(60), consumer.next()).await.is_err(), "the job goes on");
    coordinator.tell(|told| told.positions[0] = StreamPosition { epoch: 1, row: 0 });
    coordinator.tell(|told| told.state = JobState::Completed);
    assert!(next(&mut consumer).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_comes_is_delivered_in_the_order_of_steps() {
    let layout = layout(48, 4, 2, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0]);
    let mut steps = Vec::new();
    for _ in 0..3 {
        steps.push(place(&some(&mut consumer).await));
    }
    coordinator.tell(|told| {
        told.positions[1] = StreamPosition { epoch: 0, row: 12 };
        told.slots.as_mut().unwrap().insert(1, (7, false));
    });
    settle().await;
    while let Some(batch) = next(&mut consumer).await.unwrap() {
        steps.push(place(&batch));
    }
    assert_eq!(steps, [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (0, 4), (1, 4), (0, 5), (1, 5)]);
    assert_eq!(coordinator.tell(|told| told.state.clone()), JobState::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_wanted_ends_behind_the_present_step() {
    let layout = layout(96, 4, 2, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0, 1]);
    for expected in [(0, 0), (1, 0), (0, 1)] {
        assert_eq!(place(&some(&mut consumer).await), expected);
    }
    let want = |slot: u32| coordinator.tell(|told| told.slots.as_mut().unwrap().insert(slot, (1, true)));
    want(1);
    settle().await;
    assert_eq!(consumer.slots(), [0, 1], "the rank is in the midst of a step");
    assert_eq!(place(&some(&mut consumer).await), (1, 1));
    settle().await;
    assert_eq!((consumer.slots(), row(&coordinator, 1)), (vec![0], 8));
    assert_eq!(coordinator.tell(|told| told.slots.clone().unwrap().len()), 1, "it said that it stopped");
    assert_eq!(place(&some(&mut consumer).await), (0, 2));
    // It comes back where somebody else has left it.
    coordinator.tell(|told| {
        told.positions[1] = StreamPosition { epoch: 0, row: 12 };
        told.slots.as_mut().unwrap().insert(1, (5, false));
    });
    settle().await;
    assert_eq!(place(&some(&mut consumer).await), (0, 3));
    let batch = some(&mut consumer).await;
    assert_eq!(place(&batch), (1, 3));
    let first = number(&layout, SplitRef { epoch: 0, ordinal: 1, stream: 1 }, 4);
    assert_eq!(ids(&batch)[0], first, "rows of its third step, which somebody else had, do not come again");
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_was_taken_away_is_not_delivered_any_more() {
    let layout = layout(96, 4, 2, 4);
    let (coordinator, mut consumer) = elastic(&layout, &[0, 1]);
    for _ in 0..4 {
        some(&mut consumer).await;
    }
    consumer.flush().await.unwrap();
    coordinator.tell(|told| told.slots.as_mut().unwrap().remove(&1));
    settle().await;
    assert_eq!(consumer.slots(), [0]);
    assert_eq!(place(&some(&mut consumer).await), (0, 2));
    assert_eq!(place(&some(&mut consumer).await), (0, 3));
    let claims = coordinator.tell(|told| told.reports.last().unwrap().slots.claims.clone());
    assert_eq!(claims.iter().map(|claim| claim.stream).collect::<Vec<_>>(), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_delivered_what_others_have_is_told() {
    let layout = layout(96, 4, 1, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0]);
    some(&mut consumer).await;
    let message = "its slots went to others";
    coordinator.tell(|told| told.refusing = Some(ServiceError::new(ServiceErrorKind::Superseded, message)));
    settle().await;
    assert!(matches!(next(&mut consumer).await, Err(ClientError::Superseded(_))));
}

#[tokio::test(start_paused = true)]
async fn who_leaves_says_what_it_delivered_and_gives_its_slots_back() {
    let layout = layout(96, 4, 3, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0, 2]);
    for _ in 0..5 {
        some(&mut consumer).await;
    }
    let before = Instant::now();
    consumer.leave().await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(1), "it need not wait for anything");
    assert!(next(&mut consumer).await.unwrap().is_none());
    assert_eq!((row(&coordinator, 0), row(&coordinator, 2)), (12, 8));
    coordinator.tell(|told| {
        assert_eq!(told.slots, Some([].into()));
        let last = told.reports.iter().rev().find(|report| report.slots.leaving).expect("it said so");
        assert!(last.slots.claims.iter().all(|claim| claim.stopped));
    });
}

#[tokio::test(start_paused = true)]
async fn leaving_ends_where_the_job_does_or_never_began() {
    let layout = layout(8, 4, 1, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0]);
    drain_all(&mut consumer).await;
    consumer.leave().await.unwrap();
    assert_eq!(coordinator.tell(|told| told.state.clone()), JobState::Completed);
    let (coordinator, mut consumer) = elastic(&layout, &[]);
    coordinator.tell(|told| told.state = JobState::Preparing { indexed: 0, shards: 0, workers: 0 });
    consumer.leave().await.unwrap();
    let (_coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    consumer.leave().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_weights_of_a_step_are_one_together() {
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
async fn the_time_of_a_slots_batch_is_measured_where_ranks_do_not_wait_for_each_other() {
    let layout = layout(160, 4, 2, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0, 1]);
    let told = |coordinator: &FakeCoordinator| {
        coordinator.tell(|told| told.reports.last().unwrap().slots.slot_ns / 1_000_000)
    };
    for _ in 0..8 {
        let batch = some(&mut consumer).await;
        // Behind the second slot all ranks meet.
        let ms = if batch.info.stream == 0 { 100 } else { 900 };
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    settle().await;
    assert_eq!(told(&coordinator), 100);
    consumer.set_batch_time(Duration::from_millis(7));
    some(&mut consumer).await;
    settle().await;
    assert_eq!(told(&coordinator), 7);
}

/// The coordinator gave it a slot before it heard that the rank leaves.
#[tokio::test(start_paused = true)]
async fn who_leaves_gives_back_what_it_gets_meanwhile() {
    let layout = layout(96, 4, 2, 2);
    let (coordinator, mut consumer) = elastic(&layout, &[0]);
    some(&mut consumer).await;
    coordinator.tell(|told| told.slots.as_mut().unwrap().insert(1, (4, false)));
    consumer.leave().await.unwrap();
    assert_eq!(coordinator.tell(|told| told.slots.clone()), Some([].into()));
}
