//! The interface to the model of batches that orders nodes. The model is not part of this crate.

use feedline_data::graph::GraphView;
use feedline_data::graph::description::ExpectedHitRate;

/// Computes the order of nodes by the probability that a batch contains them.
pub trait NodeRanking: Send + Sync {
    /// Returns the order of the nodes of each type. `threads` is the number of threads that may run.
    ///
    /// # Errors
    /// Returns a message if the graph or the batches are invalid.
    fn rank(
        &self,
        graph: &GraphView<'_>,
        batches: &RankedBatches<'_>,
        threads: usize,
    ) -> Result<Vec<NodeRank>, String>;
}

/// The batches whose nodes are ranked.
#[derive(Debug, Clone, Copy)]
pub struct RankedBatches<'a> {
    /// The number of rows of the seed set.
    pub seed_rows: u64,
    /// The nodes of each column of the seed set, with their type.
    pub columns: &'a [SeedNodeColumn],
    /// The number of rows in a batch.
    pub batch_rows: u32,
    /// The number of neighbors by hop; -1 for all.
    pub fanouts: &'a [i32],
}

/// A column of a seed set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedNodeColumn {
    /// The type of the nodes.
    pub node_type: u16,
    /// The node of each row.
    pub nodes: Vec<u32>,
}

/// The order of the nodes of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRank {
    /// All nodes, from the most to the least probable. Equal nodes are in ascending order.
    pub nodes: Vec<u32>,
    /// The expected hit rate of a cache of the first nodes.
    pub curve: Vec<ExpectedHitRate>,
}
