//! Tests of the expected and the measured batch.

use super::*;
use crate::model::job::tests::worker;

const SIZE: GraphBatchSize = GraphBatchSize { seeds: 100, nodes: 1_000, edges: 2_000, bytes: 50_000 };
const EXPECTATION: GraphExpectation = GraphExpectation { batch: SIZE, graph_bytes: 4_000_000_000 };

fn reporting(stats: GraphStats) -> JobWorkerSample {
    JobWorkerSample { graph: Some(stats), ..worker(1, "a", 1.0) }
}

#[test]
fn the_expected_batch_follows_from_the_fanouts_until_a_worker_has_modeled_its_graph() {
    let before = GraphModel::build(EXPECTATION, &[worker(2, "a", 1.0)]);
    assert_eq!((before.expected, before.is_modeled, &before.measured), (SIZE, false, &None));
    let modeled = GraphBatchSize { nodes: 900, ..SIZE };
    let stats = GraphStats { expected: Some(modeled), load_ns: 9_000_000_000, ..GraphStats::default() };
    let after = GraphModel::build(EXPECTATION, &[worker(2, "a", 1.0), reporting(stats)]);
    assert_eq!((after.expected, after.is_modeled), (modeled, true));
    assert_eq!(after.measured, None, "there are no batches yet");
    let held = GraphStats { load_ns: 1, ..GraphStats::default() };
    let held = GraphModel::build(EXPECTATION, &[reporting(held)]);
    let load_s = [before.load_s, after.load_s, held.load_s];
    assert_eq!(load_s, [4.0, 9.0, 4.0], "a worker that held the graph did not load it");
}

#[test]
fn the_measured_batch_is_the_mean_over_all_workers() {
    let stats = |batches: u64| GraphStats {
        batches,
        seeds: 100 * batches,
        nodes: 900 * batches + 1,
        edges: 10 * batches,
        bytes: 7 * batches,
        sample_ns: 2_000_000 * batches,
        map_ns: 3_000_000 * batches,
        gather_ns: 1_000_000 * batches,
        encode_ns: 500_000 * batches,
        ..GraphStats::default()
    };
    let mut workers = [reporting(stats(1)), reporting(stats(3))];
    for worker in &mut workers {
        worker.operators.last_mut().unwrap().wait_input_ns = 8_000_000;
    }
    let measured = MeasuredGraphBatch {
        size: GraphBatchSize { seeds: 100, nodes: 900, edges: 10, bytes: 7 },
        sample_s: 0.002,
        map_s: 0.003,
        gather_s: 0.001,
        encode_s: 0.0005,
        wait_s: 0.004,
    };
    assert_eq!(GraphModel::build(EXPECTATION, &workers).measured, Some(measured));
}

#[test]
fn a_short_job_has_no_use_for_another_worker() {
    let model = GraphModel::build(EXPECTATION, &[]);
    assert_eq!(model.useful_rows_per_s(1_000.0), 250.0, "it would load the graph for 4 s");
    let empty = GraphModel::build(GraphExpectation::default(), &[]);
    assert_eq!(empty.useful_rows_per_s(1_000.0), f64::INFINITY);
}

#[test]
fn extreme_counters_do_not_overflow() {
    let largest = GraphStats {
        load_ns: u64::MAX,
        batches: 1,
        nodes: u64::MAX,
        sample_ns: u64::MAX,
        ..GraphStats::default()
    };
    let model = GraphModel::build(EXPECTATION, &[reporting(largest), reporting(largest)]);
    assert_eq!(model.measured.map(|measured| measured.size.nodes), Some(u64::MAX / 2));
    assert!(model.load_s.is_finite());
}
