//! Input files, builds, and the arrays of a built graph.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use feedline_data::graph::description::GraphDescription;
use feedline_data::schema::ScalarType;
use feedline_data::tenants::TenantReads;
use feedline_sources::{NpyArrayHeader, Stores};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use tempfile::TempDir;

use super::super::build_graph;
use super::super::run::BuildSettings;
use super::super::spec::GraphSpec;
use crate::check::{CheckedGraph, check_graph};
use crate::error::GraphError;
use crate::folder::{GraphAccess, GraphFolder};
use crate::npy;
use crate::topology::LoadedTopology;

/// A temporary directory.
pub(super) struct Scratch {
    folder: TempDir,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The path as text, for a spec.
    pub(super) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(super) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), contents).unwrap();
        self.text(name)
    }

    /// Writes a NumPy array of integers.
    pub(super) fn write_integers(
        &self,
        name: &str,
        shape: &[u64],
        numbers: impl IntoIterator<Item = i64>,
    ) -> String {
        let bytes: Vec<u8> = numbers.into_iter().flat_map(i64::to_le_bytes).collect();
        self.write_array(name, ScalarType::Int64, shape, &bytes)
    }

    pub(super) fn write_array(&self, name: &str, dtype: ScalarType, shape: &[u64], bytes: &[u8]) -> String {
        let extents: Vec<u32> = shape[1..].iter().map(|&extent| extent as u32).collect();
        let mut file = npy::header(dtype, shape[0], &extents);
        file.extend_from_slice(bytes);
        self.write(name, file)
    }

    /// Writes columns to a Parquet file with small row groups.
    pub(super) fn write_parquet(&self, name: &str, columns: Vec<(&str, ArrayRef)>) -> String {
        const GROUP_ROWS: usize = 40;
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(GROUP_ROWS)).build();
        let file = fs::File::create(self.path(name)).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        self.text(name)
    }

    /// Builds a graph in the directory `name`.
    pub(super) fn build(&self, name: &str, spec: &GraphSpec) -> BuiltGraph {
        self.build_with(name, spec, &BuildSettings::new(1 << 24, 2)).unwrap()
    }

    pub(super) fn build_with(
        &self,
        name: &str,
        spec: &GraphSpec,
        settings: &BuildSettings,
    ) -> Result<BuiltGraph, GraphError> {
        let path = self.path(name);
        let description = build_graph(spec, &path, settings)?;
        Ok(BuiltGraph { path, description })
    }

    /// Returns the message of a build that fails. Nothing must be left of it.
    pub(super) fn error(&self, spec: &GraphSpec) -> String {
        let error = self.build_with("failed", spec, &BuildSettings::new(1 << 24, 2)).map(drop).unwrap_err();
        let left: Vec<_> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name.to_string_lossy().contains("failed"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        error.to_string()
    }
}

/// A graph that was built.
pub(super) struct BuiltGraph {
    pub(super) path: PathBuf,
    pub(super) description: GraphDescription,
}

impl BuiltGraph {
    pub(super) fn topology(&self) -> LoadedTopology {
        block_on(async { LoadedTopology::load(&open(&self.path).await?, u64::MAX).await }).unwrap()
    }

    pub(super) fn check(&self) -> Result<CheckedGraph, GraphError> {
        check_folder(&self.path)
    }

    /// Returns the data of an array.
    pub(super) fn array(&self, path: &str) -> Vec<u8> {
        let bytes = fs::read(self.path.join(path)).unwrap();
        let header = NpyArrayHeader::parse(&bytes).unwrap();
        bytes[header.data_start as usize..].to_vec()
    }

    /// Returns all files with their contents, sorted by path.
    pub(super) fn files(&self) -> Vec<(String, Vec<u8>)> {
        let mut paths: Vec<String> =
            self.description.files().iter().map(|described| described.file.path.clone()).collect();
        paths.push("graph.json".to_owned());
        paths.sort();
        let read = |path: String| {
            let bytes = fs::read(self.path.join(&path)).unwrap();
            (path, bytes)
        };
        paths.into_iter().map(read).collect()
    }
}

/// Reads and checks a graph.
pub(super) fn check_folder(path: &Path) -> Result<CheckedGraph, GraphError> {
    block_on(async { check_graph(&open(path).await?, u64::MAX).await })
}

/// Reads the description and the header of one file.
pub(super) fn open_file(built: &BuiltGraph, path: &str) -> Result<(), GraphError> {
    let files = built.description.files();
    let described = files.iter().find(|described| described.file.path == path).unwrap();
    block_on(async { open(&built.path).await?.open_file(described).await.map(drop) })
}

async fn open(path: &Path) -> Result<GraphFolder, GraphError> {
    let access =
        GraphAccess { stores: Stores::new(Vec::new()), credentials: None, tenant: TenantReads::default() };
    GraphFolder::open(access, path.to_str().unwrap()).await
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Converts little-endian bytes to numbers.
pub(super) fn numbers<const N: usize, T>(bytes: &[u8], convert: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| convert(*chunk)).collect()
}

/// Converts an array to a column.
pub(super) fn column(array: impl arrow::array::Array + 'static) -> ArrayRef {
    Arc::new(array)
}
