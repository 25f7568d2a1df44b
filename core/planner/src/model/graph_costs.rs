//! The sampled graphs of a job: the expected and the measured batch, and the loaded graph.

use feedline_data::manifest::DatasetSummary;
use feedline_data::messages::{GraphStats, saturating_sum};
use feedline_data::pipeline::{GraphBatchSize, Pipeline};
use serde::{Deserialize, Serialize};

use super::samples::JobWorkerSample;

#[cfg(test)]
mod tests;

/// Bytes per second at which a worker loads a graph at most. A measured time may be shorter, because the worker held the graph.
const MAX_LOAD_BYTES_PER_S: f64 = 1e9;

/// The sampled graphs of a job according to its pipeline and the index of its dataset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GraphExpectation {
    /// The expected size of a batch, which follows from the fanouts.
    pub batch: GraphBatchSize,
    /// The size of the graph and its features in the memory of a worker, in bytes.
    pub graph_bytes: u64,
}

/// The sampled graphs of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GraphModel {
    /// The expected size of a batch.
    pub expected: GraphBatchSize,
    /// Whether the expected size was computed from the edges of the graph. Otherwise it follows from the fanouts.
    pub is_modeled: bool,
    /// The mean of the batches so far. `None` before the first batch.
    pub measured: Option<MeasuredGraphBatch>,
    /// The size of the graph and its features in the memory of a worker, in bytes.
    pub graph_bytes: u64,
    /// The seconds that a worker needs to load the graph.
    pub load_s: f64,
}

/// The mean batch of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeasuredGraphBatch {
    /// The mean size, rounded down.
    pub size: GraphBatchSize,
    /// The seconds for drawing and reading edges.
    pub sample_s: f64,
    /// The seconds for the map from node ids to the ids in the batch.
    pub map_s: f64,
    /// The seconds for copying rows of features.
    pub gather_s: f64,
    /// The seconds for encoding the other columns.
    pub encode_s: f64,
    /// The seconds that the seeds of a batch wait until their neighbors are sampled.
    pub wait_s: f64,
}

impl GraphExpectation {
    /// Returns what is known when a job starts. `None` if its pipeline samples no graph.
    pub fn of(pipeline: &Pipeline, dataset: &DatasetSummary) -> Option<Self> {
        let plan = pipeline.graph_batches(dataset).ok().flatten()?;
        let graph = dataset.graph.as_deref()?;
        Some(Self {
            batch: plan.expected_size(pipeline.batch_size(), graph),
            graph_bytes: plan.loaded_bytes(graph),
        })
    }
}

impl GraphModel {
    /// Builds the model from what is known when the job starts, and from the counters of its workers since then.
    pub fn build(expectation: GraphExpectation, workers: &[JobWorkerSample]) -> Self {
        let GraphExpectation { batch, graph_bytes } = expectation;
        let stats = || workers.iter().filter_map(|worker| worker.graph.as_ref());
        let modeled = stats().find_map(|stats| stats.expected);
        let load_ns = stats().map(|stats| stats.load_ns).max().unwrap_or(0);
        Self {
            expected: modeled.unwrap_or(batch),
            is_modeled: modeled.is_some(),
            measured: MeasuredGraphBatch::of(workers),
            graph_bytes,
            load_s: (load_ns as f64 / 1e9).max(graph_bytes as f64 / MAX_LOAD_BYTES_PER_S),
        }
    }

    /// The rate above which a job ends before another worker has loaded the graph.
    pub fn useful_rows_per_s(&self, rows_left: f64) -> f64 {
        if self.load_s > 0.0 { rows_left / self.load_s } else { f64::INFINITY }
    }
}

impl MeasuredGraphBatch {
    /// Returns the mean over all workers, or `None` before the first batch.
    fn of(workers: &[JobWorkerSample]) -> Option<Self> {
        let graphs = || workers.iter().filter_map(|worker| worker.graph.as_ref());
        let sum = |field: fn(&GraphStats) -> u64| saturating_sum(graphs().map(field));
        let batches = sum(|stats| stats.batches);
        let mean = |field: fn(&GraphStats) -> u64| sum(field).checked_div(batches);
        let seconds = |ns: u64| ns as f64 / 1e9 / batches as f64;
        let wait_ns = |worker: &JobWorkerSample| worker.operators.last().map_or(0, |last| last.wait_input_ns);
        Some(Self {
            size: GraphBatchSize {
                seeds: mean(|stats| stats.seeds)?,
                nodes: mean(|stats| stats.nodes)?,
                edges: mean(|stats| stats.edges)?,
                bytes: mean(|stats| stats.bytes)?,
            },
            sample_s: seconds(sum(|stats| stats.sample_ns)),
            map_s: seconds(sum(|stats| stats.map_ns)),
            gather_s: seconds(sum(|stats| stats.gather_ns)),
            encode_s: seconds(sum(|stats| stats.encode_ns)),
            wait_s: seconds(saturating_sum(workers.iter().map(wait_ns))),
        })
    }
}
