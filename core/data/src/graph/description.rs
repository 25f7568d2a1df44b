//! The description of a stored graph, `graph.json`: node types, relations, features and seed sets, and the files that contain
//! them. This module neither reads nor writes files. `docs/graph-folder.md` defines the format.

mod check;
mod fingerprint;
mod hashes;
mod layout;
#[cfg(test)]
mod tests;
mod vip;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::check::check_name;
pub use self::hashes::{BlockHash, GraphHash};
pub use self::layout::{ArrayLayout, DescribedFile};
pub use self::vip::{ExpectedHitRate, HIT_RATE_POINTS, VipOrder, check_fanouts};
use crate::schema::ScalarType;

/// The version of the format that this release reads and writes.
pub const GRAPH_VERSION: u32 = 1;
/// The name of the file in the folder of a graph that contains the description.
pub const DESCRIPTION_FILE: &str = "graph.json";
/// The number of bytes that each [`BlockHash`] covers. The last block of a file may be shorter.
pub const HASH_BLOCK_BYTES: u64 = 8 << 20;

/// The contents of `graph.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphDescription {
    /// The version of the format, [`GRAPH_VERSION`].
    pub version: u32,
    /// The order in which the nodes of each type are stored.
    #[serde(default)]
    pub order: NodeOrder,
    /// The batches for which the nodes are ordered. `None` for other orders than `vip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vip: Option<VipOrder>,
    /// The node types.
    pub nodes: Vec<NodeType>,
    /// The relations.
    pub relations: Vec<GraphRelation>,
    /// The seed sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seeds: Vec<SeedSet>,
}

/// The order in which nodes are stored. The id of a node is its index in this order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeOrder {
    /// The user's order.
    #[default]
    None,
    /// By the number of edges that begin at a node, from many to few. Equal nodes are in the user's order.
    Degree,
    /// By the probability that a batch contains a node, from high to low. Equal nodes are in the user's order.
    Vip,
}

/// The nodes of one type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeType {
    /// The name of the type.
    pub name: String,
    /// The number of nodes.
    pub count: u32,
    /// The position of each node in the user's order: `uint32`, one per node. `None` if nodes are stored in the user's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<StoredFile>,
    /// The user's ids. `None` if the id of a node is its position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<NodeNames>,
    /// The features of the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<GraphFeature>,
}

/// The user's ids of the nodes of one type as UTF-8, in the user's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeNames {
    /// The length of all ids together, in bytes.
    pub length_bytes: u64,
    /// The start of each id in the text, and the length of the text: `uint64`, one more than there are nodes.
    pub offsets: StoredFile,
    /// The ids without separators: `uint8`.
    pub text: StoredFile,
}

/// The edges from nodes of one type to nodes of one type, by target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphRelation {
    /// The type of the source nodes.
    pub source: String,
    /// The name of the relation.
    pub name: String,
    /// The type of the target nodes.
    pub target: String,
    /// The number of edges.
    pub edges: u64,
    /// Whether each edge is stored in both directions and duplicates are merged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undirected: bool,
    /// The position of the first edge of each target node, and the number of edges: `uint64`.
    pub offsets: StoredFile,
    /// The source of each edge: `uint32`.
    pub sources: StoredFile,
    /// The sums of the weights of a target's edges, up to and including each edge: `uint32`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<StoredFile>,
    /// The time of each edge: `int64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<StoredFile>,
    /// The position of each edge in the user's edge list: `uint64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_ids: Option<StoredFile>,
    /// The features of the edges, in the order of the stored edges.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<GraphFeature>,
}

/// A feature: one row of numbers per node or edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphFeature {
    /// The name of the feature.
    pub name: String,
    /// The type of the numbers.
    pub dtype: ScalarType,
    /// The shape of a row. Empty if a row is one number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<u32>,
    /// The rows.
    pub file: StoredFile,
}

/// A named table of seeds: an Arrow file. Its rows are the rows of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedSet {
    /// The name of the seed set.
    pub name: String,
    /// The nodes or edges in the table.
    pub of: SeedKind,
    /// The number of rows.
    pub rows: u64,
    /// For each label column that the user gave as text: the text of each class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, Vec<String>>,
    /// The Arrow file.
    pub file: StoredFile,
}

/// The rows of a seed set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeedKind {
    /// Nodes of this type, in the column `node`.
    Nodes(String),
    /// Edges of the relation with this key, in the columns `source` and `target`.
    Links(String),
}

/// A file of the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredFile {
    /// The path in the folder.
    pub path: String,
    /// The size of the file.
    pub bytes: u64,
    /// The hash of each block of [`HASH_BLOCK_BYTES`]. The blocks of an array begin after its header.
    pub blocks: Vec<BlockHash>,
}

impl GraphDescription {
    /// Parses the contents of `graph.json`, and checks them.
    ///
    /// # Errors
    /// Returns a message that names the invalid value and the fix.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct VersionOnly {
            version: u32,
        }
        let invalid =
            |error: serde_json::Error| format!("invalid description: {error}: build the graph again");
        let VersionOnly { version } = serde_json::from_slice(json).map_err(invalid)?;
        if version != GRAPH_VERSION {
            return Err(format!(
                "the graph has version {version}, but this release reads version {GRAPH_VERSION}: build the graph again, or use the \
                 release that built it"
            ));
        }
        let description: Self = serde_json::from_slice(json).map_err(invalid)?;
        description.check()?;
        Ok(description)
    }

    /// Returns the contents of `graph.json`. They end in a newline.
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self).expect("the description has string keys only");
        json + "\n"
    }

    /// Returns the index and the description of a node type.
    pub fn node_type(&self, name: &str) -> Option<(usize, &NodeType)> {
        self.nodes.iter().enumerate().find(|(_, node_type)| node_type.name == name)
    }

    /// Returns the index and the description of the relation with this key.
    pub fn relation(&self, key: &str) -> Option<(usize, &GraphRelation)> {
        self.relations.iter().enumerate().find(|(_, relation)| relation.key() == key)
    }
}

impl GraphRelation {
    /// Returns the name that is unique in the graph, such as `author__writes__paper`. PyG uses the same names.
    pub fn key(&self) -> String {
        relation_key(&self.source, &self.name, &self.target)
    }
}

/// Returns the key of a relation.
pub fn relation_key(source: &str, name: &str, target: &str) -> String {
    format!("{source}__{name}__{target}")
}
