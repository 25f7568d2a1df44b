//! Tests of leases that move to workers that are new in a job.

use std::collections::BTreeSet;

use feedline_data::messages::{JobAllocation, WorkerAllocations};

use super::*;

#[test]
fn new_workers_compute_the_next_splits_of_a_stream() {
    let (mut bench, _) = Bench::running(&spec(4, 1), 256);
    assert_eq!(bench.held(1), [split(0, 0), split(0, 1), split(0, 2)]);
    bench.worker(report(2));
    assert_eq!(bench.held(1)[..2], [split(0, 0), split(0, 2)], "the first split has begun");
    assert_eq!(bench.held(2)[0], split(0, 1));
    bench.worker(report(3));
    assert_eq!(bench.held(3)[0], split(0, 2));
    bench.worker(report(4));
    assert_eq!(bench.held(4)[0], split(0, 3));
    let all: Vec<SplitRef> = (1..=4).flat_map(|worker| bench.held(worker)).collect();
    let different: BTreeSet<&SplitRef> = all.iter().collect();
    assert_eq!((all.len(), different.len()), (8, 8), "each split of the job has one holder");
}

#[test]
fn a_worker_is_new_only_once() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 256);
    bench.worker(report(2));
    let computed: Vec<_> = bench.held(2).into_iter().map(|split| (job, split)).collect();
    let before = bench.held(1);
    bench.worker(WorkerReport { computed, ..report(2) });
    assert!(
        before.iter().all(|split| bench.held(1).contains(split)),
        "a faster worker receives later splits"
    );
}

#[test]
fn waiting_splits_of_many_streams_are_balanced() {
    let (mut bench, _) = Bench::running(&spec(4, 8), 512);
    assert_eq!(bench.held(1).len(), 8, "the next split of each stream");
    bench.worker(report(2));
    assert_eq!(bench.held(2), [split(1, 0), split(3, 0), split(5, 0), split(7, 0)]);
    bench.worker(report(3));
    assert_eq!(bench.held(3)[0], split(2, 0), "it waited for two splits of the first worker");
}

#[test]
fn a_worker_with_many_cores_has_begun_several_short_splits() {
    let (mut bench, job) = Bench::running(&spec(4, 8), 512);
    let split_rows = bench.cluster.jobs[&job].layout.as_ref().expect("it runs").split_rows as u32;
    bench.worker(WorkerReport { cores: 7 * split_rows, ..report(1) });
    let before = bench.held(1);
    assert!(before.len() > 8, "more leases for more cores");
    bench.worker(report(2));
    let moved: Vec<SplitRef> =
        before.iter().copied().filter(|split| !bench.held(1).contains(split)).collect();
    let ordered: BTreeSet<SplitRef> = before.into_iter().collect();
    assert!(ordered.iter().take(7).all(|split| !moved.contains(split)), "{moved:?}");
    assert!(!moved.is_empty());
    assert_eq!(bench.held(2), moved, "no more splits than the new worker accepts");
    let lost = bench.records.iter().find_map(|record| match record {
        Record::Revoked { splits, .. } => Some(splits),
        _ => None,
    });
    assert_eq!(lost, Some(&moved), "no split is revoked and granted to the same worker");
}

#[test]
fn a_slow_worker_gets_no_split_that_its_holder_computes_earlier() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 256);
    let plan = |cores: f64| {
        let share = |cores| WorkerAllocations {
            cores: 0,
            jobs: vec![JobAllocation { cores, ..JobAllocation::unlimited(job) }],
            stores: Vec::new(),
        };
        Input::Allocations { allocations: [(WorkerId(1), share(4.0)), (WorkerId(2), share(cores))].into() }
    };
    bench.step(plan(0.5));
    bench.worker(report(2));
    assert!(bench.held(1).starts_with(&[split(0, 0), split(0, 1), split(0, 2)]));
    assert_eq!(
        bench.held(2).first(),
        None,
        "its first split would take as long as eight of the other worker"
    );
}

#[test]
fn the_rounds_of_a_coordinated_job_stay_together() {
    let (mut bench, job) = Bench::running(&spec(4, 2), 512);
    let layout = bench.cluster.jobs.get_mut(&job).and_then(|job| job.layout.as_mut());
    layout.expect("it runs").coordinated = true;
    let before = bench.held(1);
    bench.worker(report(2));
    assert!(before.iter().all(|split| bench.held(1).contains(split)));
}
