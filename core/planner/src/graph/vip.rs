//! The probability that a batch contains a node (vertex inclusion probability; Kaler et al.: "Communication-efficient
//! graph neural networks with probabilistic neighborhood expansion analysis and caching", MLSys 2023).
//!
//! A hop pushes the probabilities of its targets to their sources. This needs only the edges by target, from which batches
//! are sampled too. A node is absent if all targets that are in the batch miss it; the model treats targets as independent.
//! In contrast to the paper, the model adds the probabilities of the hops in which one target enters the batch, because it
//! enters only once, and combines its draws in several hops and its parallel edges exactly. Otherwise it would count each edge
//! of a node with few edges once for each hop.
//!
//! If each edge has a reverse edge, a target often enters the batch through one of its sources. It cannot add this source, so
//! its probability to enter is computed without this source. Otherwise the model would count a fifth too many nodes of an
//! undirected graph with few edges.
//!
//! A model needs four bytes for each node and hop, twice that with reverse edges, and eight bytes for each node of the parts
//! that run. It starts no threads: the caller runs the parts of a hop, on any number of threads. The results do not depend on
//! the number of parts.

use feedline_data::graph::GraphLayout;

use super::expected::ExpectedBatch;
pub use super::hop_part::HopPart;
use super::row_law::RowLaw;
use super::sampling::{ModeledSampling, SeedTable};
use super::topology::{ModeledGraph, row_of};

/// A model that is computed hop by hop.
#[derive(Debug)]
pub struct InclusionModel<'a> {
    graph: ModeledGraph<'a>,
    sampling: &'a ModeledSampling,
    /// The probability that a node enters the batch in a hop, by type, hop and node. Hop 0 are the seeds.
    entries: Vec<Vec<Vec<f32>>>,
    /// The same for the hop whose parts run, by type and node.
    entering: Vec<Vec<f32>>,
    /// For each relation that contains the reverse edges of a relation, by hop and target: the probability that the draws up to
    /// the hop select one edge. It is computed without one source of the target, which is a mean over its sources.
    selected: Vec<Vec<Vec<f32>>>,
    /// The samples of which a batch consists.
    trees: f64,
    expected: ExpectedBatch,
}

/// The model of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchInclusion {
    /// For each node of each type, the probability that a sample contains it. A batch is one sample, or one sample for each row if
    /// rows are disjoint.
    pub probabilities: Vec<Vec<f32>>,
    /// The expected size of a batch.
    pub expected: ExpectedBatch,
}

impl<'a> InclusionModel<'a> {
    /// Creates a model with the probabilities of the seeds.
    ///
    /// # Errors
    /// Returns a message if the slices of the graph, the seeds or the fanouts do not match.
    pub fn new(
        graph: ModeledGraph<'a>,
        seeds: &SeedTable<'_>,
        sampling: &'a ModeledSampling,
    ) -> Result<Self, String> {
        graph.check()?;
        sampling.check(&graph.view, seeds)?;
        let (trees, rows) = sampling.trees(seeds);
        let probabilities =
            |(node_type, count): (usize, &u32)| vec![seeds.probabilities(node_type, *count, rows)];
        let entries: Vec<Vec<Vec<f32>>> =
            graph.view.node_counts.iter().enumerate().map(probabilities).collect();
        let mut expected = ExpectedBatch::new(entries.len(), graph.relations().len());
        for (node_type, hops) in entries.iter().enumerate() {
            expected.nodes[node_type].push(trees * sum(&hops[0]));
        }
        let selected = vec![Vec::new(); graph.relations().len()];
        Ok(Self { graph, sampling, entries, entering: Vec::new(), selected, trees, expected })
    }

    /// Computes the whole model on this thread.
    ///
    /// # Errors
    /// Returns the errors of [`Self::new`].
    pub fn run(
        graph: ModeledGraph<'a>,
        seeds: &SeedTable<'_>,
        sampling: &'a ModeledSampling,
    ) -> Result<BatchInclusion, String> {
        let mut model = Self::new(graph, seeds, sampling)?;
        while let Some(parts) = model.next_hop(1) {
            parts.into_iter().for_each(HopPart::run);
        }
        Ok(model.finish())
    }

    /// Begins the next hop, and divides the nodes of each type into at most `parts` parts. All parts must run before the next call.
    /// Returns `None` after the last hop.
    pub fn next_hop(&mut self, parts: usize) -> Option<Vec<HopPart<'_>>> {
        self.complete_hop();
        let hop = self.expected.hop_count();
        if hop == self.sampling.settings.fanouts.len() {
            return None;
        }
        self.expect_edges(hop);
        self.entering = self.graph.view.node_counts.iter().map(|count| vec![0.0; *count as usize]).collect();
        let mut hop_parts = Vec::new();
        for (node_type, entering) in self.entering.iter_mut().enumerate() {
            let length = entering.len().div_ceil(parts.max(1)).max(1);
            let mut first = 0;
            for entering in entering.chunks_mut(length) {
                let next = first + entering.len() as u32;
                hop_parts.push(HopPart {
                    graph: self.graph,
                    sampling: self.sampling,
                    entries: &self.entries,
                    selected: &self.selected,
                    node_type,
                    first,
                    entering,
                });
                first = next;
            }
        }
        Some(hop_parts)
    }

    /// Returns the model of the hops so far.
    pub fn finish(mut self) -> BatchInclusion {
        self.complete_hop();
        let included = |hops: Vec<Vec<f32>>| {
            hops.into_iter()
                .reduce(|mut total, hop| {
                    total.iter_mut().zip(hop).for_each(|(total, entry)| *total = (*total + entry).min(1.0));
                    total
                })
                .unwrap_or_default()
        };
        let probabilities = self.entries.into_iter().map(included).collect();
        BatchInclusion { probabilities, expected: self.expected }
    }

    /// Adds the results of the parts to the entries.
    fn complete_hop(&mut self) {
        if !self.entering.is_empty() {
            self.complete_reverse_edges();
        }
        for (node_type, entering) in std::mem::take(&mut self.entering).into_iter().enumerate() {
            self.expected.nodes[node_type].push(self.trees * sum(&entering));
            self.entries[node_type].push(entering);
        }
    }

    /// Computes the probabilities to select reverse edges up to the hop whose parts have run.
    fn complete_reverse_edges(&mut self) {
        let hop = self.expected.hop_count();
        if hop + 1 == self.sampling.settings.fanouts.len() {
            return;
        }
        for reverse in self.graph.reverse.iter().flatten() {
            let relation = usize::from(*reverse);
            if self.selected[relation].len() > hop {
                continue;
            }
            let edges = &self.graph.relations()[relation];
            let entries = &self.entries[usize::from(edges.target_type)];
            let mut law = RowLaw::new(self.sampling.settings.layout);
            let mut selected = vec![0.0; edges.offsets.len() - 1];
            for (target, selected) in selected.iter_mut().enumerate() {
                let degree = row_of(edges, target).len() as u64;
                if degree > 0 && law.set_entries(entries.iter().map(|hop| hop[target])) {
                    let fanouts =
                        self.sampling.settings.fanouts[..=hop].iter().map(|fanouts| fanouts[relation]);
                    law.set_misses(fanouts.map(|fanout| self.sampling.missed_edges(fanout, degree, 1)));
                    *selected = law.selected_without_mean(degree) as f32;
                }
            }
            self.selected[relation].push(selected);
        }
    }

    /// Computes the expected numbers of targets and edges of a hop.
    fn expect_edges(&mut self, hop: usize) {
        for (relation, edges) in self.graph.relations().iter().enumerate() {
            let entries = &self.entries[usize::from(edges.target_type)];
            let fanout = self.sampling.settings.fanouts[hop][relation];
            let (mut targets, mut drawn) = (0.0, 0.0);
            for target in 0..edges.offsets.len() - 1 {
                let entry = |hop: &Vec<f32>| f64::from(hop[target]);
                let probability = match self.sampling.settings.layout {
                    GraphLayout::Subgraph => entries.last().map_or(0.0, entry),
                    GraphLayout::Blocks => entries.iter().map(entry).sum(),
                };
                targets += probability;
                drawn += probability * self.sampling.drawn_edges(fanout, row_of(edges, target).len() as u64);
            }
            self.expected.targets[relation].push(self.trees * targets);
            self.expected.edges[relation].push(self.trees * drawn);
        }
    }
}

fn sum(probabilities: &[f32]) -> f64 {
    probabilities.iter().map(|probability| f64::from(*probability)).sum()
}
