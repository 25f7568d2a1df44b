//! The nodes of a type while a graph is built: their number, and the order in which they are stored.

use crate::error::GraphError;

/// The nodes of a type.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeTable {
    /// The name of the type.
    pub(super) name: String,
    /// The number of nodes.
    pub(super) count: u32,
    /// The order of the nodes; `None` for the user's order.
    pub(super) order: Option<NodePermutation>,
}

/// The order in which nodes are stored.
#[derive(Debug, Clone, Default)]
pub(super) struct NodePermutation {
    /// The position of each stored node in the user's order.
    pub(super) positions: Vec<u32>,
    /// The stored id of each node in the user's order.
    pub(super) ids: Vec<u32>,
}

impl NodePermutation {
    /// Creates the order with these positions, each of which occurs once.
    pub(super) fn new(positions: Vec<u32>) -> Self {
        let mut ids = vec![0; positions.len()];
        for (id, &position) in (0_u32..).zip(&positions) {
            ids[position as usize] = id;
        }
        Self { positions, ids }
    }
}

/// A position beyond the nodes of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnknownNode {
    position: u64,
    count: u32,
}

impl NodeTable {
    /// Returns the stored id of the node at a position in the user's order.
    pub(super) fn id(&self, position: u64) -> Result<u32, UnknownNode> {
        if position >= u64::from(self.count) {
            return Err(UnknownNode { position, count: self.count });
        }
        // The count has 32 bits.
        let position = position as u32;
        Ok(self.order.as_ref().map_or(position, |order| order.ids[position as usize]))
    }
}

impl std::fmt::Display for UnknownNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Negative numbers of the input have the high bit.
        let position = self.position as i64;
        write!(
            f,
            "the node {position} does not exist: there are {} nodes, which are counted from 0",
            self.count
        )
    }
}

/// Checks a number of nodes.
pub(super) fn checked_count(name: &str, count: u64) -> Result<u32, GraphError> {
    /// Largest number of nodes of a type.
    const MAX_NODES: u32 = u32::MAX;
    u32::try_from(count).map_err(|_| {
        GraphError::Setting(format!(
            "the node type `{name}` has {count} nodes; the limit is {MAX_NODES}: divide it into several types"
        ))
    })
}
