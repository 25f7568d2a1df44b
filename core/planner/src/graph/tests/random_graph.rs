//! Small generated graphs: uniform, R-MAT and communities.

use std::collections::BTreeSet;

use feedline_data::graph::{GraphView, RelationView};
use feedline_data::random::RowRandom;

use super::super::topology::ModeledGraph;

/// A graph with one node type and one relation.
pub(super) struct RandomGraph {
    pub(super) node_counts: [u32; 1],
    pub(super) offsets: Vec<u64>,
    pub(super) sources: Vec<u32>,
    pub(super) weights: Option<Vec<u32>>,
    pub(super) reverse: [Option<u16>; 1],
}

impl RandomGraph {
    /// Sorts the edges, which are pairs of source and target.
    pub(super) fn new(nodes: u32, mut edges: Vec<(u32, u32)>) -> Self {
        edges.sort_unstable_by_key(|(source, target)| (*target, *source));
        let mut offsets = vec![0; nodes as usize + 1];
        edges.iter().for_each(|(_, target)| offsets[*target as usize + 1] += 1);
        let mut end = 0;
        for offset in &mut offsets {
            end += *offset;
            *offset = end;
        }
        let sources = edges.into_iter().map(|(source, _)| source).collect();
        Self { node_counts: [nodes], offsets, sources, weights: None, reverse: [None] }
    }

    pub(super) fn uniform(nodes: u32, edges: u32) -> Self {
        let mut random = RowRandom::new(1, 0, 0, 0);
        Self::new(nodes, (0..edges).map(|_| (random.below(nodes), random.below(nodes))).collect())
    }

    /// R-MAT with the parameters of Graph500.
    pub(super) fn rmat(scale: u32, edges: u32) -> Self {
        let mut random = RowRandom::new(2, 0, 0, 0);
        let mut edge = || {
            let (mut source, mut target) = (0, 0);
            for _ in 0..scale {
                let quadrant = match random.below(100) {
                    0..57 => (0, 0),
                    57..76 => (0, 1),
                    76..95 => (1, 0),
                    _ => (1, 1),
                };
                (source, target) = (2 * source + quadrant.0, 2 * target + quadrant.1);
            }
            (source, target)
        };
        Self::new(1 << scale, (0..edges).map(|_| edge()).collect())
    }

    /// Communities of 256 nodes with power-law degrees of exponent 2.2. Nine of ten edges are inside a community.
    pub(super) fn communities(communities: u32, edges: u32) -> Self {
        const SIZE: u32 = 256;
        let mut random = RowRandom::new(3, 0, 0, 0);
        let mut edge = || {
            // The distribution of the ranks is the integral of rank^(-1 / 1.2).
            let mut rank = || {
                let scale = f64::from(SIZE + 1).powf(1.0 / 6.0) - 1.0;
                (((random.next_f64() * scale + 1.0).powi(6) - 1.0) as u32).min(SIZE - 1)
            };
            let (source, target) = (rank(), rank());
            let community = random.below(communities);
            let other = match random.below(10) {
                0 => (community + 1 + random.below(communities - 1)) % communities,
                _ => community,
            };
            (other * SIZE + source, community * SIZE + target)
        };
        Self::new(communities * SIZE, (0..edges).map(|_| edge()).collect())
    }

    /// Adds the reverse edges, and removes parallel edges and loops.
    pub(super) fn undirected(self) -> Self {
        let mut edges = BTreeSet::new();
        for target in 0..self.node_counts[0] {
            let row = self.offsets[target as usize] as usize..self.offsets[target as usize + 1] as usize;
            for source in self.sources[row].iter().filter(|source| **source != target) {
                edges.extend([(*source, target), (target, *source)]);
            }
        }
        Self { reverse: [Some(0)], ..Self::new(self.node_counts[0], edges.into_iter().collect()) }
    }

    /// Adds weights from 1 to 8.
    pub(super) fn with_weights(mut self) -> Self {
        let mut random = RowRandom::new(4, 0, 0, 0);
        let mut sums = Vec::new();
        for target in 0..self.node_counts[0] as usize {
            let mut sum = 0;
            for _ in self.offsets[target]..self.offsets[target + 1] {
                sum += 1 + random.below(8);
                sums.push(sum);
            }
        }
        self.weights = Some(sums);
        self
    }

    pub(super) fn edges(&self) -> RelationView<'_> {
        RelationView {
            source_type: 0,
            target_type: 0,
            offsets: &self.offsets,
            sources: &self.sources,
            weights: self.weights.as_deref(),
            times: None,
        }
    }

    /// Combines the relations with the node counts.
    pub(super) fn view<'a>(&'a self, relations: &'a [RelationView<'a>]) -> GraphView<'a> {
        GraphView { node_counts: &self.node_counts, relations }
    }

    /// Combines the relations with the node counts and the reverse edges.
    pub(super) fn modeled<'a>(&'a self, relations: &'a [RelationView<'a>]) -> ModeledGraph<'a> {
        ModeledGraph { view: self.view(relations), reverse: &self.reverse }
    }
}
