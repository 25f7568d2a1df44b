//! Tests of jobs that deliver no rows.

use super::*;

fn filtering(consumers: u32) -> JobSpec {
    let builder = Pipeline::builder("p").source(Source::text("data/*"));
    let pipeline = builder.filter("text > 1").batch(4).build().expect("a valid pipeline");
    JobSpec { pipeline, epochs: 1_000, ..spec(4, consumers) }
}

/// Reports that a consumer has passed this many epochs, and has delivered `rows` rows.
fn pass_epochs(bench: &mut Bench, job: JobId, consumer: u32, epoch: u32, rows: u64) {
    let positions = vec![(consumer, StreamPosition { epoch, row: 0 })];
    let stats = ConsumerStats { rows, ..ConsumerStats::default() };
    bench.consumer(ConsumerReport { positions, stats, ..consumer_report(job, consumer) });
}

fn failure(bench: &mut Bench, job: JobId) -> Option<String> {
    match bench.status(job).state {
        JobState::Failed(message) => Some(message),
        JobState::Running => None,
        other => panic!("neither running nor failed: {other:?}"),
    }
}

#[test]
fn an_epoch_that_was_filtered_out_fails_the_job() {
    let (mut bench, job) = Bench::running(&filtering(2), 64);
    pass_epochs(&mut bench, job, 0, 1, 0);
    assert_eq!(failure(&mut bench, job), None, "the other consumer is still at the start");
    let operator = |name: &str, rows_in, rows_out| OperatorStats {
        name: name.to_owned(),
        rows_in,
        rows_out,
        ..OperatorStats::default()
    };
    let operators = vec![operator("source", 64, 64), operator("filter", 64, 0), operator("batch", 0, 0)];
    let stats = vec![WorkerJobStats { operators, ..stats_of(job, 1) }];
    bench.worker(WorkerReport { stats, ..report(1) });
    pass_epochs(&mut bench, job, 1, 3, 0);
    let message = failure(&mut bench, job).expect("no consumer has delivered a row");
    assert_eq!(
        message,
        "epoch 0 delivered no row to any consumer: `filter` removed all rows that it received; correct the operator, or check the values of its columns"
    );
}

#[test]
fn rows_of_one_consumer_are_enough() {
    let (mut bench, job) = Bench::running(&filtering(2), 64);
    let plan = bench.consumer(consumer_report(job, 0)).expect("a first plan");
    assert!(!plan.has_rows);
    pass_epochs(&mut bench, job, 0, 1, 0);
    pass_epochs(&mut bench, job, 1, 1, 5);
    pass_epochs(&mut bench, job, 0, 9, 0);
    assert_eq!(failure(&mut bench, job), None);
    assert!(bench.cluster.consumer_plan(&bench.cluster.jobs[&job], 0).has_rows);
}

#[test]
fn the_last_epoch_fails_too_and_a_resumed_epoch_is_not_judged() {
    let last = JobSpec { epochs: 1, ..filtering(1) };
    let (mut bench, job) = Bench::running(&last, 64);
    pass_epochs(&mut bench, job, 0, 1, 0);
    assert!(failure(&mut bench, job).expect("it has failed").contains("`filter` removed all rows"));

    let (mut bench, job) = Bench::running(&filtering(1), 64);
    let positions = vec![(0, StreamPosition { epoch: 0, row: 60 })];
    bench.consumer(ConsumerReport { positions, ..consumer_report(job, 0) });
    let snapshot = bench.cluster.snapshot();
    bench.cluster = Cluster::restore(ClusterSettings::default(), INCARNATION + 1, bench.now, snapshot);
    pass_epochs(&mut bench, job, 0, 1, 0);
    assert_eq!(failure(&mut bench, job), None, "this leader has not seen the whole epoch");
    pass_epochs(&mut bench, job, 0, 2, 0);
    assert!(failure(&mut bench, job).expect("it has failed").starts_with("epoch 1 delivered no row"));
}

#[test]
fn a_job_without_filters_and_one_that_fills_a_cache_need_no_rows() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    pass_epochs(&mut bench, job, 0, 1, 0);
    assert_eq!(bench.status(job).state, JobState::Completed);
}

#[test]
fn an_unbounded_job_may_have_no_rows() {
    let mut spec = super::growing::unbounded(super::growing::options(), 1);
    spec.pipeline.on_error = OnError::Skip;
    let mut bench = Bench::new();
    let job = bench.open(&spec).expect("a valid job");
    let plan = bench.worker(report(1)).expect("the listing task");
    let finish = |bench: &mut Bench, id, output| {
        let tasks = vec![TaskResult { id, outcome: Ok(output) }];
        bench.worker(WorkerReport { tasks, ..report(1) })
    };
    finish(&mut bench, plan.tasks[0].id, TaskOutput::Listed(super::growing::shards("id", &[8])));
    let plan = bench.worker(report(1)).expect("the indexing task");
    finish(&mut bench, plan.tasks[0].id, TaskOutput::Indexed(vec![super::growing::indexed(8)]));
    assert_eq!(failure(&mut bench, job), None);
    assert!(bench.cluster.jobs[&job].has_delivered_rows(), "no consumer waits for a verdict");
}
