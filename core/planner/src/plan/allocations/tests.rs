//! What workers are told of a plan.

use feedline_data::ids::JobId;

use super::*;

use crate::plan::{JobProblem, OperatorLimit, OperatorProblem, TenantProblem, WorkerSlot, WorkerType};

fn part(worker: u64, cores: f64, read_concurrency: u32) -> Assignment {
    Assignment { worker: WorkerId(worker), cores, rows_per_s: 100.0, read_concurrency }
}

fn job(id: u64, assignments: Vec<Assignment>) -> JobPlan {
    JobPlan {
        job: JobId(id),
        name: format!("job {id}"),
        rows_per_s: 100.0,
        demand_rows_per_s: 200.0,
        fed_fraction: 0.5,
        cores_by_type: Vec::new(),
        assignments,
        limits: Vec::new(),
        kept: None,
        why: String::new(),
    }
}

fn problem(workers: &[u64]) -> Problem {
    let slot = |worker: &u64| WorkerSlot { id: WorkerId(*worker), worker_type: 0 };
    let kind = WorkerType { memory_bytes: 1e9, ..WorkerType::default() };
    let workers = workers.iter().map(slot).collect();
    Problem { workers, worker_types: vec![kind], ..Problem::default() }
}

#[test]
fn each_worker_is_told_its_part_in_each_of_its_jobs() {
    let jobs = vec![job(1, vec![part(7, 1.52, 4), part(8, 0.1, 4)]), job(2, vec![part(8, 1.9, 4)])];
    let shares = shares(&Plan { jobs, ..Plan::default() }, &problem(&[7, 8]), &BTreeMap::new());
    let told = |worker: u64| -> Vec<(JobId, f64, u64)> {
        let allotments = shares[&WorkerId(worker)].allotments.iter();
        allotments.map(|one| (one.job, one.cores, one.prefetch_bytes)).collect()
    };
    assert_eq!(told(7), [(JobId(1), 1.5, 500_000_000)]);
    assert_eq!(told(8), [(JobId(1), 0.25, 55_555_555), (JobId(2), 2.0, 444_444_444)]);
    assert_eq!(shares[&WorkerId(7)].cores, 0, "all threads of a worker are used");
}

#[test]
fn a_job_alone_is_told_of_reads_and_of_nothing_else() {
    let alone = |reads: u32| {
        let jobs = vec![job(1, vec![part(7, 0.5, reads)])];
        shares(&Plan { jobs, ..Plan::default() }, &problem(&[7]), &BTreeMap::new())
    };
    assert!(alone(16).is_empty());
    let told = alone(40);
    let allotment = JobAllocation { read_concurrency: 64, ..JobAllocation::unlimited(JobId(1)) };
    assert_eq!(told[&WorkerId(7)].allotments, [allotment]);
}

#[test]
fn a_job_alone_is_told_its_limit_where_its_tenant_has_a_quota() {
    let jobs = vec![job(1, vec![part(7, 1.0, 4), part(8, 1.0, 4)])];
    let tenants = vec![TenantProblem { cores: Some(3.0), ..TenantProblem::default() }];
    let given = JobProblem { id: JobId(1), tenant: Some(0), ..JobProblem::default() };
    let problem = Problem { jobs: vec![given], tenants, ..problem(&[7, 8]) };
    let shares = shares(&Plan { jobs, ..Plan::default() }, &problem, &[(JobId(1), None)].into());
    let told = |worker: u64| {
        let [one] = shares[&WorkerId(worker)].allotments.as_slice() else { panic!("one job") };
        (one.cores, one.most_cores)
    };
    assert_eq!((told(7), told(8)), ((1.0, 1.5), (1.0, 1.5)));
}

#[test]
fn only_operators_that_wait_and_are_not_pinned_get_limits() {
    let limit = |name: &str, is_pinned| OperatorLimit { operator: name.to_owned(), limit: 5, is_pinned };
    let operator = |name: &str, latency_s| OperatorProblem {
        name: name.to_owned(),
        latency_s,
        ..OperatorProblem::default()
    };
    let limits = vec![limit("decode", false), limit("wait", false), limit("wait#2", true)];
    let plan = Plan { jobs: vec![JobPlan { limits, ..job(1, vec![part(7, 1.0, 4)]) }], ..Plan::default() };
    let operators = vec![operator("decode", 0.0), operator("wait", 0.1), operator("wait#2", 0.1)];
    let given = JobProblem { id: JobId(1), operators, ..JobProblem::default() };
    let shares = shares(&plan, &Problem { jobs: vec![given], ..problem(&[7]) }, &BTreeMap::new());
    assert_eq!(shares[&WorkerId(7)].allotments[0].operator_limits, [("wait".to_owned(), 16)]);
}

#[test]
fn reads_grow_to_twice_as_many_with_each_plan_and_come_back_at_once() {
    let wanted = |reads: u32| {
        let jobs = vec![job(1, vec![part(7, 0.5, reads)])];
        shares(&Plan { jobs, ..Plan::default() }, &problem(&[7]), &BTreeMap::new())
    };
    let mut steps = ReadSteps::default();
    let mut tell = |reads: u32| {
        let told = steps.next(wanted(reads), |job| job == JobId(1));
        told.get(&WorkerId(7)).map_or(0, |share| share.allotments[0].read_concurrency)
    };
    assert_eq!([tell(200), tell(200), tell(200), tell(200), tell(200)], [32, 64, 128, 256, 256]);
    assert_eq!([tell(40), tell(9), tell(200)], [64, 0, 256]);
    steps.next(BTreeMap::new(), |_| false);
    assert!(steps.0.is_empty(), "of a job that has ended");
}
