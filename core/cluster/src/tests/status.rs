//! Tests of the details and the status of jobs, and of ended jobs.

use feedline_data::messages::CacheDecision;
use feedline_data::pipeline::{Cache, CacheEncoding, CacheTier, OperatorKind, RandomHorizontalFlip};
use feedline_data::tenants::Quota;

use super::*;

#[test]
fn the_status_of_a_job_sums_its_workers_and_consumers() {
    let (mut bench, job) = Bench::running(&spec(4, 2), 80);
    let cpu = ProcessCpu { process_ns: 9, transport_ns: 4 };
    for worker in [1, 2] {
        let operator =
            OperatorStats { name: "batch".to_owned(), rows_in: worker, ..OperatorStats::default() };
        let store = StoreStats { bytes: 10 * worker, ..StoreStats::default() };
        let stats = vec![WorkerJobStats { operators: vec![operator], store, cpu, ..stats_of(job, worker) }];
        bench.worker(WorkerReport { stats, ..report(worker) });
    }
    for consumer in [0, 1] {
        let stats = ConsumerStats { rows: 5, ..ConsumerStats::default() };
        bench.consumer(ConsumerReport { stats, ..consumer_report(job, consumer) });
    }
    let status = bench.status(job);
    assert_eq!((status.job, status.name.as_str(), status.state), (job, "run", JobState::Running));
    assert_eq!((status.epochs, status.consumers, status.workers), (1, 2, 2));
    assert_eq!(status.operators.iter().map(|operator| operator.rows_in).collect::<Vec<_>>(), [3]);
    assert_eq!((status.store.bytes, status.delivered.rows), (30, 10));
    assert_eq!(status.worker_cpu, [(WorkerId(1), cpu), (WorkerId(2), cpu)]);
    assert_eq!(status.worker_peak_rss_bytes, [(WorkerId(1), 1), (WorkerId(2), 2)]);
    assert_eq!(status.dataset.map(|dataset| dataset.rows), Some(80));
    assert_eq!(status.position.map(|position| position.streams.len()), Some(2));
    assert!(status.settled && status.layout.is_some() && status.slot_owners.is_empty());
    match bench.ask(|request| Input::JobStatus { request, job: None }) {
        Some(Reply::Status(jobs)) => assert_eq!(jobs.len(), 1),
        other => panic!("not a status: {other:?}"),
    }
}

#[test]
fn details_are_available_once_the_dataset_is_indexed() {
    let mut bench = Bench::new();
    let job = bench.open(&spec(4, 1)).expect("a valid job");
    let details = |bench: &mut Bench, job| bench.ask(|request| Input::JobDetails { request, job });
    let Some(Reply::Rejected(refusal)) = details(&mut bench, job) else { panic!("the job is preparing") };
    assert_eq!(refusal.kind, ServiceErrorKind::Unavailable);
    let spec = JobSpec { audit: true, ..spec(4, 1) };
    let (mut bench, job) = Bench::running(&spec, 80);
    let Some(Reply::Details(found)) = details(&mut bench, job) else { panic!("the job is running") };
    assert_eq!((found.job, found.audit, found.dataset.rows), (job, true, 80));
    assert_eq!(found.source_key, source_key("", &spec.pipeline.source));
    assert_eq!(found.cache, None, "rows of one epoch are not cached");
}

#[test]
fn the_oldest_ended_jobs_are_forgotten() {
    let mut bench = Bench::new();
    let jobs: Vec<JobId> = (0..103)
        .map(|number| {
            let job =
                bench.open(&JobSpec { name: format!("job {number}"), ..spec(4, 1) }).expect("a valid job");
            bench.ask(|request| Input::CancelJob { request, job });
            job
        })
        .collect();
    let listed = |bench: &mut Bench| match bench.ask(|request| Input::JobStatus { request, job: None }) {
        Some(Reply::Status(jobs)) => jobs.into_iter().map(|status| status.job).collect::<Vec<_>>(),
        other => panic!("not a status: {other:?}"),
    };
    assert_eq!(listed(&mut bench), jobs[3..], "the last hundred");
    let restored = Cluster::restore(ClusterSettings::default(), INCARNATION + 1, 0, bench.cluster.snapshot());
    assert_eq!(restored.snapshot(), bench.cluster.snapshot());
}

#[test]
fn the_newest_job_stays_although_it_ended_first() {
    let mut bench = Bench::new();
    let jobs: Vec<JobId> = (0..102)
        .map(|number| {
            bench.open(&JobSpec { name: format!("job {number}"), ..spec(4, 1) }).expect("a valid job")
        })
        .collect();
    for job in jobs.iter().rev().copied() {
        bench.ask(|request| Input::CancelJob { request, job });
    }
    assert!(bench.cluster.jobs.contains_key(&jobs[101]), "no other job may get its id");
    assert!(!bench.cluster.jobs.contains_key(&jobs[100]) && bench.cluster.jobs.contains_key(&jobs[0]));
}

#[test]
fn a_plan_contains_the_leases_of_jobs_with_different_streams() {
    let (mut bench, _) = Bench::running(&spec(4, 1), 256);
    let rows = manifest(&[256]);
    let other = JobSpec { name: "other".to_owned(), ..spec(4, 2) };
    let second = bench.open_with(&other, Some(Arc::new(rows.clone()))).expect("a valid job");
    let plan = bench.worker(report(1)).expect("the listing task");
    bench.worker(WorkerReport { tasks: vec![listed(plan.tasks[0].id, &rows)], ..report(1) });
    let plan = bench.worker(report(1)).expect("a plan");
    let mut planned: Vec<_> = plan.leases.iter().map(|lease| (lease.job, lease.split)).collect();
    planned.sort_unstable();
    let held: Vec<_> = bench.cluster.workers[&WorkerId(1)].leases().collect();
    assert_eq!(planned, held);
    assert!(held.iter().any(|(job, split)| *job == second && split.stream == 1));
}

#[test]
fn leases_of_several_jobs_are_ordered_by_round() {
    let (mut bench, first) = Bench::running(&spec(4, 1), 256);
    let rows = manifest(&[256]);
    let other = JobSpec { name: "other".to_owned(), ..spec(4, 1) };
    let second = bench.open_with(&other, Some(Arc::new(rows.clone()))).expect("a valid job");
    let plan = bench.worker(report(1)).expect("the listing task");
    bench.worker(WorkerReport { tasks: vec![listed(plan.tasks[0].id, &rows)], ..report(1) });
    let plan = bench.worker(report(1)).expect("a plan");
    let leases: Vec<(u64, JobId)> =
        plan.leases.iter().map(|lease| (lease.split.ordinal, lease.job)).collect();
    assert_eq!(leases, [(0, first), (0, second), (1, first), (1, second), (2, first), (2, second)]);
}

#[test]
fn large_rows_that_are_read_again_are_cached_before_the_first_random_operator() {
    let pipeline = |operators: Vec<OperatorKind>| {
        let mut pipeline = spec(4, 1).pipeline;
        let batch = pipeline.operators.pop().expect("a batch operator");
        pipeline.operators = operators.into_iter().map(Into::into).chain([batch]).collect();
        pipeline
    };
    let flip =
        || OperatorKind::RandomHorizontalFlip(RandomHorizontalFlip { column: "text".to_owned(), p: 0.5 });
    let dataset = |row_bytes: u64| {
        let mut dataset = manifest(&[10]).summary();
        (dataset.rows, dataset.bytes) = (10, 10 * row_bytes);
        dataset
    };
    let decide = |operators, row_bytes, passes_left, quota: Quota| {
        initial_cache_decision(&pipeline(operators), &dataset(row_bytes), passes_left, &quota)
    };
    let none = Quota::default;
    let expected =
        CacheDecision { operators_before: 0, tier: CacheTier::Memory, encoding: CacheEncoding::AsIs };
    assert_eq!(decide(vec![flip()], 4_096, 2.0, none()), Some(expected));
    assert_eq!(decide(vec![flip()], 4_095, 2.0, none()), None, "small rows");
    assert_eq!(decide(vec![flip()], 4_096, 1.0, none()), None, "one pass");
    let quota = Quota { cache_bytes: Some(1e9), ..none() };
    assert_eq!(decide(vec![flip()], 4_096, 2.0, quota), None, "a quota");
    let cache = OperatorKind::Cache(Cache { tier: CacheTier::Memory });
    assert_eq!(decide(vec![cache, flip()], 4_096, 2.0, none()), None, "a cache of the pipeline");
}
