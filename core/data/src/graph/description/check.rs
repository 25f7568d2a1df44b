//! Checks of a description: names, references, paths, and the sizes of files.

use std::collections::BTreeSet;

use super::{DescribedFile, GraphDescription, GraphFeature, HASH_BLOCK_BYTES, NodeOrder, NodeType, SeedKind};

/// Maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 64;
/// Maximum number of node types, relations, seed sets, and features of a node type or relation. Names are searched one by one.
const MAX_PARTS: usize = 1 << 12;
/// Maximum size of a row of a feature.
const MAX_ROW_BYTES: u64 = 1 << 30;
/// Maximum size of the header of an array.
const MAX_HEADER_BYTES: u64 = 4_096;
/// The header of an array is a multiple of this size, so that rows in a mapped file are aligned.
const HEADER_ALIGNMENT: u64 = 64;
/// Maximum length of a path in the folder.
const MAX_PATH_BYTES: usize = 512;

/// Checks the name of a node type, relation, feature or seed set. `what` is the kind of the thing.
///
/// # Errors
/// Returns a message that states the rule.
pub fn check_name(what: &str, name: &str) -> Result<(), String> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    let is_bounded = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    let has_separator = name.contains("__") || name.starts_with('_') || name.ends_with('_');
    if is_plain && is_bounded && !has_separator && !name.starts_with('-') {
        return Ok(());
    }
    Err(format!(
        "invalid {what} `{}`: use at most {MAX_NAME_BYTES} letters, digits, `-` and single `_` inside the name",
        name.escape_debug()
    ))
}

impl GraphDescription {
    /// Checks that names are valid and unique, that node types and relations exist, and that the sizes of files match the number of
    /// nodes, edges and rows.
    ///
    /// # Errors
    /// Returns a message that names the invalid value.
    pub fn check(&self) -> Result<(), String> {
        self.check_node_types()?;
        self.check_relations()?;
        self.check_seeds()?;
        self.check_vip()?;
        let mut paths = BTreeSet::new();
        for file in self.files() {
            check_file(&file)?;
            if !paths.insert(file.file.path.as_str()) {
                return Err(format!("the file `{}` is listed twice", file.file.path));
            }
        }
        Ok(())
    }

    fn check_node_types(&self) -> Result<(), String> {
        check_count("node types", self.nodes.len())?;
        if self.nodes.is_empty() {
            return Err("the graph has no node types".to_owned());
        }
        let mut names = BTreeSet::new();
        for node_type in &self.nodes {
            check_name("node type", &node_type.name)?;
            if !names.insert(node_type.name.as_str()) {
                return Err(format!("the node type `{}` is listed twice", node_type.name));
            }
            self.check_positions(node_type)?;
            check_features(&format!("node type `{}`", node_type.name), &node_type.features)?;
        }
        Ok(())
    }

    fn check_positions(&self, node_type: &NodeType) -> Result<(), String> {
        match (self.order, node_type.positions.is_some()) {
            (NodeOrder::None, true) => {
                Err(format!("the node type `{}` has positions, but the order is `none`", node_type.name))
            }
            (NodeOrder::Degree, false) => {
                Err(format!("the node type `{}` has no positions, but the order is `degree`", node_type.name))
            }
            (NodeOrder::Vip, false) => {
                Err(format!("the node type `{}` has no positions, but the order is `vip`", node_type.name))
            }
            _ => Ok(()),
        }
    }

    fn check_relations(&self) -> Result<(), String> {
        check_count("relations", self.relations.len())?;
        let mut keys = BTreeSet::new();
        for relation in &self.relations {
            check_name("relation", &relation.name)?;
            let key = relation.key();
            for name in [&relation.source, &relation.target] {
                if self.node_type(name).is_none() {
                    return Err(format!(
                        "the relation `{key}` refers to the unknown node type `{}`",
                        name.escape_debug()
                    ));
                }
            }
            check_features(&format!("relation `{key}`"), &relation.features)?;
            if relation.undirected && relation.source != relation.target {
                return Err(format!("the relation `{key}` is undirected, but its node types differ"));
            }
            if !keys.insert(key.clone()) {
                return Err(format!("the relation `{key}` is listed twice"));
            }
        }
        Ok(())
    }

    fn check_seeds(&self) -> Result<(), String> {
        check_count("seed sets", self.seeds.len())?;
        let mut names = BTreeSet::new();
        for seeds in &self.seeds {
            check_name("seed set", &seeds.name)?;
            if !names.insert(seeds.name.as_str()) {
                return Err(format!("the seed set `{}` is listed twice", seeds.name));
            }
            let (what, reference, exists) = match &seeds.of {
                SeedKind::Nodes(name) => ("node type", name, self.node_type(name).is_some()),
                SeedKind::Links(key) => ("relation", key, self.relation(key).is_some()),
            };
            if !exists {
                return Err(format!(
                    "the seed set `{}` refers to the unknown {what} `{}`",
                    seeds.name,
                    reference.escape_debug()
                ));
            }
        }
        Ok(())
    }

    fn check_vip(&self) -> Result<(), String> {
        match (self.order, &self.vip) {
            (NodeOrder::Vip, Some(vip)) => {
                if !self.seeds.iter().any(|seeds| seeds.name == vip.seeds) {
                    let seeds = vip.seeds.escape_debug();
                    return Err(format!("the order `vip` refers to the unknown seed set `{seeds}`"));
                }
                vip.check(&self.nodes.iter().map(|node_type| node_type.count).collect::<Vec<_>>())
            }
            (NodeOrder::Vip, None) => Err("the order is `vip`, but its batches are not described".to_owned()),
            (_, Some(_)) => Err("the order is not `vip`, but its batches are described".to_owned()),
            (_, None) => Ok(()),
        }
    }
}

fn check_count(what: &str, count: usize) -> Result<(), String> {
    match count <= MAX_PARTS {
        true => Ok(()),
        false => Err(format!("the graph has {count} {what}; the limit is {MAX_PARTS}")),
    }
}

fn check_features(owner: &str, features: &[GraphFeature]) -> Result<(), String> {
    check_count("features", features.len())?;
    let mut names = BTreeSet::new();
    for feature in features {
        check_name("feature", &feature.name)?;
        if !names.insert(feature.name.as_str()) {
            return Err(format!("the feature `{}` of the {owner} is listed twice", feature.name));
        }
        let width = feature.dtype.width_bytes() as u64;
        let row_bytes =
            feature.shape.iter().try_fold(width, |product, &extent| product.checked_mul(u64::from(extent)));
        if !row_bytes.is_some_and(|bytes| (1..=MAX_ROW_BYTES).contains(&bytes)) {
            return Err(format!(
                "the feature `{}` of the {owner} has the invalid row shape {:?}: a row must have from 1 to {MAX_ROW_BYTES} bytes",
                feature.name, feature.shape
            ));
        }
    }
    Ok(())
}

fn check_file(described: &DescribedFile<'_>) -> Result<(), String> {
    let file = described.file;
    check_path(&file.path)?;
    let header = described.header_bytes().filter(|&bytes| match described.array {
        Some(_) => (HEADER_ALIGNMENT..=MAX_HEADER_BYTES).contains(&bytes) && bytes % HEADER_ALIGNMENT == 0,
        None => true,
    });
    let Some(header) = header else {
        let array = described.array.as_ref();
        return Err(format!(
            "the file `{}` has {} bytes, which does not match an array of {} with the shape {:?} and a header",
            file.path,
            file.bytes,
            array.map_or("bytes", |array| array.dtype.name()),
            array.map(|array| array.shape.as_slice()).unwrap_or_default(),
        ));
    };
    let blocks = (file.bytes - header).div_ceil(HASH_BLOCK_BYTES);
    if file.blocks.len() as u64 != blocks {
        return Err(format!(
            "the file `{}` has {} hashes, but its {} bytes have {blocks} blocks",
            file.path,
            file.blocks.len(),
            file.bytes
        ));
    }
    Ok(())
}

/// Accepts relative paths without special components, so that a description cannot refer to files outside the folder.
fn check_path(path: &str) -> Result<(), String> {
    let is_plain = |part: &str| {
        let mut bytes = part.bytes();
        !part.is_empty()
            && !part.starts_with('.')
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
    };
    if path.len() <= MAX_PATH_BYTES && path.split('/').all(is_plain) {
        return Ok(());
    }
    Err(format!("invalid path `{}`: expected a path inside the folder of the graph", path.escape_debug()))
}
