//! Flags of the row caches, shared by workers in this process and by `feedline worker`.

use std::path::{Path, PathBuf};

use clap::Args;
use feedline_worker::{GraphDiskSettings, RowCacheSettings, StoreCacheSettings};

/// Locations and sizes of the row caches.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CacheArgs {
    /// Directory for the disk cache. Its subdirectory `rows` contains the rows of pipelines with `cache: {tier: disk}`;
    /// `feedline worker` also saves dataset indexes in it [default: none for `feedline worker`, otherwise feedline in
    /// $XDG_CACHE_HOME or ~/.cache].
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Size of the disk cache, such as 100GiB; the workers of one process or of `feedline up` share it.
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = crate::size::parse_bytes)]
    pub(crate) cache_disk: u64,
    /// Directory for topologies, and for parts of features in stores, that do not fit in --graph-memory; the parts of
    /// features use up to --cache-disk bytes [default: graphs in --cache-dir].
    #[arg(long, value_name = "DIR")]
    pub(crate) graph_dir: Option<PathBuf>,
    /// URL in an object store where pipelines with `cache: {tier: store}` cache rows for all workers, such as
    /// s3://bucket/feedline-rows [default: none].
    #[arg(long, value_name = "URL")]
    pub(crate) cache_store: Option<String>,
    /// Size of the cache in the object store, such as 1TiB. Feedline never deletes objects from it.
    #[arg(long, value_name = "SIZE", default_value = "100GiB", requires = "cache_store", value_parser = crate::size::parse_bytes)]
    pub(crate) cache_store_limit: u64,
}

impl CacheArgs {
    /// Returns the settings of the disk cache of one of `workers` workers that share `folder`.
    pub(crate) fn disk_cache(
        &self,
        folder: &Path,
        workers: u32,
        allows_planned_caches: bool,
    ) -> RowCacheSettings {
        RowCacheSettings {
            folder: folder.join("rows"),
            limit_bytes: self.cache_disk / u64::from(workers),
            folder_bytes: self.cache_disk,
            allows_planned_caches,
        }
    }

    /// Returns the settings of the directory for graphs of one of `workers` workers. `cache_dir` is the directory of the caches, if
    /// any.
    pub(crate) fn graph_disk(&self, cache_dir: Option<&Path>, workers: u32) -> Option<GraphDiskSettings> {
        let default = || cache_dir.map(|folder| folder.join("graphs"));
        let folder = self.graph_dir.clone().or_else(default)?;
        Some(GraphDiskSettings { folder, limit_bytes: self.cache_disk / u64::from(workers) })
    }

    /// Returns the settings of the cache in the object store, if any.
    pub(crate) fn store_cache(&self) -> Option<StoreCacheSettings> {
        let url = self.cache_store.clone()?;
        Some(StoreCacheSettings { url, limit_bytes: self.cache_store_limit })
    }
}
