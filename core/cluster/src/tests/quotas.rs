//! Tests of core quotas for jobs without a plan.

use feedline_data::messages::{JobAllocation, TenantCacheQuota, WorkerAllocations};
use feedline_data::tenants::{Quota, Tenants};

use super::*;

/// A cluster in which tenant `a` has a quota of one core.
fn bench() -> Bench {
    let one = Quota { cores: Some(1.0), ..Quota::default() };
    let tenants = Tenants { tenants: [("a".to_owned(), one)].into(), ..Tenants::default() };
    let mut bench = Bench::new();
    bench.cluster = Cluster::new(ClusterSettings { tenants, ..ClusterSettings::default() }, INCARNATION);
    bench
}

fn job(bench: &mut Bench, tenant: &str, name: &str) -> JobId {
    let spec = JobSpec { tenant: tenant.to_owned(), name: name.to_owned(), ..spec(4, 1) };
    let manifest = manifest(&[256]);
    let job = bench.open_with(&spec, Some(Arc::new(manifest.clone()))).expect("a valid job");
    let tasks = bench.worker(worker(1)).map(|plan| plan.tasks).unwrap_or_default();
    let tasks = tasks.iter().map(|task| listed(task.id, &manifest)).collect();
    bench.worker(WorkerReport { tasks, ..worker(1) });
    assert_eq!(bench.status(job).state, JobState::Running);
    job
}

fn worker(number: u64) -> WorkerReport {
    WorkerReport { cores: 2, ..report(number) }
}

/// The limit of a job's cores on each worker.
fn limits(bench: &mut Bench, job: JobId) -> Vec<(u64, f64)> {
    let of = |number: u64| {
        let plan = bench.worker(worker(number)).expect("an immediate plan");
        let own = plan.allocations.iter().find(|allocation| allocation.job == job);
        own.map(|allocation| (number, allocation.max_cores))
    };
    (1..=3).filter_map(of).collect()
}

#[test]
fn a_job_without_a_plan_gets_its_share_of_the_quota_on_few_workers() {
    let mut bench = bench();
    (1..=3).for_each(|number| drop(bench.worker(worker(number))));
    let first = job(&mut bench, "a", "first");
    bench.pass(300);
    let own = limits(&mut bench, first);
    assert_eq!(own.len(), 1, "one worker has enough cores: {own:?}");
    assert_eq!(own[0].1, 1.0);
    let holders: Vec<u64> = (1..=3).filter(|number| !bench.granted(*number).is_empty()).collect();
    assert_eq!(holders, [own[0].0], "leases are on the workers with cores");
    let second = job(&mut bench, "a", "second");
    bench.pass(300);
    let (first, second) = (limits(&mut bench, first), limits(&mut bench, second));
    assert_eq!((first[0].1, second[0].1), (0.5, 0.5));
    let free = job(&mut bench, "b", "free");
    bench.pass(300);
    assert_eq!(limits(&mut bench, free), [], "a tenant without a quota has no limit");
}

#[test]
fn a_plan_sets_limits_and_other_workers_have_an_even_share() {
    let mut bench = bench();
    (1..=2).for_each(|number| drop(bench.worker(worker(number))));
    let planned = job(&mut bench, "a", "planned");
    bench.pass(300);
    let [(before, _)] = limits(&mut bench, planned)[..] else { panic!("one worker") };
    let other = 3 - before;
    let allocation = JobAllocation { cores: 0.75, max_cores: 0.9, ..JobAllocation::unlimited(planned) };
    let share = WorkerAllocations { jobs: vec![allocation], ..WorkerAllocations::default() };
    bench.step(Input::Allocations { allocations: [(WorkerId(other), share)].into() });
    bench.pass(300);
    let mut received = limits(&mut bench, planned);
    received.sort_by(|a, b| a.1.total_cmp(&b.1));
    let rest = 1.0 / bench.cluster.workers.len() as f64;
    assert_eq!(received, [(before, rest), (other, 0.9)], "earlier splits are finished");
}

#[test]
fn the_weight_of_a_job_is_multiplied_by_the_priority_of_its_tenant() {
    let first = Quota { priority: 4.0, ..Quota::default() };
    let mut bench = bench();
    let tenants = Tenants { tenants: [("first".to_owned(), first)].into(), ..Tenants::default() };
    bench.cluster = Cluster::new(ClusterSettings { tenants, ..ClusterSettings::default() }, INCARNATION);
    job(&mut bench, "first", "1");
    job(&mut bench, "other", "2");
    let facts = bench.cluster.samples().jobs;
    let weights: Vec<(&str, f64)> = facts.iter().map(|job| (job.tenant.as_str(), job.weight)).collect();
    assert_eq!(weights, [("first", 4.0), ("other", 1.0)]);
    assert_eq!(facts[0].quota, first);
}

#[test]
fn workers_receive_the_tenants_of_jobs_and_their_cache_quotas() {
    let some = Quota { cache_bytes: Some(300.0), ..Quota::default() };
    let tenants = Tenants { tenants: [("a".to_owned(), some)].into(), ..Tenants::default() };
    let mut bench = bench();
    bench.cluster = Cluster::new(ClusterSettings { tenants, ..ClusterSettings::default() }, INCARNATION);
    (1..=3).for_each(|number| drop(bench.worker(worker(number))));
    let jobs = ["a", "b", ""].map(|tenant| job(&mut bench, tenant, "same"));
    bench.pass(300);
    let mut received: Vec<TenantCacheQuota> = Vec::new();
    for number in 1..=3 {
        let plan = bench.worker(worker(number)).expect("an immediate plan");
        received.extend(plan.tenants);
    }
    for (tenant, cache_bytes, job) in [("a", Some(100), jobs[0]), ("b", None, jobs[1])] {
        let part = TenantCacheQuota { tenant: tenant.to_owned(), cache_bytes, jobs: vec![job] };
        assert!(received.contains(&part), "{received:?}");
    }
    assert!(received.iter().all(|part| !part.jobs.contains(&jobs[2])), "no tenant and no quota");
}

#[test]
fn tenants_compete_by_priority_and_jobs_of_a_tenant_by_weight() {
    let first = Quota { priority: 4.0, ..Quota::default() };
    let mut bench = bench();
    let tenants = Tenants { tenants: [("first".to_owned(), first)].into(), ..Tenants::default() };
    bench.cluster = Cluster::new(ClusterSettings { tenants, ..ClusterSettings::default() }, INCARNATION);
    let manifest = manifest(&[256]);
    for (tenant, name, weight) in [
        ("first", "a", 1.0),
        ("first", "b", 3.0),
        ("greedy", "c", 100.0),
        ("greedy", "d", 50.0),
        ("other", "e", 0.01),
    ] {
        let spec = JobSpec { tenant: tenant.to_owned(), name: name.to_owned(), weight, ..spec(4, 1) };
        bench.open_with(&spec, Some(Arc::new(manifest.clone()))).expect("a valid job");
        let tasks = bench.worker(worker(1)).map(|plan| plan.tasks).unwrap_or_default();
        let tasks = tasks.iter().map(|task| listed(task.id, &manifest)).collect();
        bench.worker(WorkerReport { tasks, ..worker(1) });
    }
    let claims: Vec<f64> = bench.cluster.samples().jobs.iter().map(|job| job.weight).collect();
    let wanted = [2.0, 6.0, 4.0 / 3.0, 2.0 / 3.0, 1.0];
    assert!(claims.iter().zip(wanted).all(|(claim, wanted)| (claim - wanted).abs() < 1e-9), "{claims:?}");
    assert_eq!(claims.len(), wanted.len());
}
