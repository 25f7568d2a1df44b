//! Tests of deadlines that pass without any input, each one millisecond before and at the deadline.

use feedline_data::messages::{JobAllocation, WorkerAllocations};

use super::*;

fn revoked(bench: &Bench) -> bool {
    bench.records.iter().any(|record| matches!(record, Record::Revoked { .. }))
}

#[test]
fn a_worker_expires_after_the_lease_time() {
    let (mut bench, _) = Bench::running(&spec(4, 1), 64);
    bench.pass(3_000);
    assert!(!revoked(&bench));
    bench.pass(1);
    assert!(revoked(&bench) && bench.cluster.workers.len() == 0);
}

#[test]
fn a_consumer_of_a_relaxed_job_loses_its_splits_without_input() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    let freed = |bench: &Bench| {
        bench
            .records
            .iter()
            .filter(|record| matches!(record, Record::Assigned { consumer: None, .. }))
            .count()
    };
    bench.consumer(consumer_report(job, 0));
    bench.pass(10_000);
    bench.consumer(consumer_report(job, 1));
    bench.pass(5_000);
    assert_eq!(freed(&bench), 0);
    bench.pass(1);
    assert_eq!(freed(&bench), 1);
    bench.pass(60_000);
    assert_eq!(freed(&bench), 1, "the last consumer keeps its splits");
}

#[test]
fn a_rank_loses_its_slots_without_input() {
    let elastic = JobSpec { elastic: true, virtual_consumers: 4, ..spec(4, 2) };
    let (mut bench, job) = Bench::running(&elastic, 64);
    bench.consumer(consumer_report(job, 0));
    bench.consumer(consumer_report(job, 1));
    assert_eq!(bench.status(job).slot_owners, [(0, 2), (1, 2)]);
    bench.pass(10_000);
    bench.consumer(consumer_report(job, 1));
    bench.pass(5_000);
    assert_eq!(bench.status(job).slot_owners, [(0, 2), (1, 2)]);
    bench.pass(1);
    assert_eq!(bench.status(job).slot_owners, [(1, 4)]);
}

#[test]
fn slots_are_assigned_to_the_current_ranks_without_input() {
    let elastic = JobSpec { elastic: true, virtual_consumers: 4, ..spec(4, 3) };
    let (mut bench, job) = Bench::running(&elastic, 64);
    bench.consumer(consumer_report(job, 0));
    for _ in 0..15 {
        bench.pass(1_000);
    }
    assert_eq!(bench.status(job).slot_owners, []);
    bench.pass(1_000);
    assert_eq!(bench.status(job).slot_owners, [(0, 4)]);
}

#[test]
fn an_idle_job_loses_its_leases_and_fails_without_input() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    bench.cluster.settings.worker_lease_ms = u64::MAX / 2;
    bench.pass(15_000);
    assert!(!revoked(&bench));
    bench.pass(1);
    assert!(revoked(&bench));
    bench.pass(3_600_000 - 15_001);
    assert_eq!(bench.status(job).state, JobState::Running);
    bench.pass(1);
    assert!(matches!(bench.status(job).state, JobState::Failed(_)));
}

#[test]
fn a_late_split_near_the_end_gets_a_second_lease_without_input() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    bench.consumer(consumer_report(job, 0));
    for (worker, report) in [
        (2, WorkerReport { draining: true, ..report(2) }),
        (3, WorkerReport { memory_full: true, ..report(3) }),
    ] {
        bench.worker(report);
        assert_eq!(bench.granted(worker), []);
    }
    bench.pass(999);
    bench.worker(report(1));
    bench.worker(report(4));
    assert_eq!(bench.granted(4), [split(0, 1)], "the first worker has not begun this split");
    bench.worker(WorkerReport { computed: vec![(job, split(0, 1))], ..report(4) });
    bench.pass(1);
    assert_eq!(bench.granted(4)[1..], [split(0, 0)], "one split for each idle worker");
    assert_eq!((bench.granted(2), bench.granted(3)), (vec![], vec![]), "these workers accept no copies");
}

#[test]
fn uncomputed_splits_are_recalled_without_input() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 256);
    let computed = vec![(job, bench.granted(1)[0])];
    bench.worker(WorkerReport { computed, ..report(1) });
    bench.worker(report(2));
    bench.records.clear();
    let held = bench.held(1);
    let allocation = JobAllocation { cores: 1.0, ..JobAllocation::unlimited(job) };
    let share = WorkerAllocations { jobs: vec![allocation], ..WorkerAllocations::default() };
    bench.step(Input::Allocations { allocations: [(WorkerId(2), share)].into() });
    bench.pass(1_999);
    assert!(!revoked(&bench));
    bench.pass(1);
    let recalled = Record::Revoked { job, worker: WorkerId(1), splits: held[1..].to_vec(), lost: false };
    assert!(bench.records.contains(&recalled), "the computed split stays");
}

#[test]
fn a_plan_recalls_old_leases_only_after_it_has_settled() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 256);
    bench.worker(report(2));
    bench.records.clear();
    bench.pass(2_500);
    bench.worker(report(1));
    bench.worker(report(2));
    let allocation = JobAllocation { cores: 1.0, ..JobAllocation::unlimited(job) };
    let share = WorkerAllocations { jobs: vec![allocation], ..WorkerAllocations::default() };
    bench.step(Input::Allocations { allocations: [(WorkerId(2), share)].into() });
    bench.pass(499);
    assert!(!revoked(&bench));
    bench.pass(1);
    assert!(revoked(&bench));
}

#[test]
fn a_draining_worker_keeps_its_leases() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 256);
    bench.worker(WorkerReport { draining: true, ..report(1) });
    bench.worker(report(2));
    let allocation = JobAllocation { cores: 1.0, ..JobAllocation::unlimited(job) };
    let share = WorkerAllocations { jobs: vec![allocation], ..WorkerAllocations::default() };
    bench.step(Input::Allocations { allocations: [(WorkerId(2), share)].into() });
    bench.pass(2_900);
    assert!(!revoked(&bench), "its splits are still computed");
}
