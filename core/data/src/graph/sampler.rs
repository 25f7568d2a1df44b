//! Samples the neighbors of a batch of seeds, hop by hop.

use std::ops::Range;

use super::bidirectional::BidirectionalEdges;
use super::negatives::NegativeSeeds;
use super::node_map::NodeMap;
use super::sample_error::SampleError;
use super::sampled::{MAX_NODES, SampledGraph};
use super::sampler_meter::SamplerMeter;
use super::seeds::{BatchSeeds, Seed};
use super::settings::{Fanout, GraphLayout, SamplingSettings};
use super::target_chunk::{RelationRule, SampleTree, TargetChunk};
use super::topology::{GraphView, RelationView};

/// Samples graphs. A sampler belongs to one thread and reuses its memory from batch to batch. Its results do not depend on
/// the batches that it has sampled before.
#[derive(Debug)]
pub struct NeighborSampler {
    settings: SamplingSettings,
    /// The map of each node type.
    maps: Vec<NodeMap>,
    /// The tree of each seed, or one tree for all seeds.
    trees: Vec<SampleTree>,
    /// The local ids of the nodes of each type that the current hop expands.
    frontiers: Vec<Range<u32>>,
    chunk: TargetChunk,
    negatives: NegativeSeeds,
    bidirectional: BidirectionalEdges,
}

impl NeighborSampler {
    /// Creates a sampler.
    ///
    /// # Errors
    /// Returns a message that names the invalid setting and the fix.
    pub fn new(settings: SamplingSettings) -> Result<Self, String> {
        settings.check()?;
        Ok(Self {
            settings,
            maps: Vec::new(),
            trees: Vec::new(),
            frontiers: Vec::new(),
            chunk: TargetChunk::default(),
            negatives: NegativeSeeds::default(),
            bidirectional: BidirectionalEdges::default(),
        })
    }

    /// The settings.
    pub fn settings(&self) -> &SamplingSettings {
        &self.settings
    }

    /// The size of the memory that the sampler keeps for the next batch.
    pub fn memory_bytes(&self) -> usize {
        let maps: usize = self.maps.iter().map(NodeMap::memory_bytes).sum();
        let trees = self.trees.capacity() * size_of::<SampleTree>();
        let added = self.negatives.memory_bytes() + self.bidirectional.memory_bytes();
        maps + trees + self.chunk.memory_bytes() + added
    }

    /// Samples the neighbors of the seeds. Replaces the content of `output`.
    ///
    /// # Errors
    /// Returns an error if the graph or the seeds are invalid, if a link has no negative, or if the batch has too many nodes or
    /// edges. Invalid slices never cause a panic.
    pub fn sample(
        &mut self,
        graph: &GraphView<'_>,
        seeds: &BatchSeeds<'_>,
        output: &mut SampledGraph,
    ) -> Result<(), SampleError> {
        self.sample_measured(graph, seeds, output, &mut ())
    }

    /// Samples as [`sample`](Self::sample) does, and reports the end of each stage.
    ///
    /// # Errors
    /// Returns the errors of [`sample`](Self::sample).
    pub fn sample_measured(
        &mut self,
        graph: &GraphView<'_>,
        seeds: &BatchSeeds<'_>,
        output: &mut SampledGraph,
        meter: &mut impl SamplerMeter,
    ) -> Result<(), SampleError> {
        self.check(graph, seeds)?;
        let Some(rule) = self.settings.negatives else {
            return self.expand(graph, seeds, output, meter);
        };
        let mut negatives = std::mem::take(&mut self.negatives);
        let with_negatives = negatives.add(&rule, self.settings.draw_scope(), graph, seeds);
        let sampled = with_negatives.and_then(|seeds| self.expand(graph, &seeds, output, meter));
        self.negatives = negatives;
        sampled
    }

    /// Samples the neighbors of the seeds.
    fn expand(
        &mut self,
        graph: &GraphView<'_>,
        seeds: &BatchSeeds<'_>,
        output: &mut SampledGraph,
        meter: &mut impl SamplerMeter,
    ) -> Result<(), SampleError> {
        self.begin(graph, seeds);
        output.clear(graph.node_counts.len(), graph.relations.len());
        self.add_seeds(seeds.seeds, output);
        for hop in 0..self.settings.fanouts.len() {
            self.expand_hop(hop, graph, output, meter)?;
        }
        let SamplingSettings { reverses, max_edges, .. } = &self.settings;
        if reverses.is_empty() {
            return Ok(());
        }
        self.bidirectional.add(graph.relations, reverses, *max_edges, output)
    }

    fn check(&self, graph: &GraphView<'_>, seeds: &BatchSeeds<'_>) -> Result<(), SampleError> {
        let (found, expected) = (graph.relations.len(), self.settings.relation_count());
        if found != expected {
            return Err(SampleError::RelationCount { found, expected });
        }
        let is_invalid = |view: &RelationView<'_>| !view.has_matching_lengths(graph.node_counts);
        if let Some(relation) = graph.relations.iter().position(is_invalid) {
            return Err(SampleError::RelationLengths { relation });
        }
        for (view, reverse) in graph.relations.iter().enumerate().zip(&self.settings.reverses) {
            let ((relation, view), Some(reverse)) = (view, *reverse) else { continue };
            let other = &graph.relations[usize::from(reverse)];
            if (view.source_type, view.target_type) != (other.target_type, other.source_type) {
                return Err(SampleError::ReverseRelation { relation: relation as u16, reverse });
            }
        }
        for &Seed { node_type, row, node, .. } in seeds.seeds {
            let count = graph.node_counts.get(usize::from(node_type)).copied().unwrap_or(0);
            if node >= count {
                return Err(SampleError::SeedNode { node, node_type, count });
            }
            if row as usize >= seeds.rows.len() {
                return Err(SampleError::SeedRow { node, row, rows: seeds.rows.len() });
            }
        }
        if let Some(seed) = seeds.seeds.get(MAX_NODES as usize) {
            return Err(SampleError::NodeLimit { node_type: seed.node_type, limit: MAX_NODES });
        }
        Ok(())
    }

    fn begin(&mut self, graph: &GraphView<'_>, seeds: &BatchSeeds<'_>) {
        let disjoint = self.settings.disjoint;
        NodeMap::begin_all(&mut self.maps, graph.node_counts, disjoint);
        self.frontiers.clear();
        self.frontiers.resize(graph.node_counts.len(), 0..0);
        self.chunk.set_excluded(seeds.excluded, disjoint);
        let scope = self.settings.draw_scope();
        self.trees.clear();
        if disjoint {
            self.trees.extend(seeds.seeds.iter().map(|seed| {
                let row = &seeds.rows[seed.row as usize];
                SampleTree { key: scope.key(row, Some(seed.slot)), row: seed.row, time: row.time }
            }));
        } else if let Some(row) = seeds.rows.first() {
            self.trees.push(SampleTree { key: scope.key(row, None), row: 0, time: row.time });
        }
    }

    fn add_seeds(&mut self, seeds: &[Seed], output: &mut SampledGraph) {
        for (tree, seed) in (0..).zip(seeds) {
            let node_type = usize::from(seed.node_type);
            let nodes = &mut output.nodes[node_type];
            let next = nodes.ids.len() as u32;
            self.maps[node_type].resolve(&[seed.node], &[tree], nodes, &mut output.seed_locals);
            let local = output.seed_locals.last_mut();
            if let Some(local) = local.filter(|local| !self.settings.merge_seeds && **local < next) {
                *local = next;
                nodes.ids.push(seed.node);
            }
        }
        for nodes in &mut output.nodes {
            nodes.hop_counts.push(nodes.ids.len() as u32);
        }
    }

    fn expand_hop(
        &mut self,
        hop: usize,
        graph: &GraphView<'_>,
        output: &mut SampledGraph,
        meter: &mut impl SamplerMeter,
    ) -> Result<(), SampleError> {
        for (frontier, nodes) in self.frontiers.iter_mut().zip(&output.nodes) {
            let start = match self.settings.layout {
                GraphLayout::Subgraph => frontier.end,
                GraphLayout::Blocks => 0,
            };
            *frontier = start..nodes.ids.len() as u32;
        }
        for (relation, view) in graph.relations.iter().enumerate() {
            let rule = RelationRule::new(&self.settings, hop, relation, *view);
            let source_count = graph.node_counts[usize::from(view.source_type)];
            self.expand_relation(&rule, source_count, output, meter)?;
        }
        for (frontier, nodes) in self.frontiers.iter().zip(&mut output.nodes) {
            nodes.hop_counts.push(nodes.ids.len() as u32 - frontier.end);
        }
        Ok(())
    }

    fn expand_relation(
        &mut self,
        rule: &RelationRule<'_>,
        source_count: u32,
        output: &mut SampledGraph,
        meter: &mut impl SamplerMeter,
    ) -> Result<(), SampleError> {
        let source_type = usize::from(rule.view.source_type);
        let target_type = usize::from(rule.view.target_type);
        let targets = self.frontiers[target_type].clone();
        let edges = &mut output.edges[usize::from(rule.relation)];
        let before = edges.sources.len();
        if rule.fanout == Fanout::Limit(0) {
            edges.ends.resize(edges.ends.len() + targets.len(), before as u32);
        } else {
            let (mut next, end) = (targets.start as usize, targets.end as usize);
            while next < end {
                let drawn = edges.sources.len();
                let nodes = &output.nodes[target_type];
                next += self.chunk.draw(rule, &self.trees, nodes, next..end, drawn)?;
                self.chunk.read_sources(rule, source_count)?;
                meter.end_draws();
                edges.ends.extend(self.chunk.ends().iter().map(|end| drawn as u32 + *end));
                if self.settings.edge_positions {
                    edges.positions.extend_from_slice(self.chunk.positions());
                }
                let (sources, trees) = (self.chunk.sources(), self.chunk.trees());
                let nodes = &mut output.nodes[source_type];
                self.maps[source_type].resolve(sources, trees, nodes, &mut edges.sources);
                meter.end_map();
                if nodes.ids.len() > MAX_NODES as usize {
                    let node_type = rule.view.source_type;
                    return Err(SampleError::NodeLimit { node_type, limit: MAX_NODES });
                }
            }
        }
        edges.hop_counts.push((edges.sources.len() - before) as u32);
        edges.hop_targets.push(targets);
        Ok(())
    }
}
