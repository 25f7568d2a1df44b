//! Rejects directories and patterns over the files of Delta and Iceberg tables, because they would also return deleted files and
//! files of old versions. Objects that the pipeline lists by name are accepted.
//!
//! A listing shows the tables below its directory. This directory and those above are examined with requests.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use feedline_data::manifest::ShardRef;
use futures::{StreamExt, TryStreamExt};

use crate::error::SourceError;
use crate::list;
use crate::location::Location;
use crate::stores::ScopedStores;
use crate::table_roots::{DELTA_LOG, ICEBERG_METADATA, TableFormat, TableRoots, is_table_metadata};

/// Maximum number of directories that are examined concurrently.
const CONCURRENT_DIRECTORIES: usize = 16;
/// Maximum number of objects of a directory `metadata` that are examined.
const MAX_OBJECTS: usize = 1_000;

/// Lists the shards of the URLs. Fails if a directory or pattern contains files of a table.
pub(crate) async fn list(reads: &ScopedStores, urls: &[String]) -> Result<Vec<ShardRef>, SourceError> {
    let (locations, listed, tables) = list::list_with_tables(reads, urls).await?;
    let named: HashSet<String> = locations.iter().map(Location::url).collect();
    reject(&tables, listed.iter().filter(|shard| !named.contains(&shard.url)))?;
    let all: HashSet<&str> = listed.iter().map(|shard| shard.url.as_str()).collect();
    let mut directories = Candidates::new();
    for location in &locations {
        // The directories of a web server cannot be listed.
        if !location.is_http() && !all.contains(location.url().as_str()) {
            for (directory, is_listed) in candidates(reads, location)? {
                *directories.entry(directory).or_default() |= is_listed;
            }
        }
    }
    let examined = directories.into_iter().map(|((root, rest), is_listed)| async move {
        let directory = Location { root, rest };
        match table_at(reads, &directory, is_listed).await? {
            Some(format) => Err(table_error(&directory.url(), format)),
            None => Ok(()),
        }
    });
    futures::stream::iter(examined).buffered(CONCURRENT_DIRECTORIES).try_collect::<()>().await?;
    Ok(listed)
}

/// Fails if a shard belongs to a table.
pub(crate) fn reject<'a>(
    tables: &TableRoots,
    shards: impl Iterator<Item = &'a ShardRef>,
) -> Result<(), SourceError> {
    tables.find(shards).map_or(Ok(()), |(root, format)| Err(table_error(root, format)))
}

/// The directories that may be the root of a table, as the two parts of a [`Location`], and whether the source lists them.
type Candidates = BTreeMap<(String, String), bool>;

/// Returns the directories before the first pattern, which the source lists, and those above.
fn candidates(reads: &ScopedStores, location: &Location) -> Result<Candidates, SourceError> {
    let expanded =
        list::expand(reads, location).map_err(|reason| SourceError::Url { url: location.url(), reason })?;
    // Many patterns have the same directory.
    let mut fixed = BTreeSet::new();
    for rest in expanded {
        let one = Location { rest, ..location.clone() };
        let (directory, _) = list::split_at_glob(reads, &one);
        fixed.insert(directory.strip_suffix('/').unwrap_or(directory).to_owned());
    }
    let mut candidates = Candidates::new();
    for directory in fixed {
        for rest in table_candidates(&directory) {
            // The root of a disk is not a table, but a bucket may be one.
            if !rest.is_empty() || !location.is_local() {
                let is_listed = rest == directory;
                *candidates.entry((location.root.clone(), rest)).or_default() |= is_listed;
            }
        }
    }
    Ok(candidates)
}

/// A directory, and those above `key=value` directories and above `data`.
fn table_candidates(fixed: &str) -> Vec<String> {
    let mut directory = fixed;
    let mut candidates = vec![directory.to_owned()];
    while let Some((above, last)) = directory.rsplit_once('/') {
        if !last.contains('=') && last != "data" {
            break;
        }
        directory = above;
        candidates.push(directory.to_owned());
    }
    candidates
}

/// The format of the table whose root is the directory. `is_listed` is whether the source lists the directory.
async fn table_at(
    reads: &ScopedStores,
    directory: &Location,
    is_listed: bool,
) -> Result<Option<TableFormat>, SourceError> {
    let mut is_denied = false;
    for (name, format) in [(DELTA_LOG, TableFormat::Delta), (ICEBERG_METADATA, TableFormat::Iceberg)] {
        match contains_metadata(reads, directory, name).await {
            Ok(true) => return Ok(Some(format)),
            Ok(false) => {}
            // Rights for a prefix do not include the directories above it.
            Err(SourceError::Denied { .. }) if !is_listed => is_denied = true,
            Err(error) => return Err(error),
        }
    }
    if is_denied {
        let url = directory.url();
        tracing::warn!(%url, "cannot list this directory: if it is a Delta or Iceberg table, its deleted files are read too");
    }
    Ok(None)
}

/// Whether a directory contains the log or metadata of a table below `name`. A directory that must not be read contains none.
async fn contains_metadata(
    reads: &ScopedStores,
    directory: &Location,
    name: &str,
) -> Result<bool, SourceError> {
    let slash = if directory.rest.is_empty() { "" } else { "/" };
    let below = Location { rest: format!("{}{slash}{name}", directory.rest), ..directory.clone() };
    if reads.check_object(&below).is_err() {
        return Ok(false);
    }
    if below.is_local() && !std::path::Path::new(&below.rest).is_dir() {
        return Ok(false);
    }
    let (store, prefix) = (reads.open(&below)?, below.key()?);
    let mut objects = store.list(Some(&prefix));
    for _ in 0..MAX_OBJECTS {
        let next = objects.try_next().await.map_err(|error| SourceError::from_store(&below.url(), error));
        match next {
            Ok(Some(meta)) if is_table_metadata(&below.url_of(&meta.location)) => return Ok(true),
            Ok(Some(_)) => {}
            Ok(None) | Err(SourceError::NotFound { .. }) => return Ok(false),
            Err(SourceError::Denied { url, reason }) => {
                let reason = format!(
                    "{reason}; this listing shows whether the directory belongs to a Delta or Iceberg table, whose files include \
                     deleted rows: allow it, or list the files by name"
                );
                return Err(SourceError::Denied { url, reason });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// The error of a source with files of a table.
fn table_error(url: &str, format: TableFormat) -> SourceError {
    let (name, fix, remaining) = match format {
        TableFormat::Delta => (
            "a Delta",
            "`DeltaTable(path).file_uris()` of the Python package deltalake returns them",
            "the table has deletion vectors, remove them first with `REORG TABLE ... APPLY (PURGE)`",
        ),
        TableFormat::Iceberg => (
            "an Iceberg",
            "`table.scan().plan_files()` of the Python package pyiceberg returns them",
            "a file has `delete_files`, compact the table first",
        ),
    };
    let reason = format!(
        "the directory is {name} table, and its files include deleted rows: list the current files under `source.url`, as {fix}; if {remaining}"
    );
    SourceError::Url { url: url.to_owned(), reason }
}

#[cfg(test)]
mod tests;
