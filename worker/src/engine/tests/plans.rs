//! Plans of the coordinator, and the reports of a worker.

use super::*;

#[tokio::test]
async fn a_job_that_cannot_be_loaded_fails_its_leases() {
    let test = TestEngine::new(&lines(10), PLAIN, 1, 1, MIB).await;
    let split = test.splits(0)[0];
    test.lease([split]);
    test.engine.fail_job(JOB, "no such file");
    assert!(test.engine.unloaded().is_empty());
    let fetch = test.open(split, 0).await.expect("the lease is here");
    let lookup = test.engine.next_piece(&fetch, 0);
    assert!(matches!(lookup, PieceLookup::Failed(message) if message == "no such file"));
    let later = SplitRef { epoch: 1, ..split };
    test.lease([later]);
    let fetch = test.open(later, 0).await.expect("the lease is here");
    let lookup = test.engine.next_piece(&fetch, 0);
    assert!(matches!(lookup, PieceLookup::Failed(_)), "later leases fail as well");
}

#[tokio::test]
async fn allocations_and_tenants_apply_to_loaded_and_later_jobs() {
    let test = TestEngine::new(&lines(100), PLAIN, 1, 2, 64 * MIB).await;
    test.lease(test.splits(0));
    let allocation = JobAllocation { read_concurrency: 3, ..JobAllocation::unlimited(JOB) };
    test.engine.apply_plan(&WorkerPlan { cores: 1, allocations: vec![allocation], ..test.plan() });
    test.load().await;
    let job = test.engine.job(JOB).expect("the job is loaded");
    assert_eq!(job.limits.reads_of_group(), 3);
    test.engine.apply_plan(&test.plan());
    assert_ne!(job.limits.reads_of_group(), 3);
    assert_eq!(test.engine.wanted_cache(JOB), Some(None));
    assert_eq!(test.engine.wanted_cache(JobId(9)), None);
    let tenant = TenantCacheQuota { tenant: "team".to_owned(), cache_bytes: None, jobs: vec![JOB] };
    test.engine.apply_plan(&WorkerPlan { tenants: vec![tenant], ..test.plan() });
    assert!(test.engine.lock().cache_limits.contains_key(&JOB));
    assert!(test.directory.path().exists());
}

#[tokio::test]
async fn a_cache_decision_that_fails_is_not_tried_again() {
    let mut test = TestEngine::new(&lines(100), PLAIN, 1, 1, 64 * MIB).await;
    test.lease(test.splits(0));
    test.load().await;
    let cache = CacheDecision {
        operators_before: 0,
        tier: feedline_data::pipeline::CacheTier::Memory,
        encoding: feedline_data::pipeline::CacheEncoding::AsIs,
    };
    let allocation = JobAllocation { cache: Some(cache), ..JobAllocation::unlimited(JOB) };
    let plan = WorkerPlan { allocations: vec![allocation.clone()], ..test.plan() };
    assert_eq!(test.engine.apply_plan(&plan), BTreeSet::from([JOB]), "the plan wants another cache");
    test.engine.reject_cache(JOB, cache, "the disk is full");
    assert!(test.engine.unloaded().is_empty());
    let other =
        CacheDecision { operators_before: 0, tier: feedline_data::pipeline::CacheTier::Disk, ..cache };
    test.engine.reject_cache(JOB, other, "the worker has no disk cache");
    assert_eq!(test.engine.unloaded(), BTreeSet::from([JOB]));
    test.source.cache = Some(cache);
    test.load().await;
    assert!(test.engine.unloaded().is_empty());
    assert_eq!(test.engine.job(JOB).and_then(|job| job.compiled.cache), Some(cache));
}

#[tokio::test]
async fn reports_list_operators_in_order_and_cached_rows_have_a_value() {
    let rest =
        "operators: [ filter: { where: \"id % 3 = 0\" }, cache: { tier: memory }, batch: { size: 8 } ]\n";
    let test = TestEngine::new(&lines(48), rest, 1, 1, 64 * MIB).await;
    test.lease(test.splits(0));
    test.load().await;
    let job = test.engine.job(JOB).expect("the job is loaded");
    let cache_point = job.compiled.cache_point.as_ref().expect("the pipeline has a cache");
    assert_eq!(job.saved_s_per_byte(cache_point), 0.0);
    for split in test.splits(0) {
        test.fetch(split, 0).await;
    }
    let names: Vec<String> = job.stats().into_iter().map(|stats| stats.name).collect();
    assert_eq!(names, ["source", "filter", "cache", "batch"]);
    let saved = job.saved_s_per_byte(cache_point);
    assert!(saved > 0.0 && saved < 1.0, "{saved}");
    // Two thirds of the rows are only markers of removed rows.
    assert!(cache_point.mean_row_bytes() > 1.0 && cache_point.row_bytes() == 0);
}

#[tokio::test]
async fn only_some_ended_jobs_stay_in_reports() {
    let mut test = TestEngine::new(&lines(10), PLAIN, 1, 1, 64 * MIB).await;
    test.lease([test.splits(0)[0]]);
    for id in 1..=40 {
        test.source.details.job = JobId(id);
        test.load().await;
    }
    let state = test.engine.lock();
    assert!(state.jobs.len() <= 18, "{}", state.jobs.len());
    assert!(state.jobs.contains_key(&JOB), "a job with a lease is never dropped");
    assert!(state.jobs.contains_key(&JobId(40)) && !state.jobs.contains_key(&JobId(2)));
}

#[tokio::test]
async fn groups_of_jobs_with_a_read_limit_count_alone() {
    let mut test = TestEngine::new(&lines(100), PLAIN, 1, 2, 64 * MIB).await;
    let limited = JobAllocation { read_concurrency: 9, ..JobAllocation::unlimited(JobId(3)) };
    test.engine.apply_plan(&WorkerPlan { allocations: vec![limited], ..WorkerPlan::default() });
    for id in 1..=3 {
        test.source.details.job = JobId(id);
        test.load().await;
    }
    let mut state = test.engine.lock();
    for (job, splits) in [(1, 1), (2, 2), (3, 3)] {
        for split in test.splits(0).into_iter().take(splits) {
            let lease = crate::engine::split::SplitState::new(0, 1);
            state.leases.insert(JobId(job), split, lease, Some(&test.layout));
            state.leases.update(JobId(job), split, |lease| lease.start(&(0..8), 10, 1));
        }
    }
    assert_eq!([1, 2, 3].map(|job| state.counted_groups(JobId(job))), [3, 3, 3]);
    let first = test.splits(0)[0];
    state.leases.update(JobId(3), first, |lease| lease.start(&(8..16), 10, 1));
    assert_eq!([1, 2, 3].map(|job| state.counted_groups(JobId(job))), [3, 3, 4]);
}

#[tokio::test]
async fn jobs_that_sample_graphs_are_loaded_before_they_have_leases() {
    let test = TestEngine::new(&lines(10), PLAIN, 1, 1, 64 * MIB).await;
    let loads = || test.engine.graph_report().jobs;
    let load = |state| vec![GraphJobLoad { job: JOB, state }];
    let planned = WorkerPlan { graph_jobs: vec![JOB], ..WorkerPlan::default() };
    assert_eq!(loads(), []);
    let ended = test.engine.ended_loads();
    assert_eq!(test.engine.apply_plan(&planned), BTreeSet::from([JOB]));
    assert_eq!(loads(), load(GraphLoadState::Loading));
    assert_eq!(test.engine.ended_loads(), ended);
    test.load().await;
    assert_eq!((loads(), test.engine.ended_loads()), (load(GraphLoadState::Loaded), ended + 1));
    assert!(test.engine.apply_plan(&planned).is_empty(), "the job is loaded once");
    test.engine.apply_plan(&WorkerPlan { graph_jobs: vec![JOB], ..test.plan() });
    assert!(test.engine.unloaded().is_empty(), "a lease needs no other load");
    assert_eq!(test.engine.apply_plan(&WorkerPlan::default()), BTreeSet::new());
    assert_eq!(loads(), []);
}

#[tokio::test]
async fn a_failed_load_is_repeated_if_the_job_returns_to_the_plan() {
    let test = TestEngine::new(&lines(10), PLAIN, 1, 1, 64 * MIB).await;
    let planned = WorkerPlan { graph_jobs: vec![JOB], ..WorkerPlan::default() };
    test.engine.apply_plan(&planned);
    test.engine.fail_job(JOB, "the graph is too large");
    let state = test.engine.graph_report().jobs[0].state;
    assert_eq!(state, GraphLoadState::Failed);
    assert!(test.engine.apply_plan(&planned).is_empty());
    // A job with leases stays failed, so that fetches return the reason.
    test.engine.apply_plan(&test.plan());
    assert!(test.engine.unloaded().is_empty());
    test.engine.apply_plan(&WorkerPlan { graph_jobs: vec![JOB], ..test.plan() });
    test.engine.apply_plan(&planned);
    test.engine.apply_plan(&WorkerPlan::default());
    assert_eq!(test.engine.apply_plan(&planned), BTreeSet::from([JOB]));
}
