//! The directories of Delta and Iceberg tables that a listing contains.

use std::collections::BTreeMap;

use feedline_data::manifest::ShardRef;

/// The directory with the log of a Delta table.
pub(crate) const DELTA_LOG: &str = "_delta_log";
/// The directory with the metadata of an Iceberg table, and the extension of its files.
pub(crate) const ICEBERG_METADATA: &str = "metadata";
pub(crate) const ICEBERG_SUFFIX: &str = ".metadata.json";

/// The format of a table whose directory also contains files with deleted rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableFormat {
    Delta,
    Iceberg,
}

/// The URLs of the directories of tables.
#[derive(Debug, Default)]
pub(crate) struct TableRoots(BTreeMap<String, TableFormat>);

impl TableRoots {
    /// Adds the table of an object of its log or metadata. Ignores other objects.
    pub(crate) fn observe(&mut self, url: &str) {
        if let Some((root, format)) = table_of(url)
            && !self.0.contains_key(root)
        {
            self.0.insert(root.to_owned(), format);
        }
    }

    /// Returns the table of the first shard that belongs to one.
    pub(crate) fn find<'a>(
        &self,
        shards: impl Iterator<Item = &'a ShardRef>,
    ) -> Option<(&'a str, TableFormat)> {
        if self.0.is_empty() {
            return None;
        }
        let mut roots =
            shards.flat_map(|shard| shard.url.match_indices('/').map(move |(slash, _)| &shard.url[..slash]));
        roots.find_map(|root| Some((root, *self.0.get(root)?)))
    }
}

/// Whether the path of an object may be in the log or metadata of a table.
pub(crate) fn is_table_metadata(path: &str) -> bool {
    path.starts_with("_delta_log/") || path.contains("/_delta_log/") || path.ends_with(ICEBERG_SUFFIX)
}

fn table_of(url: &str) -> Option<(&str, TableFormat)> {
    if let Some((root, _)) = url.split_once("/_delta_log/") {
        return Some((root, TableFormat::Delta));
    }
    let (directory, name) = url.rsplit_once('/')?;
    let root = directory.strip_suffix("/metadata")?;
    name.ends_with(ICEBERG_SUFFIX).then_some((root, TableFormat::Iceberg))
}
