//! Remedies as text, the best first.

use expect_test::{Expect, expect};

use super::super::bound::tests::{model, resources};
use super::*;
use crate::model::Bandwidth;

fn capacities() -> Vec<CacheCapacity> {
    let memory = CacheCapacity {
        tier: "memory".into(),
        bytes: 4e9,
        read_bytes_per_s: f64::INFINITY,
        read_cpu_s_per_byte: 2.5e-10,
        is_in_store: false,
    };
    let disk = CacheCapacity { tier: "disk".into(), bytes: 4e10, read_bytes_per_s: 5e8, ..memory.clone() };
    vec![memory, disk]
}

fn cache_points() -> Vec<CachePointModel> {
    let point = |operator_index: usize, operator: &str, bytes_per_row: f64, is_cacheable| CachePointModel {
        operator_index,
        operator: operator.into(),
        rows: 30_000.0,
        bytes: 30_000.0 * bytes_per_row,
        bytes_per_row,
        is_cacheable,
        ..CachePointModel::default()
    };
    vec![point(0, "source", 1e5, true), point(2, "decode", 1.5e5, true)]
}

fn check(model: &JobModel, resources: &JobResources, expect: Expect) {
    let line = |remedy: &Remedy| format!("{:.0}: {}\n", remedy.predicted_rows_per_s, remedy.action);
    let text: String = remedies(model, resources, &capacities()).iter().map(line).collect();
    expect.assert_eq(&text);
}

#[test]
fn too_few_cores() {
    let mut model = JobModel { cache_points: cache_points(), demand_rows_per_s: Some(9000.0), ..model() };
    // An operator after the cache still needs CPU.
    model.operators.push(model.operators[0].clone());
    model.operators[3].name = "normalize".into();
    check(
        &model,
        &resources(),
        expect![[r#"
            3636: give the job 4 cores
            3636: give the job 2 workers
            3333: cache the output of `decode` on disk (4.5 GB)
            1951: cache the output of `source` in memory (3 GB)
            1951: cache the output of `source` on disk (3 GB)
        "#]],
    );
}

#[test]
fn a_pinned_operator() {
    let mut model = model();
    model.operators[2].parallelism = Some(1);
    check(
        &model,
        &resources(),
        expect![[r#"
            2222: give the job 2 workers
            2000: allow 2 concurrent executions of `decode`
        "#]],
    );
}

#[test]
fn a_limit_is_raised_to_the_waiting_executions_at_most() {
    let mut model = model();
    let wait = &mut model.operators[1];
    (wait.latency_s, wait.parallelism) = (20e-3, Some(4));
    // Four executions run, and four or five wait for a permit.
    (wait.mean_active, wait.mean_waiting) = (4.0, 4.5);
    check(
        &model,
        &resources(),
        expect![[r#"
            425: allow 9 concurrent executions of `wait`
            400: give the job 2 workers
        "#]],
    );
}

#[test]
fn a_wait() {
    let mut model = model();
    model.operators[1].latency_s = 20e-3;
    model.operators[1].parallelism = Some(4);
    check(
        &model,
        &resources(),
        expect![[r#"
            2000: allow 40 concurrent executions of `wait`
            400: give the job 2 workers
        "#]],
    );
}

#[test]
fn too_few_requests() {
    check(
        &model(),
        &JobResources { read_concurrency: 2.0, ..resources() },
        expect![[r#"
            2000: allow 4 requests in flight to the store
            2000: give the job 2 workers
        "#]],
    );
}

#[test]
fn only_a_cache_helps_a_saturated_store() {
    let model = JobModel {
        cache_points: cache_points(),
        bandwidth: Bandwidth::Roofline { slope: 5e7, cap: 5e7 },
        ..model()
    };
    check(
        &model,
        &resources(),
        expect![[r#"
            3333: cache the output of `decode` on disk (4.5 GB)
            2162: cache the output of `source` in memory (3 GB)
            2162: cache the output of `source` on disk (3 GB)
        "#]],
    );
}

#[test]
fn slow_consumers_have_no_remedy() {
    let model = JobModel { cache_points: cache_points(), demand_rows_per_s: Some(100.0), ..model() };
    check(&model, &resources(), expect![""]);
}
