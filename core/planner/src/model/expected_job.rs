//! The model of a job before its first batch, which is known for sampled graphs.

use std::collections::BTreeMap;

use feedline_data::pipeline::GraphBatchSize;

use super::graph_costs::GraphModel;
use super::job::{JobModel, JobObservation, OperatorModel};

#[cfg(test)]
mod tests;

/// CPU seconds to sample an edge and to map its source, before they are measured.
const SAMPLE_S_PER_EDGE: f64 = 40e-9;
/// CPU seconds to copy a byte of a batch, before they are measured.
const COPY_S_PER_BYTE: f64 = 0.25e-9;

impl JobModel {
    /// Returns the model of a job that samples a graph and has delivered no rows yet: the costs of the expected edges and bytes. The
    /// costs of the source and of other operators are unknown, and small in comparison. Returns `None` for other jobs.
    pub fn expected(observation: &JobObservation) -> Option<Self> {
        let graph = GraphModel::build(observation.graph?, observation.counted_workers());
        let GraphBatchSize { seeds, edges, bytes, .. } = graph.expected;
        let seeds = seeds.max(1) as f64;
        let cpu_s = (edges as f64 * SAMPLE_S_PER_EDGE + bytes as f64 * COPY_S_PER_BYTE) / seeds;
        let operator = |name: &str, cpu_s: f64| OperatorModel {
            name: name.to_owned(),
            visit_ratio: 1.0,
            // The cost on workers of an unknown type is the mean of the known types.
            cpu_s: BTreeMap::from([(String::new(), cpu_s)]),
            ..OperatorModel::default()
        };
        Some(Self {
            operators: vec![operator("source", 0.0), operator("batch", cpu_s)],
            delivered_bytes_per_row: bytes as f64 / seeds,
            graph: Some(graph),
            ..Self::default()
        })
    }
}
