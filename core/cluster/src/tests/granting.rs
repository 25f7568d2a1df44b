//! Tests of leases: grants in bulk and ahead of need, expiry, and duplicate leases of late splits. Also tests the replies to
//! long polls.

use feedline_data::messages::{JobAllocation, WorkerAddress, WorkerAllocations};

use super::*;

#[test]
fn leases_come_in_one_record_ahead_of_need() {
    let (bench, _) = Bench::running(&spec(4, 1), 256);
    let grants = bench.records.iter().filter(|record| matches!(record, Record::Granted { .. })).count();
    assert_eq!(grants, 1);
    assert_eq!(bench.granted(1), [split(0, 0), split(0, 1), split(0, 2)], "as many as `leases_ahead`");
}

#[test]
fn the_next_split_of_each_stream_is_granted_regardless_of_load() {
    let (mut bench, _) = Bench::running(&spec(4, 8), 512);
    let heads: Vec<SplitRef> = (0..8).map(|stream| split(stream, 0)).collect();
    assert_eq!(bench.granted(1), heads);
    bench.worker(WorkerReport { memory_full: true, ..report(2) });
    assert_eq!(bench.granted(2), [], "a worker with full memory gets only urgent splits");
    bench.worker(report(2));
    assert_eq!(bench.granted(2), [split(0, 1), split(1, 1), split(2, 1)]);
}

/// A short split may not fill a batch.
#[test]
fn a_consumer_without_progress_gets_another_split_despite_full_memory() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 256);
    let computed: Vec<_> = (0..3).map(|ordinal| (job, split(0, ordinal))).collect();
    bench.consumer(ConsumerReport { wanted_splits: 5, ..consumer_report(job, 0) });
    let full = WorkerReport { memory_full: true, computed, ..report(1) };
    bench.worker(full.clone());
    assert_eq!(bench.granted(1).len(), 3);
    bench.now += 1_000;
    bench.worker(full.clone());
    assert_eq!(bench.granted(1).len(), 4, "one more, since the earlier ones were computed a second ago");
    bench.worker(full);
    assert_eq!(bench.granted(1).len(), 4);
}

#[test]
fn the_leases_of_an_expired_worker_move_to_another() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    bench.consumer(consumer_report(job, 0));
    bench.pass(2_000);
    bench.worker(report(2));
    let held = bench.held(1);
    bench.pass(1_001);
    let revoked = Record::Revoked { job, worker: WorkerId(1), splits: held.clone(), lost: false };
    assert!(bench.records.contains(&revoked));
    assert_eq!(bench.granted(2).last(), Some(&held[0]), "the urgent split, regardless of load");
    let computed = bench.granted(2).into_iter().map(|split| (job, split)).collect();
    bench.worker(WorkerReport { computed, ..report(2) });
    assert!(held.iter().all(|split| bench.granted(2).contains(split)), "the other splits once there is room");
    let plan = bench.consumer(consumer_report(job, 0)).expect("its workers changed");
    assert_eq!(plan.splits[0].workers, [(WorkerId(2), WorkerAddress::new("w2"))]);
    let late =
        bench.worker(WorkerReport { computed: vec![(job, held[0])], ..report(1) }).expect("a first plan");
    assert!(
        !late.leases.iter().any(|lease| lease.split == held[0]),
        "an expired worker starts without leases"
    );
}

/// Its new revisions must differ from the earlier revisions.
#[test]
fn a_returning_worker_receives_a_plan_immediately() {
    let (mut bench, _) = Bench::running(&spec(4, 1), 64);
    let before = bench.worker(report(1)).expect("leases").revision;
    bench.pass(3_001);
    let after = bench
        .worker(WorkerReport { plan_revision: before, ..report(1) })
        .expect("its leases are new")
        .revision;
    assert!(after.number > before.number);
}

#[test]
fn the_split_of_an_unreachable_worker_moves_to_another_if_there_is_one() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    bench.consumer(ConsumerReport {
        unreachable: vec![(split(0, 0), WorkerId(1))],
        ..consumer_report(job, 0)
    });
    assert_eq!(
        bench.granted(1).iter().filter(|granted| **granted == split(0, 0)).count(),
        2,
        "no other worker exists"
    );
    bench.worker(report(2));
    bench.consumer(ConsumerReport {
        unreachable: vec![(split(0, 0), WorkerId(1))],
        ..consumer_report(job, 0)
    });
    assert!(bench.granted(2).contains(&split(0, 0)));
    let plan = bench.consumer(consumer_report(job, 0)).expect("its workers changed");
    assert_eq!(plan.splits[0].workers, [(WorkerId(2), WorkerAddress::new("w2"))]);
}

#[test]
fn late_splits_are_leased_twice_only_near_the_end() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 256);
    bench.worker(report(2));
    let idle: Vec<_> = bench.granted(2).into_iter().map(|split| (job, split)).collect();
    bench.now += 1_000;
    bench.worker(report(1));
    bench.worker(WorkerReport { computed: idle, memory_full: true, ..report(2) });
    assert!(bench.held(1).iter().all(|split| !bench.held(2).contains(split)), "not at the start");

    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    assert_eq!(bench.granted(1), [split(0, 0), split(0, 1)], "all splits of the job");
    bench.worker(report(2));
    assert_eq!(bench.granted(2), [split(0, 1)], "the first worker has not begun this split");
    bench.now += 1_000;
    bench.worker(report(1));
    bench.worker(WorkerReport { computed: vec![(job, split(0, 1))], ..report(2) });
    assert_eq!(bench.granted(2)[1..], [split(0, 0)], "late and not computed");
    let plan = bench.consumer(consumer_report(job, 0)).expect("a first plan");
    assert_eq!(plan.splits[0].workers.len(), 2);
    bench.worker(report(3));
    assert_eq!(bench.granted(3), [], "at most two leases");
}

#[test]
fn late_splits_of_silent_workers_are_leased_twice_after_the_next_report() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    bench.worker(report(2));
    let has_copy = |bench: &Bench| bench.granted(2).contains(&split(0, 0));
    let idle = || WorkerReport { computed: vec![(job, split(0, 1))], ..report(2) };
    for _ in 0..4 {
        bench.pass(500);
        bench.worker(idle());
    }
    assert!(!has_copy(&bench), "the first worker may have crashed");
    for _ in 0..2 {
        bench.worker(report(1));
        bench.pass(500);
        bench.worker(idle());
    }
    assert!(has_copy(&bench));
}

#[test]
fn a_draining_worker_gets_no_leases() {
    let (mut bench, _) = Bench::running(&spec(4, 1), 256);
    bench.worker(WorkerReport { draining: true, ..report(2) });
    assert_eq!(bench.granted(2), []);
}

#[test]
fn a_long_poll_is_held_until_the_plan_changes_or_the_hold_time_expires() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    let plan = bench.worker(report(1)).expect("news");
    let same = WorkerReport { plan_revision: plan.revision, ..report(1) };
    assert_eq!(bench.worker(same.clone()), None);
    let held = bench.request;
    bench.pass(499);
    assert!(!bench.answered.contains_key(&held));
    bench.pass(1);
    assert_eq!(bench.answered.get(&held), Some(&Reply::Worker(plan.clone())), "after `hold_ms`");
    assert_eq!(bench.worker(same.clone()), None);
    let held = bench.request;
    let seen = plan.leases.len();
    let positions = vec![(0, StreamPosition { epoch: 0, row: 8 })];
    bench.consumer(ConsumerReport { positions, ..consumer_report(job, 0) });
    let Some(Reply::Worker(changed)) = bench.answered.get(&held) else { panic!("a lease is done") };
    assert!(changed.leases.iter().all(|lease: &Lease| lease.split != split(0, 0)), "{seen}");
}

#[test]
fn a_second_poll_of_a_worker_answers_the_first() {
    let (mut bench, _) = Bench::running(&spec(4, 1), 64);
    let plan = bench.worker(report(1)).expect("news");
    let same = WorkerReport { plan_revision: plan.revision, ..report(1) };
    assert_eq!(bench.worker(same.clone()), None);
    let first = bench.request;
    assert_eq!(bench.worker(same), None);
    let second = bench.request;
    assert_eq!(bench.answered.get(&first), Some(&Reply::Worker(plan)), "the first poll is answered");
    bench.pass(500);
    assert!(bench.answered.contains_key(&second));
}

#[test]
fn a_job_settles_once_its_workers_have_reported_after_its_end() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    let positions = vec![(0, StreamPosition { epoch: 1, row: 0 })];
    let plan = bench.consumer(ConsumerReport { positions, ..consumer_report(job, 0) }).expect("the end");
    assert_eq!(plan.state, JobState::Completed);
    assert!(!bench.status(job).settled);
    let after = bench.worker(report(1)).expect("the leases are gone");
    assert_eq!(after.leases, []);
    assert!(!bench.status(job).settled, "the worker has not reported since");
    let stats = vec![stats_of(job, 5)];
    bench.worker(WorkerReport { plan_revision: after.revision, stats, ..report(1) });
    let status = bench.status(job);
    assert!(status.settled);
    assert_eq!(status.worker_peak_rss_bytes, [(WorkerId(1), 5)]);
}

#[test]
fn a_job_settles_while_another_keeps_the_worker_busy() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    let before = bench.worker(report(1)).expect("leases");
    bench.ask(|request| Input::CancelJob { request, job });
    let after = bench.worker(WorkerReport { plan_revision: before.revision, ..report(1) }).expect("the end");
    let other = bench.open(&spec(5, 1)).expect("another job");
    assert_ne!(job, other);
    bench.worker(WorkerReport { plan_revision: after.revision, ..report(1) });
    assert!(bench.status(job).settled, "although the plan has changed again");
}

#[test]
fn a_job_settles_without_an_expired_worker() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    bench.ask(|request| Input::CancelJob { request, job });
    assert!(!bench.status(job).settled);
    bench.pass(3_001);
    assert!(bench.status(job).settled);
}

#[test]
fn a_job_without_consumers_loses_its_leases_and_fails_later() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    bench.consumer(consumer_report(job, 0));
    bench.worker(report(1));
    bench.pass(1_000);
    let leases = |bench: &Bench| {
        let granted = |record: &&Record| matches!(record, Record::Granted { .. });
        bench.cluster.snapshot().iter().filter(granted).count()
    };
    assert!(leases(&bench) > 0);
    for _ in 0..15 {
        bench.pass(1_000);
        bench.worker(report(1));
    }
    assert_eq!(leases(&bench), 0);
    bench.consumer(consumer_report(job, 0));
    assert!(leases(&bench) > 0, "the consumer has returned");
    for _ in 0..3_601 {
        bench.pass(1_000);
    }
    let message = "no consumer has reported in the last 60 minutes; reopen the job from its last checkpoint";
    assert_eq!(bench.status(job).state, JobState::Failed(message.to_owned()));
}

fn plan_of(job: JobId, parts: &[(u64, f64)]) -> Input {
    let share = |cores: f64| WorkerAllocations {
        cores: 0,
        jobs: vec![JobAllocation { cores, ..JobAllocation::unlimited(job) }],
        stores: Vec::new(),
    };
    Input::Allocations {
        allocations: parts.iter().map(|(worker, cores)| (WorkerId(*worker), share(*cores))).collect(),
    }
}

#[test]
fn leases_follow_the_plan_in_proportion_to_cores() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 16_384);
    bench.worker(report(2));
    bench.worker(report(3));
    bench.step(plan_of(job, &[(2, 1.0), (3, 3.0)]));
    let before: Vec<usize> = [1, 2, 3].map(|worker| bench.granted(worker).len()).into();
    // All workers have computed their leases and can accept more splits.
    for worker in [1, 2, 3] {
        let computed = bench.granted(worker).into_iter().map(|split| (job, split)).collect();
        bench.worker(WorkerReport { computed, ..report(worker) });
    }
    bench.consumer(ConsumerReport { wanted_splits: 64, ..consumer_report(job, 0) });
    let after = [1, 2, 3].map(|worker| bench.granted(worker).len());
    assert_eq!(after[0], before[0], "the plan does not give this worker the job");
    assert!(after[1] > before[1] && after[2] > before[2]);
}

#[test]
fn a_plan_with_lost_or_unreachable_workers_does_not_stop_a_job() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    bench.step(plan_of(job, &[(9, 1.0)]));
    let held = bench.granted(1).into_iter().map(|split| (job, split)).collect();
    bench.worker(WorkerReport { computed: held, ..report(1) });
    assert_eq!(bench.granted(1).len(), 6, "the planned worker is unknown");
    bench.worker(report(2));
    bench.step(plan_of(job, &[(1, 1.0)]));
    bench.consumer(ConsumerReport {
        unreachable: vec![(split(0, 0), WorkerId(1))],
        ..consumer_report(job, 0)
    });
    assert!(bench.granted(2).contains(&split(0, 0)), "although the plan does not give this worker the job");
}

#[test]
fn the_size_of_a_consumer_plan_is_bounded() {
    let endless = JobSpec { epochs: u32::MAX, ..spec(4, 1) };
    let (mut bench, job) = Bench::running(&endless, 64);
    let plan = bench
        .consumer(ConsumerReport { wanted_splits: u32::MAX, ..consumer_report(job, 0) })
        .expect("a plan");
    assert_eq!((plan.splits.len(), plan.max_splits), (16_384, 16_384));
    assert!(bench.granted(1).len() <= 16_384 + 2, "grants are bounded as well");
    let (mut bench, job) = Bench::running(&JobSpec { epochs: u32::MAX, ..spec(1, 8_192) }, 32_768);
    for consumer in 0..2 {
        let plan =
            bench.consumer(ConsumerReport { wanted_splits: u32::MAX, ..consumer_report(job, consumer) });
        let plan = plan.expect("a plan");
        assert_eq!(plan.splits.len(), 128, "the bound of all streams");
        assert_eq!(plan.splits.len(), plan.streams.len() * plan.max_splits as usize);
    }
}

#[test]
fn repeated_positions_are_recorded_once() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    let decided = bench.records.len();
    let positions = (1..10_000).map(|row| (0, StreamPosition { epoch: 0, row: row % 64 })).collect();
    bench.consumer(ConsumerReport { positions, ..consumer_report(job, 0) });
    let moved: Vec<usize> = bench.records[decided..]
        .iter()
        .filter_map(|record| match record {
            Record::Advanced { streams, .. } => Some(streams.len()),
            _ => None,
        })
        .collect();
    assert_eq!(moved, [1]);
}
