//! Tests of the report on a job whose bottleneck is a crop.

use std::collections::BTreeMap;

use expect_test::expect;
use feedline_planner::model::{CacheCapacity, CachePointModel, JobResources, WorkerTypeResources};

use super::*;

fn explanation() -> Explanation {
    let operator = |name: &str, cpu_ms: f64, bytes_out: f64, is_random| OperatorModel {
        name: name.to_owned(),
        visit_ratio: 1.0,
        cpu_s: BTreeMap::from([("a".to_owned(), cpu_ms / 1e3)]),
        mean_active: cpu_ms,
        cpu_share: cpu_ms / 2.0,
        bytes_out,
        is_random,
        ..OperatorModel::default()
    };
    let cut = |operator_index: usize, operator: &str, bytes: f64, is_cacheable| CachePointModel {
        operator_index,
        operator: operator.to_owned(),
        rows: 1000.0,
        bytes,
        bytes_per_row: bytes / 1000.0,
        is_cacheable,
        ..CachePointModel::default()
    };
    let model = JobModel {
        rows_per_s: 990.0,
        operators: vec![
            operator("source", 0.5, 100e3, false),
            operator("random_resized_crop", 1.5, 150e3, true),
            operator("batch", 0.0, 150e3, false),
        ],
        cache_points: vec![cut(0, "source", 100e6, true), cut(1, "random_resized_crop", 150e6, false)],
        delivered_bytes_per_row: 150e3,
        store_bytes_per_row: 100e3,
        ..JobModel::default()
    };
    let workers =
        vec![WorkerTypeResources { worker_type: "a".to_owned(), count: 1, cores: 2.0, nic_bytes_per_s: 0.0 }];
    let room = CacheCapacity {
        tier: "memory".to_owned(),
        bytes: 1e9,
        read_bytes_per_s: f64::INFINITY,
        ..CacheCapacity::default()
    };
    Explanation::new(
        "photographs",
        TraceResult {
            rows: 4950,
            seconds: 5.0,
            rows_per_s: 990.0,
            model,
            resources: JobResources { workers, ..JobResources::default() },
            cache_capacities: vec![room],
            plan: None,
            long_runs: None,
        },
    )
}

#[test]
fn the_text_contains_a_table_and_sentences() {
    expect![[r#"
        photographs: 4950 rows traced

        operator             rows/core s   cpu/row  wait/row  visits  bytes/row   dataset  active   cpu
        source                      2000  500.0 us         -    1.00   100.0 kB  100.0 MB     0.5  25 %
        random_resized_crop          667   1.50 ms         -    1.00   150.0 kB    random     1.5  75 %
        batch                          -         -         -    1.00   150.0 kB         -     0.0   0 %

        measured    990 rows/s
        bound       1000 rows/s
        bottleneck  cpu of random_resized_crop: 2 cores compute 1000 rows/s at 2 ms of CPU time per row, mostly in `random_resized_crop`

        possible improvements
          give the job 4 cores                             2000 rows/s  +100 %
          give the job 2 workers                           2000 rows/s  +100 %
          cache the output of `source` in memory (100 MB)  1333 rows/s   +33 %  from the second pass on
    "#]].assert_eq(&explanation().to_text());
}

#[test]
fn the_json_has_the_documented_keys() {
    let value = serde_json::to_value(explanation()).unwrap();
    assert_eq!(value["bottleneck"]["kind"], "cpu");
    assert_eq!(value["bottleneck"]["operator"], "random_resized_crop");
    assert_eq!(value["measured_rows_per_s"], 990.0);
    assert_eq!(value["operators"].as_array().unwrap().len(), 3);
    assert_eq!(value["bound_rows_per_s"].as_f64().unwrap().round(), 1000.0);
    assert!(value["remedies"][0]["predicted_rows_per_s"].as_f64().unwrap() > 1100.0);
}

#[test]
fn sampled_graphs_follow_the_operators() {
    let graph = GraphModel { graph_bytes: 1_500_000, load_s: 0.25, ..GraphModel::default() };
    let explanation = Explanation { graph: Some(graph), ..explanation() };
    let text = explanation.to_text();
    let (before, after) =
        text.split_once("loaded graph  1.5 MB, 250.00 ms to load\n\n").expect("it is listed");
    assert!(before.contains("batch      ") && before.contains("expected by the fanouts"), "{text}");
    assert!(after.starts_with("measured    990 rows/s\n"), "{text}");
    let value = serde_json::to_value(explanation).unwrap();
    assert_eq!(value["graph"]["load_s"], 0.25);
    assert!(serde_json::to_value(self::explanation()).unwrap().get("graph").is_none());
}
