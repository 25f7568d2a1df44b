//! Who comes beyond a limit is refused, and those who are there go on.

use expect_test::expect;

use super::*;

fn bench(limits: ClusterLimits) -> Bench {
    let mut bench = Bench::new();
    bench.cluster = Cluster::new(ClusterSettings { limits, ..ClusterSettings::default() }, LIFE);
    bench
}

fn refusal(reply: Option<Reply>) -> ServiceError {
    match reply {
        Some(Reply::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn one_more_job_is_refused_until_one_has_ended() {
    let mut bench = bench(ClusterLimits { jobs: 1, ..ClusterLimits::NONE });
    let job = bench.open(&spec(4, 1)).expect("room");
    let other = JobSpec { name: "other".to_owned(), tenant: "a".to_owned(), ..spec(4, 1) };
    let refused = bench.open(&other).expect_err("no room");
    assert_eq!((refused.kind, refused.retry_after_ms), (ServiceErrorKind::Busy, Some(5_000)));
    expect!["the cluster may have 1 jobs at once, and as many run; wait until one has ended, or have the coordinator's --max-jobs raised"]
        .assert_eq(&refused.message);
    assert_eq!(bench.open(&spec(4, 1)), Ok(job), "joining needs no room");
    bench.ask(|request| Input::CancelJob { request, job });
    bench.open(&other).expect("one has ended");
}

#[test]
fn one_more_consumer_is_refused_until_one_has_left() {
    let mut bench = bench(ClusterLimits { consumers: 2, ..ClusterLimits::NONE });
    let job = bench.open(&spec(4, 3)).expect("a good job");
    assert!(bench.consumer(taking(job, 0)).is_some() && bench.consumer(taking(job, 1)).is_some());
    let report = taking(job, 2);
    let refused = refusal(bench.ask(|request| Input::Consumer { request, report }));
    assert_eq!((refused.kind, refused.retry_after_ms), (ServiceErrorKind::Busy, Some(2_000)));
    assert!(refused.message.starts_with("the cluster may have 2 consumers at once"), "{refused}");
    assert!(bench.consumer(taking(job, 0)).is_some(), "who has a place keeps it");
    let newer = ConsumerReport { session: SessionId(2), ..taking(job, 1) };
    assert!(bench.consumer(newer).is_some(), "also in a newer session");
    bench.pass(10_000);
    assert!(bench.consumer(taking(job, 0)).is_some());
    bench.pass(6_000);
    assert!(bench.consumer(taking(job, 2)).is_some(), "consumer 1 has been silent for too long");
}

#[test]
fn one_more_worker_is_refused_until_one_has_gone() {
    let mut bench = bench(ClusterLimits { workers: 1, ..ClusterLimits::NONE });
    assert!(bench.worker(report(1)).is_some());
    let refused = refusal(bench.ask(|request| Input::Worker { request, report: report(2) }));
    assert_eq!((refused.kind, refused.retry_after_ms), (ServiceErrorKind::Busy, Some(2_000)));
    assert!(refused.message.starts_with("the cluster may have 1 workers at once"), "{refused}");
    assert!(bench.worker(report(1)).is_some());
    bench.pass(4_000);
    assert!(bench.worker(report(2)).is_some(), "the other was silent for its lease time");
}
