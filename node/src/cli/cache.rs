//! Flags of the row caches: the same for workers in this process and for `feedline worker`.

use std::path::{Path, PathBuf};

use clap::Args;
use feedline_worker::{RowCacheSettings, StoreCacheSettings};

/// Where workers cache rows, and how many bytes.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CacheArgs {
    /// Directory of the disk cache, which holds rows of pipelines with `cache: {tier: disk}` in its folder `rows`; `feedline
    /// worker` also saves dataset indexes in it [default: none for `feedline worker`, otherwise feedline in $XDG_CACHE_HOME
    /// or ~/.cache].
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Size of the disk cache, such as 100GiB; several workers of one process or of `feedline up` share it.
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = crate::size::parse_bytes)]
    pub(crate) cache_disk: u64,
    /// URL in an object store where pipelines with `cache: {tier: store}` cache rows for all workers, such as
    /// s3://bucket/feedline-rows [default: none].
    #[arg(long, value_name = "URL")]
    pub(crate) cache_store: Option<String>,
    /// Size of the cache in the object store, such as 1TiB. Feedline deletes nothing there.
    #[arg(long, value_name = "SIZE", default_value = "100GiB", value_parser = crate::size::parse_bytes)]
    pub(crate) cache_store_limit: u64,
}

impl CacheArgs {
    /// The disk cache of one of `workers` workers that share `folder`.
    pub(crate) fn rows(&self, folder: &Path, workers: u32, is_for_plans: bool) -> RowCacheSettings {
        RowCacheSettings {
            folder: folder.join("rows"),
            limit_bytes: self.cache_disk / u64::from(workers),
            folder_bytes: self.cache_disk,
            is_for_plans,
        }
    }

    /// The cache in the object store.
    pub(crate) fn store(&self) -> Option<StoreCacheSettings> {
        let url = self.cache_store.clone()?;
        Some(StoreCacheSettings { url, limit_bytes: self.cache_store_limit })
    }
}
