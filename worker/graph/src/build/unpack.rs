//! Prepares files that the build cannot read directly: arrays in archives, sparse matrices, and features in CSV files become
//! NumPy arrays in temporary files.

mod sparse_matrix;
mod text_matrix;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use feedline_sources::LocalArchive;

use self::sparse_matrix::SparseMatrixFile;
use self::text_matrix::write_matrix;
use super::run::BuildSettings;
use super::spec::{
    ColumnRef, FeatureSpec, GraphSpec, LinkSeedSpec, NodeSpec, OneOrMore, RelationSpec, SeedSpec,
};
use super::table::is_csv_file;
use crate::error::GraphError;

/// The member of an archive with the edges, if it contains no sparse matrix.
const EDGES_MEMBER: &str = "edge_index";
/// The weight that means the values of a sparse matrix.
const MATRIX_VALUES: &str = "data";
/// Size of the reads of a member.
const READ_BYTES: usize = 1 << 20;

/// Returns a spec whose files the build reads. `spill` is a folder for temporary files.
///
/// # Errors
/// Returns an error if a file is damaged, or a temporary file cannot be written.
pub(super) fn unpack(
    spec: &GraphSpec,
    spill: &Path,
    settings: &BuildSettings,
) -> Result<GraphSpec, GraphError> {
    let mut spec = spec.clone();
    let mut unpacker = Unpacker { folder: spill.join("unpacked"), settings, files: 0 };
    for relation in &mut spec.relations {
        unpacker.unpack_relation(relation, &mut spec.nodes)?;
    }
    for node in spec.nodes.values_mut() {
        unpacker.unpack_nodes(node)?;
    }
    Ok(spec)
}

struct Unpacker<'a> {
    folder: PathBuf,
    settings: &'a BuildSettings,
    /// The number of files.
    files: usize,
}

impl Unpacker<'_> {
    fn unpack_nodes(&mut self, node: &mut NodeSpec) -> Result<(), GraphError> {
        for column in node.ids.iter_mut().chain(node.labels.values_mut()) {
            self.unpack_column(column)?;
        }
        for feature in node.features.values_mut() {
            self.unpack_feature(feature)?;
        }
        for SeedSpec { from, label, time } in node.seeds.values_mut() {
            self.unpack_column(from)?;
            self.unpack_label(label)?;
            self.unpack_value(time)?;
        }
        Ok(())
    }

    fn unpack_relation(
        &mut self,
        relation: &mut RelationSpec,
        nodes: &mut BTreeMap<String, NodeSpec>,
    ) -> Result<(), GraphError> {
        if let [path] = relation.edges.paths() {
            let from = ColumnRef::from(path.clone());
            if is_archive(&from.path) {
                self.unpack_edges(&from, relation, nodes)?;
            }
        } else if let Some(path) = relation.edges.paths().iter().find(|path| is_archive(path)) {
            return Err(GraphError::file(path, "an archive must be the only file with edges of a relation"));
        }
        self.unpack_value(&mut relation.weight)?;
        self.unpack_value(&mut relation.time)?;
        for feature in relation.features.values_mut() {
            self.unpack_feature(feature)?;
        }
        for LinkSeedSpec { label, time, .. } in relation.seeds.values_mut() {
            self.unpack_label(label)?;
            self.unpack_value(time)?;
        }
        Ok(())
    }

    /// Replaces an archive by its edges. A sparse matrix also determines the number of nodes.
    fn unpack_edges(
        &mut self,
        from: &ColumnRef,
        relation: &mut RelationSpec,
        nodes: &mut BTreeMap<String, NodeSpec>,
    ) -> Result<(), GraphError> {
        let archive = open_archive(&from.path)?;
        let is_matrix = from.column.is_none() && archive.names().any(|name| name == "indptr.npy");
        if !is_matrix {
            let member = from.column.as_deref().unwrap_or(EDGES_MEMBER);
            relation.edges = OneOrMore::One(self.extract(&from.path, member)?);
            return Ok(());
        }
        let edges = self.next_path(&from.path, "edges.npy")?;
        let members = ["indptr", "indices"].map(|member| self.extract(&from.path, member));
        let [pointers, indices] = members;
        let matrix = SparseMatrixFile::open(&from.path, &archive, pointers?, indices?)?;
        matrix.write_edges(&edges, self.settings)?;
        for (node_type, count) in [(&relation.source, matrix.rows), (&relation.target, matrix.columns)] {
            let node = nodes.entry(node_type.clone()).or_default();
            if node.ids.is_none() {
                node.count = node.count.or(Some(count));
            }
        }
        if relation.weight.as_deref() == Some(MATRIX_VALUES) {
            relation.weight = Some(self.extract(&from.path, MATRIX_VALUES)?);
        }
        relation.edges = OneOrMore::One(edges.display().to_string());
        Ok(())
    }

    fn unpack_feature(&mut self, feature: &mut FeatureSpec) -> Result<(), GraphError> {
        if feature.from.column.is_none() && is_csv_file(Path::new(&feature.from.path)) {
            feature.from.path = self.convert(&feature.from.path)?;
            return Ok(());
        }
        self.unpack_column(&mut feature.from)
    }

    /// Replaces a file with one number per row. The names of columns are not changed.
    fn unpack_value(&mut self, value: &mut Option<String>) -> Result<(), GraphError> {
        let Some(text) = value else { return Ok(()) };
        let mut from = ColumnRef::from(text.clone());
        if is_archive(&from.path) {
            self.unpack_column(&mut from)?;
            *text = from.path;
        } else if is_csv_file(Path::new(&from.path)) && Path::new(&from.path).is_file() {
            *text = self.convert(&from.path)?;
        }
        Ok(())
    }

    /// Replaces an archive by the array with the labels of seeds. The numbers of CSV files become floats, so they cannot be labels.
    fn unpack_label(&mut self, label: &mut Option<String>) -> Result<(), GraphError> {
        if let Some(path) =
            label.as_deref().filter(|text| is_csv_file(Path::new(text)) && Path::new(text).is_file())
        {
            let reason = "the labels of seeds are a column, or a NumPy array: save them with `numpy.save`";
            return Err(GraphError::file(path, reason));
        }
        self.unpack_value(label)
    }

    fn unpack_column(&mut self, column: &mut ColumnRef) -> Result<(), GraphError> {
        if is_archive(&column.path) {
            let Some(member) = column.column.take() else {
                let reason = "the archive has several arrays: append the name of one, such as FILE.npz:x";
                return Err(GraphError::file(&column.path, reason));
            };
            column.path = self.extract(&column.path, &member)?;
        }
        Ok(())
    }

    /// Copies an array of an archive to a file. Returns its path.
    fn extract(&mut self, archive: &str, member: &str) -> Result<String, GraphError> {
        (self.settings.on_step)(&format!("unpacking {archive}"));
        let path = self.next_path(archive, &format!("{member}.npy"))?;
        let opened = open_archive(archive)?;
        let invalid = |reason: String| GraphError::file(archive, reason);
        let mut reader = opened.member(&format!("{member}.npy")).map_err(invalid)?;
        let failed = |error: std::io::Error| GraphError::io("write", &path, &error);
        let mut file = File::create_new(&path).map_err(failed)?;
        let mut bytes = vec![0; READ_BYTES];
        loop {
            self.settings.check_stop()?;
            let count = reader.read(&mut bytes);
            let count = count.map_err(|error| invalid(format!("{error}: write the file again")))?;
            if count == 0 {
                return Ok(path.display().to_string());
            }
            file.write_all(&bytes[..count]).map_err(failed)?;
        }
    }

    /// Converts a CSV file of numbers to an array. Returns its path.
    fn convert(&mut self, path: &str) -> Result<String, GraphError> {
        (self.settings.on_step)(&format!("converting {path}"));
        let array = self.next_path(path, "numbers.npy")?;
        write_matrix(Path::new(path), &array, self.settings)?;
        Ok(array.display().to_string())
    }

    /// Returns the path of a new temporary file. It contains the name of the original file, for messages.
    fn next_path(&mut self, original: &str, name: &str) -> Result<PathBuf, GraphError> {
        let stem = Path::new(original).file_name().and_then(|name| name.to_str()).unwrap_or("file");
        let path = self.folder.join(format!("{}-{stem}-{name}", self.files));
        self.files += 1;
        fs::create_dir_all(&self.folder).map_err(|error| GraphError::io("create", &self.folder, &error))?;
        Ok(path)
    }
}

fn is_archive(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npz"))
}

fn open_archive(path: &str) -> Result<LocalArchive, GraphError> {
    LocalArchive::open(Path::new(path)).map_err(|reason| GraphError::file(path, reason))
}
