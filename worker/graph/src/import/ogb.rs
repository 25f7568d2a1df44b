//! The folder of a node or link dataset of OGB: `raw` with the graph, and `split` with the seeds.

mod raw_folder;
mod typed;

use std::path::Path;

use self::raw_folder::{RawFolder, feature, seed_sets};
use self::typed::typed_spec;
use crate::build::{GraphSpec, NodeSpec};
use crate::error::GraphError;

/// Returns the graph in a folder of OGB: the features `x` and `node_year`, the label `y`, the edge feature `edge_attr`, and the seed
/// sets `train`, `valid` and `test`. If nodes have several labels, `y` is a feature.
///
/// # Errors
/// Returns an error if a file is missing or damaged, or the dataset has several graphs.
pub fn ogb_spec(folder: &Path) -> Result<GraphSpec, GraphError> {
    let invalid = |reason: &str| GraphError::file(folder.display().to_string(), reason);
    let path = folder.join("raw");
    if !path.is_dir() {
        return Err(invalid(
            "there is no folder `raw`: pass the folder of a dataset that OGB has downloaded",
        ));
    }
    let raw = RawFolder::new(path);
    if let Some(triplets) = raw.lines("triplet-type-list")? {
        return typed_spec(folder, &triplets);
    }
    let Some(edges) = raw.find_or_member("edge", "edge_index")? else {
        return Err(invalid("`raw` contains neither edge.csv.gz nor data.npz: check the download"));
    };
    let count = match raw.lines("num-node-list")?.as_deref() {
        None => None,
        Some([count]) => Some(
            count
                .parse()
                .map_err(|_| invalid("the number of nodes is not an integer: check the download"))?,
        ),
        Some(_) => {
            return Err(invalid("the dataset has several graphs: only datasets of one graph can be built"));
        }
    };
    let mut nodes = NodeSpec { count, ..NodeSpec::default() };
    raw.add_features(&mut nodes)?;
    raw.add_labels(&mut nodes)?;
    for (name, seeds) in seed_sets(&folder.join("split"), None)? {
        nodes.seeds.insert(name.to_owned(), seeds);
    }
    let mut spec = GraphSpec::homogeneous(nodes, vec![edges]);
    let relation = &mut spec.relations[0];
    relation.weight = raw.find("edge_weight");
    relation.time = raw.find("edge_year");
    if let Some(path) = raw.find_or_member("edge-feat", "edge_feat")? {
        relation.features.insert("edge_attr".to_owned(), feature(path));
    }
    Ok(spec)
}
