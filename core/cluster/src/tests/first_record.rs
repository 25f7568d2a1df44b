//! Tests of unbounded jobs that open: the wait for the first record of their topics, and topics that they cannot read.

use feedline_data::growth::MAX_PARTITIONS;
use feedline_data::manifest::IndexedShard;

use super::growing::{indexed, options, shards, unbounded};
use super::*;

/// A job that has opened, and its bench.
fn opened() -> (Bench, JobId) {
    let mut bench = Bench::new();
    let job = bench.open(&unbounded(options(), 1)).expect("a valid job");
    (bench, job)
}

fn task_count(bench: &mut Bench) -> usize {
    bench.worker(report(1)).map_or(0, |plan| plan.tasks.len())
}

/// Finishes the only task of worker 1.
fn finish(bench: &mut Bench, output: TaskOutput) {
    let plan = bench.worker(report(1)).expect("a plan");
    let tasks = vec![TaskResult { id: plan.tasks[0].id, outcome: Ok(output) }];
    bench.worker(WorkerReport { tasks, ..report(1) });
}

/// Lists one partition that retains no record before this end.
fn list(bench: &mut Bench, end: u64) {
    let version = format!("id@{end}-{end}");
    finish(bench, TaskOutput::Listed(vec![ShardRef { version, ..shards("id", &[end]).remove(0) }]));
}

/// Passes time until worker 1 has a task. Returns the milliseconds.
fn wait_for_task(bench: &mut Bench) -> u64 {
    let start = bench.now;
    while task_count(bench) == 0 {
        bench.pass(500);
    }
    bench.now - start
}

#[test]
fn a_job_on_empty_topics_waits_for_the_first_record_and_its_status_says_so() {
    let (mut bench, job) = opened();
    // With `start: latest`, the first offset is the end when the job opened.
    list(&mut bench, 5);
    assert_eq!(bench.status(job).source_error, None);
    finish(&mut bench, TaskOutput::Indexed(vec![ShardIndex::default().into()]));
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let status = bench.status(job);
        assert!(matches!(status.state, JobState::Preparing { .. }));
        assert!(status.source_error.is_some_and(|reason| reason.contains("no record")));
        pauses.push(wait_for_task(&mut bench));
        list(&mut bench, 5);
        assert_eq!(task_count(&mut bench), 0, "the partition has no new offsets to search");
    }
    assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 5_000]);
    wait_for_task(&mut bench);
    list(&mut bench, 8);
    finish(&mut bench, TaskOutput::Indexed(vec![indexed(3)]));
    let status = bench.status(job);
    assert_eq!((status.state, status.source_error), (JobState::Running, None));
    let growth = status.position.and_then(|position| position.growth).expect("an unbounded job");
    assert_eq!(growth.growth.partitions[0].next, 5);
}

/// Opens a job whose topic has no record after offset 5, and waits until the topic is listed again.
fn waiting() -> (Bench, JobId) {
    let (mut bench, job) = opened();
    list(&mut bench, 5);
    finish(&mut bench, TaskOutput::Indexed(vec![ShardIndex::default().into()]));
    wait_for_task(&mut bench);
    (bench, job)
}

#[test]
fn a_partition_that_is_added_during_the_wait_is_read_from_its_first_record() {
    let (mut bench, job) = waiting();
    let plan = bench.worker(report(1)).expect("a plan");
    assert!(plan.tasks[0].lists_growth, "the other listing starts at the end of a new partition");
    finish(&mut bench, TaskOutput::Listed(shards("id", &[5, 7])));
    let plan = bench.worker(report(1)).expect("a plan");
    let searched = plan.tasks[0].shards.as_deref().expect("shards to index");
    assert_eq!(searched, &shards("id", &[5, 7])[1..], "the other partition was searched before");
    finish(&mut bench, TaskOutput::Indexed(vec![indexed(7)]));
    let status = bench.status(job);
    assert_eq!(status.state, JobState::Running);
    let growth = status.position.and_then(|position| position.growth).expect("an unbounded job");
    let next: Vec<u64> = growth.growth.partitions.iter().map(|partition| partition.next).collect();
    assert_eq!(next, [5, 0]);
}

#[test]
fn a_waiting_job_survives_an_outage_of_the_brokers() {
    let (mut bench, job) = waiting();
    for _ in 0..3 {
        finish(&mut bench, TaskOutput::Unavailable("no broker answers".to_owned()));
        assert!(matches!(bench.status(job).state, JobState::Preparing { .. }));
        wait_for_task(&mut bench);
    }
    list(&mut bench, 6);
    finish(&mut bench, TaskOutput::Indexed(vec![indexed(1)]));
    assert_eq!(bench.status(job).state, JobState::Running);
}

#[test]
fn a_waiting_job_without_consumers_fails() {
    let (mut bench, job) = waiting();
    bench.pass(ClusterSettings::default().abandoned_ms + 1_000);
    let JobState::Failed(message) = bench.status(job).state else { panic!("it failed") };
    assert!(message.starts_with("no consumer has reported"), "{message}");
}

#[test]
fn a_job_that_is_cancelled_while_it_waits_gives_no_reason() {
    let (mut bench, job) = opened();
    list(&mut bench, 5);
    finish(&mut bench, TaskOutput::Indexed(vec![ShardIndex::default().into()]));
    bench.ask(|request| Input::CancelJob { request, job });
    assert_eq!(bench.status(job).source_error, None);
    bench.pass(60_000);
    assert_eq!(task_count(&mut bench), 0);
}

#[test]
fn a_job_on_partitions_with_other_columns_fails_instead_of_waiting() {
    let (mut bench, job) = opened();
    finish(&mut bench, TaskOutput::Listed(shards("id", &[3, 3])));
    let mut other: IndexedShard = indexed(3);
    other.index.schema.get_or_insert_default().set("value", ColumnType::Scalar(ScalarType::Int64));
    finish(&mut bench, TaskOutput::Indexed(vec![indexed(3), other]));
    let JobState::Failed(message) = bench.status(job).state else { panic!("it failed") };
    assert!(message.starts_with("column `value` is "), "{message}");
}

#[test]
fn a_job_with_too_many_partitions_fails_when_it_opens() {
    let (mut bench, job) = opened();
    finish(&mut bench, TaskOutput::Listed(shards("id", &vec![1; MAX_PARTITIONS + 1])));
    let JobState::Failed(message) = bench.status(job).state else { panic!("it failed") };
    assert_eq!(
        message,
        "the topics have 10001 partitions, more than the limit of 10000 with `until: none`; select fewer topics"
    );
}
