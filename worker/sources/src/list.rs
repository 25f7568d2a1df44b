//! Lists the shards of a source. A source URL is a single object, a prefix, a glob or a brace pattern.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use feedline_data::manifest::ShardRef;
use futures::{StreamExt, TryStreamExt};
use glob::{MatchOptions, Pattern};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use tokio::sync::Semaphore;

use crate::bounded_store::MAX_OBJECTS;
use crate::error::SourceError;
use crate::location::Location;
use crate::object::{head, shard_of};
use crate::stores::ScopedStores;
use crate::table_roots::{TableRoots, is_table_metadata};

const GLOB_CHARACTERS: [char; 3] = ['*', '?', '['];
/// Maximum number of concurrent HEAD requests for all URLs of a source.
const CONCURRENT_HEADS: usize = 32;
/// Maximum number of brace patterns of a source that are expanded concurrently.
const CONCURRENT_PATTERNS: usize = 1;

/// Lists the shards of the URLs, in the order of the URLs. The shards of each URL are sorted, and duplicates are removed.
pub(crate) async fn list(reads: &ScopedStores, urls: &[String]) -> Result<Vec<ShardRef>, SourceError> {
    Ok(Listing::new(reads, MAX_OBJECTS).shards(urls).await?.1)
}

/// Lists the shards. Also returns the locations of the URLs, with the commits of repositories, and the tables in the listed
/// directories.
pub(crate) async fn list_with_tables(
    reads: &ScopedStores,
    urls: &[String],
) -> Result<(Vec<Location>, Vec<ShardRef>, TableRoots), SourceError> {
    let listing = Listing::new(reads, MAX_OBJECTS);
    let (locations, shards) = listing.shards(urls).await?;
    Ok((locations, shards, listing.tables.into_inner().unwrap_or_else(PoisonError::into_inner)))
}

/// Returns the names of the directories directly below a directory, sorted. A directory in a store exists only if it contains
/// an object.
pub(crate) async fn list_directories(reads: &ScopedStores, url: &str) -> Result<Vec<String>, SourceError> {
    let location = Location::parse(url)?;
    reject_http_listing(&location, url)?;
    reads.check_object(&location)?;
    let prefix = location.key()?;
    let listed = reads.open(&location)?.list_with_delimiter((!prefix.is_root()).then_some(&prefix)).await;
    let prefixes = listed.map_err(|error| SourceError::from_store(url, error))?.common_prefixes;
    let mut names: Vec<String> =
        prefixes.iter().filter_map(|prefix| prefix.filename().map(str::to_owned)).collect();
    names.sort();
    Ok(names)
}

/// Returns the path of a listed shard relative to a directory, without percent-encoding; `None` if it is elsewhere.
pub(crate) fn path_below(directory: &Location, shard: &ShardRef) -> Result<Option<String>, SourceError> {
    let location = Location::parse(&shard.url)?;
    let below = location.rest.strip_prefix(directory.rest.trim_end_matches('/'));
    Ok(below.filter(|_| location.root == directory.root).map(|path| path.trim_start_matches('/').to_owned()))
}

/// Lists all files below a directory.
pub(crate) async fn list_folder(
    reads: &ScopedStores,
    folder: &Location,
) -> Result<Vec<ShardRef>, SourceError> {
    reads.check_object(folder)?;
    let store = reads.open(folder)?;
    Listing::new(reads, MAX_OBJECTS).list_prefix(store.as_ref(), folder, &folder.url()).await
}

/// Requests the metadata of files, for stores without listings. Omits missing files.
pub(crate) async fn list_files(
    reads: &ScopedStores,
    files: Vec<Location>,
) -> Result<Vec<ShardRef>, SourceError> {
    let listing = &Listing::new(reads, MAX_OBJECTS);
    let heads = files.into_iter().map(|file| async move {
        reads.check_object(&file)?;
        match listing.head(reads.open(&file)?.as_ref(), &file, &file.url()).await {
            Err(SourceError::NotFound { .. }) => Ok(None),
            found => found.map(Some),
        }
    });
    let found: Vec<Option<ShardRef>> =
        futures::stream::iter(heads).buffered(CONCURRENT_HEADS).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// The listing of one source.
struct Listing<'a> {
    reads: &'a ScopedStores,
    /// Limits concurrent HEAD requests.
    head_permits: Semaphore,
    /// Limits concurrent expansions of brace patterns, because they may need much memory.
    pattern_permits: Semaphore,
    /// Number of listed objects.
    object_count: AtomicUsize,
    max_objects: usize,
    /// The tables below the listed directories.
    tables: Mutex<TableRoots>,
}

impl<'a> Listing<'a> {
    fn new(reads: &'a ScopedStores, max_objects: usize) -> Self {
        Self {
            reads,
            head_permits: Semaphore::new(CONCURRENT_HEADS),
            pattern_permits: Semaphore::new(CONCURRENT_PATTERNS),
            object_count: AtomicUsize::new(0),
            max_objects,
            tables: Mutex::default(),
        }
    }

    /// Lists the shards of the URLs. Also returns the location of each URL.
    async fn shards(&self, urls: &[String]) -> Result<(Vec<Location>, Vec<ShardRef>), SourceError> {
        self.reads.clear_link_cache();
        let mut seen = HashSet::new();
        let (mut locations, mut shards) = (Vec::with_capacity(urls.len()), Vec::new());
        let lists = urls.iter().cloned().map(|url| async move {
            let location = self.reads.pin(Location::parse(&url)?, &url).await?;
            let found = self.list_one(&location, &url).await?;
            Ok::<_, SourceError>((location, found))
        });
        let mut lists = futures::stream::iter(lists).buffered(CONCURRENT_HEADS);
        while let Some((location, mut found)) = lists.try_next().await? {
            locations.push(location);
            // A listing may contain links to files outside of the allowed URLs.
            for shard in &found {
                self.reads.check_shard(&Location::parse(&shard.url)?, shard)?;
            }
            found.sort_by(|a, b| a.url.cmp(&b.url));
            shards.extend(found.into_iter().filter(|shard| seen.insert(shard.url.clone())));
        }
        Ok((locations, shards))
    }

    async fn list_one(&self, location: &Location, url: &str) -> Result<Vec<ShardRef>, SourceError> {
        let store = self.reads.open(location)?;
        let has_glob = location.rest.contains(GLOB_CHARACTERS);
        if location.rest.is_empty() || location.rest.ends_with('/') && !has_glob {
            self.reads.check_object(location)?;
            return self.list_prefix(store.as_ref(), location, url).await;
        }
        if has_glob || location.rest.contains('{') {
            // A local file can have a name such as `x[1].tar`.
            if location.is_local()
                && self.reads.check_object(location).is_ok()
                && let Ok(shard) = self.head(store.as_ref(), location, url).await
            {
                return Ok(vec![shard]);
            }
            return self.list_patterns(store.as_ref(), location, url).await;
        }
        self.reads.check_object(location)?;
        match self.head(store.as_ref(), location, url).await {
            Ok(shard) => Ok(vec![shard]),
            Err(SourceError::NotFound { .. })
                if location.is_hub()
                    || location.is_local() && std::path::Path::new(&location.rest).is_dir() =>
            {
                self.list_prefix(store.as_ref(), location, url).await
            }
            Err(error) => Err(error),
        }
    }

    /// Requests the metadata of one object.
    async fn head(
        &self,
        store: &dyn ObjectStore,
        location: &Location,
        given: &str,
    ) -> Result<ShardRef, SourceError> {
        let _permit = self.head_permits.acquire().await.expect("the semaphore is never closed");
        let shard = head(store, location, given).await?;
        self.count(1, given)?;
        if !shard.has_validator() {
            return Err(SourceError::NoValidator { url: shard.url });
        }
        Ok(shard)
    }

    async fn list_prefix(
        &self,
        store: &dyn ObjectStore,
        location: &Location,
        given: &str,
    ) -> Result<Vec<ShardRef>, SourceError> {
        reject_http_listing(location, given)?;
        if location.is_local() && !std::path::Path::new(&location.rest).is_dir() {
            return Err(SourceError::NotFound { url: given.to_owned() });
        }
        let prefix = location.key()?;
        let metas = self.list_recursively(store, location, Some(&prefix), given).await?;
        let shards: Vec<ShardRef> =
            metas.iter().filter(|meta| is_data(meta, &prefix)).map(|meta| shard_of(location, meta)).collect();
        if shards.is_empty() { Err(SourceError::Empty { url: given.to_owned() }) } else { Ok(shards) }
    }

    async fn list_patterns(
        &self,
        store: &dyn ObjectStore,
        location: &Location,
        given: &str,
    ) -> Result<Vec<ShardRef>, SourceError> {
        let _permit = self.pattern_permits.acquire().await.expect("the semaphore is never closed");
        let patterns = ScopedStores::expand(&location.rest)
            .map_err(|reason| SourceError::Url { url: given.to_owned(), reason })?;
        let lists = patterns.into_iter().map(|rest| async move {
            let one = Location { rest, ..location.clone() };
            if one.rest.contains(GLOB_CHARACTERS) {
                return self.list_glob(store, &one, given).await;
            }
            self.reads.check_object(&one)?;
            let store = self.reads.open(&one)?;
            Ok(vec![self.head(store.as_ref(), &one, &one.url()).await?])
        });
        let mut lists = futures::stream::iter(lists).buffered(CONCURRENT_HEADS);
        let mut shards = Vec::new();
        while let Some(found) = lists.try_next().await? {
            shards.extend(found);
        }
        Ok(shards)
    }

    async fn list_glob(
        &self,
        store: &dyn ObjectStore,
        location: &Location,
        given: &str,
    ) -> Result<Vec<ShardRef>, SourceError> {
        reject_http_listing(location, given)?;
        let text = location.rest.trim_start_matches('/');
        let pattern = Pattern::new(text).map_err(|error| SourceError::Url {
            url: given.to_owned(),
            reason: format!("invalid glob: {}", error.msg),
        })?;
        let first_glob = text.find(GLOB_CHARACTERS).unwrap_or(text.len());
        let fixed = text[..first_glob].rfind('/').map_or("", |slash| &text[..slash]);
        let is_flat = !text[fixed.len()..].trim_start_matches('/').contains('/') && !text.contains("**");
        let fixed_location = Location {
            rest: if location.is_local() { format!("/{fixed}") } else { fixed.to_owned() },
            ..location.clone()
        };
        self.reads.check_object(&fixed_location)?;
        if location.is_local() && !std::path::Path::new(&fixed_location.rest).is_dir() {
            return Err(SourceError::Empty { url: given.to_owned() });
        }
        let prefix = fixed_location.key()?;
        let prefix = (!prefix.is_root()).then_some(&prefix);
        let metas = if is_flat {
            self.list_folder(store, prefix, given).await?
        } else {
            self.list_recursively(store, location, prefix, given).await?
        };
        let options = MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: true,
        };
        let shards: Vec<ShardRef> = metas
            .iter()
            .filter(|meta| pattern.matches_with(meta.location.as_ref(), options))
            .map(|meta| shard_of(location, meta))
            .collect();
        if shards.is_empty() { Err(SourceError::Empty { url: given.to_owned() }) } else { Ok(shards) }
    }

    /// Lists all objects below a directory.
    async fn list_recursively(
        &self,
        store: &dyn ObjectStore,
        location: &Location,
        prefix: Option<&Path>,
        given: &str,
    ) -> Result<Vec<ObjectMeta>, SourceError> {
        let mut objects = store.list(prefix);
        let mut metas = Vec::new();
        let store_error = |error| SourceError::from_store(given, error);
        while let Some(meta) = objects.try_next().await.map_err(store_error)? {
            self.count(1, given)?;
            if is_table_metadata(meta.location.as_ref()) {
                let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
                tables.observe(&location.url_of(&meta.location));
            }
            metas.push(meta);
        }
        Ok(metas)
    }

    /// Lists the objects of a directory without its subdirectories.
    async fn list_folder(
        &self,
        store: &dyn ObjectStore,
        prefix: Option<&Path>,
        given: &str,
    ) -> Result<Vec<ObjectMeta>, SourceError> {
        let listed = store.list_with_delimiter(prefix).await;
        let metas = listed.map_err(|error| SourceError::from_store(given, error))?.objects;
        self.count(metas.len(), given)?;
        Ok(metas)
    }

    /// Counts listed objects. Returns an error if the source has more than `max_objects`.
    fn count(&self, objects: usize, given: &str) -> Result<(), SourceError> {
        if self.object_count.fetch_add(objects, Ordering::Relaxed).saturating_add(objects) <= self.max_objects
        {
            return Ok(());
        }
        Err(SourceError::Url {
            url: given.to_owned(),
            reason: format!(
                "the source has more than {} objects: list fewer directories, or pack the rows into larger files, such as tar or \
                 Parquet files",
                self.max_objects
            ),
        })
    }
}

/// Rejects the listing of a web server.
fn reject_http_listing(location: &Location, given: &str) -> Result<(), SourceError> {
    if !location.is_http() {
        return Ok(());
    }
    Err(SourceError::Url {
        url: given.to_owned(),
        reason:
            "objects on a web server cannot be listed: write the URL of each object, or a range such as `{000..099}`"
                .to_owned(),
    })
}

/// Whether an object under a prefix is a shard. Hidden files and the marker files of writers are not shards.
fn is_data(meta: &ObjectMeta, prefix: &Path) -> bool {
    let Some(parts) = meta.location.prefix_match(prefix) else { return false };
    let hidden = parts.into_iter().any(|part| part.as_ref().starts_with('.'));
    let name = meta.location.filename().unwrap_or_default();
    !hidden && !matches!(name, "" | "_SUCCESS" | "_metadata" | "_common_metadata")
}

#[cfg(test)]
mod tests;
