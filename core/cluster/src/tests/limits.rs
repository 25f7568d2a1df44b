//! Tests of limits: requests beyond a limit are rejected, and existing jobs, consumers and workers continue.

use expect_test::expect;

use super::*;

fn bench(limits: ClusterLimits) -> Bench {
    let mut bench = Bench::new();
    bench.cluster = Cluster::new(ClusterSettings { limits, ..ClusterSettings::default() }, INCARNATION);
    bench
}

fn refusal(reply: Option<Reply>) -> ServiceError {
    match reply {
        Some(Reply::Rejected(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_job_beyond_the_limit_is_rejected_until_another_ends() {
    let mut bench = bench(ClusterLimits { jobs: 1, ..ClusterLimits::UNLIMITED });
    let job = bench.open(&spec(4, 1)).expect("below the limit");
    let other = JobSpec { name: "other".to_owned(), tenant: "a".to_owned(), ..spec(4, 1) };
    let refused = bench.open(&other).expect_err("at the limit");
    assert_eq!((refused.kind, refused.retry_after_ms), (ServiceErrorKind::Busy, Some(5_000)));
    expect!["the cluster has reached its limit of 1 jobs; retry after a job has ended, or raise the coordinator's --max-jobs"]
        .assert_eq(&refused.message);
    assert_eq!(bench.open(&spec(4, 1)), Ok(job), "the limit does not apply to joining");
    bench.ask(|request| Input::CancelJob { request, job });
    bench.open(&other).expect("one has ended");
}

#[test]
fn a_consumer_beyond_the_limit_is_rejected_until_another_leaves() {
    let mut bench = bench(ClusterLimits { consumers: 2, ..ClusterLimits::UNLIMITED });
    let job = bench.open(&spec(4, 3)).expect("a valid job");
    assert!(
        bench.consumer(consumer_report(job, 0)).is_some()
            && bench.consumer(consumer_report(job, 1)).is_some()
    );
    let report = consumer_report(job, 2);
    let refused = refusal(bench.ask(|request| Input::Consumer { request, report }));
    assert_eq!((refused.kind, refused.retry_after_ms), (ServiceErrorKind::Busy, Some(2_000)));
    assert!(refused.message.starts_with("the cluster has reached its limit of 2 consumers"), "{refused}");
    assert!(bench.consumer(consumer_report(job, 0)).is_some(), "a present consumer continues");
    let newer = ConsumerReport { session: SessionId(2), ..consumer_report(job, 1) };
    assert!(bench.consumer(newer).is_some(), "so does its next session");
    bench.pass(10_000);
    assert!(bench.consumer(consumer_report(job, 0)).is_some());
    bench.pass(6_000);
    assert!(bench.consumer(consumer_report(job, 2)).is_some(), "consumer 1 has been silent for too long");
}

#[test]
fn a_worker_beyond_the_limit_is_rejected_until_another_expires() {
    let mut bench = bench(ClusterLimits { workers: 1, ..ClusterLimits::UNLIMITED });
    assert!(bench.worker(report(1)).is_some());
    let refused = refusal(bench.ask(|request| Input::Worker { request, report: report(2) }));
    assert_eq!((refused.kind, refused.retry_after_ms), (ServiceErrorKind::Busy, Some(2_000)));
    assert!(refused.message.starts_with("the cluster has reached its limit of 1 workers"), "{refused}");
    assert!(bench.worker(report(1)).is_some());
    bench.pass(4_000);
    assert!(bench.worker(report(2)).is_some(), "the other worker has expired");
}
