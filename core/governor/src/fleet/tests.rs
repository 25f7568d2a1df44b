//! Tests of the governors of the leader.

use std::sync::Arc;
use std::time::Duration;

use feedline_data::messages::{ProcessCpu, StoreJobReport, StoreStats, WorkerJobStats};

use super::*;
use crate::pacer::{NextRequest, PacedRequest, Pacer};
use crate::simulation::store::sample;

fn report(elapsed_s: f64, accepted: u64, rejected: u64) -> StoreReport {
    let jobs = vec![StoreJobReport { job: JobId(1), requests: accepted + rejected, waiting: 5 }];
    StoreReport {
        key: "key".to_owned(),
        name: "s3://bucket".to_owned(),
        accepted,
        rejected,
        elapsed_ns: (elapsed_s * 1e9) as u64,
        jobs,
        ..StoreReport::default()
    }
}

fn samples(reports: &[StoreReport]) -> Samples {
    let workers = (1..).zip(reports).map(|(worker, report)| sample(WorkerId(worker), report.clone()));
    Samples { workers: workers.collect(), ..Samples::default() }
}

#[test]
fn rejections_limit_all_workers_of_the_store() {
    let mut governors = StoreGovernors::default();
    assert!(governors.plan(1000, &samples(&[report(1.0, 100, 0), report(1.0, 100, 0)])).is_empty());
    assert!(governors.plan(2000, &samples(&[report(2.0, 200, 0), report(2.0, 200, 0)])).is_empty());
    let parts = governors.plan(3000, &samples(&[report(3.0, 250, 50), report(3.0, 250, 50)]));
    let rates: Vec<f64> = parts.values().map(|shares| shares[0].requests_per_s).collect();
    assert!(rates.len() == 2 && rates.iter().all(|rate| (40.0..60.0).contains(rate)), "{parts:?}");
    let [limit] = governors.limits() else { panic!("one store is limited") };
    assert_eq!(limit.name, "s3://bucket");
    assert!(limit.requests_per_s.is_some_and(|rate| (80.0..120.0).contains(&rate)), "{limit:?}");
    assert_eq!(limit.jobs.keys().collect::<Vec<_>>(), [&JobId(1)]);
    let sentence = governors.describe(JobId(1)).expect("its requests wait");
    assert!(sentence.starts_with("store s3://bucket limits the job to "), "{sentence}");
    assert!(sentence.ends_with(" requests/s"), "{sentence}");
    assert_eq!(governors.describe(JobId(2)), None);
}

#[test]
fn workers_with_requests_receive_nearly_the_whole_budget() {
    let job = |job, requests, waiting| StoreJobReport { job: JobId(job), requests, waiting };
    let fleet = |elapsed_s: f64, rejected| {
        let busy = StoreReport {
            jobs: vec![job(1, 100 * elapsed_s as u64, 5), job(2, 7, 0)],
            ..report(elapsed_s, 100 * elapsed_s as u64, rejected)
        };
        let idle = StoreReport { jobs: vec![job(1, 7, 0), job(2, 7, 0)], ..report(elapsed_s, 14, 0) };
        let mut reports = vec![idle; 100];
        reports[0] = busy;
        samples(&reports)
    };
    let mut governors = StoreGovernors::default();
    let mut parts = BTreeMap::new();
    for (second, rejected) in [(1, 0), (2, 0), (3, 50), (4, 50)] {
        parts = governors.plan(second * 1000, &fleet(second as f64, rejected));
    }
    let limit = governors.limits()[0].requests_per_s.expect("requests were rejected");
    let part = parts[&WorkerId(1)][0].requests_per_s;
    assert!(part >= 0.97 * limit, "{part} of {limit}");
    // Without a demand of idle jobs, each of these workers would have only the smallest rate, together 0.1 requests/s.
    let idle: f64 = parts.values().skip(1).map(|shares| shares[0].requests_per_s).sum();
    assert!((0.004 * limit..0.021 * limit).contains(&idle), "idle workers may begin: {idle} of {limit}");
}

#[test]
fn the_sentence_about_a_limited_job_names_the_store_and_the_unit() {
    let limit = |name: &str, requests_per_s, in_flight, job, part| StoreLimit {
        name: name.to_owned(),
        requests_per_s,
        in_flight,
        jobs: BTreeMap::from([(JobId(job), part)]),
    };
    let limits = vec![
        limit("s3://rate", Some(100.0), Some(40.0), 1, 24.6),
        limit("s3://flight", None, Some(40.0), 2, 8.2),
    ];
    let governors = StoreGovernors { limits, ..StoreGovernors::default() };
    let describe = |job| governors.describe(JobId(job));
    assert_eq!(describe(1).as_deref(), Some("store s3://rate limits the job to 25 requests/s"));
    assert_eq!(describe(2).as_deref(), Some("store s3://flight limits the job to 8 requests in flight"));
    assert_eq!(describe(3), None, "no requests of the job wait");
}

#[test]
fn a_new_leader_continues_with_the_parts_of_all_workers() {
    let mut governors = StoreGovernors::default();
    let reports = vec![StoreReport { requests_per_s: 0.6, ..report(1.0, 9, 0) }; 500];
    // Few workers have reported when the leader makes its first plan.
    for (now, reported) in [(1000, 3), (2000, 40), (5900, 500)] {
        assert!(
            governors.plan(now, &samples(&reports[..reported])).is_empty(),
            "the workers keep their parts"
        );
    }
    let parts = governors.plan(6000, &samples(&reports));
    let total: f64 = parts.values().map(|shares| shares[0].requests_per_s).sum();
    assert!((total - 300.0).abs() < 3.0, "{total}");
}

/// Two workers that use a store with a limit of 8 requests/s, according to the plan at 6000 ms.
fn limited() -> (StoreGovernors, Vec<StoreReport>) {
    let mut governors = StoreGovernors::default();
    let reports =
        [3.0, 5.0].map(|requests_per_s| StoreReport { requests_per_s, ..report(1.0, 9, 1) }).to_vec();
    assert!(governors.plan(1000, &samples(&reports)).is_empty());
    assert_eq!(governors.plan(6000, &samples(&reports)).len(), 2);
    (governors, reports)
}

fn total(parts: &BTreeMap<WorkerId, Vec<StoreShare>>) -> f64 {
    parts.values().map(|shares| shares[0].requests_per_s).sum()
}

#[test]
fn workers_that_join_receive_a_part_before_their_first_report() {
    let (mut governors, reports) = limited();
    let mut samples = samples(&reports);
    samples.workers.extend((3..503).map(|worker| {
        let mut joined = sample(WorkerId(worker), StoreReport::default());
        joined.stores.clear();
        joined
    }));
    let parts = governors.plan(7000, &samples);
    assert_eq!(parts.len(), 502);
    assert!((total(&parts) - 8.0).abs() < 0.2, "{}", total(&parts));
    let of_reporting = |parts: &BTreeMap<WorkerId, Vec<StoreShare>>| {
        parts[&WorkerId(1)][0].requests_per_s + parts[&WorkerId(2)][0].requests_per_s
    };
    assert!((of_reporting(&parts) - 6.4).abs() < 0.1, "{parts:?}");
    // They do not read the store, and keep small parts in addition to those of the others.
    let parts = governors.plan(17_000, &samples);
    assert_eq!(parts.len(), 502);
    assert!((of_reporting(&parts) - 8.0).abs() < 0.5, "{}", of_reporting(&parts));
    assert!(total(&parts) < 1.25 * of_reporting(&parts), "{}", total(&parts));
}

fn stats(job: JobId) -> WorkerJobStats {
    WorkerJobStats {
        job,
        operators: Vec::new(),
        store: StoreStats::default(),
        memory_wait_ns: 0,
        peak_rss_bytes: 0,
        elapsed_ns: 1,
        cpu: ProcessCpu::default(),
        encodings: Vec::new(),
        graph: None,
    }
}

#[test]
fn a_worker_that_receives_a_job_of_the_store_receives_a_part() {
    let (mut governors, reports) = limited();
    let with_job = |job: Option<JobId>| {
        let mut samples = samples(&reports);
        let mut other = sample(WorkerId(3), StoreReport::default());
        other.stores.clear();
        other.jobs = job.map(|job| Arc::new(stats(job))).into_iter().collect();
        samples.workers.push(other);
        samples
    };
    // The parts of the third worker, and of the others as a fraction of the limit.
    let mut plan = |now: Millis, job: Option<JobId>| {
        let parts = governors.plan(now, &with_job(job));
        let part = |worker: u64| parts[&WorkerId(worker)][0].requests_per_s;
        let limit = governors.limits()[0].requests_per_s.expect("a limit");
        (part(3), (part(1) + part(2)) / limit)
    };
    plan(7000, None);
    let (part, others) = plan(17_000, Some(JobId(9)));
    assert!(part > 0.0 && others > 0.99, "an idle worker has a part that others keep: {part} {others}");
    let (part, others) = plan(18_000, Some(JobId(1)));
    assert!(part > 1.0 && others < 0.9, "{part} {others}");
    let (part, others) = plan(28_000, Some(JobId(1)));
    assert!(part > 0.0 && others > 0.99, "{part} {others}");
}

#[test]
fn a_limit_that_only_a_few_workers_have_found_is_not_that_of_the_store() {
    let mut governors = StoreGovernors::default();
    let limits = [3.0, 0.0, 0.0].map(|requests_per_s| StoreReport { requests_per_s, ..report(1.0, 9, 1) });
    assert!(governors.plan(1000, &samples(&limits)).is_empty());
}

#[test]
fn restarted_workers_and_repeated_reports_are_harmless() {
    let mut governors = StoreGovernors::default();
    for (now, elapsed_s, accepted) in
        [(1000, 9.0, 900), (2000, 10.0, 1000), (3000, 10.0, 1000), (4000, 1.0, 5)]
    {
        assert!(governors.plan(now, &samples(&[report(elapsed_s, accepted, 0)])).is_empty(), "{now}");
    }
}

#[test]
fn parts_without_limits_follow_the_end_of_a_limit() {
    let mut governors = StoreGovernors::default();
    let limited = StoreReport { requests_per_s: 100.0, ..report(1.0, 100, 0) };
    assert!(governors.plan(1000, &samples(std::slice::from_ref(&limited))).is_empty());
    assert_eq!(governors.plan(6000, &samples(&[limited])).len(), 1);
    let mut last = BTreeMap::new();
    for second in 7..700 {
        let mut idle = report(second as f64, 100 + second, 0);
        idle.jobs[0].waiting = 0;
        last = governors.plan(1000 * second, &samples(&[idle]));
        if governors.limits().is_empty() {
            break;
        }
    }
    assert_eq!(last[&WorkerId(1)][0].requests_per_s, 0.0);
    assert!(governors.limits().is_empty());
}

/// A worker without a report about the store.
fn idle(worker: u64) -> WorkerReportSample {
    let mut idle = sample(WorkerId(worker), StoreReport::default());
    idle.stores.clear();
    idle
}

#[test]
fn a_worker_that_begins_with_an_idle_part_sends_a_request_and_receives_a_fair_part() {
    let (mut governors, reports) = limited();
    let with = |others: Vec<WorkerReportSample>| {
        let mut samples = samples(&reports);
        samples.workers.extend(others);
        samples
    };
    governors.plan(7000, &with((3..50).map(idle).collect()));
    let parts = governors.plan(17_000, &with((3..50).map(idle).collect()));
    let share = &parts[&WorkerId(3)][0];
    assert!(share.requests_per_s < 0.05, "{share:?}");
    let mut pacer = Pacer::new(1);
    let begun = Duration::from_secs(100);
    pacer.set_share(begun, share);
    (0..2).for_each(|id| pacer.push(begun, PacedRequest { id, job: JobId(1), bytes: 1 }, false));
    let NextRequest::At(first) = pacer.next(begun) else { panic!("the first request has a random phase") };
    assert!(first <= begun + Duration::from_secs(1), "{first:?}");
    // No request has been answered when the worker reports its demand.
    let report = StoreReport { key: "key".to_owned(), ..pacer.report(begun) };
    let others = std::iter::once(sample(WorkerId(3), report)).chain((4..50).map(idle)).collect();
    let parts = governors.plan(18_000, &with(others));
    let of = |worker: u64| parts[&WorkerId(worker)][0].requests_per_s;
    assert!(of(3) > 2.0 && (of(3) - of(1)).abs() < 0.1, "{} {}", of(3), of(1));
}

/// A worker whose job has sent requests to the store before.
fn reporting_idle(worker: u64, elapsed_s: f64) -> WorkerReportSample {
    let mut report = report(elapsed_s, 7, 0);
    report.jobs[0].waiting = 0;
    sample(WorkerId(worker), report)
}

/// Checks that the part of an idle worker changes at most once for each doubling of the limit.
fn check_idle_parts(idle: impl Fn(u64, f64) -> WorkerReportSample) {
    let (mut governors, _) = limited();
    let (mut changes, mut last, mut limits) = (0, None, Vec::new());
    for second in 7..300 {
        let busy = [1.0, 2.0].map(|_| StoreReport {
            requests_per_s: 4.0,
            ..report(second as f64, 9 + 4 * second * second, 1)
        });
        let mut samples = samples(&busy);
        samples.workers.extend((3..50).map(|worker| idle(worker, second as f64)));
        let part = governors.plan(1000 * second, &samples)[&WorkerId(3)][0].clone();
        limits.push(governors.limits()[0].requests_per_s.expect("a limit"));
        changes += u32::from(second > 20 && last.as_ref() != Some(&part));
        last = Some(part);
    }
    let growth = limits[limits.len() - 1] / limits[13];
    assert!(growth > 10.0, "{limits:?}");
    assert!(f64::from(changes) <= 1.0 + growth.log2(), "{changes} changes, growth {growth}");
}

#[test]
fn the_parts_of_idle_workers_seldom_change_while_a_limit_grows() {
    check_idle_parts(|worker, _| idle(worker));
    check_idle_parts(reporting_idle);
}

/// The report of a store with a queue: requests without a queue take 20 ms.
fn slow_report(elapsed_s: u64, requests_per_s: u64, latency_ms: u64, waiting: u32) -> StoreReport {
    let accepted = elapsed_s * requests_per_s;
    let jobs = vec![StoreJobReport { job: JobId(1), requests: accepted, waiting }];
    StoreReport {
        latency_ns: 1_000_000 * latency_ms * accepted,
        base_latency_ns: 20_000_000 * accepted,
        bytes: 1000 * accepted,
        jobs,
        ..report(elapsed_s as f64, accepted, 0)
    }
}

#[test]
fn repeated_reports_do_not_reduce_the_observed_throughput() {
    let mut governors = StoreGovernors::default();
    // Each report is in three plans. The store serves 60 requests/s, whatever the number in flight.
    let mut limits = Vec::new();
    for second in 1..60 {
        let report = slow_report(second - second % 3 + 1, 30, 1000, 5);
        governors.plan(1000 * second, &samples(&[report.clone(), report]));
        limits.push(governors.limits().first().and_then(|limit| limit.in_flight));
    }
    let lasting = limits.iter().skip_while(|limit| limit.is_none()).all(Option::is_some);
    assert!(lasting && limits.last().is_some_and(Option::is_some), "a decrease is kept: {limits:?}");
}

#[test]
fn workers_whose_requests_wait_receive_the_requests_in_flight_that_others_do_not_need() {
    let mut governors = StoreGovernors::default();
    let mut parts = BTreeMap::new();
    for second in 1..20 {
        let waiting = slow_report(second, 300, 1000, 5);
        let reports = [waiting.clone(), waiting, slow_report(second, 20, 100, 0)];
        parts = governors.plan(1000 * second, &samples(&reports));
        if !parts.is_empty() {
            break;
        }
    }
    let limit = governors.limits()[0].in_flight.expect("the queue is limited");
    let in_flight: Vec<u32> = parts.values().map(|shares| shares[0].in_flight).collect();
    assert_eq!(in_flight.iter().sum::<u32>(), limit.round() as u32, "{in_flight:?}");
    assert!(in_flight[0] >= 15 && in_flight[1] >= 15, "{in_flight:?}");
}
