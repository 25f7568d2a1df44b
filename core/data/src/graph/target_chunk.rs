//! Draws the neighbors of several nodes together.
//!
//! The work is divided into steps that each read one array: the offsets of all targets, then their draws, then the sources of
//! all drawn edges. The loads of a step do not depend on each other, so the processor waits for several of them at the same
//! time.

use std::ops::Range;

use super::draws::DrawStream;
use super::excluded::{ExcludedEdges, ExcludedTarget};
use super::pick::{NeighborPicker, PickRule, Population, RowWeights};
use super::sample_error::SampleError;
use super::sampled::SampledNodes;
use super::seeds::SeedEdge;
use super::settings::{Fanout, SamplingSettings, TemporalRule, TemporalStrategy};
use super::topology::RelationView;

/// Maximum number of targets of a chunk.
const CHUNK_TARGETS: usize = 64;
/// Number of drawn edges after which a chunk has no further targets.
const CHUNK_EDGES: usize = 2_048;

/// The draws, the row and the time of a tree. All seeds share one tree if trees are not disjoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct SampleTree {
    pub(super) key: [u32; 2],
    /// The row of the seed; 0 if trees are not disjoint.
    pub(super) row: u32,
    /// The time of the seed.
    pub(super) time: i64,
}

/// How the neighbors of one relation are drawn in one hop.
#[derive(Debug, Clone, Copy)]
pub(super) struct RelationRule<'a> {
    pub(super) view: RelationView<'a>,
    pub(super) relation: u16,
    pub(super) fanout: Fanout,
    pick: PickRule,
    /// `None` if the relation has no times.
    temporal: Option<TemporalRule>,
    /// `None` if the draws are uniform.
    weights: Option<&'a [u32]>,
    /// The hop in the counter of the draws.
    hop: u8,
    max_edges: u32,
}

impl<'a> RelationRule<'a> {
    pub(super) fn new(
        settings: &SamplingSettings,
        hop: usize,
        relation: usize,
        view: RelationView<'a>,
    ) -> Self {
        let temporal = settings.temporal.filter(|_| view.times.is_some());
        let pick = match temporal {
            Some(TemporalRule { strategy: TemporalStrategy::Last, .. }) => PickRule::Last,
            _ if settings.replace => PickRule::Repeated,
            _ => PickRule::Distinct,
        };
        Self {
            view,
            relation: relation as u16,
            fanout: settings.fanouts[hop][relation],
            pick,
            temporal,
            weights: view.weights.filter(|_| pick != PickRule::Last),
            hop: settings.resample.hop_in_counter(hop),
            max_edges: settings.max_edges,
        }
    }

    /// Returns the edges of a row that a seed of this time may use.
    #[inline]
    fn valid_edges(&self, row: &Range<u64>, time: i64) -> Range<u64> {
        let (Some(rule), Some(times)) = (self.temporal, self.view.times) else { return row.clone() };
        let times = &times[row.start as usize..row.end as usize];
        let end = times.partition_point(|edge| *edge <= time);
        let earliest = rule.window.and_then(|window| time.checked_sub_unsigned(window));
        let start = earliest.map_or(0, |earliest| times[..end].partition_point(|edge| *edge <= earliest));
        row.start + start as u64..row.start + end as u64
    }

    /// The largest number of edges that can be drawn from a number of edges.
    #[inline]
    fn max_drawn(&self, edges: &Range<u64>) -> u64 {
        let count = edges.end - edges.start;
        match self.fanout {
            Fanout::All => count,
            Fanout::Limit(limit) if self.pick == PickRule::Repeated => u64::from(limit),
            Fanout::Limit(limit) => count.min(u64::from(limit)),
        }
    }
}

/// The drawn edges of several targets. Its buffers are reused.
#[derive(Debug, Default)]
pub(super) struct TargetChunk {
    excluded: ExcludedEdges,
    picker: NeighborPicker,
    /// The edges of each target in the relation.
    rows: Vec<Range<u64>>,
    /// The number of drawn edges up to and including each target.
    ends: Vec<u32>,
    /// The position of each drawn edge.
    positions: Vec<u64>,
    /// The source of each drawn edge.
    sources: Vec<u32>,
    /// The tree of each drawn edge, if trees are disjoint.
    trees: Vec<u32>,
}

impl TargetChunk {
    /// Sets the edges that are not drawn.
    pub(super) fn set_excluded(&mut self, edges: &[SeedEdge], disjoint: bool) {
        self.excluded.set(edges, disjoint);
    }

    /// The size of the allocated memory of the drawn edges. A chunk has few targets, but a target may have many edges.
    pub(super) fn memory_bytes(&self) -> usize {
        let numbers = self.sources.capacity() + self.trees.capacity();
        self.positions.capacity() * size_of::<u64>() + numbers * size_of::<u32>()
    }

    /// The number of drawn edges up to and including each target.
    pub(super) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The position of each drawn edge.
    pub(super) fn positions(&self) -> &[u64] {
        &self.positions
    }

    /// The source of each drawn edge.
    pub(super) fn sources(&self) -> &[u32] {
        &self.sources
    }

    /// The tree of each drawn edge, if trees are disjoint.
    pub(super) fn trees(&self) -> &[u32] {
        &self.trees
    }

    /// Draws edges for the first of these targets, and returns the number of targets. `edges_before` is the number of edges of
    /// the relation that the batch already has.
    pub(super) fn draw(
        &mut self,
        rule: &RelationRule<'_>,
        trees: &[SampleTree],
        nodes: &SampledNodes,
        targets: Range<usize>,
        edges_before: usize,
    ) -> Result<usize, SampleError> {
        self.rows.clear();
        self.ends.clear();
        self.positions.clear();
        self.trees.clear();
        let targets = targets.start..targets.end.min(targets.start + CHUNK_TARGETS);
        let relation = rule.relation;
        for &node in &nodes.ids[targets.clone()] {
            let row = rule.view.edges_of(node).ok_or(SampleError::NodeOffsets { relation, node })?;
            self.rows.push(row);
        }
        for (row, target) in self.rows.iter().zip(targets) {
            let node = nodes.ids[target];
            let tree_of_node = nodes.trees.get(target).copied();
            let tree = &trees[tree_of_node.unwrap_or(0) as usize];
            let edges = rule.valid_edges(row, tree.time);
            let drawn_before = (edges_before + self.positions.len()) as u64;
            if drawn_before + rule.max_drawn(&edges) > u64::from(rule.max_edges) {
                return Err(SampleError::EdgeLimit { relation, limit: rule.max_edges });
            }
            let excluded_target = ExcludedTarget { row: tree.row, relation, node };
            let population = Population {
                excluded: self.excluded.positions(&rule.view, excluded_target, &edges),
                weights: rule.weights.map(|sums| RowWeights { sums, row_start: row.start }),
                edges,
            };
            let draws = || DrawStream::new(tree.key, node, relation, rule.hop);
            self.picker.pick(&population, rule.fanout, rule.pick, draws, &mut self.positions);
            self.ends.push(self.positions.len() as u32);
            if let Some(tree) = tree_of_node {
                self.trees.resize(self.positions.len(), tree);
            }
            if self.positions.len() >= CHUNK_EDGES {
                break;
            }
        }
        Ok(self.ends.len())
    }

    /// Reads the sources of the drawn edges.
    pub(super) fn read_sources(&mut self, rule: &RelationRule<'_>, count: u32) -> Result<(), SampleError> {
        let sources = rule.view.sources;
        self.sources.clear();
        self.sources.extend(self.positions.iter().map(|position| sources[*position as usize]));
        let largest = self.sources.iter().fold(0, |largest, source| largest.max(*source));
        if largest >= count && !self.sources.is_empty() {
            return Err(SampleError::EdgeSource { relation: rule.relation, node: largest, count });
        }
        Ok(())
    }
}
