//! The edges from which the neighbors of a node are picked, and their weights.

use std::ops::Range;

/// The edges of a node from which neighbors are picked.
#[derive(Debug, Clone)]
pub(in crate::graph) struct Population<'a> {
    /// The positions of the edges; at most [`u32::MAX`].
    pub(in crate::graph) edges: Range<u64>,
    /// The positions in `edges` that are never picked, in ascending order.
    pub(in crate::graph) excluded: &'a [u64],
    /// `None` if all edges have the same probability. Edges of weight 0 are never picked.
    pub(in crate::graph) weights: Option<RowWeights<'a>>,
}

impl Population<'_> {
    /// The number of edges that are not excluded.
    pub(super) fn size(&self) -> u32 {
        (self.edges.end - self.edges.start) as u32 - self.excluded.len() as u32
    }
}

/// Which neighbors are picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::graph) enum PickRule {
    /// Random neighbors, each at most once.
    Distinct,
    /// Random neighbors, with replacement.
    Repeated,
    /// The neighbors with the highest positions.
    Last,
}

/// The weights of the edges of a node.
#[derive(Debug, Clone, Copy)]
pub(in crate::graph) struct RowWeights<'a> {
    /// The sums of the weights of the edges of a target, up to and including each edge of the relation.
    pub(in crate::graph) sums: &'a [u32],
    /// The position of the first edge of the node.
    pub(in crate::graph) row_start: u64,
}

impl RowWeights<'_> {
    /// The sum of the weights of the edges before a position.
    pub(super) fn sum_before(&self, position: u64) -> u32 {
        if position <= self.row_start { 0 } else { self.sums[position as usize - 1] }
    }

    /// The weight of an edge.
    pub(super) fn weight(&self, position: u64) -> u32 {
        self.interval(position).width()
    }

    pub(super) fn interval(&self, position: u64) -> MassInterval {
        MassInterval { start: self.sum_before(position), end: self.sums[position as usize] }
    }
}

/// The interval of the sums that belongs to one edge.
#[derive(Debug, Clone, Copy)]
pub(super) struct MassInterval {
    pub(super) start: u32,
    end: u32,
}

impl MassInterval {
    /// 0 if the sums are invalid.
    pub(super) fn width(self) -> u32 {
        self.end.saturating_sub(self.start)
    }
}
