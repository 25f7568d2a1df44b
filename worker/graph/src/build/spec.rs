//! The input of a build: node types and relations with their files. A build file in YAML has the same keys.

mod order;

use std::collections::BTreeMap;

use feedline_data::graph::description::relation_key;
use feedline_data::schema::ScalarType;
use serde::Deserialize;

pub use self::order::{OrderSpec, VipSpec};

/// The node type of a graph without types, as in PyG.
pub const DEFAULT_NODE_TYPE: &str = "node";
/// The relation of a graph without types, as in PyG.
pub const DEFAULT_RELATION: &str = "to";

/// The input of a build.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSpec {
    /// The order of the nodes: `none`, `degree` or `vip:SEEDS:FANOUTS`.
    #[serde(default)]
    pub order: OrderSpec,
    /// The node types. Types that only relations name need not be listed.
    #[serde(default)]
    pub nodes: BTreeMap<String, NodeSpec>,
    /// The relations, in the order in which samplers number them.
    pub relations: Vec<RelationSpec>,
}

/// The files of a node type.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeSpec {
    /// The number of nodes. By default that of the ids or features, otherwise one more than the largest node of an edge.
    pub count: Option<u64>,
    /// The ids of the nodes that edges and seeds refer to. By default, integers are positions, and text ids are numbered in their
    /// sorted order.
    pub ids: Option<ColumnRef>,
    /// The features.
    pub features: BTreeMap<String, FeatureSpec>,
    /// The labels, which become columns of the seed sets.
    pub labels: BTreeMap<String, ColumnRef>,
    /// The seed sets.
    pub seeds: BTreeMap<String, SeedSpec>,
}

/// The files of a relation.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelationSpec {
    /// The type of the source nodes.
    #[serde(default = "default_node_type")]
    pub source: String,
    /// The name of the relation.
    #[serde(default = "default_relation")]
    pub name: String,
    /// The type of the target nodes.
    #[serde(default = "default_node_type")]
    pub target: String,
    /// Paths or patterns of the files with the edges.
    pub edges: OneOrMore,
    /// The columns with the source and the target; `#row` is the position of the row. By default the first two columns.
    #[serde(default)]
    pub columns: Option<[ColumnName; 2]>,
    /// Only rows with these values are edges.
    #[serde(default, rename = "where")]
    pub filter: BTreeMap<String, FilterValue>,
    /// The column with the weight, or the path of a `.npy` file.
    #[serde(default)]
    pub weight: Option<String>,
    /// The column with the time, or the path of a `.npy` file.
    #[serde(default)]
    pub time: Option<String>,
    /// Whether to store each edge in both directions, and to merge duplicates.
    #[serde(default)]
    pub undirected: bool,
    /// The name of another relation with the same edges in the other direction.
    #[serde(default)]
    pub reverse: Option<String>,
    /// Whether to store the position of each edge in the input.
    #[serde(default)]
    pub edge_ids: bool,
    /// The features of the edges, one row per row of the input.
    #[serde(default)]
    pub features: BTreeMap<String, FeatureSpec>,
    /// The seed sets of edges.
    #[serde(default)]
    pub seeds: BTreeMap<String, LinkSeedSpec>,
}

/// One path or several.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    /// One path.
    One(String),
    /// Several paths.
    More(Vec<String>),
}

/// A file, and a column of it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct ColumnRef {
    /// The path or pattern.
    pub path: String,
    /// The column. By default the only column.
    pub column: Option<String>,
}

/// A column: its name, or its position from 0.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "NameOrNumber")]
pub struct ColumnName(pub String);

/// A value of a filter. Numbers and booleans are compared as text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "NameOrNumber")]
pub struct FilterValue(pub String);

#[derive(Deserialize)]
#[serde(untagged)]
enum NameOrNumber {
    Number(i64),
    Name(String),
}

/// A feature.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "FeatureForm")]
pub struct FeatureSpec {
    /// The file, and for Parquet the column.
    pub from: ColumnRef,
    /// The type to which the numbers are converted. By default that of the file.
    pub dtype: Option<ScalarType>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum FeatureForm {
    File(ColumnRef),
    Full(FullFeature),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FullFeature {
    from: ColumnRef,
    #[serde(default)]
    dtype: Option<ScalarType>,
}

/// A seed set of nodes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "SeedForm")]
pub struct SeedSpec {
    /// The file with the nodes, or with a boolean per node; `all` for all nodes in their order.
    pub from: ColumnRef,
    /// The column of the same file with the label, or the path of a `.npy` file. It becomes the column `y`.
    pub label: Option<String>,
    /// The column of the same file with the time, or the path of a `.npy` file.
    pub time: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SeedForm {
    File(ColumnRef),
    Full(FullSeed),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FullSeed {
    from: ColumnRef,
    #[serde(default)]
    label: Option<String>,
    #[serde(default)]
    time: Option<String>,
}

/// A seed set of edges.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSeedSpec {
    /// Paths or patterns of the files.
    pub edges: OneOrMore,
    /// The columns with the source and the target. By default the first two columns.
    #[serde(default)]
    pub columns: Option<[ColumnName; 2]>,
    /// The column with the label, or the path of a `.npy` file.
    #[serde(default)]
    pub label: Option<String>,
    /// The column with the time, or the path of a `.npy` file.
    #[serde(default)]
    pub time: Option<String>,
}

fn default_node_type() -> String {
    DEFAULT_NODE_TYPE.to_owned()
}

fn default_relation() -> String {
    DEFAULT_RELATION.to_owned()
}

impl GraphSpec {
    /// A graph with one node type and one relation.
    pub fn homogeneous(nodes: NodeSpec, edges: Vec<String>) -> Self {
        let relation = RelationSpec::new(DEFAULT_NODE_TYPE, DEFAULT_RELATION, DEFAULT_NODE_TYPE, edges);
        Self {
            order: OrderSpec::default(),
            nodes: BTreeMap::from([(default_node_type(), nodes)]),
            relations: vec![relation],
        }
    }
}

impl SeedSpec {
    /// A seed set without labels and times of its own.
    pub fn new(from: ColumnRef) -> Self {
        Self { from, label: None, time: None }
    }
}

impl RelationSpec {
    /// A relation with default settings.
    pub fn new(source: &str, name: &str, target: &str, edges: Vec<String>) -> Self {
        Self {
            source: source.to_owned(),
            name: name.to_owned(),
            target: target.to_owned(),
            edges: OneOrMore::More(edges),
            columns: None,
            filter: BTreeMap::new(),
            weight: None,
            time: None,
            undirected: false,
            reverse: None,
            edge_ids: false,
            features: BTreeMap::new(),
            seeds: BTreeMap::new(),
        }
    }

    /// Returns the key of the relation.
    pub fn key(&self) -> String {
        relation_key(&self.source, &self.name, &self.target)
    }
}

impl OneOrMore {
    /// Returns the paths.
    pub fn paths(&self) -> &[String] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::More(paths) => paths,
        }
    }
}

impl From<String> for ColumnRef {
    /// Parses `PATH` or `PATH:COLUMN`. A colon is part of the path if no extension of a file is before it.
    fn from(text: String) -> Self {
        if let Some((path, column)) = text.rsplit_once(':') {
            let path_end = path.to_ascii_lowercase();
            let extensions = [".parquet", ".csv", ".tsv", ".txt", ".gz", ".npy", ".npz"];
            if !column.is_empty() && extensions.iter().any(|extension| path_end.ends_with(extension)) {
                return Self { path: path.to_owned(), column: Some(column.to_owned()) };
            }
        }
        Self { path: text, column: None }
    }
}

impl NameOrNumber {
    fn into_text(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Name(name) => name,
        }
    }
}

impl From<NameOrNumber> for ColumnName {
    fn from(value: NameOrNumber) -> Self {
        Self(value.into_text())
    }
}

impl From<NameOrNumber> for FilterValue {
    fn from(value: NameOrNumber) -> Self {
        Self(value.into_text())
    }
}

impl From<FeatureForm> for FeatureSpec {
    fn from(form: FeatureForm) -> Self {
        match form {
            FeatureForm::File(from) => Self { from, dtype: None },
            FeatureForm::Full(FullFeature { from, dtype }) => Self { from, dtype },
        }
    }
}

impl From<SeedForm> for SeedSpec {
    fn from(form: SeedForm) -> Self {
        match form {
            SeedForm::File(from) => Self::new(from),
            SeedForm::Full(FullSeed { from, label, time }) => Self { from, label, time },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_follows_the_extension_of_the_file() {
        let parsed = |text: &str| {
            let ColumnRef { path, column } = ColumnRef::from(text.to_owned());
            (path, column)
        };
        assert_eq!(parsed("x.npy"), ("x.npy".to_owned(), None));
        assert_eq!(parsed("a:b/n.parquet:section"), ("a:b/n.parquet".to_owned(), Some("section".to_owned())));
        assert_eq!(parsed("a:b"), ("a:b".to_owned(), None));
        assert_eq!(parsed("all"), ("all".to_owned(), None));
    }
}
