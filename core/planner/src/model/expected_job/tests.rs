//! Tests of the costs before the first batch.

use super::*;
use crate::model::GraphExpectation;
use crate::model::job::tests::{observation, worker};

#[test]
fn edges_and_bytes_have_costs_before_the_first_batch() {
    let batch = GraphBatchSize { seeds: 100, nodes: 1_000, edges: 20_000, bytes: 800_000 };
    let graph = Some(GraphExpectation { batch, graph_bytes: 1 << 30 });
    let model = JobModel::expected(&JobObservation { graph, ..JobObservation::default() }).unwrap();
    // 0.8 ms for the edges, and 0.2 ms for the bytes.
    assert!((model.cpu_s_from(0, "any") * 1e6 - 10.0).abs() < 1e-6, "{}", model.cpu_s_from(0, "any"));
    assert_eq!((model.delivered_bytes_per_row, model.rows_per_s), (8_000.0, 0.0));
    assert_eq!(model.graph.as_ref().map(|graph| graph.expected), Some(batch));
    let measured = JobObservation { graph, ..observation(vec![worker(1, "a", 1.0)]) };
    assert_eq!(JobModel::build(&measured).unwrap().graph.map(|graph| graph.expected), Some(batch));
    assert_eq!(JobModel::expected(&JobObservation::default()), None, "other jobs must be measured");
    let without_seeds = GraphExpectation::default();
    let model =
        JobModel::expected(&JobObservation { graph: Some(without_seeds), ..JobObservation::default() });
    assert_eq!(model.unwrap().cpu_s_from(0, ""), 0.0);
}
