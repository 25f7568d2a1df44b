//! The summary of a stored graph: the properties that the checks and the batches of a job depend on. It is part of the index of a
//! dataset, so coordinators and workers need not read the description.

use serde::{Deserialize, Serialize};

use super::description::{GraphDescription, GraphFeature, GraphHash, SeedKind, relation_key};
use crate::schema::ScalarType;

/// The properties of a stored graph that jobs depend on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphSummary {
    /// The fingerprint of everything that sampled graphs depend on.
    pub topology: GraphHash,
    /// The node types, in the order of the description.
    pub nodes: Vec<NodeTypeSummary>,
    /// The relations, in the order of the description.
    pub relations: Vec<RelationSummary>,
    /// The seed sets.
    pub seeds: Vec<SeedSetSummary>,
}

/// The nodes of one type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTypeSummary {
    /// The name of the type.
    pub name: String,
    /// The number of nodes.
    pub count: u32,
    /// The features of the nodes.
    pub features: Vec<FeatureSummary>,
}

/// The edges of one relation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelationSummary {
    /// The type of the source nodes.
    pub source: String,
    /// The name of the relation.
    pub name: String,
    /// The type of the target nodes.
    pub target: String,
    /// The number of edges.
    pub edges: u64,
    /// Whether each edge is stored in both directions.
    pub undirected: bool,
    /// Whether the edges have weights.
    pub has_weights: bool,
    /// Whether the edges have times.
    pub has_times: bool,
    /// The features of the edges.
    pub features: Vec<FeatureSummary>,
}

/// A feature: one row of numbers per node or edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureSummary {
    /// The name of the feature.
    pub name: String,
    /// The type of the numbers.
    pub dtype: ScalarType,
    /// The shape of a row.
    pub shape: Vec<u32>,
    /// The hash of the rows. Caches of rows use it as their key.
    pub content: GraphHash,
}

/// A seed set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeedSetSummary {
    /// The name of the seed set.
    pub name: String,
    /// The nodes or edges in the table.
    pub of: SeedKind,
}

impl GraphDescription {
    /// Returns the properties of the graph that jobs depend on.
    pub fn summary(&self) -> GraphSummary {
        let nodes = self.nodes.iter().map(|node_type| NodeTypeSummary {
            name: node_type.name.clone(),
            count: node_type.count,
            features: summaries(&node_type.features),
        });
        let relations = self.relations.iter().map(|relation| RelationSummary {
            source: relation.source.clone(),
            name: relation.name.clone(),
            target: relation.target.clone(),
            edges: relation.edges,
            undirected: relation.undirected,
            has_weights: relation.weights.is_some(),
            has_times: relation.times.is_some(),
            features: summaries(&relation.features),
        });
        let seeds =
            self.seeds.iter().map(|seeds| SeedSetSummary { name: seeds.name.clone(), of: seeds.of.clone() });
        GraphSummary {
            topology: self.topology_fingerprint(),
            nodes: nodes.collect(),
            relations: relations.collect(),
            seeds: seeds.collect(),
        }
    }
}

fn summaries(features: &[GraphFeature]) -> Vec<FeatureSummary> {
    let summary = |feature: &GraphFeature| FeatureSummary {
        name: feature.name.clone(),
        dtype: feature.dtype,
        shape: feature.shape.clone(),
        content: feature.content_hash(),
    };
    features.iter().map(summary).collect()
}

impl GraphSummary {
    /// The index of a node type.
    pub fn node_type(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node_type| node_type.name == name)
    }

    /// The index of the relation with this key.
    pub fn relation(&self, key: &str) -> Option<usize> {
        self.relations.iter().position(|relation| relation.key() == key)
    }

    /// The node types of the source and of the target of a relation. A valid description contains both.
    pub fn node_types_of(&self, relation: usize) -> Option<(usize, usize)> {
        let RelationSummary { source, target, .. } = self.relations.get(relation)?;
        Some((self.node_type(source)?, self.node_type(target)?))
    }

    /// The relation with the reverse edges of a relation, as PyG selects it: the relation of the same name with the prefix `rev_`,
    /// which `ToUndirected` adds; otherwise the relation itself if its nodes have one type; otherwise the only relation between the
    /// types in the other direction.
    pub fn reverse_of(&self, relation: usize) -> Option<usize> {
        let forward = self.relations.get(relation)?;
        let is_reverse_name = |name: &str| {
            name.strip_prefix("rev_") == Some(forward.name.as_str())
                || forward.name.strip_prefix("rev_") == Some(name)
        };
        let reversed: Vec<usize> = (0..self.relations.len())
            .filter(|&other| {
                let other = &self.relations[other];
                other.source == forward.target && other.target == forward.source
            })
            .collect();
        let named = reversed.iter().copied().find(|&other| is_reverse_name(&self.relations[other].name));
        match (named, reversed.as_slice()) {
            (Some(named), _) => Some(named),
            (None, _) if forward.source == forward.target => Some(relation),
            (None, [only]) => Some(*only),
            (None, _) => None,
        }
    }

    /// Whether the graph has one node type and one relation, so that the columns of batches need no prefix.
    pub fn is_homogeneous(&self) -> bool {
        self.nodes.len() == 1 && self.relations.len() <= 1
    }
}

impl RelationSummary {
    /// Returns the name that is unique in the graph, such as `author__writes__paper`.
    pub fn key(&self) -> String {
        relation_key(&self.source, &self.name, &self.target)
    }
}

impl FeatureSummary {
    /// The number of elements of a row. A description limits it, so the product saturates only for invalid input.
    pub fn row_elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, extent| product.saturating_mul(u64::from(*extent)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(relations: &[[&str; 3]]) -> GraphSummary {
        let relation = |[source, name, target]: &[&str; 3]| RelationSummary {
            source: (*source).to_owned(),
            name: (*name).to_owned(),
            target: (*target).to_owned(),
            edges: 1,
            undirected: false,
            has_weights: false,
            has_times: false,
            features: Vec::new(),
        };
        GraphSummary {
            topology: GraphHash(1),
            nodes: Vec::new(),
            relations: relations.iter().map(relation).collect(),
            seeds: Vec::new(),
        }
    }

    #[test]
    fn the_reverse_of_a_relation_is_that_of_pyg() {
        let citations = graph(&[["paper", "cites", "paper"]]);
        assert_eq!(citations.reverse_of(0), Some(0));
        assert_eq!(citations.reverse_of(1), None);
        let both = graph(&[["paper", "cites", "paper"], ["paper", "rev_cites", "paper"]]);
        assert_eq!([0, 1].map(|relation| both.reverse_of(relation)), [Some(1), Some(0)]);
        let built = graph(&[["package", "built_from", "source"], ["source", "builds", "package"]]);
        assert_eq!([0, 1].map(|relation| built.reverse_of(relation)), [Some(1), Some(0)]);
        let shop = graph(&[
            ["user", "buys", "item"],
            ["user", "views", "item"],
            ["item", "rev_buys", "user"],
            ["item", "shown_to", "user"],
        ]);
        assert_eq!([0, 1, 2, 3].map(|relation| shop.reverse_of(relation)), [Some(2), None, Some(0), None]);
    }
}
