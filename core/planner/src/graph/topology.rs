//! The graph of a model: its topology, and which relations contain the reverse of other edges.

use std::ops::Range;

use feedline_data::graph::{GraphView, RelationView};

/// Maximum number of edges whose reverse edges are searched.
const COMPARED_EDGES: usize = 1_024;
/// The share of these edges that must have a reverse edge.
const MIN_REVERSE_SHARE: f64 = 0.9;

/// A graph that is modeled. The model ignores edges whose source does not exist.
#[derive(Debug, Clone, Copy)]
pub struct ModeledGraph<'a> {
    /// The topology.
    pub view: GraphView<'a>,
    /// For each relation, the relation that contains its edges in the opposite direction, such as the relation itself in an
    /// undirected graph. See [`reverse_relations`].
    pub reverse: &'a [Option<u16>],
}

impl<'a> ModeledGraph<'a> {
    /// Checks the lengths of the slices and all offsets.
    ///
    /// # Errors
    /// Returns a message that names the invalid relation.
    pub fn check(&self) -> Result<(), String> {
        let GraphView { node_counts, relations } = self.view;
        ensure!(!node_counts.is_empty(), "the graph has no node types");
        ensure!(
            self.reverse.len() == relations.len(),
            "{} reverse relations do not match {} relations",
            self.reverse.len(),
            relations.len()
        );
        check_offsets(&self.view)?;
        for (relation, edges) in relations.iter().enumerate() {
            let reverse = self.reverse[relation].map(|reverse| relations.get(usize::from(reverse)));
            ensure!(
                reverse
                    .is_none_or(|reverse| reverse.is_some_and(|reverse| has_opposite_types(edges, reverse))),
                "relation {relation}: the relation with the reverse edges does not connect the same types"
            );
        }
        Ok(())
    }

    /// The relations.
    pub(super) fn relations(&self) -> &'a [RelationView<'a>] {
        self.view.relations
    }
}

/// Returns for each relation the relation that contains its edges in the opposite direction. Compares a fixed number of edges.
///
/// # Errors
/// Returns a message that names the relation whose offsets are invalid.
pub fn reverse_relations(graph: &GraphView<'_>) -> Result<Vec<Option<u16>>, String> {
    check_offsets(graph)?;
    Ok(graph.relations.iter().map(|edges| find_reverse(edges, graph.relations)).collect())
}

fn check_offsets(graph: &GraphView<'_>) -> Result<(), String> {
    for (relation, edges) in graph.relations.iter().enumerate() {
        edges.check_offsets(graph.node_counts).map_err(|reason| format!("relation {relation}: {reason}"))?;
    }
    Ok(())
}

fn find_reverse(edges: &RelationView<'_>, relations: &[RelationView<'_>]) -> Option<u16> {
    if edges.sources.is_empty() {
        return None;
    }
    let step = edges.sources.len().div_ceil(COMPARED_EDGES);
    let compared = || (0..edges.sources.len()).step_by(step);
    let is_reverse = |reverse: &RelationView<'_>| {
        let found = compared().filter(|position| {
            let target = edges.offsets.partition_point(|offset| *offset <= *position as u64) - 1;
            contains(reverse, target as u32, edges.sources[*position])
        });
        has_opposite_types(edges, reverse)
            && found.count() as f64 >= MIN_REVERSE_SHARE * compared().count() as f64
    };
    relations.iter().position(is_reverse).and_then(|relation| u16::try_from(relation).ok())
}

/// Returns the range of the edges of a target. The offsets are valid.
#[inline]
pub(super) fn row_of(edges: &RelationView<'_>, target: usize) -> Range<usize> {
    edges.offsets[target] as usize..edges.offsets[target + 1] as usize
}

/// Returns the part of a row whose sources are in a range. A row in the order of times is returned as a whole.
#[inline]
pub(super) fn narrow(edges: &RelationView<'_>, row: Range<usize>, sources: &Range<u32>) -> Range<usize> {
    if !is_sorted(edges) {
        return row;
    }
    let slice = &edges.sources[row.clone()];
    let start = slice.partition_point(|source| *source < sources.start);
    let length = slice[start..].partition_point(|source| *source < sources.end);
    row.start + start..row.start + start + length
}

/// Whether the sources of each target ascend. The edges of a relation with times are in the order of the times.
fn is_sorted(edges: &RelationView<'_>) -> bool {
    edges.times.is_none()
}

fn has_opposite_types(edges: &RelationView<'_>, other: &RelationView<'_>) -> bool {
    edges.source_type == other.target_type && edges.target_type == other.source_type
}

/// Whether there is an edge. Nodes that do not exist have no edges.
fn contains(edges: &RelationView<'_>, source: u32, target: u32) -> bool {
    if target as usize >= edges.offsets.len() - 1 {
        return false;
    }
    let sources = &edges.sources[row_of(edges, target as usize)];
    if is_sorted(edges) { sources.binary_search(&source).is_ok() } else { sources.contains(&source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: RelationView<'static> = RelationView {
        source_type: 0,
        target_type: 1,
        offsets: &[0, 2, 2, 5],
        sources: &[1, 3, 0, 0, 2],
        weights: None,
        times: None,
    };

    fn check(edges: RelationView<'_>, reverse: &[Option<u16>]) -> Result<(), String> {
        let view = GraphView { node_counts: &[4, 3], relations: &[edges] };
        ModeledGraph { view, reverse }.check()
    }

    #[test]
    fn the_invalid_relation_is_named() {
        assert_eq!(check(VALID, &[None]), Ok(()));
        let invalid = RelationView { offsets: &[0, 2, 2, 6], ..VALID };
        assert_eq!(
            check(invalid, &[None]),
            Err("relation 0: invalid offsets: they range from 0 to 6, but the relation has 5 edges"
                .to_owned())
        );
        for reverse in [0, 1] {
            let message = "relation 0: the relation with the reverse edges does not connect the same types";
            assert_eq!(check(VALID, &[Some(reverse)]), Err(message.to_owned()));
        }
        assert_eq!(check(VALID, &[]), Err("0 reverse relations do not match 1 relations".to_owned()));
        let view = GraphView { node_counts: &[], relations: &[] };
        assert_eq!(
            ModeledGraph { view, reverse: &[] }.check(),
            Err("the graph has no node types".to_owned())
        );
    }

    #[test]
    fn a_row_is_narrowed_to_a_range_of_sources() {
        let row = row_of(&VALID, 2);
        assert_eq!(narrow(&VALID, row.clone(), &(0..1)), 2..4);
        assert_eq!(narrow(&VALID, row.clone(), &(1..4)), 4..5);
        assert_eq!(narrow(&VALID, row.clone(), &(3..4)), 5..5);
        let with_times = RelationView { times: Some(&[0; 5]), ..VALID };
        assert_eq!(narrow(&with_times, row.clone(), &(3..4)), row);
    }

    #[test]
    fn reverse_edges_are_found() {
        let relation = |source_type, target_type, offsets: &'static [u64], sources: &'static [u32]| {
            RelationView { source_type, target_type, offsets, sources, ..VALID }
        };
        let relations = [
            VALID,
            // The edges of `VALID`, and one more.
            relation(1, 0, &[0, 2, 3, 5, 6], &[0, 2, 0, 1, 2, 0]),
            relation(0, 0, &[0, 2, 3, 4, 4], &[1, 2, 0, 0]),
            relation(0, 0, &[0, 1, 1, 1, 1], &[1]),
            relation(0, 0, &[0, 0, 0, 0, 0], &[]),
        ];
        let view = GraphView { node_counts: &[4, 3], relations: &relations };
        let reverse = reverse_relations(&view).unwrap();
        let expected = [Some(1), None, Some(2), Some(2), None];
        assert_eq!(reverse, expected, "the edges of relation 3 are in relation 2");
        assert_eq!(ModeledGraph { view, reverse: &reverse }.check(), Ok(()));
    }
}
