//! Leases follow the plan, and inputs that come at once are decided on once.

use feedline_data::messages::{JobAllocation, LEAST_CORES, WorkerAllocations};

use super::*;

/// A plan that gives a job so many cores of a worker.
fn placed(job: JobId, worker: u64, cores: f64) -> Input {
    let share = WorkerAllocations {
        cores: 0,
        allotments: vec![JobAllocation { cores, ..JobAllocation::unlimited(job) }],
    };
    Input::Shares { shares: [(WorkerId(worker), share)].into() }
}

fn revoked(bench: &Bench) -> Vec<(WorkerId, Vec<SplitRef>)> {
    let of = |record: &Record| match record {
        Record::Revoked { worker, splits, .. } => Some((*worker, splits.clone())),
        _ => None,
    };
    bench.records.iter().filter_map(of).collect()
}

/// Two workers that hold splits of a job; the first has computed one of them.
fn two_workers() -> (Bench, JobId) {
    let (mut bench, job) = Bench::running(&spec(4, 1), 256);
    let computed = vec![(job, bench.granted(1)[0])];
    bench.worker(WorkerReport { computed, ..report(1) });
    bench.worker(report(2));
    assert_eq!((bench.granted(1).len(), bench.granted(2).len()), (4, 3));
    (bench, job)
}

#[test]
fn leases_go_where_the_job_has_a_part() {
    let (mut bench, job) = two_workers();
    bench.step(placed(job, 2, 1.5));
    assert_eq!(revoked(&bench), [], "it may be done with them soon");
    bench.pass(2_000);
    let moved = bench.granted(1)[1..].to_vec();
    assert_eq!(revoked(&bench), [(WorkerId(1), moved.clone())], "what is computed stays");
    let computed = vec![(job, bench.granted(1)[0])];
    bench.worker(WorkerReport { computed, ..report(1) });
    assert_eq!(bench.granted(1).len(), 4, "it has no part");
    let computed = bench.granted(2).into_iter().map(|split| (job, split)).collect();
    bench.worker(WorkerReport { computed, ..report(2) });
    assert!(moved.iter().all(|split| bench.granted(2).contains(split)));
}

#[test]
fn a_plan_of_lost_workers_or_of_no_parts_places_nobody() {
    for (worker, cores) in [(9, 1.5), (2, LEAST_CORES)] {
        let (mut bench, job) = two_workers();
        bench.step(placed(job, worker, cores));
        assert_eq!(revoked(&bench), []);
        let computed = bench.granted(1).into_iter().map(|split| (job, split)).collect();
        bench.worker(WorkerReport { computed, ..report(1) });
        assert!(bench.granted(1).len() > 4, "it goes on");
    }
}

#[test]
fn a_part_too_slow_for_a_split_gets_none() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 256);
    let part = |cores| WorkerAllocations {
        cores: 0,
        allotments: vec![JobAllocation { cores, ..JobAllocation::unlimited(job) }],
    };
    bench.step(Input::Shares { shares: [(WorkerId(1), part(8.0)), (WorkerId(2), part(0.25))].into() });
    bench.worker(report(2));
    assert_eq!(bench.granted(2), []);
    let computed = bench.granted(1).into_iter().map(|split| (job, split)).collect();
    bench.worker(WorkerReport { computed, ..report(1) });
    assert_eq!((bench.granted(1).len(), bench.granted(2).len()), (6, 0));
}

#[test]
fn inputs_that_come_at_once_are_decided_on_once() {
    let (mut bench, _) = Bench::running(&spec(4, 1), 256);
    let mut ready = Ready::default();
    for worker in [2, 3] {
        let input = Input::Worker { request: 100 + worker, report: report(worker) };
        bench.cluster.take(bench.now, input, &mut ready);
    }
    assert_eq!((ready.records.len(), ready.replies.len()), (0, 0));
    bench.cluster.step(bench.now, Input::Tick, &mut ready);
    assert_eq!((ready.records.len(), ready.replies.len()), (2, 2), "each is granted what it can hold");
}
