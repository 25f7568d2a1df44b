//! Allocations of plans with one and several jobs.

use super::*;

use crate::plan::solution::JobPlan;
use crate::plan::{JobProblem, TenantProblem, WorkerType};

/// An allocation on a worker: its id, the planned cores, and the read concurrency.
fn allocated(job: u64, allocations: &[(u64, f64, u32)]) -> JobPlan {
    let allocation = |(worker, cores, read_concurrency): &(u64, f64, u32)| {
        let (cores, read_concurrency) = (*cores, *read_concurrency);
        (WorkerId(*worker), JobAllocation { cores, read_concurrency, ..JobAllocation::unlimited(JobId(job)) })
    };
    JobPlan {
        job: JobId(job),
        name: format!("job {job}"),
        rows_per_s: 100.0,
        demand_rows_per_s: 200.0,
        fed_fraction: 0.5,
        cores_by_type: Vec::new(),
        allocations: allocations.iter().map(allocation).collect(),
        operator_limits: Vec::new(),
        cache: None,
        explanation: String::new(),
    }
}

fn problem(workers: &[u64]) -> Problem {
    let slot = |worker: &u64| WorkerSlot { id: WorkerId(*worker), worker_type: 0 };
    let kind = WorkerType { memory_bytes: 1e9, ..WorkerType::default() };
    let workers = workers.iter().map(slot).collect();
    Problem { workers, worker_types: vec![kind], ..Problem::default() }
}

fn allocations(jobs: Vec<JobPlan>, problem: &Problem) -> PlanAllocations {
    plan_allocations(&Plan { jobs, ..Plan::default() }, problem, &BTreeMap::new())
}

#[test]
fn jobs_on_one_worker_share_its_cores_and_memory() {
    let jobs = vec![allocated(1, &[(7, 1.52, 4), (8, 0.1, 4)]), allocated(2, &[(8, 1.9, 4)])];
    let allocations = allocations(jobs, &problem(&[7, 8]));
    let on_worker = |worker: u64| -> Vec<(JobId, f64, u64)> {
        let jobs = allocations[&WorkerId(worker)].jobs.iter();
        jobs.map(|job| (job.job, job.cores, job.prefetch_bytes)).collect()
    };
    assert_eq!(on_worker(7), [(JobId(1), 1.5, 500_000_000)]);
    assert_eq!(on_worker(8), [(JobId(1), 0.25, 55_555_555), (JobId(2), 2.0, 444_444_444)]);
    assert_eq!(allocations[&WorkerId(7)].cores, 0, "all threads of a worker are used");
}

#[test]
fn a_single_job_has_no_limit_except_its_reads() {
    let single = |reads: u32| allocations(vec![allocated(1, &[(7, 0.5, reads)])], &problem(&[7]));
    assert!(single(16).is_empty());
    let expected = JobAllocation { read_concurrency: 64, ..JobAllocation::unlimited(JobId(1)) };
    assert_eq!(single(40)[&WorkerId(7)].jobs, [expected]);
}

#[test]
fn a_single_job_of_a_tenant_with_a_quota_has_a_limit_of_cores() {
    let jobs = vec![allocated(1, &[(7, 1.0, 4), (8, 1.0, 4)])];
    let tenants = vec![TenantProblem { cores: Some(3.0), ..TenantProblem::default() }];
    let job = JobProblem { id: JobId(1), tenant: Some(0), ..JobProblem::default() };
    let problem = Problem { jobs: vec![job], tenants, ..problem(&[7, 8]) };
    let plan = Plan { jobs, ..Plan::default() };
    let allocations = plan_allocations(&plan, &problem, &[(JobId(1), None)].into());
    let cores = |worker: u64| {
        let [job] = allocations[&WorkerId(worker)].jobs.as_slice() else { panic!("one job") };
        (job.cores, job.max_cores)
    };
    assert_eq!((cores(7), cores(8)), ((1.0, 1.5), (1.0, 1.5)));
}

#[test]
fn read_concurrency_at_most_doubles_with_each_plan_and_falls_at_once() {
    let wanted = |reads: u32| allocations(vec![allocated(1, &[(7, 0.5, reads)])], &problem(&[7]));
    let mut limits = ReadLimits::default();
    let mut reads_of_plan = |reads: u32| {
        let limited = limits.limit(wanted(reads), |job| job == JobId(1));
        limited.get(&WorkerId(7)).map_or(0, |own| own.jobs[0].read_concurrency)
    };
    assert_eq!([200; 5].map(&mut reads_of_plan), [32, 64, 128, 256, 256]);
    assert_eq!([40, 9, 200].map(reads_of_plan), [64, 0, 256]);
    limits.limit(PlanAllocations::new(), |_| false);
    assert!(limits.0.is_empty(), "the job has ended");
}
