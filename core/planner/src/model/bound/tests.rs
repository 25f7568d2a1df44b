//! The bottlenecks of small jobs, and their explanations.

use expect_test::{Expect, expect};

use super::*;
use crate::model::Bandwidth;

/// A job with a source, `wait` and `decode`, which needs 1 ms of CPU per row.
pub(in crate::model) fn model() -> JobModel {
    let operator = |name: &str, cpu_ms: f64, bytes_out: f64| OperatorModel {
        name: name.into(),
        visit_ratio: 1.0,
        cpu_s: [("small".to_owned(), cpu_ms / 1e3)].into(),
        cpu_share: cpu_ms,
        bytes_out,
        ..OperatorModel::default()
    };
    JobModel {
        rows_per_s: 1900.0,
        operators: vec![
            operator("source", 0.1, 1e5),
            operator("wait", 0.0, 1e5),
            operator("decode", 0.9, 1.5e5),
        ],
        delivered_bytes_per_row: 1.5e5,
        store_bytes_per_row: 1e5,
        bandwidth: Bandwidth::Roofline { slope: 5e7, cap: 1e9 },
        held_bytes: 1e8,
        ..JobModel::default()
    }
}

pub(in crate::model) fn resources() -> JobResources {
    let share =
        WorkerTypeResources { worker_type: "small".into(), count: 1, cores: 2.0, nic_bytes_per_s: 1.25e9 };
    JobResources {
        workers: vec![share],
        read_concurrency: 16.0,
        memory_bytes: 1e9,
        ..JobResources::default()
    }
}

fn check(model: &JobModel, resources: &JobResources, expect: Expect) {
    let found = bottleneck(model, resources).unwrap();
    let operator = found.operator.unwrap_or_else(|| "-".into());
    expect.assert_eq(&format!(
        "{} {operator} {:.0}\n{}\n",
        found.kind.name(),
        found.rows_per_s,
        found.explanation
    ));
}

#[test]
fn too_few_cores() {
    check(
        &model(),
        &resources(),
        expect![[r#"
            cpu decode 2000
            2 cores compute 2000 rows/s at 1 ms of CPU time per row, mostly in `decode`
        "#]],
    );
}

/// A pinned operator has one bound only, although its number of executions in flight is known.
#[test]
fn a_pinned_operator_has_one_bound() {
    let mut model = model();
    model.operators[1].latency_s = 4e-3;
    model.operators[1].parallelism = Some(1);
    model.operators[1].in_flight = Some(0.6);
    let workers =
        vec![WorkerTypeResources { worker_type: "small".into(), count: 1, cores: 2.0, nic_bytes_per_s: 0.0 }];
    let found = bounds(&model, &JobResources { workers, ..JobResources::default() });
    let of_wait = found.iter().filter(|bound| bound.operator.as_deref() == Some("wait"));
    let of_wait: Vec<(BottleneckKind, f64)> = of_wait.map(|bound| (bound.kind, bound.rows_per_s)).collect();
    assert_eq!(of_wait, [(BottleneckKind::Latency, 250.0)]);
}

#[test]
fn too_few_executions_in_flight() {
    let mut model = model();
    model.operators[1].latency_s = 9e-3;
    model.operators[1].in_flight = Some(7.0);
    check(
        &model,
        &JobResources { read_concurrency: 0.0, ..resources() },
        expect![[r#"
            latency wait 778
            7 executions of `wait` are in flight, and each row takes 9 ms: 778 rows/s
        "#]],
    );
    let mut twice = JobResources { read_concurrency: 0.0, ..resources() };
    twice.workers[0].count = 2;
    assert_eq!(bottleneck(&model, &twice).map(|bound| bound.rows_per_s.round()), Some(1556.0));
}

#[test]
fn a_pinned_operator() {
    let mut model = model();
    model.operators[2].parallelism = Some(1);
    check(
        &model,
        &resources(),
        expect![[r#"
            sequential decode 1111
            `decode` is limited to 1 execution at a time on one worker (`parallelism` in the pipeline file), and each row takes 900 us: 1111 rows/s
        "#]],
    );
}

#[test]
fn a_pinned_operator_on_two_workers() {
    let mut model = model();
    model.operators[2].parallelism = Some(1);
    let mut resources = resources();
    resources.workers[0].count = 2;
    check(
        &model,
        &resources,
        expect![[r#"
            sequential decode 2222
            `decode` is limited to 1 execution at a time on each of 2 workers (`parallelism` in the pipeline file), and each row takes 900 us: 2222 rows/s
        "#]],
    );
}

#[test]
fn a_wait_with_few_executions() {
    let mut model = model();
    model.operators[1].latency_s = 5e-3;
    let mut resources = resources();
    resources.operator_limits.insert("wait".into(), 4);
    check(
        &model,
        &resources,
        expect![[r#"
            latency wait 800
            `wait` is limited to 4 executions at a time on one worker, and each row waits 5 ms: 800 rows/s
        "#]],
    );
}

#[test]
fn a_saturated_store() {
    let model = JobModel { bandwidth: Bandwidth::Roofline { slope: 5e7, cap: 5e7 }, ..model() };
    check(
        &model,
        &resources(),
        expect![[r#"
            store source 500
            the store delivers at most 50 MB/s, and each row requires 100 kB: 500 rows/s
        "#]],
    );
}

#[test]
fn too_few_requests_in_flight() {
    let resources = JobResources { read_concurrency: 2.0, ..resources() };
    check(
        &model(),
        &resources,
        expect![[r#"
            latency source 1000
            with 2 requests in flight, the store delivers 100 MB/s, and each row requires 100 kB: 1000 rows/s
        "#]],
    );
}

#[test]
fn a_slow_network() {
    let mut resources = resources();
    resources.workers[0].nic_bytes_per_s = 1.25e8;
    check(
        &model(),
        &resources,
        expect![[r#"
            network - 833
            the workers' network transfers 125 MB/s, and each row requires 150 kB: 833 rows/s
        "#]],
    );
}

/// The busier direction counts, without traffic that stays on a host.
#[test]
fn local_traffic_does_not_use_the_network() {
    let bytes = |store_is_local, consumers_share, cached| {
        Locality { store_is_local, consumers_share }.network_bytes(
            if cached { 0.0 } else { 100.0 },
            if cached { 70.0 } else { 0.0 },
            150.0,
        )
    };
    assert_eq!(bytes(false, 0.0, false), 150.0);
    assert_eq!(bytes(false, 0.5, false), 100.0);
    assert_eq!(bytes(true, 0.5, false), 75.0);
    assert_eq!(bytes(true, 1.0, false), 0.0);
    assert_eq!(bytes(true, 1.0, true), 70.0, "a cache in the store is remote");
}

#[test]
fn full_memory() {
    let mut model = model();
    model.memory_wait_share = 0.4;
    model.rows_per_s = 700.0;
    model.held_bytes = 2.5e8;
    let resources = JobResources { memory_bytes: 2.5e8, ..resources() };
    check(
        &model,
        &resources,
        expect![[r#"
            memory - 700
            the memory budget of 250 MB was exhausted 40 % of the time: 700 rows/s
        "#]],
    );
}

#[test]
fn the_consumer_is_first_among_equal_bounds() {
    let model = JobModel { demand_rows_per_s: Some(2000.0), ..model() };
    check(
        &model,
        &resources(),
        expect![[r#"
            consumer - 2000
            the demand is 2000 rows/s
        "#]],
    );
}

#[test]
fn a_slow_cache() {
    let cache =
        CacheUse { operator_index: 0, read_bytes_per_s: 1e7, read_cpu_s_per_byte: 1e-9, is_in_store: false };
    check(
        &model(),
        &JobResources { cache: Some(cache), ..resources() },
        expect![[r#"
            store source 100
            the cache after `source` delivers 10 MB/s, and each cached row takes 100 kB: 100 rows/s
        "#]],
    );
}
