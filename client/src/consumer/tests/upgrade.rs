//! Coordinators and workers with another protocol version during a rolling upgrade.

use std::sync::atomic::Ordering;

use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_data::pipeline::OrderMode;

use super::*;
use crate::job::Job;
use crate::testing::spec;

const MISMATCH: &str = "the client uses protocol version 3, but this coordinator uses version 4; use the same release on both sides";

fn other_version() -> ServiceError {
    ServiceError::version_mismatch(MISMATCH)
}

#[tokio::test(start_paused = true)]
async fn a_consumer_survives_coordinators_of_another_version_for_ten_minutes() {
    let layout = layout(64, 4, 1, 1);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    next(&mut consumer).await.unwrap();
    coordinator.script(|script| script.error = Some(other_version()));
    tokio::time::sleep(Duration::from_secs(590)).await;
    // An upgraded coordinator restarts: the time without a response is counted separately.
    let restarting = ServiceError::new(ServiceErrorKind::Unavailable, "refused");
    coordinator.script(|script| script.error = Some(restarting));
    tokio::time::sleep(Duration::from_secs(50)).await;
    coordinator.script(|script| script.error = None);
    assert_eq!(drain_all(&mut consumer).await.len(), 15);
}

#[tokio::test(start_paused = true)]
async fn a_busy_coordinator_of_the_right_version_ends_the_ten_minutes() {
    let layout = layout(64, 4, 1, 1);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    next(&mut consumer).await.unwrap();
    for (error, seconds) in
        [(other_version(), 590), (ServiceError::busy("full", 200), 5), (other_version(), 590)]
    {
        coordinator.script(|script| script.error = Some(error));
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
    coordinator.script(|script| script.error = None);
    assert_eq!(drain_all(&mut consumer).await.len(), 15);
}

#[tokio::test(start_paused = true)]
async fn after_ten_minutes_the_error_names_both_versions_and_the_fix() {
    let layout = layout(64, 4, 1, 1);
    let (coordinator, _, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
    next(&mut consumer).await.unwrap();
    coordinator.script(|script| script.error = Some(other_version()));
    let start = Instant::now();
    let (_, end) = drain(&mut consumer).await;
    assert!((600..603).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    let error = end.unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(error.to_string(), format!("{MISMATCH}; the client stopped retrying after 600 s"));
}

#[tokio::test(start_paused = true)]
async fn opening_waits_for_the_end_of_an_upgrade_until_a_timeout() {
    let layout = layout(8, 4, 1, 2);
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1]);
    let workers = FakeWorkers::new([(1, Arc::new(FakeWorker::new(&layout, 4)))]);
    let open = |upgrade_ms| {
        let settings = ClientSettings { upgrade_ms, ..ClientSettings::default() };
        let spec = spec(OrderMode::Deterministic);
        Job::open(Arc::clone(&coordinator) as _, Arc::clone(&workers) as _, spec, settings)
    };
    coordinator.script(|script| script.error = Some(other_version()));
    let start = Instant::now();
    let error = open(30_000).await.err().unwrap();
    assert!(matches!(error, ClientError::VersionMismatch { seconds: 30..=31, .. }), "{error}");
    assert!((30..32).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    let upgraded = async {
        tokio::time::sleep(Duration::from_secs(500)).await;
        coordinator.script(|script| script.error = None);
    };
    let (opened, ()) = futures::join!(open(600_000), upgraded);
    assert!(opened.is_ok());
}

#[tokio::test(start_paused = true)]
async fn workers_of_another_version_are_retried_until_a_timeout() {
    let layout = layout(64, 4, 1, 4);
    for (minutes, is_in_time) in [(9, true), (11, false)] {
        let (_, worker, mut consumer) = single(&layout, FakeWorker::new(&layout, 4));
        worker.has_other_version.store(true, Ordering::Relaxed);
        let upgraded = async {
            tokio::time::sleep(Duration::from_secs(minutes * 60)).await;
            worker.has_other_version.store(false, Ordering::Relaxed);
        };
        let ((batches, end), ()) = futures::join!(drain(&mut consumer), upgraded);
        if is_in_time {
            assert_eq!((batches.len(), end), (16, Ok(())));
        } else {
            assert!(matches!(end, Err(ClientError::VersionMismatch { seconds: 600..=603, .. })), "{end:?}");
        }
    }
}
