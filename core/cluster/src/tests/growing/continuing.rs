//! Tests of unbounded jobs that continue: in the next epoch, under a new leader, and from a position.

use feedline_data::growth::GrowthUpdate;
use feedline_data::pipeline::{EpochEnd, Period};
use proptest::prelude::*;

use super::*;

#[test]
fn epochs_end_after_a_time_or_a_number_of_rows() {
    let by_rows = KafkaOptions { epoch: Some(EpochEnd::Rows(10)), ..options() };
    let mut follower = Follower::new(&unbounded(by_rows, 1), &[0]);
    follower.consume(&[0], KnownGrowth::default());
    follower.grow(25);
    let epochs: Vec<(u32, u64)> =
        follower.recorded().iter().map(|segment| (segment.epoch, segment.rows())).collect();
    assert_eq!(epochs, [(0, 10), (1, 10), (2, 5)]);
    follower.grow(6);
    let epochs: Vec<(u32, u64)> =
        follower.recorded().iter().map(|segment| (segment.epoch, segment.rows())).collect();
    assert_eq!(epochs[3..], [(2, 5)]);
    follower.grow(0);
    assert_eq!(follower.recorded().last().map(|segment| (segment.epoch, segment.rows())), Some((3, 1)));

    let by_time = KafkaOptions { epoch: Some(EpochEnd::Every(Period(3_500))), ..options() };
    let mut follower = Follower::new(&unbounded(by_time, 1), &[0]);
    let mut epochs = Vec::new();
    for _ in 0..10 {
        follower.consume(&[0], KnownGrowth::default());
        follower.grow(4);
        epochs.push(follower.recorded().last().expect("it grew").epoch);
    }
    assert_eq!(epochs, [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]);
    // A new leader continues the epoch.
    let records = follower.bench.cluster.snapshot();
    follower.bench.cluster = Cluster::restore(ClusterSettings::default(), INCARNATION + 1, 7, records);
    follower.bench.now = 7;
    follower.bench.worker(report(1));
    follower.consume(&[0], KnownGrowth::default());
    follower.bench.worker(report(1));
    follower.grow(4);
    follower.consume(&[0], KnownGrowth::default());
    follower.grow(4);
    assert_eq!(follower.recorded().last().expect("it grew").epoch, 3);
}

#[test]
fn a_restored_job_and_a_job_that_resumes_continue_with_the_recorded_segments() {
    let spec = unbounded(options(), 1);
    let mut follower = Follower::new(&spec, &[0, 0]);
    follower.consume(&[0], KnownGrowth::default());
    for _ in 0..3 {
        follower.grow(7);
    }
    follower.consume(&[1024 + 2], KnownGrowth::default());
    let growth = follower.growth().clone();
    let position = follower.bench.status(follower.job).position.expect("it runs");
    for records in [follower.bench.records.clone(), follower.bench.cluster.snapshot()] {
        let cluster = Cluster::restore(ClusterSettings::default(), INCARNATION + 1, 0, records);
        let restored = cluster.jobs[&follower.job].growth.as_ref().expect("an unbounded job");
        assert_eq!(
            (restored.recorded.rounds, &restored.recorded.partitions),
            (growth.rounds, &growth.partitions)
        );
        assert!(restored.recorded.segments.ends_with(&growth.segments[1..]));
        assert_eq!(cluster.jobs[&follower.job].position(), Some(position.clone()));
    }
    let saved = position.growth.as_ref().expect("an unbounded job");
    assert_eq!(saved.growth.segments[..], growth.segments[1..]);
    let resumed = JobSpec { start: Some(position.clone()), ..spec };
    let mut other = Follower::new(&resumed, &[30, 30]);
    assert_eq!(other.bench.status(other.job).position, Some(position));
    let plan = other.consume(&[1024 + 2], KnownGrowth::default());
    assert_eq!(plan.splits.iter().map(|planned| planned.split.ordinal).collect::<Vec<_>>(), [1, 2]);
    let mut known = Growth::default();
    known.apply(GrowthUpdate { ..*plan.growth.expect("it knows nothing") });
    assert_eq!(known.segments[..], growth.segments[1..]);
    other.grow(0);
    let next = other.recorded();
    assert_eq!((next[0].first_round, next[0].first_row_id, next[0].rows()), (3, 42, 18));
}

#[test]
fn a_job_that_resumes_in_another_topic_and_a_job_with_epochs_are_rejected() {
    let spec = unbounded(options(), 1);
    let mut follower = Follower::new(&spec, &[5]);
    let position = follower.bench.status(follower.job).position.expect("it runs");
    let mut bench = Bench::new();
    let job = bench.open(&JobSpec { start: Some(position), ..spec.clone() }).expect("a valid job");
    let plan = bench.worker(report(1)).expect("the listing task");
    let outcome = Ok(TaskOutput::Listed(shards("another", &[5])));
    bench.worker(WorkerReport { tasks: vec![TaskResult { id: plan.tasks[0].id, outcome }], ..report(1) });
    let JobState::Failed(message) = bench.status(job).state else { panic!("it failed") };
    assert!(message.contains("created again"), "{message}");
    let refusal =
        bench.open(&JobSpec { epochs: 2, name: "other".to_owned(), ..spec }).expect_err("it has no end");
    assert!(refusal.message.contains("`epoch` in its source"), "{}", refusal.message);
}

proptest! {
    /// Growth, progress and lost workers in any order: the leases are within the recorded rounds, every undelivered round has a
    /// segment, and both the log and its snapshot rebuild the same state.
    #[test]
    fn the_state_follows_from_the_records(
        steps in prop::collection::vec((0u8..5, 1u64..3_000), 1..40), consumers in 1u32..4, is_relaxed: bool,
    ) {
        let mut spec = unbounded(options(), consumers);
        if is_relaxed {
            spec.pipeline.order = OrderMode::Relaxed;
        }
        let mut follower = Follower::new(&spec, &[0, 0]);
        let mut at = vec![0_u64; consumers as usize];
        for (kind, number) in steps {
            match kind {
                0 | 1 => {
                    for consumer in 0..consumers {
                        follower.bench.consumer(consumer_report(follower.job, consumer));
                    }
                    follower.ends.iter_mut().for_each(|end| *end += number);
                    follower.bench.pass(1_000);
                    let id = follower.listing();
                    if let Some(id) = id {
                        let listed = shards("id", &follower.ends.clone());
                        follower.finish(id, Ok(TaskOutput::Listed(listed)));
                    }
                }
                2 => {
                    let consumer = (number % u64::from(consumers)) as u32;
                    let limit = 1024 * follower.growth().rounds;
                    at[consumer as usize] = (at[consumer as usize] + number).min(limit);
                    let positions = vec![(consumer, StreamPosition { epoch: 0, row: at[consumer as usize] })];
                    let held = follower.bench.cluster.jobs[&follower.job].open_splits.of(Some(consumer)).collect::<Vec<_>>();
                    let open_splits = held.into_iter().map(|split| (split, (number as u32).min(1024))).collect();
                    follower.bench.consumer(ConsumerReport { positions, open_splits, ..consumer_report(follower.job, consumer) });
                }
                3 => {
                    let computed = follower.bench.held(1).into_iter().map(|split| (follower.job, split)).collect();
                    follower.bench.worker(WorkerReport { computed, ..report(1) });
                }
                _ => {
                    follower.bench.pass(3_001);
                    follower.bench.worker(report(1));
                }
            }
            let rounds = follower.growth().rounds;
            for split in follower.bench.held(1) {
                prop_assert!(split.ordinal < rounds && follower.growth().segment(split.ordinal).is_some());
            }
        }
        let snapshot = follower.bench.cluster.snapshot();
        for records in [follower.bench.records.clone(), snapshot.clone()] {
            let restored = Cluster::restore(ClusterSettings::default(), INCARNATION + 1, 0, records);
            prop_assert_eq!(restored.snapshot(), snapshot.clone());
        }
        let position = follower.bench.status(follower.job).position.expect("it runs");
        let layout = follower.bench.status(follower.job).layout.expect("it runs");
        let growth = position.growth.as_ref().expect("an unbounded job");
        prop_assert_eq!(growth.check(&layout, &position.streams), Ok(()));
    }
}
