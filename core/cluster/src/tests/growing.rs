//! Tests of unbounded jobs: when the topics are listed, what is recorded, and who learns of it.

mod continuing;

use std::collections::BTreeSet;

use feedline_data::growth::{Growth, KnownGrowth};
use feedline_data::manifest::IndexedShard;
use feedline_data::pipeline::{EndOffset, KafkaOptions, OnGap};
use feedline_data::segments::{MAX_UNDELIVERED_BLOCKS, Segment};

use super::*;

pub(super) fn options() -> KafkaOptions {
    KafkaOptions { until: EndOffset::Unbounded, ..KafkaOptions::topic("t") }
}

pub(super) fn unbounded(options: KafkaOptions, consumers: u32) -> JobSpec {
    let source = Source::kafka("kafka://a:1").with_kafka(options);
    let pipeline = Pipeline::builder("p").source(source).batch(4).build().expect("a valid pipeline");
    JobSpec { virtual_consumers: consumers, consumers, ..JobSpec::new(pipeline) }
}

pub(super) fn shards(topic_id: &str, ends: &[u64]) -> Vec<ShardRef> {
    let shard = |(partition, end): (usize, &u64)| ShardRef {
        url: format!("kafka://a:1/t/{partition}"),
        size_bytes: 0,
        version: format!("{topic_id}@0-{end}"),
        ..ShardRef::default()
    };
    ends.iter().enumerate().map(shard).collect()
}

pub(super) fn indexed(end: u64) -> IndexedShard {
    let mut schema = Schema::default();
    schema.set("value", ColumnType::Binary);
    let block = Block {
        rows: end.max(1) as u32,
        offset: 0,
        bytes: 100 * end.max(1),
        group: 0,
        row_bytes: Vec::new(),
    };
    ShardIndex { blocks: vec![block], schema: Some(schema), ..ShardIndex::default() }.into()
}

/// An unbounded job, whose topic has these ends.
struct Follower {
    bench: Bench,
    job: JobId,
    ends: Vec<u64>,
    topic_id: &'static str,
}

impl Follower {
    /// A job that worker 1 has prepared, before its first listing.
    fn new(spec: &JobSpec, ends: &[u64]) -> Self {
        let mut bench = Bench::new();
        let job = bench.open(spec).expect("a valid job");
        let mut follower = Self { bench, job, ends: ends.to_vec(), topic_id: "id" };
        let first = follower.bench.worker(report(1)).expect("the listing task");
        follower.finish(first.tasks[0].id, Ok(TaskOutput::Listed(shards("id", ends))));
        if spec.start.is_none() {
            let plan = follower.bench.worker(report(1)).expect("the indexing task");
            assert!(!plan.tasks[0].lists_growth);
            follower.finish(
                plan.tasks[0].id,
                Ok(TaskOutput::Indexed(ends.iter().map(|end| indexed(*end)).collect())),
            );
        }
        let status = follower.bench.status(job);
        assert_eq!(status.state, JobState::Running);
        assert!(status.layout.is_some_and(|layout| layout.unbounded && layout.split_rows == 1024));
        follower
    }

    fn finish(&mut self, id: TaskId, outcome: Result<TaskOutput, String>) {
        self.bench.worker(WorkerReport { tasks: vec![TaskResult { id, outcome }], ..report(1) });
    }

    fn consume(&mut self, rows: &[u64], known: KnownGrowth) -> ConsumerPlan {
        let positions =
            (0..).zip(rows).map(|(stream, row)| (stream, StreamPosition { epoch: 0, row: *row })).collect();
        let report = ConsumerReport { positions, known_growth: known, ..consumer_report(self.job, 0) };
        self.bench.consumer(report).expect("a plan without a revision is answered immediately")
    }

    /// Returns the listing task, if there is one.
    fn listing(&mut self) -> Option<TaskId> {
        let plan = self.bench.worker(report(1))?;
        plan.tasks.first().map(|task| {
            assert!(task.lists_growth && task.shards.is_none());
            task.id
        })
    }

    /// Passes a second, in which the topic is listed.
    fn grow(&mut self, more: u64) {
        self.ends.iter_mut().for_each(|end| *end += more);
        self.bench.pass(1_000);
        let id = self.listing().expect("a listing is due");
        self.finish(id, Ok(TaskOutput::Listed(shards(self.topic_id, &self.ends))));
    }

    fn growth(&self) -> &Growth {
        &self.bench.cluster.jobs[&self.job].growth.as_ref().expect("an unbounded job").recorded
    }

    fn recorded(&self) -> Vec<Segment> {
        let segment = |record: &Record| match record {
            Record::Grown { segment, .. } => segment.clone(),
            _ => None,
        };
        self.bench.records.iter().filter_map(segment).collect()
    }
}

#[test]
fn offsets_are_recorded_before_their_splits_are_leased_and_workers_and_consumers_learn_of_them() {
    let mut follower = Follower::new(&unbounded(options(), 1), &[10, 0]);
    assert_eq!(follower.growth().partitions.len(), 2);
    assert_eq!(follower.bench.held(1), [], "nothing is recorded");
    follower.consume(&[0], KnownGrowth::default());
    follower.grow(5);
    let segments = follower.recorded();
    assert_eq!(segments.len(), 1);
    assert_eq!((segments[0].rows(), segments[0].rounds, segments[0].ranges.len()), (20, 1, 2));
    assert_eq!(follower.bench.held(1), [split(0, 0)], "only recorded splits are leased");
    let plan = follower.bench.worker(report(1)).expect("a plan");
    assert_eq!(plan.segments.len(), 1);
    assert_eq!((&plan.segments[0].segments, plan.segments[0].partitions.len()), (&segments, 2));
    let plan = follower.consume(&[0], KnownGrowth::default());
    assert_eq!(plan.splits.len(), 1);
    let update = plan.growth.expect("the consumer knows nothing");
    assert_eq!((update.after, &update.growth.segments[..]), (None, &segments[..]));
    let known = follower.growth().known();
    assert_eq!(follower.consume(&[0], known).growth, None);
    let order: Vec<bool> = follower
        .bench
        .records
        .iter()
        .filter_map(|record| match record {
            Record::Grown { segment: Some(_), .. } => Some(true),
            Record::Granted { .. } => Some(false),
            _ => None,
        })
        .collect();
    assert_eq!(order, [true, false]);
}

#[test]
fn the_backlog_of_a_quiet_topic_is_smaller_than_a_step() {
    let mut follower = Follower::new(&unbounded(options(), 1), &[0]);
    follower.consume(&[0], KnownGrowth::default());
    follower.grow(11);
    follower.consume(&[8], KnownGrowth::default());
    let topic = follower.bench.cluster.samples().jobs[0].topic.expect("an unbounded job");
    assert_eq!((topic.arrived_rows, topic.backlog_rows, topic.step_rows), (11, 3, 4));
}

#[test]
fn topics_are_listed_only_with_consumers_and_while_few_rows_are_undelivered() {
    let mut follower = Follower::new(&unbounded(options(), 1), &[0]);
    follower.grow(0);
    follower.bench.pass(20_000);
    follower.bench.worker(report(1));
    assert_eq!(follower.listing(), None, "no consumer has reported for a while");
    follower.consume(&[0], KnownGrowth::default());
    follower.grow(1 << 24);
    let rows: u64 = follower.recorded().iter().map(Segment::rows).sum();
    assert!((1 << 22..1 << 23).contains(&rows), "{rows}");
    let before = follower.recorded().len();
    follower.bench.pass(250);
    assert_eq!(follower.listing(), None, "enough rows are undelivered");
    // The rows do not fill a batch, so the consumer needs more splits than are recorded.
    let recorded = follower.growth().rounds;
    let report = ConsumerReport { wanted_splits: recorded as u32 + 2, ..consumer_report(follower.job, 0) };
    follower.bench.consumer(report);
    follower.grow(0);
    assert_eq!(follower.recorded().len(), before + 1);
}

#[test]
fn a_job_with_too_many_undelivered_blocks_waits_for_its_consumers_and_says_so() {
    let mut follower = Follower::new(&unbounded(options(), 1), &[0]);
    follower.consume(&[0], KnownGrowth::default());
    // Each row is a block.
    let job = follower.bench.cluster.jobs.get_mut(&follower.job).expect("it runs");
    job.growth.as_mut().expect("an unbounded job").recorded.partitions[0].row_bytes = 1 << 20;
    follower.grow(1 << 24);
    let recorded = follower.recorded().len();
    assert_eq!(follower.growth().rows, MAX_UNDELIVERED_BLOCKS);
    let wanted_splits = follower.growth().rounds as u32 + 2;
    follower.bench.consumer(ConsumerReport { wanted_splits, ..consumer_report(follower.job, 0) });
    follower.bench.pass(250);
    assert_eq!(follower.listing(), None, "a consumer needs rows, but too many blocks are undelivered");
    let reason = follower.bench.status(follower.job).source_error.expect("the job waits");
    assert!(reason.starts_with("the job waits for its consumers: 4194304 blocks "), "{reason}");
    assert!(reason.contains("continue the consumers"), "{reason}");
    // Delivered segments do not count, although only the next record removes them.
    follower.consume(&[1 << 21], KnownGrowth::default());
    follower.bench.pass(250);
    let id = follower.listing().expect("half of the blocks are delivered");
    follower.finish(id, Ok(TaskOutput::Listed(shards("id", &follower.ends.clone()))));
    assert_eq!(follower.bench.status(follower.job).source_error, None);
    assert_eq!(follower.recorded().len(), recorded + recorded / 2);
}

#[test]
fn small_segments_follow_each_other_more_slowly_the_more_of_them_are_undelivered() {
    let mut follower = Follower::new(&unbounded(options(), 1), &[0]);
    follower.consume(&[0], KnownGrowth::default());
    follower.grow(1);
    follower.ends[0] += 1;
    follower.bench.pass(100);
    assert_eq!(follower.listing(), None, "the next listing is not due");
    follower.bench.pass(150);
    let id = follower.listing().expect("250 ms have passed");
    follower.finish(id, Ok(TaskOutput::Listed(shards("id", &follower.ends.clone()))));
    assert_eq!(follower.recorded().len(), 2);
    // 64 segments wait: a segment with one row is recorded every 1.25 s, and a whole batch immediately.
    while follower.recorded().len() < 64 {
        follower.grow(4);
        follower.consume(&[0], KnownGrowth::default());
    }
    follower.grow(1);
    assert_eq!(follower.recorded().len(), 64);
    follower.grow(0);
    assert_eq!(follower.recorded().len(), 65);
    follower.grow(4);
    assert_eq!(follower.recorded().len(), 66);
}

#[test]
fn delivered_segments_are_forgotten_and_a_late_consumer_receives_the_whole_state() {
    let mut follower = Follower::new(&unbounded(options(), 2), &[0]);
    follower.consume(&[0], KnownGrowth::default());
    for _ in 0..4 {
        follower.grow(8);
    }
    assert_eq!(follower.growth().segments.len(), 4);
    let known = KnownGrowth { rounds: 1, partitions: 1 };
    let positions = vec![(1, StreamPosition { epoch: 0, row: 3 * 1024 })];
    follower.bench.consumer(ConsumerReport { positions, ..consumer_report(follower.job, 1) });
    follower.consume(&[2 * 1024 + 4], KnownGrowth::default());
    follower.grow(8);
    let first: Vec<u64> = follower.growth().segments.iter().map(|segment| segment.first_round).collect();
    assert_eq!(first, [2, 3, 4], "segments before all streams are forgotten");
    assert_eq!(follower.consume(&[2 * 1024 + 4], known).growth.expect("it changed").after, None);
    let known = KnownGrowth { rounds: 3, partitions: 1 };
    let update = follower.consume(&[2 * 1024 + 4], known).growth.expect("it changed");
    assert_eq!((update.after, update.growth.segments.len()), (Some(known), 2));
}

#[test]
fn a_relaxed_job_assigns_recorded_splits_only() {
    let mut spec = unbounded(options(), 2);
    spec.pipeline.order = OrderMode::Relaxed;
    let mut follower = Follower::new(&spec, &[0]);
    let report = |consumer| ConsumerReport { wanted_splits: 3, ..consumer_report(follower.job, consumer) };
    let reports = [report(0), report(1)];
    for report in reports.clone() {
        assert_eq!(follower.bench.consumer(report).expect("a plan").splits, []);
    }
    follower.grow(2_048);
    let plans: Vec<ConsumerPlan> =
        reports.into_iter().map(|report| follower.bench.consumer(report).expect("a plan")).collect();
    let splits: BTreeSet<u64> =
        plans.iter().flat_map(|plan| &plan.splits).map(|planned| planned.split.ordinal).collect();
    assert_eq!(splits, BTreeSet::from([0, 1]));
    assert!(plans.iter().all(|plan| !plan.exhausted && plan.splits.len() == 1));
}

#[test]
fn new_partitions_join_and_other_topics_fail_the_job_after_a_short_time() {
    let mut follower = Follower::new(&unbounded(options(), 1), &[0]);
    follower.consume(&[0], KnownGrowth::default());
    follower.ends.push(0);
    follower.grow(3);
    assert_eq!((follower.growth().partitions.len(), follower.growth().rows), (2, 6));
    follower.topic_id = "another";
    for _ in 0..3 {
        follower.grow(1);
        assert_eq!(follower.bench.status(follower.job).state, JobState::Running);
    }
    assert!(
        follower.bench.status(follower.job).source_error.is_some_and(|error| error.contains("created again"))
    );
    follower.topic_id = "id";
    follower.grow(1);
    assert_eq!(follower.bench.status(follower.job).source_error, None, "the topic is the same again");
    follower.topic_id = "another";
    for _ in 0..4 {
        follower.bench.pass(4_000);
        follower.consume(&[0], KnownGrowth::default());
        if let Some(id) = follower.listing() {
            let listed = shards("another", &follower.ends.clone());
            follower.finish(id, Ok(TaskOutput::Listed(listed)));
        }
    }
    let JobState::Failed(message) = follower.bench.status(follower.job).state else { panic!("it failed") };
    assert!(message.contains("its id was id and is another now"), "{message}");
}

#[test]
fn a_partition_that_has_lost_recorded_records_fails_the_job_after_a_short_time() {
    for on_gap in [OnGap::Fail, OnGap::Skip] {
        let mut follower = Follower::new(&unbounded(KafkaOptions { on_gap, ..options() }, 1), &[0]);
        follower.consume(&[0], KnownGrowth::default());
        follower.grow(10);
        follower.ends = vec![6];
        for _ in 0..10 {
            follower.consume(&[0], KnownGrowth::default());
            follower.grow(0);
            assert_eq!(follower.bench.status(follower.job).state, JobState::Running);
        }
        follower.grow(0);
        let state = follower.bench.status(follower.job).state;
        match on_gap {
            OnGap::Skip => assert_eq!(state, JobState::Running),
            OnGap::Fail => {
                let JobState::Failed(message) = state else { panic!("it failed") };
                let expected = "t/0 ends at offset 6, but the job has recorded the offsets before 10: ";
                assert!(message.contains(expected), "{message}");
            }
        }
    }
}

#[test]
fn a_job_waits_while_the_brokers_do_not_answer() {
    let mut follower = Follower::new(&unbounded(options(), 1), &[0]);
    for _ in 0..100 {
        follower.bench.pass(5_000);
        follower.consume(&[0], KnownGrowth::default());
        follower.bench.worker(report(1));
        if let Some(id) = follower.listing() {
            follower.finish(id, Ok(TaskOutput::Unavailable("no answer".to_owned())));
        }
    }
    let status = follower.bench.status(follower.job);
    assert_eq!((status.state, status.source_error.as_deref()), (JobState::Running, Some("no answer")));
    follower.bench.pass(5_000);
    follower.consume(&[0], KnownGrowth::default());
    follower.grow(4);
    assert_eq!(follower.bench.status(follower.job).source_error, None);
    assert_eq!(follower.growth().rows, 4);
}

#[test]
fn another_worker_lists_the_topics_if_one_cannot_reach_the_brokers() {
    let mut follower = Follower::new(&unbounded(options(), 1), &[0]);
    follower.consume(&[0], KnownGrowth::default());
    follower.grow(1);
    follower.bench.worker(report(2));
    follower.bench.pass(250);
    let id = follower.listing().expect("worker 1 is the first");
    follower.finish(id, Ok(TaskOutput::Unavailable("no answer".to_owned())));
    follower.bench.pass(250);
    assert_eq!(follower.listing(), None);
    let plan = follower.bench.worker(report(2)).expect("a plan");
    assert_eq!(plan.tasks.len(), 1);
    let result = TaskResult { id: plan.tasks[0].id, outcome: Ok(TaskOutput::Listed(shards("id", &[9]))) };
    follower.bench.worker(WorkerReport { tasks: vec![result], ..report(2) });
    assert_eq!((follower.bench.status(follower.job).source_error, follower.growth().rows), (None, 9));
}
