//! Tests of leases under a plan, and of several inputs in one step.

use feedline_data::messages::{JobAllocation, MIN_CORES, WorkerAllocations};

use super::*;

/// A plan that gives a job cores of one worker.
fn placed(job: JobId, worker: u64, cores: f64) -> Input {
    let share = WorkerAllocations {
        jobs: vec![JobAllocation { cores, ..JobAllocation::unlimited(job) }],
        ..WorkerAllocations::default()
    };
    Input::Allocations { allocations: [(WorkerId(worker), share)].into() }
}

fn revoked(bench: &Bench) -> Vec<(WorkerId, Vec<SplitRef>)> {
    let of = |record: &Record| match record {
        Record::Revoked { worker, splits, .. } => Some((*worker, splits.clone())),
        _ => None,
    };
    bench.records.iter().filter_map(of).collect()
}

/// Two workers with leases of a job; the first has computed one of its splits. The bench contains only later records.
fn two_workers() -> (Bench, JobId) {
    let (mut bench, job) = Bench::running(&spec(4, 1), 256);
    let computed = vec![(job, bench.held(1)[0])];
    bench.worker(WorkerReport { computed, ..report(1) });
    bench.worker(report(2));
    assert_eq!((bench.held(1).len(), bench.held(2).len()), (4, 3));
    bench.records.clear();
    (bench, job)
}

#[test]
fn leases_move_to_the_workers_of_the_plan() {
    let (mut bench, job) = two_workers();
    bench.step(placed(job, 2, 1.5));
    assert_eq!(revoked(&bench), [], "the worker may compute them soon");
    let computed = vec![(job, bench.held(1)[0])];
    let allocations = bench.worker(WorkerReport { computed, ..report(1) }).expect("a plan").allocations;
    let cores: Vec<_> = allocations.iter().map(|allocation| (allocation.job, allocation.cores)).collect();
    assert_eq!(cores, [(job, MIN_CORES)], "the worker keeps its leases with few cores");
    let moved = bench.held(1)[1..].to_vec();
    bench.pass(2_000);
    assert_eq!(revoked(&bench), [(WorkerId(1), moved.clone())], "computed splits stay");
    let computed = vec![(job, bench.held(1)[0])];
    bench.worker(WorkerReport { computed, ..report(1) });
    assert_eq!(bench.granted(1), [], "the plan does not give this worker the job");
    let computed = bench.held(2).into_iter().map(|split| (job, split)).collect();
    bench.worker(WorkerReport { computed, ..report(2) });
    assert_eq!(bench.granted(2), moved[..2], "the third split is too far ahead of the consumer");
}

#[test]
fn a_plan_with_lost_workers_or_without_cores_has_no_effect() {
    for (worker, cores) in [(9, 1.5), (2, MIN_CORES)] {
        let (mut bench, job) = two_workers();
        bench.step(placed(job, worker, cores));
        assert_eq!(revoked(&bench), []);
        let computed = bench.held(1).into_iter().map(|split| (job, split)).collect();
        bench.worker(WorkerReport { computed, ..report(1) });
        assert!(!bench.granted(1).is_empty(), "the job continues on its worker");
    }
}

#[test]
fn a_worker_that_is_too_slow_for_a_split_gets_none() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 256);
    let part = |cores| WorkerAllocations {
        cores: 0,
        jobs: vec![JobAllocation { cores, ..JobAllocation::unlimited(job) }],
        stores: Vec::new(),
    };
    bench.step(Input::Allocations {
        allocations: [(WorkerId(1), part(8.0)), (WorkerId(2), part(0.25))].into(),
    });
    bench.worker(report(2));
    assert_eq!(bench.granted(2), []);
    let computed = bench.granted(1).into_iter().map(|split| (job, split)).collect();
    bench.worker(WorkerReport { computed, ..report(1) });
    assert_eq!((bench.granted(1).len(), bench.granted(2).len()), (6, 0));
}

#[test]
fn consumers_learn_the_new_address_of_a_worker() {
    let (mut bench, job) = two_workers();
    let examined = bench.cluster.examined_items();
    bench.worker(WorkerReport { address: "moved".to_owned(), ..report(1) });
    assert!(bench.cluster.examined_items() >= examined + bench.held(1).len() as u64);
    let plan = bench.consumer(consumer_report(job, 0)).expect("a plan");
    let addresses: Vec<&str> = plan
        .splits
        .iter()
        .flat_map(|split| &split.workers)
        .map(|(_, address)| address.url.as_str())
        .collect();
    assert!(addresses.contains(&"moved") && !addresses.contains(&"w1"), "{addresses:?}");
}

#[test]
fn consumers_learn_the_new_certificate_name_of_a_worker() {
    let (mut bench, job) = two_workers();
    let names = |bench: &mut Bench| -> Vec<Option<String>> {
        let plan = bench.consumer(consumer_report(job, 0)).expect("a plan");
        let workers = plan.splits.into_iter().flat_map(|split| split.workers);
        workers.filter(|(id, _)| *id == WorkerId(1)).map(|(_, address)| address.tls_name).collect()
    };
    let before = names(&mut bench);
    assert!(!before.is_empty() && before.iter().all(Option::is_none), "{before:?}");
    bench.worker(WorkerReport { tls_name: Some("workers".to_owned()), ..report(1) });
    let after = names(&mut bench);
    assert!(!after.is_empty() && after.iter().all(|name| name.as_deref() == Some("workers")), "{after:?}");
}

#[test]
fn several_inputs_are_decided_together() {
    let (mut bench, _) = Bench::running(&spec(4, 1), 256);
    let mut ready = Ready::default();
    for worker in [2, 3] {
        let input = Input::Worker { request: 100 + worker, report: report(worker) };
        bench.cluster.take_input(bench.now, input, &mut ready);
    }
    assert_eq!((ready.records.len(), ready.replies.len()), (0, 0));
    bench.cluster.step(bench.now, Input::Tick, &mut ready);
    assert_eq!(
        (ready.records.len(), ready.replies.len()),
        (4, 2),
        "one record for the leases of each worker, and one for those that the first worker loses"
    );
}
