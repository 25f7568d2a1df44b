//! The numbers of shards that changed.

use serde::{Deserialize, Serialize};

/// The numbers of shards that changed since a dataset was indexed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardChanges {
    /// Shards with another size or validator.
    #[serde(default)]
    pub rewritten: u64,
    /// New shards.
    #[serde(default)]
    pub added: u64,
    /// Shards that do not exist any more.
    #[serde(default)]
    pub removed: u64,
}

impl ShardChanges {
    /// Whether no shard changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// A sentence for the user. `shards` is the present number of shards.
    pub fn describe(&self, shards: u64) -> String {
        let Self { rewritten, added, removed } = *self;
        let details = if added + removed == 0 {
            String::new()
        } else {
            format!(" ({rewritten} rewritten, {added} added, {removed} removed)")
        };
        let indexed = if rewritten + added == 0 { "" } else { "; indexed them again" };
        format!(
            "{} of {shards} shards changed since they were indexed{details}{indexed}",
            rewritten.saturating_add(added).saturating_add(removed)
        )
    }
}
