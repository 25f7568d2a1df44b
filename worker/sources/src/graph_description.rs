//! The description of a stored graph as a shard without rows, so that the index of a dataset contains the summary of the graph. A
//! change of the description is a change of the dataset.

use feedline_data::graph::description::{DESCRIPTION_FILE, GraphDescription};
use feedline_data::manifest::{ShardIndex, ShardRef};

use crate::error::SourceError;
use crate::list;
use crate::location::Location;
use crate::object::Object;
use crate::stores::ScopedStores;

/// Maximum size of the description. A terabyte of features has 3 MB of hashes.
const MAX_DESCRIPTION_BYTES: u64 = 256 << 20;

/// Returns the URL of the description of the graph in a folder.
pub(crate) fn description_url(folder: &str) -> String {
    format!("{}/{DESCRIPTION_FILE}", folder.trim_end_matches('/'))
}

/// Reads the description of the graph in a folder.
pub(crate) async fn read(reads: &ScopedStores, folder: &str) -> Result<GraphDescription, SourceError> {
    let url = description_url(folder);
    let json = reads.read_file(&url, MAX_DESCRIPTION_BYTES).await?;
    GraphDescription::parse(&json).map_err(|reason| SourceError::Url { url, reason })
}

/// Lists the description of the graph in a folder.
pub(crate) async fn list(reads: &ScopedStores, folder: &str) -> Result<Vec<ShardRef>, SourceError> {
    list::list(reads, &[description_url(folder)]).await
}

/// Whether a shard is the description of the graph in a folder.
pub(crate) fn is_description(shard: &ShardRef, folder: &str) -> bool {
    let Ok(location) = Location::parse(&description_url(folder)) else { return false };
    // The URL of a shard of a repository contains a commit.
    let has_name = || shard.url.rsplit('/').next() == Some(DESCRIPTION_FILE);
    location.url() == shard.url || location.is_hub() && has_name()
}

/// Indexes a description.
pub(crate) async fn index(object: &Object) -> Result<ShardIndex, SourceError> {
    let json = object.read(0..object.size_bytes().min(MAX_DESCRIPTION_BYTES)).await?;
    let description =
        GraphDescription::parse(&json).map_err(|reason| SourceError::corrupt(object.shard(), 0, reason))?;
    Ok(ShardIndex { graph: Some(Box::new(description.summary())), ..ShardIndex::default() })
}
