//! The position history that a consumer reports when a plan queries a step, or when it closes.

use feedline_data::checkpoint::{StepId, StepLookup};
use feedline_data::messages::ConsumerReport;

use super::*;

fn step(batches: u64) -> StepId {
    StepId { epochs: None, batches_per_stream: batches / 2, extra_batches: (batches % 2) as u32 }
}

fn at(row: u64) -> StreamPosition {
    StreamPosition { epoch: 0, row }
}

/// A job of two streams of 60 rows. `workers` hold its splits.
fn start_job(workers: &[u64]) -> (Arc<FakeCoordinator>, Consumer) {
    let layout = Layout { changes_rows: true, ..layout(120, 4, 2, 3) };
    let coordinator = FakeCoordinator::new(layout.clone(), false, workers);
    coordinator.script(|script| script.consumers = 2);
    let workers = FakeWorkers::new([(1, Arc::new(FakeWorker::new(&layout, 3)))]);
    let consumer = consumer_of(&coordinator, &workers);
    (coordinator, consumer)
}

/// Waits for a report with a history, and returns the last one.
async fn report_with_history(coordinator: &Arc<FakeCoordinator>) -> ConsumerReport {
    let poll = async {
        loop {
            let mut reports = coordinator.script(|script| script.reports.clone()).into_iter().rev();
            if let Some(report) = reports.find(|report| report.history.history.is_some()) {
                return report;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, poll).await.expect("the consumer reports its history")
}

fn lookup(report: &ConsumerReport, step: StepId) -> StepLookup {
    report.history.history.as_ref().expect("the report has a history").find(step)
}

#[tokio::test(start_paused = true)]
async fn a_query_returns_past_and_future_positions() {
    let (coordinator, mut consumer) = start_job(&[1]);
    for _ in 0..5 {
        next(&mut consumer).await.unwrap().expect("the job has thirty batches");
    }
    assert_eq!(consumer.positions(), [(0, at(12)), (1, at(8))]);
    consumer.flush().await.unwrap();
    assert!(
        coordinator.script(|script| script.reports.iter().all(|report| report.history.history.is_none())),
        "no report without a query has a history"
    );
    coordinator.script(|script| script.step_queries = vec![step(3), step(6)]);
    let report = report_with_history(&coordinator).await;
    assert!(!report.history.is_last);
    assert_eq!(lookup(&report, step(3)), StepLookup::Found(vec![(0, at(8)), (1, at(4))]));
    assert_eq!(lookup(&report, step(5)), StepLookup::Found(vec![(0, at(12)), (1, at(8))]));
    assert_eq!(
        lookup(&report, step(6)),
        StepLookup::Found(vec![(0, at(12)), (1, at(12))]),
        "this step has arrived"
    );
    coordinator.script(|script| script.step_queries = Vec::new());
    assert_eq!(consumer.positions(), [(0, at(12)), (1, at(8))], "a query takes no batch");
    assert_eq!(drain_all(&mut consumer).await.len(), 25);
}

#[tokio::test(start_paused = true)]
async fn a_query_waits_for_batches_to_arrive() {
    let (coordinator, mut consumer) = start_job(&[]);
    coordinator.script(|script| script.step_queries = vec![step(2)]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(
        coordinator.script(|script| script.reports.iter().all(|report| report.history.history.is_none()))
    );
    coordinator.script(|script| script.workers = vec![feedline_data::ids::WorkerId(1)]);
    let report = report_with_history(&coordinator).await;
    assert_eq!(lookup(&report, step(2)), StepLookup::Found(vec![(0, at(4)), (1, at(4))]));
    assert!(next(&mut consumer).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_closing_consumer_reports_its_history() {
    let (coordinator, mut consumer) = start_job(&[1]);
    for _ in 0..4 {
        next(&mut consumer).await.unwrap().expect("the job has thirty batches");
    }
    consumer.set_prefetching();
    consumer.close().await.unwrap();
    let report = report_with_history(&coordinator).await;
    assert!(report.history.is_last);
    assert_eq!(lookup(&report, step(4)), StepLookup::Found(vec![(0, at(8)), (1, at(8))]));
    assert_ne!(lookup(&report, step(5)), StepLookup::NotReached, "other consumers may be one step ahead");
    let history = report.history.history.expect("the report has a history");
    assert_eq!(history.batches() - history.prefetched(), 3, "one batch was prefetched");
}

#[tokio::test(start_paused = true)]
async fn a_single_consumer_or_known_steps_need_no_history() {
    for (changes_rows, consumers) in [(true, 1), (false, 2)] {
        let layout = Layout { changes_rows, ..layout(120, 4, 2, 3) };
        let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 3));
        coordinator.script(|script| (script.consumers, script.step_queries) = (consumers, vec![step(1)]));
        next(&mut consumer).await.unwrap();
        consumer.close().await.unwrap();
        assert!(
            coordinator.script(|script| script.reports.iter().all(|report| report.history.history.is_none()))
        );
    }
}
