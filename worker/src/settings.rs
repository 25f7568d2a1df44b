//! Settings of a worker.

use std::path::{Path, PathBuf};

use feedline_sources::ObjectAccess;

pub use feedline_functions::FunctionSettings;

/// Default of [`WorkerSettings::max_fetches`]. Each fetch has at most two pieces in transit, which count against the
/// memory budget.
pub const DEFAULT_MAX_FETCHES: u32 = 4096;

/// Settings of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Address that consumers connect to, such as `http://10.0.0.7:7071`.
    pub address: String,
    /// Name that consumers expect in the worker's certificate; `None` means the host of the address.
    pub tls_name: Option<String>,
    /// Pool of the worker, whose size a scaler sets; empty without a pool.
    pub pool: String,
    /// Machine type, such as the CPU model.
    pub machine: String,
    /// Network bandwidth in bytes per second in each direction. 0 if the bandwidth is unknown or consumers run on the same
    /// machine.
    pub nic_bytes_per_s: u64,
    /// Number of threads that run operators.
    pub cores: u32,
    /// Memory budget in bytes for batches, encoded rows, decoded images between operators, block caches, and graphs.
    pub memory_bytes: u64,
    /// The part of the memory budget that the topologies and features of graphs may use, in bytes.
    pub graph_memory_bytes: u64,
    /// The directory for topologies, and for blocks of features in stores, that do not fit in this memory. `None` rejects such graphs.
    pub graph_disk: Option<GraphDiskSettings>,
    /// Credentials of object stores, and the objects that pipelines may read.
    pub access: ObjectAccess,
    /// Directory in which the worker stores dataset indexes, so that it does not fetch them again after a restart.
    pub cache_dir: Option<PathBuf>,
    /// The row cache on disk.
    pub row_cache: Option<RowCacheSettings>,
    /// The row cache in an object store.
    pub store_cache: Option<StoreCacheSettings>,
    /// Maximum number of open fetches; one client may open a quarter of them. The default is [`DEFAULT_MAX_FETCHES`].
    pub max_fetches: u32,
    /// Whether the worker rejects all fetches until the coordinator has sent a ticket key. If false, fetches need no ticket until
    /// then. With a ticket key, every fetch needs a ticket.
    pub requires_tickets: bool,
    /// Settings for running Python functions. `None` if the worker rejects jobs with Python functions.
    pub functions: Option<FunctionSettings>,
    /// Whether the worker measures operators. If false, its reports contain no operator statistics.
    pub trace: bool,
}

/// A row cache on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowCacheSettings {
    /// The directory, which is created if it does not exist. Workers can share it, because each worker uses its own subdirectory.
    pub folder: PathBuf,
    /// Maximum size in bytes of the rows that this worker stores.
    pub limit_bytes: u64,
    /// If the directory exceeds this size in bytes when the worker starts, the worker deletes rows of stopped workers that
    /// have not been used for a day.
    pub folder_bytes: u64,
    /// Whether the planner may cache rows of pipelines without a `cache` operator.
    pub allows_planned_caches: bool,
}

/// The directory for graphs that do not fit in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphDiskSettings {
    /// The directory, which is created if it does not exist. Workers can share it, because each worker uses its own subdirectory.
    pub folder: PathBuf,
    /// Maximum size in bytes of the blocks of features of this worker.
    pub limit_bytes: u64,
}

/// A row cache in an object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreCacheSettings {
    /// URL of the directory, such as `s3://bucket/rows`, or a path that all workers have mounted.
    pub url: String,
    /// Maximum size of all objects under the URL in bytes.
    pub limit_bytes: u64,
}

/// Patterns of the stored indexes in a cache directory, which pipelines must not read. `*` matches any text.
pub fn stored_index_patterns(cache_dir: &Path) -> [PathBuf; 2] {
    ["*.manifest", "*.part-*"].map(|name| cache_dir.join(name))
}

/// Pattern of the files in the directory of a [`RowCacheSettings`] or [`GraphDiskSettings`], which pipelines must not read.
pub fn cached_rows_pattern(folder: &Path) -> PathBuf {
    folder.join("part-*")
}

/// Pattern of the complete and incomplete segments in a local directory of a [`StoreCacheSettings`], which pipelines must not read.
pub fn store_segments_pattern(folder: &Path) -> PathBuf {
    folder.join("*/*.rows*")
}
