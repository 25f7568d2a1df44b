//! Tests of commits of delivered offsets to consumer groups.

use feedline_data::layout::{DeliveredPrefix, StreamPosition};
use feedline_data::messages::GroupCommit;
use feedline_data::pipeline::KafkaOptions;

use super::*;
use crate::group_commits::COMMIT_INTERVAL_MS;

fn grouped(consumers: u32) -> JobSpec {
    let mut spec = spec(4, consumers);
    let options = KafkaOptions { commit_group: Some("g".to_owned()), ..KafkaOptions::topic("events") };
    spec.pipeline.source = Source::kafka("kafka://a:9092").with_kafka(options);
    spec
}

fn at(consumer: u32, row: u64) -> Vec<(u32, StreamPosition)> {
    vec![(consumer, StreamPosition { epoch: 0, row })]
}

/// Sends reports of worker 1 until its plan has no change. Returns the commits of the last plan.
fn commits(bench: &mut Bench, worker: u64) -> Vec<GroupCommit> {
    bench.worker(report(worker)).map(|plan| plan.group_commits).expect("the report has no revision")
}

fn commit(job: JobId, rows: u64) -> GroupCommit {
    GroupCommit { job, delivered: DeliveredPrefix { epoch: 0, rows }, offsets: Vec::new() }
}

/// Lets time pass while a consumer and the workers report.
fn wait(bench: &mut Bench, job: JobId, workers: &[u64]) {
    for _ in 0..=COMMIT_INTERVAL_MS / 1_000 {
        bench.pass(1_000);
        bench.consumer(consumer_report(job, 0));
        for worker in workers {
            bench.worker(report(*worker));
        }
    }
}

#[test]
fn one_worker_commits_the_delivered_rows_every_few_seconds() {
    let (mut bench, job) = Bench::running(&grouped(1), 64);
    bench.worker(report(2));
    bench.consumer(ConsumerReport { positions: at(0, 12), ..consumer_report(job, 0) });
    assert_eq!(commits(&mut bench, 1), []);
    wait(&mut bench, job, &[1, 2]);
    assert_eq!(commits(&mut bench, 1), [commit(job, 12)], "a worker that has read the topic");
    assert_eq!(commits(&mut bench, 2), []);
    bench.consumer(ConsumerReport { positions: at(0, 16), ..consumer_report(job, 0) });
    assert_eq!(commits(&mut bench, 1), [commit(job, 12)], "not before the interval has passed");
    // The worker is lost.
    wait(&mut bench, job, &[2]);
    assert_eq!(commits(&mut bench, 2), [commit(job, 16)]);
}

#[test]
fn the_last_commit_of_a_job_is_in_the_plan_without_the_job() {
    let (mut bench, job) = Bench::running(&grouped(1), 16);
    bench.consumer(ConsumerReport { positions: at(0, 4), ..consumer_report(job, 0) });
    wait(&mut bench, job, &[1]);
    bench.consumer(ConsumerReport {
        stats: ConsumerStats { rows: 16, ..ConsumerStats::default() },
        positions: vec![(0, StreamPosition { epoch: 1, row: 0 })],
        ..consumer_report(job, 0)
    });
    assert_eq!(bench.status(job).state, JobState::Completed);
    let plan = bench.worker(report(1)).expect("the plan has changed");
    assert!(plan.leases.is_empty());
    assert_eq!(
        plan.group_commits,
        [GroupCommit { job, delivered: DeliveredPrefix { epoch: 1, rows: 0 }, offsets: Vec::new() }]
    );
    for _ in 0..31 {
        bench.pass(1_000);
        bench.worker(report(1));
    }
    assert_eq!(commits(&mut bench, 1), []);
}

#[test]
fn a_new_leader_continues_and_other_jobs_have_no_commits() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    wait(&mut bench, job, &[1]);
    assert_eq!(commits(&mut bench, 1), []);
    let (mut bench, job) = Bench::running(&grouped(1), 64);
    bench.consumer(ConsumerReport { positions: at(0, 8), ..consumer_report(job, 0) });
    let settings = bench.cluster.settings.clone();
    bench.cluster = Cluster::restore(settings, 9, bench.now, bench.records.clone());
    bench.worker(report(1));
    bench.consumer(ConsumerReport { positions: at(0, 8), ..consumer_report(job, 0) });
    wait(&mut bench, job, &[1]);
    assert_eq!(commits(&mut bench, 1), [commit(job, 8)]);
}

#[test]
fn the_lag_of_a_topic_is_what_is_not_delivered() {
    let (mut bench, job) = Bench::running(&grouped(1), 64);
    bench.consumer(ConsumerReport { positions: at(0, 12), ..consumer_report(job, 0) });
    let lag = |bench: &Bench| bench.cluster.samples().jobs[0].lag_rows;
    assert_eq!(lag(&bench), Some(52));
    let (bench, _) = Bench::running(&spec(4, 1), 64);
    assert_eq!(lag(&bench), None, "files have no lag");
}
