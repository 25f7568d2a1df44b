//! Remedies as text, the best first.

use expect_test::{Expect, expect};

use super::super::bound::tests::{allocation, model};
use super::*;
use crate::model::Bandwidth;

fn rooms() -> Vec<CacheRoom> {
    let memory = CacheRoom {
        tier: "memory".into(),
        bytes: 4e9,
        read_bytes_per_s: f64::INFINITY,
        read_cpu_s_per_byte: 2.5e-10,
        is_in_store: false,
    };
    let disk = CacheRoom { tier: "disk".into(), bytes: 4e10, read_bytes_per_s: 5e8, ..memory.clone() };
    vec![memory, disk]
}

fn cuts() -> Vec<CachePointModel> {
    let cut = |after: usize, operator: &str, bytes_per_row: f64, is_cacheable| CachePointModel {
        after,
        operator: operator.into(),
        rows: 30_000.0,
        bytes: 30_000.0 * bytes_per_row,
        bytes_per_row,
        is_cacheable,
        ..CachePointModel::default()
    };
    vec![cut(0, "source", 1e5, true), cut(2, "decode", 1.5e5, true)]
}

fn check(model: &JobModel, allocation: &JobResources, expect: Expect) {
    let line = |remedy: &Remedy| format!("{:.0}: {}\n", remedy.predicted_rows_per_s, remedy.action);
    let text: String = remedies(model, allocation, &rooms()).iter().map(line).collect();
    expect.assert_eq(&text);
}

#[test]
fn for_want_of_cores() {
    let mut model = JobModel { cuts: cuts(), demand_rows_per_s: Some(9000.0), ..model() };
    // Something is left to do after the cache.
    model.operators.push(model.operators[0].clone());
    model.operators[3].name = "normalize".into();
    check(
        &model,
        &allocation(),
        expect![[r#"
            3636: give it 4 cores
            3636: give it 2 workers
            3333: keep the output of `decode` on disk (4.5 GB)
            1951: keep the output of `source` in memory (3 GB)
            1951: keep the output of `source` on disk (3 GB)
        "#]],
    );
}

#[test]
fn for_a_pinned_operator() {
    let mut model = model();
    model.operators[2].parallelism = Some(1);
    check(
        &model,
        &allocation(),
        expect![[r#"
            2222: give it 2 workers
            2000: let `decode` run 2 at a time
        "#]],
    );
}

#[test]
fn a_limit_is_not_raised_over_what_is_under_way() {
    let mut model = model();
    let wait = &mut model.operators[1];
    (wait.latency_s, wait.parallelism) = (20e-3, Some(4));
    // Four wait, and five more for their turn.
    (wait.mean_active, wait.mean_waiting) = (4.0, 4.5);
    check(
        &model,
        &allocation(),
        expect![[r#"
            425: let `wait` run 9 at a time
            400: give it 2 workers
        "#]],
    );
}

#[test]
fn for_a_wait() {
    let mut model = model();
    model.operators[1].latency_s = 20e-3;
    model.operators[1].parallelism = Some(4);
    check(
        &model,
        &allocation(),
        expect![[r#"
            2000: let `wait` run 40 at a time
            400: give it 2 workers
        "#]],
    );
}

#[test]
fn for_a_store_with_few_requests() {
    check(
        &model(),
        &JobResources { read_concurrency: 2.0, ..allocation() },
        expect![[r#"
            2000: read with 4 requests in flight
            2000: give it 2 workers
        "#]],
    );
}

#[test]
fn for_a_full_store_only_a_cache_helps() {
    let model = JobModel { cuts: cuts(), bandwidth: Bandwidth::Roof { slope: 5e7, cap: 5e7 }, ..model() };
    check(
        &model,
        &allocation(),
        expect![[r#"
            3333: keep the output of `decode` on disk (4.5 GB)
            2162: keep the output of `source` in memory (3 GB)
            2162: keep the output of `source` on disk (3 GB)
        "#]],
    );
}

#[test]
fn for_slow_consumers_nothing_helps() {
    let model = JobModel { cuts: cuts(), demand_rows_per_s: Some(100.0), ..model() };
    check(&model, &allocation(), expect![""]);
}
