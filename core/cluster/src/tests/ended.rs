//! Tests of what ended jobs keep of their specifications.

use feedline_data::pipeline::{FilterFunction, Function, FunctionEnvironment, OperatorKind};

use super::*;

/// A specification with functions of 300 KiB each.
fn large(name: &str, functions: usize) -> JobSpec {
    let mut spec = JobSpec { name: name.to_owned(), ..spec(4, 1) };
    for _ in 0..functions {
        let function = Function {
            code: Some("A".repeat(300 << 10)),
            environment: Some(FunctionEnvironment { python: Some("3.11".to_owned()), ..Default::default() }),
            ..Function::new("m:f")
        };
        spec.pipeline.operators.insert(0, OperatorKind::FilterFunction(FilterFunction(function)).into());
    }
    spec
}

fn restore(records: &[Record]) -> Cluster {
    Cluster::restore(ClusterSettings::default(), INCARNATION + 1, 0, records.iter().cloned())
}

fn encoded_bytes(records: &[Record]) -> usize {
    serde_json::to_vec(records).expect("plain data").len()
}

#[test]
fn a_hundred_cancelled_jobs_with_large_pipelines_have_a_small_snapshot() {
    let mut bench = Bench::new();
    let mut jobs = Vec::new();
    for number in 0..100 {
        let job = bench.open(&large(&format!("job {number}"), 1)).expect("a valid job");
        assert!(encoded_bytes(&bench.records) > 300 << 10, "the pipeline is in the record");
        bench.ask(|request| Input::CancelJob { request, job });
        bench.records.clear();
        jobs.push(job);
    }
    let snapshot = bench.cluster.snapshot();
    assert!(encoded_bytes(&snapshot) < 1 << 20, "{} bytes", encoded_bytes(&snapshot));
    assert_eq!(restore(&snapshot).snapshot(), snapshot);
    let status = bench.status(jobs[7]);
    assert_eq!((status.name.as_str(), status.state), ("job 7", JobState::Cancelled));
}

#[test]
fn an_ended_job_keeps_its_position_without_its_pipeline() {
    let (mut bench, job) = Bench::running(&large("run", 5), 64);
    bench.consumer(ConsumerReport {
        positions: vec![(0, StreamPosition { epoch: 0, row: 8 })],
        ..consumer_report(job, 0)
    });
    let running = bench.status(job);
    // An earlier release has ended the job.
    let mut earlier = bench.cluster.snapshot();
    earlier.push(Record::Ended { job, state: JobState::Cancelled });
    bench.ask(|request| Input::CancelJob { request, job });
    let ended = bench.status(job);
    assert_eq!((&ended.name, &ended.state), (&running.name, &JobState::Cancelled));
    assert!(running.position.is_some() && ended.position == running.position);
    assert_eq!((&ended.layout, &ended.dataset), (&running.layout, &running.dataset));

    let snapshot = bench.cluster.snapshot();
    assert!(encoded_bytes(&snapshot) < 64 << 10, "{} bytes", encoded_bytes(&snapshot));
    for records in [&bench.records, &snapshot, &earlier] {
        let restored = restore(records);
        assert_eq!(restored.snapshot(), snapshot);
        assert_eq!(restored.jobs[&job].position(), running.position);
        assert_eq!(restored.jobs[&job].layout, running.layout);
    }

    let Some(Reply::Rejected(refusal)) = bench.ask(|request| Input::JobDetails { request, job }) else {
        panic!("the pipeline is not stored")
    };
    assert_eq!(refusal.kind, ServiceErrorKind::NotFound);
    let again = bench.open(&large("run", 5)).expect("the name is free");
    assert_ne!(again, job);
}

#[test]
fn an_ended_job_with_a_small_pipeline_keeps_its_details() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    bench.ask(|request| Input::CancelJob { request, job });
    match bench.ask(|request| Input::JobDetails { request, job }) {
        Some(Reply::Details(details)) => assert_eq!(details.pipeline, spec(4, 1).pipeline),
        other => panic!("no details: {other:?}"),
    }
}

#[test]
fn an_ended_job_keeps_the_streams_of_its_start_position() {
    let (mut bench, job) = Bench::running(&large("run", 5), 64);
    let mut position = bench.status(job).position.expect("an indexed dataset");
    position.streams = vec![StreamPosition { epoch: 0, row: 12 }];
    let resumed = JobSpec { start: Some(position.clone()), ..large("resumed", 5) };
    let (mut bench, job) = Bench::running(&resumed, 64);
    bench.ask(|request| Input::CancelJob { request, job });
    let snapshot = bench.cluster.snapshot();
    assert!(encoded_bytes(&snapshot) < 64 << 10, "{} bytes", encoded_bytes(&snapshot));
    let restored = restore(&snapshot);
    let start = restored.jobs[&job].spec.start.as_ref().map(|start| &start.streams);
    assert_eq!(start, Some(&position.streams));
    assert_eq!(restored.snapshot(), snapshot);
}
