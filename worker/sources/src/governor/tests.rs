//! Tests of the queue of requests, with a paused clock.

use futures::FutureExt;
use futures::future::join_all;

use super::*;

fn governor() -> Arc<StoreGovernor> {
    let (key, name) = ("key".to_owned(), "s3://bucket".to_owned());
    Arc::new(StoreGovernor::new(key, name, StoreKind::S3, Instant::now(), Arc::default()))
}

fn demand(job: u64) -> Demand {
    Demand { job: JobId(job), bytes: 1, is_repeated: false }
}

fn share(requests_per_s: f64, in_flight: u32) -> StoreShare {
    let jobs = vec![(JobId(1), 1.0), (JobId(2), 1.0)];
    StoreShare { key: "key".to_owned(), requests_per_s, in_flight, bytes_in_flight: 0, jobs }
}

#[tokio::test(start_paused = true)]
async fn requests_are_sent_at_the_rate_of_the_share() {
    let governor = governor();
    governor.set_share(&share(10.0, 0));
    let start = Instant::now();
    let send = async |job: u64| {
        governor.acquire(demand(job)).await.succeed(1);
        job
    };
    // The first job has more requests, but the second is served in turn.
    let order = std::sync::Mutex::new(Vec::new());
    let sends = (0..50).map(|index| {
        let (send, order) = (&send, &order);
        async move {
            let job = send(if index < 40 { 1 } else { 2 }).await;
            order.lock().unwrap().push(job);
        }
    });
    join_all(sends).await;
    let seconds = start.elapsed().as_secs_f64();
    assert!((4.5..5.2).contains(&seconds), "{seconds}");
    let order = order.into_inner().unwrap();
    let second = order[..20].iter().filter(|job| **job == 2).count();
    assert!((9..=11).contains(&second), "{order:?}");
    let report = governor.report();
    assert_eq!((report.accepted, report.rejected, report.bytes), (50, 0, 50));
    assert_eq!((report.key.as_str(), report.name.as_str()), ("key", "s3://bucket"));
}

#[tokio::test(start_paused = true)]
async fn a_rejection_pauses_all_requests_for_the_time_that_the_store_asks_for() {
    let governor = governor();
    let start = Instant::now();
    governor.acquire(demand(1)).await.reject(Some(Duration::from_secs(3)));
    assert!(governor.is_limited());
    governor.acquire(demand(2)).await.succeed(1);
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_secs(4), "{waited:?}");
    assert_eq!(governor.rejecting_for(), None, "a success ends the rejections");
}

#[tokio::test(start_paused = true)]
async fn pauses_without_a_time_grow_while_the_store_rejects_everything() {
    let governor = governor();
    let mut waits = Vec::new();
    // A few rejections alone do not pause the requests.
    for _ in 0..10 {
        let start = Instant::now();
        governor.acquire(demand(1)).await.reject(None);
        waits.push(start.elapsed().as_secs_f64());
    }
    assert!(waits[1] < 0.8 && waits[9] > 2.0, "{waits:?}");
    assert!(governor.rejecting_for().is_some_and(|time| time > Duration::from_secs(5)));
}

#[tokio::test(start_paused = true)]
async fn the_number_of_requests_in_flight_is_limited() {
    let governor = governor();
    governor.set_share(&share(0.0, 2));
    let first = governor.acquire(demand(1)).await;
    let second = governor.acquire(demand(1)).await;
    assert!(governor.acquire(demand(1)).now_or_never().is_none());
    assert!(governor.lock().waiting.is_empty(), "a cancelled request leaves the queue");
    first.succeed(1);
    let third = governor.acquire(demand(1)).now_or_never().expect("one has finished");
    drop(second);
    let fourth = governor.acquire(demand(1)).now_or_never().expect("one was cancelled");
    drop((third, fourth));
    let report = governor.report();
    assert_eq!((report.accepted, report.rejected), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_timer_passes_its_work_to_another_request() {
    let governor = governor();
    governor.set_share(&share(1.0, 0));
    governor.acquire(demand(1)).await.succeed(1);
    let mut timer = Box::pin(governor.acquire(demand(1)));
    let other = governor.acquire(demand(2));
    tokio::pin!(other);
    assert!((&mut timer).now_or_never().is_none() && (&mut other).now_or_never().is_none());
    let start = Instant::now();
    drop(timer);
    other.await.succeed(1);
    assert!(start.elapsed() <= Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_is_not_polled_does_not_stop_the_others() {
    let governor = governor();
    governor.set_share(&share(10.0, 0));
    let mut timer = Box::pin(governor.acquire(demand(1)));
    while (&mut timer).now_or_never().is_some() {
        timer = Box::pin(governor.acquire(demand(1)));
    }
    let start = Instant::now();
    for _ in 0..20 {
        governor.acquire(demand(2)).await.succeed(1);
    }
    let seconds = start.elapsed().as_secs_f64();
    assert!((1.8..2.8).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_share_without_limits_removes_the_limit() {
    let governor = governor();
    governor.set_share(&share(0.1, 1));
    governor.acquire(demand(1)).await.succeed(1);
    let waiting = governor.acquire(demand(1));
    let start = Instant::now();
    let (_, permit) = tokio::join!(async { governor.set_share(&StoreShare::default()) }, waiting);
    permit.succeed(1);
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(!governor.is_limited());
}
