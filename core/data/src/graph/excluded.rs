//! The edges that the sample of a batch must not contain, and their positions among the edges of a target.

use std::ops::Range;

use super::seeds::SeedEdge;
use super::topology::RelationView;

/// Bits of the filter for each edge. About one of 16 other targets passes the filter.
const FILTER_BITS_PER_EDGE: usize = 16;

/// The excluded edges of one batch.
#[derive(Debug, Default)]
pub(super) struct ExcludedEdges {
    /// Sorted by target, then by source. The row is 0 if the edges are excluded for all rows.
    entries: Vec<ExcludedEdge>,
    /// A filter of the target nodes, because most targets have no excluded edge. Its number of bits is a power of two.
    filter: Vec<u64>,
    /// The result of the last search.
    positions: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ExcludedEdge {
    target: ExcludedTarget,
    source: u32,
}

/// A target node of excluded edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ExcludedTarget {
    /// The row of the tree; 0 if trees are not disjoint.
    pub(super) row: u32,
    pub(super) relation: u16,
    pub(super) node: u32,
}

impl ExcludedEdges {
    /// Replaces the edges. If trees are not `disjoint`, the edges are excluded for all rows.
    pub(super) fn set(&mut self, edges: &[SeedEdge], disjoint: bool) {
        self.entries.clear();
        self.entries.extend(edges.iter().map(|edge| {
            let row = if disjoint { edge.row } else { 0 };
            let target = ExcludedTarget { row, relation: edge.relation, node: edge.target };
            ExcludedEdge { target, source: edge.source }
        }));
        self.entries.sort_unstable();
        self.entries.dedup();
        let words = (self.entries.len() * FILTER_BITS_PER_EDGE).div_ceil(64).next_power_of_two();
        self.filter.clear();
        self.filter.resize(words, 0);
        for entry in &self.entries {
            let (word, bit) = filter_bit(words, entry.target.node);
            self.filter[word] |= bit;
        }
    }

    /// Returns the positions of the excluded edges of a target within `edges`, in ascending order.
    pub(super) fn positions(
        &mut self,
        view: &RelationView<'_>,
        target: ExcludedTarget,
        edges: &Range<u64>,
    ) -> &[u64] {
        self.positions.clear();
        if self.entries.is_empty() {
            return &self.positions;
        }
        let (word, bit) = filter_bit(self.filter.len(), target.node);
        if self.filter[word] & bit == 0 {
            return &self.positions;
        }
        let start = self.entries.partition_point(|entry| entry.target < target);
        let count = self.entries[start..].partition_point(|entry| entry.target == target);
        let excluded = &self.entries[start..start + count];
        let sources = &view.sources[edges.start as usize..edges.end as usize];
        if view.times.is_none() {
            for entry in excluded {
                let first = sources.partition_point(|source| *source < entry.source);
                let parallel = sources[first..].iter().take_while(|source| **source == entry.source).count();
                let first = edges.start + first as u64;
                self.positions.extend(first..first + parallel as u64);
            }
        } else if !excluded.is_empty() {
            let is_excluded =
                |source: u32| excluded.binary_search_by_key(&source, |entry| entry.source).is_ok();
            let found = (edges.start..).zip(sources).filter(|(_, source)| is_excluded(**source));
            self.positions.extend(found.map(|(position, _)| position));
        }
        &self.positions
    }
}

/// Returns the word and the bit of a node in a filter. The number of words is a power of two.
fn filter_bit(words: usize, node: u32) -> (usize, u64) {
    let hash = u64::from(node).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((hash >> 32) as usize & (words - 1), 1 << (hash >> 58))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELATION: RelationView<'static> = RelationView {
        source_type: 0,
        target_type: 0,
        offsets: &[0, 0, 6],
        sources: &[0, 1, 1, 1, 4, 7],
        weights: None,
        times: None,
    };

    fn edge(row: u32, source: u32, target: u32) -> SeedEdge {
        SeedEdge { relation: 3, row, source, target }
    }

    #[test]
    fn parallel_edges_are_excluded_together() {
        let mut excluded = ExcludedEdges::default();
        excluded.set(&[edge(5, 7, 1), edge(6, 1, 1), edge(7, 1, 1), edge(8, 5, 1)], false);
        let target = ExcludedTarget { row: 0, relation: 3, node: 1 };
        assert_eq!(excluded.positions(&RELATION, target, &(0..6)), [1, 2, 3, 5]);
        assert_eq!(excluded.positions(&RELATION, target, &(2..5)), [2, 3]);
        let other_relation = ExcludedTarget { relation: 2, ..target };
        assert_eq!(excluded.positions(&RELATION, other_relation, &(0..6)), [0_u64; 0]);
        let other_node = ExcludedTarget { node: 0, ..target };
        assert_eq!(excluded.positions(&RELATION, other_node, &(0..0)), [0_u64; 0]);
        let by_time =
            RelationView { sources: &[1, 7, 0, 4, 1, 1], times: Some(&[0, 1, 2, 3, 4, 4]), ..RELATION };
        assert_eq!(excluded.positions(&by_time, target, &(0..6)), [0, 1, 4, 5]);
        assert_eq!(excluded.positions(&by_time, target, &(1..5)), [1, 4]);
    }

    #[test]
    fn disjoint_trees_exclude_only_the_edges_of_their_row() {
        let mut excluded = ExcludedEdges::default();
        excluded.set(&[edge(5, 7, 1), edge(6, 1, 1)], true);
        let target = |row: u32| ExcludedTarget { row, relation: 3, node: 1 };
        assert_eq!(excluded.positions(&RELATION, target(5), &(0..6)), [5]);
        assert_eq!(excluded.positions(&RELATION, target(6), &(0..6)), [1, 2, 3]);
        assert_eq!(excluded.positions(&RELATION, target(7), &(0..6)), [0_u64; 0]);
        excluded.set(&[], true);
        assert_eq!(excluded.positions(&RELATION, target(5), &(0..6)), [0_u64; 0]);
    }
}
