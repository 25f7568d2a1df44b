//! Tests of the log: queued requests are written together, and replies follow durable writes.

use super::*;

#[tokio::test]
async fn queued_requests_are_committed_together() {
    let mut bench = Bench::new();
    // All requests are queued before the driver starts.
    let opening: Vec<_> = (0..100)
        .map(|number| {
            let spec = Box::new(spec(&format!("run {number}")));
            bench.requests.push(Request::OpenJob { spec, saved: Default::default() }).unwrap()
        })
        .collect();
    let task = bench.start();
    for opened in opening {
        assert!(matches!(opened.await.unwrap(), Reply::Opened(_)));
    }
    let script = bench.script.lock().unwrap();
    let records = |writes: &Vec<LogWrite>| writes.iter().flat_map(LogWrite::records).count();
    let together: Vec<usize> = script.writes.iter().map(records).filter(|records| *records > 0).collect();
    assert_eq!(together, [100]);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn requests_during_a_write_are_decided_together() {
    let mut bench = Bench::new();
    let task = bench.start();
    bench.service.list_jobs().await.unwrap();
    let (begun, has_begun) = oneshot::channel();
    let (word, waits) = std::sync::mpsc::sync_channel(1);
    bench.script.lock().unwrap().gate = Some(Gate { begun, word: waits });
    let requests = Arc::clone(&bench.requests);
    let open = |name: u32| {
        let spec = Box::new(spec(&format!("run {name}")));
        requests.push(Request::OpenJob { spec, saved: Default::default() }).unwrap()
    };
    let mut opening = vec![open(0)];
    has_begun.await.unwrap();
    for number in 1..4 {
        opening.push(open(number));
        // The driver takes each request separately; no tick passes while the write is stopped.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    word.send(()).unwrap();
    for opened in opening {
        assert!(matches!(opened.await.unwrap(), Reply::Opened(_)));
    }
    let script = bench.script.lock().unwrap();
    let records = script.writes.iter().flatten().map(|write| write.records().len());
    assert_eq!(records.filter(|records| *records > 0).collect::<Vec<_>>(), [1, 3]);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_acknowledged_while_the_log_cannot_be_written() {
    let mut bench = Bench::new();
    let task = bench.start();
    let service = Arc::clone(&bench.service);
    let job = service.open_job(spec("first")).await.unwrap();
    prepare(service.as_ref()).await;
    bench.script.lock().unwrap().full = true;
    let refused = service.open_job(spec("second")).await.unwrap_err();
    assert_eq!(refused.kind, ServiceErrorKind::Unavailable);
    assert_eq!(
        refused.message,
        "cannot write the coordinator's log /data/records.log: No space left on device; free some disk space; no acknowledged data is lost"
    );
    assert_eq!(service.list_jobs().await.unwrap_err(), refused, "what is not durable is not shown either");
    let tries = bench.script.lock().unwrap().tries;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let more = bench.script.lock().unwrap().tries - tries;
    assert!((600..=1300).contains(&more), "about once in every tick: {more}");

    bench.script.lock().unwrap().full = false;
    tokio::time::sleep(Duration::from_millis(2 * TICK_MS)).await;
    let jobs = service.list_jobs().await.unwrap();
    assert_eq!(jobs.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    assert_eq!(
        service.open_job(spec("second")).await.unwrap(),
        jobs[1].job,
        "asking again is the same as once"
    );
    let plan = service.sync_consumer(consuming_from(job, 0)).await.unwrap();
    assert!(plan.splits.iter().all(|split| !split.workers.is_empty()), "the worker is not taken for lost");
    let revoked = bench.records().iter().any(|record| matches!(record, Record::Revoked { .. }));
    assert!(!revoked);
    bench.stop.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_log_with_many_uncommitted_entries_rejects_new_jobs_and_accepts_reports() {
    let mut bench = Bench::within(RequestLimits { log_bytes: 1, ..RequestLimits::default() });
    let task = bench.start();
    let service = Arc::clone(&bench.service);
    let refused = loop {
        // The first entry begins the leadership.
        match service.open_job(spec("run")).await {
            Ok(_) => {}
            Err(refusal) => break refusal,
        }
    };
    assert_eq!((refused.kind, refused.retry_after_ms), (ServiceErrorKind::Busy, Some(1_000)));
    assert!(refused.message.starts_with("the coordinator's log "), "{refused}");
    service.sync_worker(working()).await.unwrap();
    service.list_jobs().await.unwrap();
    bench.stop.cancel();
    task.await.unwrap().unwrap();
}
