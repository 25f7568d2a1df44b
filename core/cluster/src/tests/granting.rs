//! Leases: in bulk, ahead of need, taken from lost workers, twice near the end; and when plans are answered.

use feedline_data::messages::{JobAllocation, WorkerAllocations};

use super::*;

#[test]
fn leases_come_in_one_record_ahead_of_need() {
    let (bench, _) = Bench::running(&spec(4, 1), 256);
    let grants = bench.records.iter().filter(|record| matches!(record, Record::Granted { .. })).count();
    assert_eq!(grants, 1);
    assert_eq!(bench.granted(1), [split(0, 0), split(0, 1), split(0, 2)], "as many as `leases_ahead`");
}

#[test]
fn every_streams_next_split_is_granted_whatever_the_load() {
    let (mut bench, _) = Bench::running(&spec(4, 8), 512);
    let heads: Vec<SplitRef> = (0..8).map(|stream| split(stream, 0)).collect();
    assert_eq!(bench.granted(1), heads);
    bench.worker(WorkerReport { memory_full: true, ..report(2) });
    assert_eq!(bench.granted(2), [], "a worker with full memory gets none that can wait");
    bench.worker(report(2));
    assert_eq!(bench.granted(2), [split(0, 1), split(1, 1), split(2, 1)]);
}

/// Rows may be so few that the next split alone fills no batch.
#[test]
fn a_consumer_that_does_not_move_gets_the_next_split_in_spite_of_full_memory() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 256);
    let computed: Vec<_> = (0..3).map(|ordinal| (job, split(0, ordinal))).collect();
    bench.consumer(ConsumerReport { wants: 5, ..taking(job, 0) });
    let full = WorkerReport { memory_full: true, computed, ..report(1) };
    bench.worker(full.clone());
    assert_eq!(bench.granted(1).len(), 3);
    bench.now += 1_000;
    bench.worker(full.clone());
    assert_eq!(bench.granted(1).len(), 4, "one more, since those before it were computed a while ago");
    bench.worker(full);
    assert_eq!(bench.granted(1).len(), 4);
}

#[test]
fn an_expired_workers_leases_go_to_another() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    let held = bench.granted(1);
    bench.consumer(taking(job, 0));
    bench.pass(2_000);
    bench.worker(report(2));
    bench.pass(1_001);
    let revoked = Record::Revoked { job, worker: WorkerId(1), splits: held.clone() };
    assert!(bench.records.contains(&revoked));
    assert_eq!(bench.granted(2).last(), Some(&held[0]), "the urgent one, whatever the load");
    let computed = bench.granted(2).into_iter().map(|split| (job, split)).collect();
    bench.worker(WorkerReport { computed, ..report(2) });
    assert!(held.iter().all(|split| bench.granted(2).contains(split)), "the others once there is room");
    let plan = bench.consumer(taking(job, 0)).expect("its workers changed");
    assert_eq!(plan.splits[0].workers, [(WorkerId(2), "w2".to_owned())]);
    let late =
        bench.worker(WorkerReport { computed: vec![(job, held[0])], ..report(1) }).expect("a first plan");
    assert!(!late.leases.iter().any(|lease| lease.split == held[0]), "the lost one begins anew");
}

/// Its revisions must not meet those that it remembers of before.
#[test]
fn a_returning_worker_is_told_at_once() {
    let (mut bench, _) = Bench::running(&spec(4, 1), 64);
    let before = bench.worker(report(1)).expect("leases").revision;
    bench.pass(3_001);
    let after =
        bench.worker(WorkerReport { seen: before, ..report(1) }).expect("its leases are new").revision;
    assert!(after.number > before.number);
}

#[test]
fn an_unreachable_workers_split_goes_to_another_if_there_is_one() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    bench.consumer(ConsumerReport { unreachable: vec![(split(0, 0), WorkerId(1))], ..taking(job, 0) });
    assert_eq!(
        bench.granted(1).iter().filter(|granted| **granted == split(0, 0)).count(),
        2,
        "there is no other"
    );
    bench.worker(report(2));
    bench.consumer(ConsumerReport { unreachable: vec![(split(0, 0), WorkerId(1))], ..taking(job, 0) });
    assert!(bench.granted(2).contains(&split(0, 0)));
    let plan = bench.consumer(taking(job, 0)).expect("its workers changed");
    assert_eq!(plan.splits[0].workers, [(WorkerId(2), "w2".to_owned())]);
}

#[test]
fn stragglers_are_leased_twice_near_the_end_only() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 256);
    bench.worker(report(2));
    let idle: Vec<_> = bench.granted(2).into_iter().map(|split| (job, split)).collect();
    bench.now += 1_000;
    bench.worker(report(1));
    bench.worker(WorkerReport { computed: idle, memory_full: true, ..report(2) });
    assert!(bench.granted(1).iter().all(|split| !bench.granted(2).contains(split)), "not at the beginning");

    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    assert_eq!(bench.granted(1), [split(0, 0), split(0, 1)], "the whole job");
    bench.worker(report(2));
    assert_eq!(bench.granted(2), []);
    bench.now += 1_000;
    bench.worker(WorkerReport { computed: vec![(job, split(0, 0))], ..report(1) });
    bench.worker(report(2));
    assert_eq!(bench.granted(2), [split(0, 1)], "late and not computed");
    let plan = bench.consumer(taking(job, 0)).expect("a first plan");
    assert_eq!(plan.splits[1].workers.len(), 2);
    bench.worker(report(3));
    assert_eq!(bench.granted(3), [], "not a third time");
}

#[test]
fn a_draining_worker_gets_nothing_new() {
    let (mut bench, _) = Bench::running(&spec(4, 1), 256);
    bench.worker(WorkerReport { draining: true, ..report(2) });
    assert_eq!(bench.granted(2), []);
}

#[test]
fn an_unchanged_plan_is_held_and_a_changed_one_answered_at_once() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    let plan = bench.worker(report(1)).expect("news");
    let same = WorkerReport { seen: plan.revision, ..report(1) };
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
    bench.consumer(ConsumerReport { positions, ..taking(job, 0) });
    let Some(Reply::Worker(changed)) = bench.answered.get(&held) else { panic!("a lease is done") };
    assert!(changed.leases.iter().all(|lease: &Lease| lease.split != split(0, 0)), "{seen}");
}

#[test]
fn a_worker_that_asks_twice_is_answered_twice() {
    let (mut bench, _) = Bench::running(&spec(4, 1), 64);
    let plan = bench.worker(report(1)).expect("news");
    let same = WorkerReport { seen: plan.revision, ..report(1) };
    assert_eq!(bench.worker(same.clone()), None);
    let first = bench.request;
    assert_eq!(bench.worker(same), None);
    let second = bench.request;
    assert_eq!(bench.answered.get(&first), Some(&Reply::Worker(plan)), "the earlier does not wait any more");
    bench.pass(500);
    assert!(bench.answered.contains_key(&second));
}

#[test]
fn a_job_settles_once_its_workers_have_heard_of_its_end() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    let positions = vec![(0, StreamPosition { epoch: 1, row: 0 })];
    let plan = bench.consumer(ConsumerReport { positions, ..taking(job, 0) }).expect("the end");
    assert_eq!(plan.state, JobState::Completed);
    assert!(!bench.status(job).settled);
    let told = bench.worker(report(1)).expect("the leases are gone");
    assert_eq!(told.leases, []);
    assert!(!bench.status(job).settled, "it has not reported since");
    let stats = vec![stats_of(job, 5)];
    bench.worker(WorkerReport { seen: told.revision, stats, ..report(1) });
    let status = bench.status(job);
    assert!(status.settled);
    assert_eq!(status.worker_peak_rss_bytes, [(WorkerId(1), 5)]);
}

#[test]
fn a_job_settles_while_another_keeps_the_worker_busy() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    let before = bench.worker(report(1)).expect("leases");
    bench.ask(|request| Input::CancelJob { request, job });
    let told = bench.worker(WorkerReport { seen: before.revision, ..report(1) }).expect("the end");
    let other = bench.open(&spec(5, 1)).expect("another job");
    assert_ne!(job, other);
    bench.worker(WorkerReport { seen: told.revision, ..report(1) });
    assert!(bench.status(job).settled, "though its plan has changed again");
}

#[test]
fn a_lost_worker_does_not_keep_a_job_from_settling() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    bench.ask(|request| Input::CancelJob { request, job });
    assert!(!bench.status(job).settled);
    bench.pass(3_001);
    assert!(bench.status(job).settled);
}

#[test]
fn a_job_without_consumers_gives_its_leases_up_and_fails_in_the_end() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    bench.consumer(taking(job, 0));
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
    bench.consumer(taking(job, 0));
    assert!(leases(&bench) > 0, "it is back");
    for _ in 0..3_601 {
        bench.pass(1_000);
    }
    let message = "no consumer has asked for rows for 60 minutes; open the job again from its last position";
    assert_eq!(bench.status(job).state, JobState::Failed(message.to_owned()));
}

fn told(job: JobId, parts: &[(u64, f64)]) -> Input {
    let share = |cores: f64| WorkerAllocations {
        cores: 0,
        allotments: vec![JobAllocation { cores, ..JobAllocation::unlimited(job) }],
    };
    Input::Shares { shares: parts.iter().map(|(worker, cores)| (WorkerId(*worker), share(*cores))).collect() }
}

#[test]
fn leases_follow_the_plan_in_proportion_to_cores() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 16_384);
    bench.worker(report(2));
    bench.worker(report(3));
    bench.step(told(job, &[(2, 1.0), (3, 3.0)]));
    let before: Vec<usize> = [1, 2, 3].map(|worker| bench.granted(worker).len()).into();
    // All compute what they hold; there is room everywhere.
    for worker in [1, 2, 3] {
        let computed = bench.granted(worker).into_iter().map(|split| (job, split)).collect();
        bench.worker(WorkerReport { computed, ..report(worker) });
    }
    bench.consumer(ConsumerReport { wants: 64, ..taking(job, 0) });
    let after = [1, 2, 3].map(|worker| bench.granted(worker).len());
    assert_eq!(after[0], before[0], "the job has no part there");
    assert!(after[1] > before[1] && after[2] > before[2]);
}

#[test]
fn a_plan_whose_workers_are_gone_or_cannot_be_reached_holds_nothing_up() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    bench.step(told(job, &[(9, 1.0)]));
    let held = bench.granted(1).into_iter().map(|split| (job, split)).collect();
    bench.worker(WorkerReport { computed: held, ..report(1) });
    assert_eq!(bench.granted(1).len(), 6, "its worker has never been seen");
    bench.worker(report(2));
    bench.step(told(job, &[(1, 1.0)]));
    bench.consumer(ConsumerReport { unreachable: vec![(split(0, 0), WorkerId(1))], ..taking(job, 0) });
    assert!(bench.granted(2).contains(&split(0, 0)), "though the job has no part there");
}

#[test]
fn who_asks_for_everything_is_told_of_a_bounded_part() {
    let endless = JobSpec { epochs: u32::MAX, ..spec(4, 1) };
    let (mut bench, job) = Bench::running(&endless, 64);
    let plan = bench.consumer(ConsumerReport { wants: u32::MAX, ..taking(job, 0) }).expect("a plan");
    assert_eq!((plan.splits.len(), plan.most_splits), (16_384, 16_384));
    assert!(bench.granted(1).len() <= 16_384 + 2, "and no more is granted");
    let (mut bench, job) = Bench::running(&JobSpec { epochs: u32::MAX, ..spec(1, 8_192) }, 32_768);
    for consumer in 0..2 {
        let plan = bench.consumer(ConsumerReport { wants: u32::MAX, ..taking(job, consumer) });
        let plan = plan.expect("a plan");
        assert_eq!(plan.splits.len(), 128, "of all streams together");
        assert_eq!(plan.splits.len(), plan.streams.len() * plan.most_splits as usize);
    }
}

#[test]
fn what_is_said_twice_is_recorded_once() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    let decided = bench.records.len();
    let positions = (1..10_000).map(|row| (0, StreamPosition { epoch: 0, row: row % 64 })).collect();
    bench.consumer(ConsumerReport { positions, ..taking(job, 0) });
    let moved: Vec<usize> = bench.records[decided..]
        .iter()
        .filter_map(|record| match record {
            Record::Advanced { streams, .. } => Some(streams.len()),
            _ => None,
        })
        .collect();
    assert_eq!(moved, [1]);
}
