//! The result of a sampler: the nodes and edges of one batch, with local ids.

use std::ops::Range;

/// Maximum number of nodes of a type in a batch. Local ids have 31 bits.
pub(super) const MAX_NODES: u32 = i32::MAX as u32;

/// The sampled graph of a batch. A sampler reuses its memory for the next batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SampledGraph {
    /// The nodes of each type. The local id of a node is its index among the nodes of its type.
    pub nodes: Vec<SampledNodes>,
    /// The edges of each relation.
    pub edges: Vec<SampledEdges>,
    /// The local id of each seed. The negatives of a link follow its source and its target.
    pub seed_locals: Vec<u32>,
}

/// The nodes of one type: the seeds, and then the others in the order in which they first appear.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SampledNodes {
    /// The ids of the nodes in the graph.
    pub ids: Vec<u32>,
    /// With disjoint trees, the tree of each node: the index of a seed. Otherwise empty.
    pub trees: Vec<u32>,
    /// The number of seeds, and then the number of nodes that each hop added.
    pub hop_counts: Vec<u32>,
}

/// The edges of one relation: hop by hop, and in each hop target by target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SampledEdges {
    /// The local id of the source of each edge.
    pub sources: Vec<u32>,
    /// The index after the last edge of each target, for the targets of all hops. With the layout `subgraph`, the targets have
    /// the local ids 0, 1, 2 and so on, so 0 and these numbers are the column offsets of a sparse matrix.
    pub ends: Vec<u32>,
    /// The position of each edge in the relation, if the settings request it. Otherwise empty.
    pub positions: Vec<u64>,
    /// The number of edges of each hop. A bidirectional graph has one entry, because its edges belong to no hop.
    pub hop_counts: Vec<u32>,
    /// The local ids of the targets of each hop.
    pub hop_targets: Vec<Range<u32>>,
}

/// The edges of one relation and hop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampledHop<'a> {
    /// The local ids of the targets.
    pub targets: Range<u32>,
    /// The index after the last edge of each target, counted over all hops.
    pub ends: &'a [u32],
    /// The indexes of the edges, counted over all hops.
    pub edges: Range<u32>,
    /// The local id of the source of each edge.
    pub sources: &'a [u32],
}

impl SampledGraph {
    /// The size of the memory that the graph keeps for the next batch.
    pub fn memory_bytes(&self) -> usize {
        let nodes = self.nodes.iter().map(|nodes| nodes.ids.capacity() + nodes.trees.capacity());
        let numbers = nodes.sum::<usize>() + self.seed_locals.capacity();
        let edges: usize = self.edges.iter().map(SampledEdges::memory_bytes).sum();
        numbers * size_of::<u32>() + edges
    }

    /// Removes all nodes and edges, but keeps the memory.
    pub(super) fn clear(&mut self, node_types: usize, relations: usize) {
        self.nodes.resize_with(node_types, SampledNodes::default);
        self.edges.resize_with(relations, SampledEdges::default);
        self.seed_locals.clear();
        for nodes in &mut self.nodes {
            nodes.ids.clear();
            nodes.trees.clear();
            nodes.hop_counts.clear();
        }
        for edges in &mut self.edges {
            edges.sources.clear();
            edges.ends.clear();
            edges.positions.clear();
            edges.hop_counts.clear();
            edges.hop_targets.clear();
        }
    }
}

impl SampledNodes {
    /// The row of the tree of each node, if trees are disjoint. All rows have this number of seeds, which is not 0.
    pub fn tree_rows(&self, seeds_per_row: u32) -> impl ExactSizeIterator<Item = u32> {
        self.trees.iter().map(move |tree| tree / seeds_per_row)
    }
}

impl SampledEdges {
    /// The size of the memory that the edges keep for the next batch.
    pub(super) fn memory_bytes(&self) -> usize {
        let numbers = self.sources.capacity() + self.ends.capacity();
        numbers * size_of::<u32>() + self.positions.capacity() * size_of::<u64>()
    }

    /// The edges of each hop.
    pub fn hops(&self) -> impl Iterator<Item = SampledHop<'_>> {
        let (mut first_target, mut first_edge) = (0_usize, 0_u32);
        self.hop_targets.iter().zip(&self.hop_counts).map(move |(targets, count)| {
            let ends = first_target..first_target + targets.len();
            let edges = first_edge..first_edge + *count;
            (first_target, first_edge) = (ends.end, edges.end);
            SampledHop {
                targets: targets.clone(),
                ends: &self.ends[ends],
                sources: &self.sources[edges.start as usize..edges.end as usize],
                edges,
            }
        })
    }
}

impl SampledHop<'_> {
    /// The index range of the edges of each target, counted over all hops, with the local id of the target.
    pub fn edges_by_target(&self) -> impl Iterator<Item = (u32, Range<u32>)> {
        let starts = std::iter::once(self.edges.start).chain(self.ends.iter().copied());
        let ranges = starts.zip(self.ends).map(|(start, end)| start..*end);
        self.targets.clone().zip(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trees_of_a_row_are_consecutive() {
        let nodes = SampledNodes { trees: vec![0, 1, 2, 3, 4, 8, 3], ..SampledNodes::default() };
        assert_eq!(nodes.tree_rows(3).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 2, 1]);
        assert_eq!(nodes.tree_rows(1).collect::<Vec<_>>(), nodes.trees);
    }

    #[test]
    fn hops_are_parts_of_the_edges() {
        let edges = SampledEdges {
            sources: vec![2, 3, 0, 4],
            ends: vec![1, 2, 2, 4],
            positions: Vec::new(),
            hop_counts: vec![2, 2],
            hop_targets: vec![0..2, 2..4],
        };
        let hops: Vec<SampledHop<'_>> = edges.hops().collect();
        let first = SampledHop { targets: 0..2, ends: &[1, 2], edges: 0..2, sources: &[2, 3] };
        let second = SampledHop { targets: 2..4, ends: &[2, 4], edges: 2..4, sources: &[0, 4] };
        assert_eq!(hops, [first, second]);
        let ranges: Vec<(u32, Range<u32>)> =
            hops.iter().flat_map(|hop| hop.edges_by_target().collect::<Vec<_>>()).collect();
        assert_eq!(ranges, [(0, 0..1), (1, 1..2), (2, 2..2), (3, 2..4)]);
    }
}
