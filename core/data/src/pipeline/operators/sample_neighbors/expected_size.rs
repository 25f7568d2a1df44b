//! The size of a batch in bytes: from the numbers of its nodes and edges, and before these are known.
//!
//! The expected size follows from the fanouts and the numbers of nodes and edges of the graph. It is an upper bound, except that nodes
//! whose neighbors are all sampled have the mean number of neighbors. All numbers are integers, so every machine computes the same
//! size.

use serde::{Deserialize, Serialize};

use super::{GraphBatchPlan, GraphColumn, GraphColumnContent};
use crate::graph::{Fanout, FeatureSummary, GraphLayout, GraphSummary, NegativeMode, RelationSummary};
use crate::schema::ColumnType;

/// Assumed size of a value without a fixed size, such as a text label.
const ASSUMED_VALUE_BYTES: u64 = 16;

/// The numbers of nodes and edges of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphBatchCounts {
    /// The nodes of each type, with the seeds.
    pub nodes: Vec<u64>,
    /// The nodes that all hops expand in each relation.
    pub targets: Vec<u64>,
    /// The edges of each relation.
    pub edges: Vec<u64>,
}

/// The size of a batch of sampled neighbors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphBatchSize {
    /// The number of seed rows.
    pub seeds: u64,
    /// The number of nodes of all types, with the seeds.
    pub nodes: u64,
    /// The number of edges of all relations.
    pub edges: u64,
    /// The size in bytes.
    pub bytes: u64,
}

impl GraphBatchPlan {
    /// Returns the expected size of a batch with this number of seeds in bytes.
    pub fn expected_bytes(&self, seeds: u32, graph: &GraphSummary) -> u64 {
        self.expected_size(seeds, graph).bytes
    }

    /// Returns the expected size of a batch with this number of seeds.
    pub fn expected_size(&self, seeds: u32, graph: &GraphSummary) -> GraphBatchSize {
        self.size_of(seeds, &self.expected_counts(u64::from(seeds), graph))
    }

    /// Returns the size of a batch with this number of seeds, and these numbers of nodes and edges.
    pub fn size_of(&self, seeds: u32, counts: &GraphBatchCounts) -> GraphBatchSize {
        GraphBatchSize {
            seeds: u64::from(seeds),
            nodes: saturating_sum(counts.nodes.iter().copied()),
            edges: saturating_sum(counts.edges.iter().copied()),
            bytes: self.bytes_of(seeds, counts),
        }
    }

    /// Returns the size in bytes of what a worker loads: the topology of the graph, and the features in batches.
    pub fn loaded_bytes(&self, graph: &GraphSummary) -> u64 {
        let count = |node_type: &str| graph.node_type(node_type).map_or(0, |index| graph.nodes[index].count);
        let topology = |relation: &RelationSummary| {
            let edge_bytes = 4 + 4 * u64::from(relation.has_weights) + 8 * u64::from(relation.has_times);
            let offsets = 8 * (u64::from(count(&relation.target)) + 1);
            offsets.saturating_add(relation.edges.saturating_mul(edge_bytes))
        };
        let rows = |feature: &FeatureSummary, rows: u64| {
            rows.saturating_mul(feature.row_elements()).saturating_mul(feature.dtype.width_bytes() as u64)
        };
        let features = self.columns.iter().map(|column| match column.content {
            GraphColumnContent::NodeFeature { node_type, feature } => {
                let node_type = &graph.nodes[node_type];
                rows(&node_type.features[feature], u64::from(node_type.count))
            }
            GraphColumnContent::EdgeFeature { relation, feature } => {
                let relation = &graph.relations[relation];
                rows(&relation.features[feature], relation.edges)
            }
            _ => 0,
        });
        saturating_sum(graph.relations.iter().map(topology).chain(features))
    }

    fn bytes_of(&self, seeds: u32, counts: &GraphBatchCounts) -> u64 {
        let count = |counts: &[u64], index: usize| counts.get(index).copied().unwrap_or(0);
        let hops = self.settings.fanouts.len() as u64;
        let rows = u64::from(seeds);
        let links = rows.saturating_mul(1 + self.settings.negatives.map_or(0, |rule| u64::from(rule.amount)));
        let column_bytes = |column: &GraphColumn| {
            let values = match column.content {
                GraphColumnContent::NodeIds { node_type }
                | GraphColumnContent::NodeTrees { node_type }
                | GraphColumnContent::NodeFeature { node_type, .. } => count(&counts.nodes, node_type),
                GraphColumnContent::EdgeSources { relation }
                | GraphColumnContent::EdgeIds { relation }
                | GraphColumnContent::EdgeFeature { relation, .. } => count(&counts.edges, relation),
                GraphColumnContent::EdgeOffsets { relation } => {
                    count(&counts.targets, relation).saturating_add(1)
                }
                GraphColumnContent::NodeCounts { .. } => hops + 1,
                GraphColumnContent::EdgeCounts { .. } => hops,
                GraphColumnContent::LinkNodes => links.saturating_mul(2),
                GraphColumnContent::LinkLabels => links,
                GraphColumnContent::LinkSources
                | GraphColumnContent::LinkTargets
                | GraphColumnContent::LinkNegatives
                | GraphColumnContent::RowColumn => rows,
            };
            values.saturating_mul(value_bytes(&column.column_type))
        };
        saturating_sum(self.columns.iter().map(column_bytes))
    }

    /// Follows the fanouts hop by hop. A node type has at most all of its nodes, and a relation at most all of its edges in a hop.
    fn expected_counts(&self, rows: u64, graph: &GraphSummary) -> GraphBatchCounts {
        let (types, relations) = (graph.nodes.len(), graph.relations.len());
        let mut counts = GraphBatchCounts {
            nodes: vec![0; types],
            targets: vec![0; relations],
            edges: vec![0; relations],
        };
        for (end, (_, node_type)) in self.seeds.iter().enumerate() {
            let negatives = u64::from(self.negatives_of(end));
            let nodes = &mut counts.nodes[usize::from(*node_type)];
            *nodes = nodes.saturating_add(rows.saturating_mul(1 + negatives));
        }
        // Disjoint trees do not share nodes.
        let limit = |node_type: usize| match self.settings.disjoint {
            true => u64::MAX,
            false => u64::from(graph.nodes[node_type].count),
        };
        let mut frontier = counts.nodes.clone();
        for fanouts in &self.settings.fanouts {
            let expanded = match self.settings.layout {
                GraphLayout::Subgraph => frontier.clone(),
                GraphLayout::Blocks => counts.nodes.clone(),
            };
            let mut added = vec![0_u64; types];
            for (relation, fanout) in fanouts.iter().enumerate() {
                let Some((source, target)) = graph.node_types_of(relation) else { continue };
                let edges_of_relation = graph.relations[relation].edges;
                let mean_degree = edges_of_relation.div_ceil(u64::from(graph.nodes[target].count).max(1));
                let degree = match fanout {
                    Fanout::All => mean_degree,
                    Fanout::Limit(limit) => u64::from(*limit),
                };
                let mut edges = expanded[target].saturating_mul(degree);
                if !self.settings.replace && !self.settings.disjoint {
                    edges = edges.min(edges_of_relation);
                }
                counts.edges[relation] = counts.edges[relation].saturating_add(edges);
                counts.targets[relation] = counts.targets[relation].saturating_add(expanded[target]);
                added[source] = added[source].saturating_add(edges);
            }
            for (node_type, added) in added.into_iter().enumerate() {
                let before = counts.nodes[node_type];
                let after = before.saturating_add(added).min(limit(node_type).max(before));
                counts.nodes[node_type] = after;
                frontier[node_type] = after - before;
            }
        }
        self.add_reverse_edges(&mut counts, |relation| {
            graph.node_types_of(relation).map(|(_, target)| target)
        });
        counts
    }

    /// The number of negatives in each row for a seed column: the source or the target of a link.
    pub fn negatives_of(&self, seed_column: usize) -> u32 {
        match self.settings.negatives {
            Some(rule) if seed_column == 1 || rule.mode == NegativeMode::Binary => rule.amount,
            _ => 0,
        }
    }

    /// Adds the edges of bidirectional graphs to the sampled edges: each edge has a reverse edge, and all nodes are targets.
    /// `target_of` returns the type of the target nodes of a relation.
    pub fn add_reverse_edges(
        &self,
        counts: &mut GraphBatchCounts,
        target_of: impl Fn(usize) -> Option<usize>,
    ) {
        let sampled = counts.edges.clone();
        for (relation, reverse) in self.settings.reverses.iter().enumerate() {
            let (Some(reverse), Some(target)) = (*reverse, target_of(relation)) else { continue };
            counts.edges[relation] = sampled[relation].saturating_add(sampled[usize::from(reverse)]);
            counts.targets[relation] = counts.nodes[target];
        }
    }
}

fn saturating_sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// The size of one value of a list column.
fn value_bytes(column_type: &ColumnType) -> u64 {
    match column_type {
        ColumnType::List(item) => item.fixed_row_bytes().map_or(ASSUMED_VALUE_BYTES, |bytes| bytes as u64),
        _ => ASSUMED_VALUE_BYTES,
    }
}
