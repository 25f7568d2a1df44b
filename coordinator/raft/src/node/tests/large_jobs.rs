//! Tests of the size of the log after jobs with large pipelines.

use feedline_data::pipeline::{FilterFunction, Function, FunctionEnvironment, OperatorKind};

use super::*;

fn ask(bench: &mut Bench, input: impl FnOnce(RequestId) -> Input) -> Reply {
    bench.requests += 1;
    let (now, request) = (bench.now, bench.requests);
    let member = bench.member(1);
    member.take_input(now, input(request));
    member.decide(now);
    bench.settle();
    bench.replies.remove(&request).expect("the records are committed")
}

/// A specification of almost 4 MiB.
fn large(name: &str) -> JobSpec {
    let mut pipeline = Pipeline::builder("p").source(Source::text("data/*")).batch(4).build().unwrap();
    for _ in 0..5 {
        let function = Function {
            code: Some("A".repeat(768 << 10)),
            environment: Some(FunctionEnvironment { python: Some("3.11".to_owned()), ..Default::default() }),
            ..Function::new("m:f")
        };
        pipeline.operators.insert(0, OperatorKind::FilterFunction(FilterFunction(function)).into());
    }
    JobSpec { name: name.to_owned(), ..JobSpec::new(pipeline) }
}

#[test]
fn the_log_forgets_the_pipelines_of_cancelled_jobs() {
    let mut bench = Bench::of(1);
    for number in 0..12 {
        let spec = Box::new(large(&format!("run {number}")));
        let opened = ask(&mut bench, |request| Input::OpenJob { request, spec, saved_index: None.into() });
        let Reply::Opened(job) = opened else { panic!("not opened: {opened:?}") };
        ask(&mut bench, |request| Input::CancelJob { request, job });
        // The last snapshot may contain one pipeline, and the entries are at most four times as large.
        let bytes = bench.member(1).log_bytes();
        assert!(bytes < 20 << 20, "{bytes} bytes after {number} jobs");
    }
    let member = bench.member(1);
    member.snapshot_due = true;
    member.compact_if_due();
    assert!(member.log_bytes() < 1 << 20, "{} bytes", member.log_bytes());
}
