//! The columns of the batches of an operator.

use super::features::{SelectedFeature, select_features};
use super::graph_column::{GraphColumn, GraphColumnContent, numbers};
use super::link_columns::link_columns;
use super::{FeatureList, SampleNeighbors};
use crate::graph::{FeatureSummary, GraphSummary};
use crate::schema::{ColumnType, MAX_COLUMNS, ScalarType, Schema};

/// The node types and relations that a batch contains.
#[derive(Debug, Clone)]
pub(super) struct ColumnScope<'a> {
    pub(super) graph: &'a GraphSummary,
    /// The node types, in ascending order.
    pub(super) node_types: Vec<usize>,
    /// The relations, in ascending order.
    pub(super) relations: Vec<usize>,
    /// Whether the seeds are links.
    pub(super) has_links: bool,
}

impl ColumnScope<'_> {
    /// Returns the columns of the batches of an operator. `rows` are the columns of the rows, as lists.
    pub(super) fn columns(
        &self,
        operator: &SampleNeighbors,
        rows: &Schema,
    ) -> Result<Vec<GraphColumn>, String> {
        let mut columns = Vec::new();
        let node_features = self.node_features(&operator.features)?;
        let edge_features = self.edge_features(&operator.edge_features)?;
        for &node_type in &self.node_types {
            let name = |name: &str| self.node_column(node_type, name);
            let mut push = |column: &str, column_type, content| {
                columns.push(GraphColumn { name: name(column), column_type, content });
            };
            push("n_id", numbers(ScalarType::UInt32), GraphColumnContent::NodeIds { node_type });
            if operator.disjoint {
                push("batch", numbers(ScalarType::Int32), GraphColumnContent::NodeTrees { node_type });
            }
            if !operator.is_bidirectional() {
                let counts = GraphColumnContent::NodeCounts { node_type };
                push("num_sampled_nodes", numbers(ScalarType::UInt32), counts);
            }
            for selected in node_features.iter().filter(|selected| selected.owner == node_type) {
                let summary = &self.graph.nodes[node_type].features[selected.feature];
                let content = GraphColumnContent::NodeFeature { node_type, feature: selected.feature };
                push(&summary.name, feature_rows(summary, selected.dtype), content);
            }
        }
        for &relation in &self.relations {
            let name = |name: &str| self.edge_column(relation, name);
            let mut push = |column: &str, column_type, content| {
                columns.push(GraphColumn { name: name(column), column_type, content });
            };
            push("colptr", numbers(ScalarType::Int32), GraphColumnContent::EdgeOffsets { relation });
            push("row", numbers(ScalarType::Int32), GraphColumnContent::EdgeSources { relation });
            if operator.edge_ids {
                push("e_id", numbers(ScalarType::Int64), GraphColumnContent::EdgeIds { relation });
            }
            if !operator.is_bidirectional() {
                let counts = GraphColumnContent::EdgeCounts { relation };
                push("num_sampled_edges", numbers(ScalarType::UInt32), counts);
            }
            for selected in edge_features.iter().filter(|selected| selected.owner == relation) {
                let summary = &self.graph.relations[relation].features[selected.feature];
                let content = GraphColumnContent::EdgeFeature { relation, feature: selected.feature };
                push(&summary.name, feature_rows(summary, selected.dtype), content);
            }
        }
        if self.has_links {
            columns.extend(link_columns(operator.negatives.as_ref(), rows)?);
        }
        columns.extend(rows.fields.iter().map(|field| GraphColumn {
            name: field.name.clone(),
            column_type: field.column_type.clone(),
            content: GraphColumnContent::RowColumn,
        }));
        check_names(&columns)?;
        Ok(columns)
    }

    /// The selected features of the node types of a batch.
    fn node_features(&self, features: &FeatureList) -> Result<Vec<SelectedFeature>, String> {
        let owners: Vec<(String, &[FeatureSummary])> = self
            .graph
            .nodes
            .iter()
            .map(|node_type| (node_type.name.clone(), node_type.features.as_slice()))
            .collect();
        let mut selected = Vec::new();
        for (name, dtype) in features.entries() {
            let found = select_features("features", name, dtype, &owners)?;
            if !found.iter().any(|feature| self.node_types.contains(&feature.owner)) {
                let owner = &owners[found[0].owner].0;
                return Err(format!(
                    "features: `{name}` is a feature of `{owner}`, which the batches do not contain; sample a relation of `{owner}`, or remove the feature"
                ));
            }
            selected.extend(found);
        }
        Ok(selected)
    }

    /// The selected features of the relations of a batch.
    fn edge_features(&self, names: &[String]) -> Result<Vec<SelectedFeature>, String> {
        let owners: Vec<(String, &[FeatureSummary])> = self
            .graph
            .relations
            .iter()
            .map(|relation| (relation.key(), relation.features.as_slice()))
            .collect();
        let mut selected = Vec::new();
        for name in names {
            let found = select_features("edge_features", name, None, &owners)?;
            if !found.iter().any(|feature| self.relations.contains(&feature.owner)) {
                let owner = &owners[found[0].owner].0;
                return Err(format!(
                    "edge_features: `{name}` is a feature of `{owner}`, which the batches do not contain; sample `{owner}`, or remove the feature"
                ));
            }
            selected.extend(found);
        }
        Ok(selected)
    }

    fn node_column(&self, node_type: usize, name: &str) -> String {
        match self.graph.is_homogeneous() {
            true => name.to_owned(),
            false => format!("{}.{name}", self.graph.nodes[node_type].name),
        }
    }

    fn edge_column(&self, relation: usize, name: &str) -> String {
        match self.graph.is_homogeneous() {
            true => name.to_owned(),
            false => format!("{}.{name}", self.graph.relations[relation].key()),
        }
    }
}

/// Rejects columns with the same name, and too many columns.
fn check_names(columns: &[GraphColumn]) -> Result<(), String> {
    if columns.len() > MAX_COLUMNS {
        return Err(format!(
            "a batch would have {} columns; the limit is {MAX_COLUMNS}; sample fewer relations, or select fewer features",
            columns.len()
        ));
    }
    let mut names = std::collections::BTreeSet::new();
    let twice = columns.iter().find(|column| !names.insert(column.name.as_str()));
    match twice {
        None => Ok(()),
        Some(GraphColumn { name, content: GraphColumnContent::RowColumn, .. }) => Err(format!(
            "column `{name}` conflicts with a column of the sampled graph; rename `{name}` before sample_neighbors"
        )),
        Some(GraphColumn { name, .. }) => Err(format!(
            "the feature `{name}` conflicts with another column of the sampled graph; select fewer features, or build the graph with another name"
        )),
    }
}

fn feature_rows(feature: &FeatureSummary, scalar: ScalarType) -> ColumnType {
    ColumnType::List(Box::new(ColumnType::Tensor { scalar, shape: feature.shape.clone() }))
}
