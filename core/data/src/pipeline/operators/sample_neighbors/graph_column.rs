//! A column of a batch. Each column is a list, and a batch has one row.

use crate::schema::{ColumnType, ScalarType};

/// A column of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphColumn {
    /// The name. It begins with the node type or relation if the graph has several.
    pub name: String,
    /// The type of the column, which is a list.
    pub column_type: ColumnType,
    /// The content.
    pub content: GraphColumnContent,
}

/// The content of a column. Node types, relations and features are indexes in the summary of the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphColumnContent {
    /// The position of each node in the user's order.
    NodeIds {
        /// The node type.
        node_type: usize,
    },
    /// The row of each node's tree.
    NodeTrees {
        /// The node type.
        node_type: usize,
    },
    /// The number of seeds, and then the number of nodes that each hop added.
    NodeCounts {
        /// The node type.
        node_type: usize,
    },
    /// A feature of each node.
    NodeFeature {
        /// The node type.
        node_type: usize,
        /// The index among the features of the node type.
        feature: usize,
    },
    /// 0, and then the index after the last edge of each target, hop by hop. In bidirectional graphs, all nodes are targets.
    EdgeOffsets {
        /// The relation.
        relation: usize,
    },
    /// The index of the source of each edge among the nodes of its type.
    EdgeSources {
        /// The relation.
        relation: usize,
    },
    /// The position of each edge in the user's edge list.
    EdgeIds {
        /// The relation.
        relation: usize,
    },
    /// The number of edges of each hop.
    EdgeCounts {
        /// The relation.
        relation: usize,
    },
    /// A feature of each edge.
    EdgeFeature {
        /// The relation.
        relation: usize,
        /// The index among the features of the relation.
        feature: usize,
    },
    /// The indexes of the sources of all links and negatives among the nodes of their type, and then those of the targets.
    LinkNodes,
    /// The labels of all links, and then those of the negatives, which are 0.
    LinkLabels,
    /// The index of the source of each link among the nodes of its type.
    LinkSources,
    /// The index of the target of each link among the nodes of its type.
    LinkTargets,
    /// The indexes of the targets of each link's negatives among the nodes of their type.
    LinkNegatives,
    /// The values of a column of the rows, one per seed.
    RowColumn,
}

/// Lists of numbers.
pub(super) fn numbers(scalar: ScalarType) -> ColumnType {
    ColumnType::List(Box::new(ColumnType::Scalar(scalar)))
}
