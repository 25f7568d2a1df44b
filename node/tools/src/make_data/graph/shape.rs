//! The interface of the structures of graphs.
//!
//! A structure numbers the nodes by rank, such as the nodes of a community one after another. The ids of the nodes are a random
//! permutation of the ranks, so that ids reveal neither degrees nor communities.

use feedline_data::random::RowRandom;

/// The structure of a graph: the distribution of the edges, and the labels.
pub(super) trait GraphShape: Send + Sync {
    /// Draws the ranks of the source and the target of an edge. They differ if there are two nodes.
    fn draw(&self, random: &mut RowRandom) -> [u64; 2];

    /// Returns the label of a node.
    fn label(&self, rank: u64) -> u64;

    /// Returns the number of nodes that can be seeds. They have the lowest ranks.
    fn seed_candidates(&self) -> u64;
}

/// Number of labels of a graph without communities.
const LABELS: u64 = 16;

/// The label of a node that does not depend on its edges.
pub(super) fn independent_label(rank: u64) -> u64 {
    feedline_data::random::mix64(rank) % LABELS
}

/// Returns another source if an edge would be a loop.
pub(super) fn without_loop([source, target]: [u64; 2], nodes: u64) -> [u64; 2] {
    if source == target { [(source + 1) % nodes, target] } else { [source, target] }
}
