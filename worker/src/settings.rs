//! Settings of a worker.

use std::path::{Path, PathBuf};

use feedline_sources::ObjectAccess;

pub use feedline_functions::FunctionSettings;

/// Fetches that may be open at once, where nobody says otherwise: each has two pieces on their way at most, which count in the
/// memory budget.
pub const MOST_FETCHES: u32 = 4096;

/// Settings of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Address at which consumers reach it, such as `http://10.0.0.7:7071`.
    pub address: String,
    /// What its cores are, such as the model of the CPU.
    pub machine: String,
    /// Bandwidth of its network in bytes per second and direction; 0 where it is not known, or nothing crosses it.
    pub nic_bytes_per_s: u64,
    /// Threads that run operators.
    pub cores: u32,
    /// Bytes that batches, encoded rows, decoded images between operators and block caches may hold together.
    pub memory_bytes: u64,
    /// How it reaches objects, and which of them pipelines may read.
    pub access: ObjectAccess,
    /// Where indexes are kept between runs, so that a restarted worker need not fetch them again.
    pub cache_dir: Option<PathBuf>,
    /// Where rows of pipelines with a `cache` on disk are kept.
    pub row_cache: Option<RowCacheSettings>,
    /// Where rows of pipelines with a `cache` in the store are kept.
    pub store_cache: Option<StoreCacheSettings>,
    /// Fetches that may be open at once, a quarter of them of one client; [`MOST_FETCHES`] is usual.
    pub most_fetches: u32,
    /// Whether rows are given with tickets only, and so to nobody before the coordinator has said what they are checked with.
    /// Without it tickets are asked for from the first plan on that says so.
    pub asks_for_tickets: bool,
    /// With what Python functions of pipelines are run; `None`: jobs that have some are refused.
    pub functions: Option<FunctionSettings>,
    /// Whether what operators do is measured. Without it reports contain no operators.
    pub trace: bool,
}

/// A place on disk for rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowCacheSettings {
    /// The folder; made where it is not there. Workers that share it keep apart in it.
    pub folder: PathBuf,
    /// Bytes that this worker's rows may take there.
    pub limit_bytes: u64,
    /// Bytes beyond which it deletes, when it starts, rows of workers that are gone and whose part of the folder nobody has used
    /// for a day: what it and those that are started with it may take together.
    pub folder_bytes: u64,
    /// Whether plans may have rows kept there for pipelines that do not ask for it.
    pub is_for_plans: bool,
}

/// A place in an object store for rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreCacheSettings {
    /// The folder's URL, such as `s3://bucket/rows`, or a path that all workers have mounted.
    pub url: String,
    /// Bytes that all objects under the URL may take.
    pub limit_bytes: u64,
}

/// What a worker keeps of datasets' indexes in a cache directory, which no pipeline reads; `*` matches any text.
pub fn kept_indexes(cache_dir: &Path) -> [PathBuf; 2] {
    ["*.manifest", "*.part-*"].map(|name| cache_dir.join(name))
}

/// What workers keep of rows in the folder of a [`RowCacheSettings`], which no pipeline reads.
pub fn kept_rows(folder: &Path) -> PathBuf {
    folder.join("part-*")
}

/// What workers keep of rows in the folder of a [`StoreCacheSettings`], where that is a local one: segments, and such as are
/// written. No pipeline reads them.
pub fn kept_store_rows(folder: &Path) -> PathBuf {
    folder.join("*/*.rows*")
}
