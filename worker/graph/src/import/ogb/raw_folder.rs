//! The files in a folder of OGB.

use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use feedline_sources::LocalArchive;
use flate2::read::MultiGzDecoder;

use crate::build::{ColumnRef, FeatureSpec, NodeSpec, SeedSpec};
use crate::error::GraphError;

/// The endings of files, in the order in which they are searched.
const ENDINGS: [&str; 3] = [".csv.gz", ".csv", ".npy"];
/// The archive of large datasets.
const ARCHIVE: &str = "data.npz";
/// The archive with the labels of large datasets.
const LABEL_ARCHIVE: &str = "node-label.npz";
/// The parts of a split, which become seed sets.
const SEED_SETS: [&str; 3] = ["train", "valid", "test"];
/// Maximum size of the text that is searched for types, numbers of nodes and columns.
const MAX_START_BYTES: u64 = 1 << 20;

/// A folder with files of one graph, node type or relation.
pub(super) struct RawFolder {
    path: PathBuf,
}

impl RawFolder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the file with this name and any ending.
    pub(super) fn find(&self, name: &str) -> Option<String> {
        let mut paths = ENDINGS.iter().map(|ending| self.path.join(format!("{name}{ending}")));
        paths.find(|path| path.is_file()).map(|path| shown(&path))
    }

    /// Returns the file with a name, or the array of the archive with another name.
    pub(super) fn find_or_member(&self, file: &str, member: &str) -> Result<Option<String>, GraphError> {
        if let Some(path) = self.find(file) {
            return Ok(Some(path));
        }
        let path = self.path.join(ARCHIVE);
        if !path.exists() {
            return Ok(None);
        }
        let archive = LocalArchive::open(&path).map_err(|reason| GraphError::file(shown(&path), reason))?;
        let exists = archive.names().any(|name| name.strip_suffix(".npy") == Some(member));
        Ok(exists.then(|| format!("{}:{member}", shown(&path))))
    }

    /// Adds the features `x` and `node_year`.
    pub(super) fn add_features(&self, nodes: &mut NodeSpec) -> Result<(), GraphError> {
        for (name, file, member) in [("x", "node-feat", "node_feat"), ("node_year", "node_year", "node_year")]
        {
            if let Some(path) = self.find_or_member(file, member)? {
                nodes.features.insert(name.to_owned(), feature(path));
            }
        }
        Ok(())
    }

    /// Adds the label `y`. Several labels of each node become a feature.
    pub(super) fn add_labels(&self, nodes: &mut NodeSpec) -> Result<(), GraphError> {
        let archive = self.path.join(LABEL_ARCHIVE);
        if let Some(path) = self.find("node-label") {
            if columns(&path)? == 1 {
                nodes.labels.insert("y".to_owned(), ColumnRef::from(path));
            } else {
                nodes.features.insert("y".to_owned(), feature(path));
            }
        } else if archive.exists() {
            let path = format!("{}:node_label", shown(&archive));
            nodes.labels.insert("y".to_owned(), ColumnRef::from(path));
        }
        Ok(())
    }

    /// Returns the lines of a small file. `None` if it does not exist.
    pub(super) fn lines(&self, name: &str) -> Result<Option<Vec<String>>, GraphError> {
        let Some(path) = self.find(name) else { return Ok(None) };
        let text = start_of(Path::new(&path))?;
        let lines = text.lines().map(|line| line.trim().to_owned());
        Ok(Some(lines.filter(|line| !line.is_empty()).collect()))
    }
}

/// A feature that keeps its type.
pub(super) fn feature(path: String) -> FeatureSpec {
    FeatureSpec { from: ColumnRef::from(path), dtype: None }
}

/// Returns the seed sets of the only split with their names: of all nodes, or of one type. Splits in other formats are ignored.
pub(super) fn seed_sets(
    folder: &Path,
    node_type: Option<&str>,
) -> Result<Vec<(&'static str, SeedSpec)>, GraphError> {
    let failed = |error: std::io::Error| GraphError::io("read", folder, &error);
    let mut found = Vec::new();
    if !folder.is_dir() {
        return Ok(found);
    }
    let mut splits = 0;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let split = entry.map_err(failed)?.path();
        let files = RawFolder::new(node_type.map_or(split.clone(), |node_type| split.join(node_type)));
        let seeds = |path: String| SeedSpec::new(ColumnRef::from(path));
        let sets = SEED_SETS.iter().filter_map(|&name| Some((name, seeds(files.find(name)?))));
        let before = found.len();
        found.extend(sets);
        splits += usize::from(found.len() > before);
    }
    if splits > 1 {
        let reason = "the folder contains several splits: move all but one to another folder";
        return Err(GraphError::file(shown(folder), reason));
    }
    Ok(found)
}

/// Returns the number of columns of a file.
fn columns(path: &str) -> Result<usize, GraphError> {
    if path.ends_with(".npy") {
        return Ok(1);
    }
    let text = start_of(Path::new(path))?;
    Ok(text.lines().next().map_or(1, |line| line.split(',').count()))
}

/// Returns the text at the start of a file.
fn start_of(path: &Path) -> Result<String, GraphError> {
    let failed = |error: std::io::Error| GraphError::io("read", path, &error);
    let file = BufReader::new(File::open(path).map_err(failed)?);
    let is_gzip = path.extension().is_some_and(|extension| extension == "gz");
    let reader: Box<dyn Read> = if is_gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut bytes = Vec::new();
    reader.take(MAX_START_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
