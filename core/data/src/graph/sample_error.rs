//! Errors of a sampler.

use thiserror::Error;

/// The graph or the seeds are invalid, or the sample is too large. The sampled graph is then incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SampleError {
    /// The settings are for another graph.
    #[error("the graph has {found} relations, but the fanouts are for {expected} relations")]
    RelationCount {
        /// The number of relations of the graph.
        found: usize,
        /// The number of relations of the settings.
        expected: usize,
    },
    /// The arrays of a relation do not have matching lengths, or its node types do not exist.
    #[error(
        "the arrays of relation {relation} do not match the numbers of nodes and edges; check the graph with `feedline graph check`"
    )]
    RelationLengths {
        /// The index of the relation.
        relation: usize,
    },
    /// A node has invalid offsets.
    #[error(
        "the offsets of node {node} in relation {relation} are invalid; check the graph with `feedline graph check`"
    )]
    NodeOffsets {
        /// The index of the relation.
        relation: u16,
        /// The id of the node.
        node: u32,
    },
    /// An edge has a source that does not exist.
    #[error(
        "relation {relation} contains the source {node}, but there are {count} nodes of this type; check the graph with `feedline graph check`"
    )]
    EdgeSource {
        /// The index of the relation.
        relation: u16,
        /// The id of the source.
        node: u32,
        /// The number of nodes of its type.
        count: u32,
    },
    /// A seed is not a node of the graph.
    #[error(
        "the seed {node} is outside of the {count} nodes of node type {node_type}; use a seed set of this graph"
    )]
    SeedNode {
        /// The id of the seed.
        node: u32,
        /// The type of the seed.
        node_type: u16,
        /// The number of nodes of this type.
        count: u32,
    },
    /// A seed belongs to a row that does not exist.
    #[error("the seed {node} belongs to row {row}, but the batch has {rows} rows")]
    SeedRow {
        /// The id of the seed.
        node: u32,
        /// The index of the row.
        row: u32,
        /// The number of rows.
        rows: usize,
    },
    /// The seeds of a row are not the source and the target of a link.
    #[error("the seeds of row {row} are not the source and the target of a link")]
    LinkSeeds {
        /// The index of the row.
        row: u32,
    },
    /// A relation cannot contain the reverse edges of another relation.
    #[error("relation {reverse} does not lead from the targets to the sources of relation {relation}")]
    ReverseRelation {
        /// The index of the relation.
        relation: u16,
        /// The index of the other relation.
        reverse: u16,
    },
    /// Negatives are drawn by degree, but all degrees are 0.
    #[error("relation {relation} has no edges, so negatives cannot be drawn by degree; draw them uniformly")]
    NoDegrees {
        /// The index of the relation.
        relation: u16,
    },
    /// A source has an edge to all targets.
    #[error(
        "the source {source_node} has an edge to every target of relation {relation}, so it has no strict negative; set `strict: false`"
    )]
    NoNegative {
        /// The index of the relation.
        relation: u16,
        /// The id of the source.
        source_node: u32,
    },
    /// The sample has too many edges.
    #[error(
        "a batch would have more than {limit} edges of relation {relation}; use smaller fanouts or a smaller batch"
    )]
    EdgeLimit {
        /// The index of the relation.
        relation: u16,
        /// The maximum number of edges.
        limit: u32,
    },
    /// The sample has too many nodes.
    #[error(
        "a batch would have more than {limit} nodes of node type {node_type}; use smaller fanouts or a smaller batch"
    )]
    NodeLimit {
        /// The node type.
        node_type: u16,
        /// The maximum number of nodes.
        limit: u32,
    },
}
