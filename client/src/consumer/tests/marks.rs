//! What a consumer says of where it stood, when a plan asks or it ends.

use feedline_data::checkpoint::{StepId, StepLookup};
use feedline_data::messages::ConsumerReport;

use super::*;

fn step(batches: u64) -> StepId {
    StepId { epochs: None, rounds: batches / 2, rest: (batches % 2) as u32 }
}

fn at(row: u64) -> StreamPosition {
    StreamPosition { epoch: 0, row }
}

/// Two streams of 60 rows; `workers` as many as have something to serve.
fn scene(workers: &[u64]) -> (Arc<FakeCoordinator>, Consumer) {
    let layout = Layout { changes_rows: true, ..layout(120, 4, 2, 3) };
    let coordinator = FakeCoordinator::new(layout.clone(), false, workers);
    coordinator.tell(|told| told.consumers = 2);
    let workers = FakeWorkers::new([(1, Arc::new(FakeWorker::new(&layout, 3)))]);
    let consumer = consumer_of(&coordinator, &workers);
    (coordinator, consumer)
}

/// The last report that says something, once there is one.
async fn said(coordinator: &Arc<FakeCoordinator>) -> ConsumerReport {
    let look = async {
        loop {
            let mut reports = coordinator.tell(|told| told.reports.clone()).into_iter().rev();
            if let Some(report) = reports.find(|report| report.history.history.is_some()) {
                return report;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, look).await.expect("it says so")
}

fn found(report: &ConsumerReport, step: StepId) -> StepLookup {
    report.history.history.as_ref().expect("it says something").find(step)
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_asked_says_where_it_stood_and_where_it_will_stand() {
    let (coordinator, mut consumer) = scene(&[1]);
    for _ in 0..5 {
        next(&mut consumer).await.unwrap().expect("there are thirty");
    }
    assert_eq!(consumer.positions(), [(0, at(12)), (1, at(8))]);
    consumer.flush().await.unwrap();
    assert!(
        coordinator.tell(|told| told.reports.iter().all(|report| report.history.history.is_none())),
        "unasked"
    );
    coordinator.tell(|told| told.asked = vec![step(3), step(6)]);
    let report = said(&coordinator).await;
    assert!(!report.history.is_last);
    assert_eq!(found(&report, step(3)), StepLookup::Found(vec![(0, at(8)), (1, at(4))]));
    assert_eq!(found(&report, step(5)), StepLookup::Found(vec![(0, at(12)), (1, at(8))]));
    assert_eq!(
        found(&report, step(6)),
        StepLookup::Found(vec![(0, at(12)), (1, at(12))]),
        "of what has arrived"
    );
    coordinator.tell(|told| told.asked = Vec::new());
    assert_eq!(consumer.positions(), [(0, at(12)), (1, at(8))], "nothing was taken");
    assert_eq!(drain_all(&mut consumer).await.len(), 25);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_has_not_arrived_is_said_once_it_has() {
    let (coordinator, mut consumer) = scene(&[]);
    coordinator.tell(|told| told.asked = vec![step(2)]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(coordinator.tell(|told| told.reports.iter().all(|report| report.history.history.is_none())));
    coordinator.tell(|told| told.workers = vec![feedline_data::ids::WorkerId(1)]);
    let report = said(&coordinator).await;
    assert_eq!(found(&report, step(2)), StepLookup::Found(vec![(0, at(4)), (1, at(4))]));
    assert!(next(&mut consumer).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_ends_says_where_it_stood_unasked() {
    let (coordinator, mut consumer) = scene(&[1]);
    for _ in 0..4 {
        next(&mut consumer).await.unwrap().expect("there are thirty");
    }
    consumer.set_prefetching();
    consumer.close().await.unwrap();
    let report = said(&coordinator).await;
    assert!(report.history.is_last);
    assert_eq!(found(&report, step(4)), StepLookup::Found(vec![(0, at(8)), (1, at(8))]));
    assert_ne!(found(&report, step(5)), StepLookup::NotReached, "others may be a step before it");
    let marks = report.history.history.expect("it says something");
    assert_eq!(marks.batches() - marks.prefetched(), 3, "one was taken ahead");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_alone_or_of_known_steps_keeps_nothing() {
    for (changes_rows, consumers) in [(true, 1), (false, 2)] {
        let layout = Layout { changes_rows, ..layout(120, 4, 2, 3) };
        let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 3));
        coordinator.tell(|told| (told.consumers, told.asked) = (consumers, vec![step(1)]));
        next(&mut consumer).await.unwrap();
        consumer.close().await.unwrap();
        assert!(coordinator.tell(|told| told.reports.iter().all(|report| report.history.history.is_none())));
    }
}
