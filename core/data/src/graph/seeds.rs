//! The seeds of a batch: the nodes whose neighbors are sampled, and the edges that the sample must not contain.

/// A row of the seed set: a node, or the nodes of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SeedRow {
    /// The epoch, from 0.
    pub epoch: u32,
    /// The offset of the row in the row sequence of the epoch.
    pub position: u64,
    /// The time of the row. Temporal sampling ignores later edges.
    pub time: i64,
}

/// A node of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seed {
    /// The type of the node.
    pub node_type: u16,
    /// The number of the node in its row. The nodes of a row have different numbers.
    pub slot: u16,
    /// The index of the row in the batch.
    pub row: u32,
    /// The id of the node.
    pub node: u32,
}

/// An edge that the sample must not contain, such as the edge that a model is trained to predict. All parallel edges are
/// excluded with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SeedEdge {
    /// The index of the relation. For the reverse of a seed edge, the index of the reverse relation.
    pub relation: u16,
    /// The index of the row in the batch. With disjoint trees, only the trees of this row exclude the edge.
    pub row: u32,
    /// The id of the source node.
    pub source: u32,
    /// The id of the target node.
    pub target: u32,
}

/// The seeds of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchSeeds<'a> {
    /// The rows, in the order of their positions.
    pub rows: &'a [SeedRow],
    /// The nodes. They are the first nodes of the sampled graph, in this order.
    pub seeds: &'a [Seed],
    /// Edges that the sample must not contain.
    pub excluded: &'a [SeedEdge],
}
