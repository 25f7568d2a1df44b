//! Datasets of OGB with several node types, such as ogbn-mag: the files of each type and relation are in folders of their own.

use std::collections::BTreeMap;
use std::path::Path;

use super::raw_folder::{RawFolder, feature, seed_sets};
use crate::build::{GraphSpec, NodeSpec, RelationSpec};
use crate::error::GraphError;

/// Separates the parts of the name of a relation's folder.
const SEPARATOR: &str = "___";

/// Returns the graph in a folder. `triplets` are the relations, such as `author,writes,paper`. The seed sets are `train`, `valid` and
/// `test`; the name of the node type follows them if several types have seeds.
///
/// # Errors
/// Returns an error if a file is missing or damaged, or the dataset has several graphs.
pub(super) fn typed_spec(folder: &Path, triplets: &[String]) -> Result<GraphSpec, GraphError> {
    let raw = folder.join("raw");
    let invalid = |reason: String| GraphError::file(folder.display().to_string(), reason);
    let counts = RawFolder::new(raw.clone()).lines("num-node-dict")?;
    let mut nodes = match counts.as_deref() {
        Some([types, counts]) => parse_counts(types, counts).map_err(invalid)?,
        Some([_, _, ..]) => {
            let reason = "the dataset has several graphs: only datasets of one graph can be built";
            return Err(invalid(reason.to_owned()));
        }
        _ => return Err(invalid("`raw` contains no num-node-dict.csv.gz: check the download".to_owned())),
    };
    let mut seeds = Vec::new();
    for (name, node) in &mut nodes {
        RawFolder::new(raw.join("node-feat").join(name)).add_features(node)?;
        RawFolder::new(raw.join("node-label").join(name)).add_labels(node)?;
        let sets = seed_sets(&folder.join("split"), Some(name))?;
        seeds.extend(sets.into_iter().map(|(set, spec)| (name.clone(), set, spec)));
    }
    let is_one_type = seeds.windows(2).all(|pair| pair[0].0 == pair[1].0);
    for (node_type, set, spec) in seeds {
        let name = if is_one_type { set.to_owned() } else { format!("{set}-{node_type}") };
        if let Some(node) = nodes.get_mut(&node_type) {
            node.seeds.insert(name, spec);
        }
    }
    let mut relations = Vec::new();
    for triplet in triplets {
        let parts: Vec<&str> = triplet.split(',').map(str::trim).collect();
        let [source, name, target] = parts[..] else {
            return Err(invalid(format!(
                "invalid relation `{}` in triplet-type-list",
                triplet.escape_debug()
            )));
        };
        let files = RawFolder::new(raw.join("relations").join(parts.join(SEPARATOR)));
        let Some(edges) = files.find("edge") else {
            let key = parts.join(SEPARATOR);
            return Err(invalid(format!(
                "`raw/relations/{key}` contains no edge.csv.gz: check the download"
            )));
        };
        let mut relation = RelationSpec::new(source, name, target, vec![edges]);
        if let Some(path) = files.find("edge-feat") {
            relation.features.insert("edge_attr".to_owned(), feature(path));
        }
        relations.push(relation);
    }
    Ok(GraphSpec { nodes, relations, ..GraphSpec::default() })
}

/// Parses the names of the node types, and the number of nodes of each.
fn parse_counts(types: &str, counts: &str) -> Result<BTreeMap<String, NodeSpec>, String> {
    let counts: Vec<Option<u64>> = counts.split(',').map(|count| count.trim().parse().ok()).collect();
    let types: Vec<&str> = types.split(',').map(str::trim).collect();
    if types.len() != counts.len() || counts.contains(&None) {
        return Err("the numbers of nodes in num-node-dict are invalid: check the download".to_owned());
    }
    let node = |count: Option<u64>| NodeSpec { count, ..NodeSpec::default() };
    Ok(types.into_iter().map(str::to_owned).zip(counts.into_iter().map(node)).collect())
}
