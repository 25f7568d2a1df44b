//! The files of a directory in a store, by their paths below it.

use std::collections::BTreeMap;

use bytes::Bytes;
use feedline_data::manifest::ShardRef;

use crate::error::SourceError;
use crate::list;
use crate::location::Location;
use crate::stores::ScopedStores;

/// Maximum size of a file that describes a dataset, such as README.md with the features and class names of its configurations.
const MAX_DESCRIPTION_BYTES: u64 = 8 << 20;

/// A listed directory.
pub(super) struct Directory {
    /// The URL in the pipeline.
    pub(super) url: String,
    pub(super) files: BTreeMap<String, ShardRef>,
}

impl Directory {
    /// Lists all files below a directory. Hidden files are not listed.
    pub(super) async fn list(
        reads: &ScopedStores,
        url: &str,
        mut location: Location,
    ) -> Result<Self, SourceError> {
        if !location.rest.ends_with('/') {
            location.rest.push('/');
        }
        let mut files = BTreeMap::new();
        for shard in list::list(reads, &[location.url()]).await? {
            if let Some(path) = list::path_below(&location, &shard)? {
                files.insert(path, shard);
            }
        }
        Ok(Self { url: url.to_owned(), files })
    }

    /// Reads a file that describes the dataset, such as `state.json`; `None` if the directory does not contain it.
    pub(super) async fn read(&self, reads: &ScopedStores, path: &str) -> Result<Option<Bytes>, SourceError> {
        let Some(shard) = self.files.get(path) else { return Ok(None) };
        reads.read_file(&shard.url, MAX_DESCRIPTION_BYTES).await.map(Some)
    }

    /// Reads a JSON file that describes the dataset.
    pub(super) async fn read_json(
        &self,
        reads: &ScopedStores,
        path: &str,
    ) -> Result<Option<serde_json::Value>, SourceError> {
        let Some(bytes) = self.read(reads, path).await? else { return Ok(None) };
        let parsed = serde_json::from_slice(&bytes);
        parsed.map(Some).map_err(|error| {
            self.error(format!("`{path}` is not valid JSON ({error}): write the dataset again"))
        })
    }

    /// An error of the dataset.
    pub(super) fn error(&self, reason: impl Into<String>) -> SourceError {
        SourceError::Url { url: self.url.clone(), reason: reason.into() }
    }
}
