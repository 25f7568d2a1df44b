//! Tests of relaxed jobs: splits leave one sequence in order, and move to other consumers when a consumer is lost.

use super::*;

fn held(plan: &ConsumerPlan) -> Vec<u64> {
    plan.splits.iter().map(|planned| planned.split.ordinal).collect()
}

fn plan(bench: &mut Bench, job: JobId, consumer: u32) -> ConsumerPlan {
    bench.consumer(consumer_report(job, consumer)).expect("a first plan")
}

#[test]
fn splits_are_assigned_in_order_to_consumers_with_room() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    assert_eq!(held(&plan(&mut bench, job, 0)), [0, 1]);
    assert_eq!(held(&plan(&mut bench, job, 1)), [2, 3]);
    let open = vec![(split(0, 0), 8), (split(0, 1), 4)];
    let after =
        bench.consumer(ConsumerReport { open_splits: open, ..consumer_report(job, 0) }).expect("a plan");
    assert_eq!(held(&after), [1, 4]);
    assert_eq!(after.consumers, 2, "the number of consumers of the job");
    assert_eq!(after.splits[0].start_offset, 4, "the offset of the consumer");
    let status = bench.status(job).position.expect("it runs");
    assert_eq!(status.streams, [StreamPosition { epoch: 0, row: 40 }]);
    let open: Vec<_> = status.open_ranges.iter().map(|range| (range.start_row, range.end_row)).collect();
    assert_eq!(open, [(12, 16), (16, 24), (24, 32), (32, 40)]);
}

#[test]
fn the_splits_of_a_lost_consumer_move_to_others_with_their_offsets() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    let open = vec![(split(0, 1), 4)];
    plan(&mut bench, job, 0);
    bench.consumer(ConsumerReport { open_splits: open, ..consumer_report(job, 0) });
    bench.pass(10_000);
    assert_eq!(held(&plan(&mut bench, job, 1)), [2, 3]);
    bench.pass(5_001);
    assert!(bench.records.contains(&Record::Assigned {
        job,
        consumer: None,
        splits: vec![split(0, 0), split(0, 1)]
    }));
    let more =
        bench.consumer(ConsumerReport { wanted_splits: 4, ..consumer_report(job, 1) }).expect("a plan");
    assert_eq!(held(&more), [0, 1, 2, 3]);
    assert_eq!(more.splits[1].start_offset, 4);
    assert_eq!(held(&plan(&mut bench, job, 0)), [4, 5], "the returning consumer gets other splits");
}

/// Otherwise, splits of a consumer that does not return after a restart of the coordinator would never be delivered.
#[test]
fn a_consumer_that_is_only_in_the_log_expires() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    plan(&mut bench, job, 0);
    bench.cluster =
        Cluster::restore(ClusterSettings::default(), INCARNATION + 1, bench.now, bench.records.clone());
    bench.pass(10_000);
    plan(&mut bench, job, 1);
    bench.pass(5_001);
    let more =
        bench.consumer(ConsumerReport { wanted_splits: 4, ..consumer_report(job, 1) }).expect("a plan");
    assert_eq!(held(&more), [0, 1, 2, 3]);
}

#[test]
fn a_silent_consumer_that_delivered_rows_of_others_is_superseded() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    plan(&mut bench, job, 0);
    bench.pass(10_000);
    plan(&mut bench, job, 1);
    bench.pass(5_001);
    // The consumer delivered rows before it became unreachable, and could not report these rows.
    let gone_on = ConsumerReport { open_splits: vec![(split(0, 0), 4)], ..consumer_report(job, 0) };
    let answer = bench.ask(|request| Input::Consumer { request, report: gone_on });
    let Some(Reply::Rejected(refusal)) = answer else { panic!("{answer:?}") };
    assert_eq!(refusal.kind, ServiceErrorKind::Superseded);
    assert_eq!(
        refusal.message,
        "consumer 0 of job `run` has not reported for more than 15 s, and its rows moved to other consumers; restart the consumer from its last checkpoint"
    );
    let anew = ConsumerReport { session: SessionId(9), ..consumer_report(job, 0) };
    assert!(bench.consumer(anew).is_some(), "a new session starts without splits");
}

#[test]
fn a_silent_consumer_that_delivered_nothing_continues() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    plan(&mut bench, job, 0);
    bench.pass(10_000);
    bench.consumer(ConsumerReport { wanted_splits: 0, ..consumer_report(job, 1) });
    bench.pass(5_001);
    assert_eq!(held(&plan(&mut bench, job, 0)), [0, 1], "no other consumer wanted the splits");
    let open = vec![(split(0, 0), 8)];
    let plan = bench
        .consumer(ConsumerReport { open_splits: open, ..consumer_report(job, 0) })
        .expect("no rejection");
    assert_eq!(held(&plan), [1, 2]);
}

#[test]
fn consumers_keep_their_splits_if_all_were_silent() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    assert_eq!(held(&plan(&mut bench, job, 0)), [0, 1]);
    assert_eq!(held(&plan(&mut bench, job, 1)), [2, 3]);
    bench.pass(60_000);
    for (consumer, first) in [(0, 0), (1, 2)] {
        let open = vec![(split(0, first), 4)];
        let plan = bench
            .consumer(ConsumerReport { open_splits: open, ..consumer_report(job, consumer) })
            .expect("a plan");
        assert!(held(&plan).contains(&first), "{plan:?}");
    }
}

#[test]
fn only_the_holder_advances_a_split() {
    let (mut bench, job) = Bench::running(&relaxed(4, 2), 64);
    plan(&mut bench, job, 0);
    let records = bench.records.len();
    bench.consumer(ConsumerReport {
        open_splits: vec![(split(0, 0), 8)],
        wanted_splits: 0,
        ..consumer_report(job, 1)
    });
    assert_eq!(bench.records.len(), records);
}

#[test]
fn a_job_completes_when_all_splits_are_delivered() {
    let (mut bench, job) = Bench::running(&relaxed(4, 1), 16);
    let first =
        bench.consumer(ConsumerReport { wanted_splits: 9, ..consumer_report(job, 0) }).expect("a plan");
    assert!(first.exhausted, "all splits are assigned");
    let open: Vec<_> = first.splits.iter().map(|planned| (planned.split, 4)).collect();
    let last =
        bench.consumer(ConsumerReport { open_splits: open, ..consumer_report(job, 0) }).expect("a plan");
    assert_eq!(last.state, JobState::Completed);
}

#[test]
fn the_number_of_splits_of_a_consumer_is_bounded() {
    let endless = JobSpec { epochs: u32::MAX, ..relaxed(4, 2) };
    let (mut bench, job) = Bench::running(&endless, 64);
    let plan = bench
        .consumer(ConsumerReport { wanted_splits: u32::MAX, ..consumer_report(job, 0) })
        .expect("a plan");
    assert_eq!(plan.splits.len(), 16_384);
    let many = JobSpec { epochs: u32::MAX, consumers: 60_000, virtual_consumers: 65_536, ..relaxed(1, 1) };
    let (mut bench, job) = Bench::running(&many, 100_000);
    let plan = bench
        .consumer(ConsumerReport { wanted_splits: u32::MAX, ..consumer_report(job, 0) })
        .expect("a plan");
    assert_eq!(plan.splits.len(), 16, "the bound of one of many consumers");
}
