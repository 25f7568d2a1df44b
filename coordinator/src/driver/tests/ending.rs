//! Tests of the shutdown: all requests are answered, and earlier decisions are written.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_shutdown_answers_all_requests() {
    let mut bench = Bench::new();
    let task = bench.start();
    let service = Arc::clone(&bench.service);
    let plan = service.sync_worker(working()).await.unwrap();
    let report = WorkerReport { plan_revision: plan.revision, ..working() };
    let held = tokio::spawn({
        let service = Arc::clone(&service);
        async move { service.sync_worker(report).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!held.is_finished(), "an unchanged plan is held back");
    bench.stop.cancel();
    task.await.unwrap().unwrap();
    assert_eq!(held.await.unwrap().unwrap_err(), shutting_down());
    assert_eq!(service.list_jobs().await.unwrap_err(), shutting_down());
}

/// The second write waits for the first write, which takes longer than the timeout of a leader transfer.
#[tokio::test]
async fn earlier_requests_are_written_and_answered_within_the_grace_time() {
    let mut bench = Bench::new();
    let task = bench.start();
    let service = Arc::clone(&bench.service);
    service.list_jobs().await.unwrap();
    let (say, word) = std::sync::mpsc::sync_channel(1);
    let (begun, begins) = oneshot::channel();
    bench.script.lock().unwrap().gate = Some(Gate { begun, word });
    let opening = tokio::spawn({
        let service = Arc::clone(&service);
        async move { service.open_job(spec("last")).await }
    });
    begins.await.unwrap();
    bench.stop.cancel();
    tokio::time::sleep(LEADER_TRANSFER_TIMEOUT + Duration::from_millis(100)).await;
    assert!(!opening.is_finished() && !task.is_finished());
    say.send(()).unwrap();
    let opened = opening.await.unwrap().unwrap();
    task.await.unwrap().unwrap();
    let kept =
        bench.records().iter().any(|record| matches!(record, Record::Opened { job, .. } if *job == opened));
    assert!(kept, "what was answered is kept");
}
