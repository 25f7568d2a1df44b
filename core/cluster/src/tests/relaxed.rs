//! Relaxed jobs: splits are taken off one sequence, in order, and go on to others when a consumer is lost.

use super::*;

fn held(plan: &ConsumerPlan) -> Vec<u64> {
    plan.splits.iter().map(|planned| planned.split.ordinal).collect()
}

fn plan(bench: &mut Bench, job: JobId, consumer: u32) -> ConsumerPlan {
    bench.consumer(taking(job, consumer)).expect("a plan for one who has none")
}

#[test]
fn splits_are_assigned_in_order_to_whoever_has_room() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    assert_eq!(held(&plan(&mut bench, job, 0)), [0, 1]);
    assert_eq!(held(&plan(&mut bench, job, 1)), [2, 3]);
    let open = vec![(split(0, 0), 8), (split(0, 1), 4)];
    let after = bench.consumer(ConsumerReport { open, ..taking(job, 0) }).expect("a plan");
    assert_eq!(held(&after), [1, 4]);
    assert_eq!(after.consumers, 2, "the other may use up the data");
    assert_eq!(after.splits[0].from, 4, "where the consumer stands");
    let status = bench.status(job).position.expect("it runs");
    assert_eq!(status.streams, [StreamPosition { epoch: 0, row: 40 }]);
    let open: Vec<_> = status.open.iter().map(|range| (range.from, range.to)).collect();
    assert_eq!(open, [(12, 16), (16, 24), (24, 32), (32, 40)]);
}

#[test]
fn a_lost_consumers_splits_go_to_others_from_where_it_stood() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    let open = vec![(split(0, 1), 4)];
    plan(&mut bench, job, 0);
    bench.consumer(ConsumerReport { open, ..taking(job, 0) });
    bench.pass(10_000);
    assert_eq!(held(&plan(&mut bench, job, 1)), [2, 3]);
    bench.pass(5_001);
    assert!(bench.records.contains(&Record::Assigned {
        job,
        consumer: None,
        splits: vec![split(0, 0), split(0, 1)]
    }));
    let more = bench.consumer(ConsumerReport { wants: 4, ..taking(job, 1) }).expect("a plan");
    assert_eq!(held(&more), [0, 1, 2, 3]);
    assert_eq!(more.splits[1].from, 4);
    assert_eq!(held(&plan(&mut bench, job, 0)), [4, 5], "it comes back to others");
}

/// The splits of a consumer that never comes back after the coordinator's restart would else wait for ever.
#[test]
fn a_consumer_known_from_the_log_alone_is_lost_too() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    plan(&mut bench, job, 0);
    bench.cluster = Cluster::restore(ClusterSettings::default(), LIFE + 1, bench.now, bench.records.clone());
    bench.pass(10_000);
    plan(&mut bench, job, 1);
    bench.pass(5_001);
    let more = bench.consumer(ConsumerReport { wants: 4, ..taking(job, 1) }).expect("a plan");
    assert_eq!(held(&more), [0, 1, 2, 3]);
}

#[test]
fn a_consumer_whose_rows_went_to_others_while_it_was_silent_is_told() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    plan(&mut bench, job, 0);
    bench.pass(10_000);
    plan(&mut bench, job, 1);
    bench.pass(5_001);
    // It took rows before it fell silent, which it could not report.
    let gone_on = ConsumerReport { open: vec![(split(0, 0), 4)], ..taking(job, 0) };
    let answer = bench.ask(|request| Input::Consumer { request, report: gone_on });
    let Some(Reply::Refused(refusal)) = answer else { panic!("{answer:?}") };
    assert_eq!(refusal.kind, ServiceErrorKind::Superseded);
    assert_eq!(
        refusal.message,
        "consumer 0 of job `run` was silent for more than 15 s and its rows went to others; start it again from its last checkpoint"
    );
    let anew = ConsumerReport { session: SessionId(9), ..taking(job, 0) };
    assert!(bench.consumer(anew).is_some(), "a new session begins anew");
}

#[test]
fn a_consumer_that_was_silent_and_took_nothing_goes_on() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    plan(&mut bench, job, 0);
    bench.pass(10_000);
    bench.consumer(ConsumerReport { wants: 0, ..taking(job, 1) });
    bench.pass(5_001);
    assert_eq!(held(&plan(&mut bench, job, 0)), [0, 1], "nobody else wanted them");
    let open = vec![(split(0, 0), 8)];
    let plan = bench.consumer(ConsumerReport { open, ..taking(job, 0) }).expect("it is not refused");
    assert_eq!(held(&plan), [1, 2]);
}

#[test]
fn consumers_that_were_all_silent_keep_their_rows() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    assert_eq!(held(&plan(&mut bench, job, 0)), [0, 1]);
    assert_eq!(held(&plan(&mut bench, job, 1)), [2, 3]);
    bench.pass(60_000);
    for (consumer, first) in [(0, 0), (1, 2)] {
        let open = vec![(split(0, first), 4)];
        let plan = bench.consumer(ConsumerReport { open, ..taking(job, consumer) }).expect("a plan");
        assert!(held(&plan).contains(&first), "{plan:?}");
    }
}

#[test]
fn progress_counts_for_the_holder_only() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    plan(&mut bench, job, 0);
    let records = bench.records.len();
    bench.consumer(ConsumerReport { open: vec![(split(0, 0), 8)], wants: 0, ..taking(job, 1) });
    assert_eq!(bench.records.len(), records);
}

#[test]
fn the_job_completes_when_all_is_taken_and_done() {
    let (mut bench, job) = Bench::running(&relaxed(4, 1), 16);
    let first = bench.consumer(ConsumerReport { wants: 9, ..taking(job, 0) }).expect("a plan");
    assert!(first.exhausted, "every split has been handed out");
    let open: Vec<_> = first.splits.iter().map(|planned| (planned.split, 4)).collect();
    let last = bench.consumer(ConsumerReport { open, ..taking(job, 0) }).expect("a plan");
    assert_eq!(last.state, JobState::Completed);
}

#[test]
fn who_asks_for_everything_gets_a_bounded_part() {
    let endless = JobSpec { epochs: u32::MAX, ..relaxed(4, 2) };
    let (mut bench, job) = Bench::running(&endless, 64);
    let plan = bench.consumer(ConsumerReport { wants: u32::MAX, ..taking(job, 0) }).expect("a plan");
    assert_eq!(plan.splits.len(), 16_384);
    let many = JobSpec { epochs: u32::MAX, consumers: 60_000, virtual_consumers: 65_536, ..relaxed(1, 1) };
    let (mut bench, job) = Bench::running(&many, 100_000);
    let plan = bench.consumer(ConsumerReport { wants: u32::MAX, ..taking(job, 0) }).expect("a plan");
    assert_eq!(plan.splits.len(), 16, "of so many, each has less");
}
