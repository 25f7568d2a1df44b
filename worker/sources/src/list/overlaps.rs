//! Finds shards that different URLs select. They would be read more often than intended.

use std::collections::HashMap;
use std::sync::Arc;

use feedline_data::manifest::ShardRef;

use crate::error::SourceError;

/// The glob, prefix or directory that selected each shard; `None` if the URL of the shard did.
#[derive(Debug, Default)]
pub(crate) struct ShardSelectors(HashMap<String, Option<Arc<str>>>);

impl ShardSelectors {
    /// Adds a shard. Returns an error if another URL selected it.
    pub(crate) fn add(&mut self, shard: &ShardRef, selector: Option<Arc<str>>) -> Result<(), SourceError> {
        match self.0.get(&shard.url) {
            None => {
                self.0.insert(shard.url.clone(), selector);
                Ok(())
            }
            Some(other) if *other == selector => Ok(()),
            Some(other) => Err(overlap(&shard.url, other.as_deref(), selector.as_deref())),
        }
    }
}

fn overlap(url: &str, first: Option<&str>, second: Option<&str>) -> SourceError {
    let name = |selector: Option<&str>| {
        selector.map_or_else(|| "its own URL".to_owned(), |selector| format!("`{selector}`"))
    };
    let reason = format!(
        "both {} and {} select it: remove one of them from `source.url`; to read a shard twice, write the same URL twice",
        name(first),
        name(second)
    );
    SourceError::Url { url: url.to_owned(), reason }
}
