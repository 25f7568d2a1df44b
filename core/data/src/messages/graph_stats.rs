//! Statistics of the sampled graphs of a job on one worker.

use crate::pipeline::GraphBatchSize;

/// Statistics of the sampled graphs of a job on one worker. Totals and times only increase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GraphStats {
    /// The size of the loaded graph in bytes: its topology, and the features in batches.
    pub graph_bytes: u64,
    /// Time in nanoseconds until the graph was loaded. Short if the worker already held the graph.
    pub load_ns: u64,
    /// The expected size of a batch according to the model of the loaded graph. `None` if it is not computed.
    pub expected: Option<GraphBatchSize>,
    /// The number of batches.
    pub batches: u64,
    /// The seeds of all batches.
    pub seeds: u64,
    /// The nodes of all batches, with the seeds.
    pub nodes: u64,
    /// The edges of all batches.
    pub edges: u64,
    /// The size of all batches in bytes.
    pub bytes: u64,
    /// Time in nanoseconds that drawing and reading edges took.
    pub sample_ns: u64,
    /// Time in nanoseconds that the map from node ids to the ids in a batch took.
    pub map_ns: u64,
    /// Time in nanoseconds that copying the rows of features took.
    pub gather_ns: u64,
    /// Time in nanoseconds that encoding the other columns took.
    pub encode_ns: u64,
}
