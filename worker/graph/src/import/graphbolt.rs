//! Datasets of DGL's GraphBolt (`OnDiskDataset`) before their preprocessing: a folder with `metadata.yaml` and arrays.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use feedline_sources::{MAX_HEADER_END, NpyArrayHeader};
use serde::Deserialize;

use crate::build::{
    ColumnRef, DEFAULT_NODE_TYPE, DEFAULT_RELATION, FeatureSpec, GraphSpec, LinkSeedSpec, NodeSpec,
    OneOrMore, RelationSpec, SeedSpec,
};
use crate::error::GraphError;

/// The name of the description in the folder of a dataset.
pub const METADATA_FILE: &str = "metadata.yaml";

/// The description of a dataset. Keys that do not affect the graph are ignored.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct GraphBoltMetadata {
    #[serde(default)]
    graph: Option<DescribedGraph>,
    #[serde(default)]
    feature_data: Vec<DescribedFeature>,
    #[serde(default)]
    tasks: Vec<DescribedTask>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
struct DescribedGraph {
    #[serde(default)]
    nodes: Vec<DescribedNodes>,
    #[serde(default)]
    edges: Vec<DescribedEdges>,
    #[serde(default)]
    feature_data: Vec<DescribedFeature>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct DescribedNodes {
    #[serde(default, rename = "type")]
    node_type: Option<String>,
    num: u64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct DescribedEdges {
    #[serde(default, rename = "type")]
    edge_type: Option<String>,
    #[serde(default)]
    format: Option<String>,
    path: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct DescribedFeature {
    #[serde(default)]
    domain: Option<String>,
    #[serde(default, rename = "type")]
    of_type: Option<String>,
    name: String,
    #[serde(default)]
    format: Option<String>,
    path: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
struct DescribedTask {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    train_set: Vec<DescribedSet>,
    #[serde(default)]
    validation_set: Vec<DescribedSet>,
    #[serde(default)]
    test_set: Vec<DescribedSet>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct DescribedSet {
    #[serde(default, rename = "type")]
    of_type: Option<String>,
    #[serde(default)]
    data: Vec<DescribedArray>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct DescribedArray {
    name: String,
    #[serde(default)]
    format: Option<String>,
    path: String,
}

/// Returns the graph of a dataset in a folder. Its seed sets are `train`, `validation` and `test`; the name of the task precedes them
/// if there are several tasks, and the type follows them if a set has several types.
///
/// # Errors
/// Returns an error if the dataset refers to unknown types, or contains files in other formats than NumPy and CSV.
pub fn graphbolt_spec(metadata: &GraphBoltMetadata, folder: &Path) -> Result<GraphSpec, GraphError> {
    let dataset = GraphBoltDataset { folder, file: folder.join(METADATA_FILE).display().to_string() };
    let Some(graph) = &metadata.graph else {
        return Err(dataset.invalid("there is no key `graph`: pass the folder before its preprocessing"));
    };
    let mut nodes: BTreeMap<String, NodeSpec> = BTreeMap::new();
    for described in &graph.nodes {
        let name = described.node_type.as_deref().unwrap_or(DEFAULT_NODE_TYPE);
        nodes.entry(name.to_owned()).or_default().count = Some(described.num);
    }
    let mut relations = Vec::new();
    for described in &graph.edges {
        relations.push(dataset.relation(described)?);
    }
    let mut spec = GraphSpec { nodes, relations, ..GraphSpec::default() };
    for feature in graph.feature_data.iter().chain(&metadata.feature_data) {
        dataset.add_feature(&mut spec, feature)?;
    }
    for task in &metadata.tasks {
        let prefix = match (&task.name, metadata.tasks.len()) {
            (Some(name), 2..) => format!("{name}-"),
            _ => String::new(),
        };
        let sets =
            [("train", &task.train_set), ("validation", &task.validation_set), ("test", &task.test_set)];
        for (name, sets) in sets {
            for set in sets {
                let suffix = match (&set.of_type, sets.len()) {
                    (Some(of_type), 2..) => format!("-{}", of_type.replace(':', "-")),
                    _ => String::new(),
                };
                dataset.add_seeds(&mut spec, format!("{prefix}{name}{suffix}"), set)?;
            }
        }
    }
    Ok(spec)
}

/// The folder of a dataset.
struct GraphBoltDataset<'a> {
    folder: &'a Path,
    /// The path of the description, for messages.
    file: String,
}

impl GraphBoltDataset<'_> {
    fn invalid(&self, reason: impl Into<String>) -> GraphError {
        GraphError::file(&self.file, reason)
    }

    /// Returns the path of a file whose format the build reads.
    fn path(&self, path: &str, format: Option<&str>) -> Result<String, GraphError> {
        match format {
            None | Some("numpy" | "csv") => Ok(self.folder.join(path).display().to_string()),
            Some(other) => Err(self.invalid(format!(
                "`{}` has the format `{}`: save it with NumPy, and set the format `numpy`",
                path.escape_debug(),
                other.escape_debug()
            ))),
        }
    }

    fn relation(&self, described: &DescribedEdges) -> Result<RelationSpec, GraphError> {
        let path = self.path(&described.path, described.format.as_deref())?;
        let names: Vec<&str> = match &described.edge_type {
            None => vec![DEFAULT_NODE_TYPE, DEFAULT_RELATION, DEFAULT_NODE_TYPE],
            Some(edge_type) => edge_type.split(':').collect(),
        };
        match names.as_slice() {
            [source, name, target] => Ok(RelationSpec::new(source, name, target, vec![path])),
            _ => Err(self.invalid(format!(
                "invalid edge type `{}`: expected `SOURCE:NAME:TARGET`",
                described.edge_type.as_deref().unwrap_or_default().escape_debug()
            ))),
        }
    }

    /// Returns the relation with a type such as `author:writes:paper`. Without a type, there must be one relation.
    fn relation_of<'s>(
        &self,
        spec: &'s mut GraphSpec,
        of_type: Option<&str>,
    ) -> Result<&'s mut RelationSpec, GraphError> {
        let is_wanted = |relation: &RelationSpec| {
            of_type.is_none_or(|of_type| {
                of_type == format!("{}:{}:{}", relation.source, relation.name, relation.target)
            })
        };
        let found = spec.relations.iter_mut().find(|relation| is_wanted(relation));
        found.ok_or_else(|| {
            let of_type = of_type.unwrap_or_default();
            self.invalid(format!("the edge type `{}` does not exist", of_type.escape_debug()))
        })
    }

    /// Returns the node type with a name. Without a name, it is that of graphs without types.
    fn nodes_of<'s>(
        &self,
        spec: &'s mut GraphSpec,
        of_type: Option<&str>,
    ) -> Result<&'s mut NodeSpec, GraphError> {
        let name = of_type.unwrap_or(DEFAULT_NODE_TYPE);
        let unknown = || self.invalid(format!("the node type `{}` does not exist", name.escape_debug()));
        spec.nodes.get_mut(name).ok_or_else(unknown)
    }

    fn add_feature(&self, spec: &mut GraphSpec, feature: &DescribedFeature) -> Result<(), GraphError> {
        let path = self.path(&feature.path, feature.format.as_deref())?;
        let of_type = feature.of_type.as_deref();
        let features = match feature.domain.as_deref() {
            None | Some("node") => &mut self.nodes_of(spec, of_type)?.features,
            Some("edge") => &mut self.relation_of(spec, of_type)?.features,
            // Features of the whole graph are not part of batches.
            Some(_) => return Ok(()),
        };
        let from = FeatureSpec { from: ColumnRef::from(path), dtype: None };
        match features.insert(feature.name.clone(), from) {
            Some(_) => {
                Err(self.invalid(format!("the feature `{}` is listed twice", feature.name.escape_debug())))
            }
            None => Ok(()),
        }
    }

    fn add_seeds(&self, spec: &mut GraphSpec, name: String, set: &DescribedSet) -> Result<(), GraphError> {
        let (mut from, mut label) = (None, None);
        let mut names = BTreeSet::new();
        for array in &set.data {
            let path = self.path(&array.path, array.format.as_deref())?;
            match array.name.as_str() {
                "seeds" | "seed_nodes" | "node_pairs" => from = Some(path),
                "labels" => label = Some(path),
                other => {
                    return Err(self.invalid(format!(
                        "the seed set `{name}` has the array `{}`: only seeds and labels can be built",
                        other.escape_debug()
                    )));
                }
            }
            if !names.insert(array.name.as_str()) {
                return Err(self.invalid(format!("the seed set `{name}` lists `{}` twice", array.name)));
            }
        }
        let Some(from) = from else {
            return Err(self.invalid(format!("the seed set `{name}` has no array `seeds`")));
        };
        let of_type = set.of_type.as_deref();
        if has_pairs(Path::new(&from))? {
            let seeds = LinkSeedSpec { edges: OneOrMore::One(from), columns: None, label, time: None };
            self.relation_of(spec, of_type)?.seeds.insert(name, seeds);
        } else {
            let seeds = SeedSpec { label, ..SeedSpec::new(ColumnRef::from(from)) };
            self.nodes_of(spec, of_type)?.seeds.insert(name, seeds);
        }
        Ok(())
    }
}

/// Whether an array contains pairs of nodes.
fn has_pairs(path: &Path) -> Result<bool, GraphError> {
    let name = path.display().to_string();
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_HEADER_END).read_to_end(&mut start));
    read.map_err(|error| GraphError::io("read", path, &error))?;
    if !start.starts_with(b"\x93NUMPY") {
        return Ok(false);
    }
    let header = NpyArrayHeader::parse(&start).map_err(|error| GraphError::header(name, error))?;
    Ok(matches!(header.shape.as_slice(), [_, 2]))
}
