//! Lists the shards of a source. A source URL is a single object, a prefix, a glob or a brace pattern.

mod folder;
mod overlaps;
mod pattern;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use feedline_data::manifest::ShardRef;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::bounded_store::{LOCAL_DIRECTORY_TIMEOUT, MAX_OBJECTS};
use crate::error::{STORE_FIX, SourceError};
use crate::location::Location;
use crate::object::{head, shard_of};
use crate::retry;
use crate::stores::ScopedStores;
use crate::table_roots::{TableRoots, is_table_metadata};

use folder::EntrySelection;
pub(crate) use overlaps::ShardSelectors;
use pattern::{GLOB_CHARACTERS, PathPattern, is_local_path};
pub(crate) use pattern::{expand, is_pattern, split_at_glob};

/// Maximum number of concurrent HEAD requests for all URLs of a source.
const CONCURRENT_HEADS: usize = 32;
/// Maximum number of brace patterns of a source that are expanded concurrently.
const CONCURRENT_PATTERNS: usize = 1;

/// Lists the shards of the URLs, in the order of the URLs. The shards of each URL are sorted. A URL that occurs several times lists its
/// shards each time. A shard that different URLs select is an error.
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
    let tables = std::mem::take(&mut *listing.tables.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((locations, shards, tables))
}

/// Returns the names of the directories directly below a directory, sorted. A directory in a store exists only if it contains
/// an object.
pub(crate) async fn list_directories(reads: &ScopedStores, url: &str) -> Result<Vec<String>, SourceError> {
    let location = Location::parse(url)?;
    reject_http_listing(&location, url)?;
    reads.check_object(&location)?;
    if location.is_local() {
        let path = PathBuf::from(&location.rest);
        return unblock(LOCAL_DIRECTORY_TIMEOUT, url, move || folder::list_directories(&path)).await;
    }
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

/// Lists the files below a directory that have one of these paths. Omits missing files. May also return other files.
pub(crate) async fn list_folder(
    reads: &ScopedStores,
    folder: &Location,
    paths: &[&str],
) -> Result<Vec<ShardRef>, SourceError> {
    reads.check_object(folder)?;
    let listing = Listing::new(reads, MAX_OBJECTS);
    let shards = match folder.is_local() {
        true => {
            let paths = paths.iter().map(|path| (*path).to_owned()).collect();
            listing.list_local_files(folder, EntrySelection::Named(paths), &folder.url()).await?
        }
        false => listing.list_objects_below(reads.open(folder)?.as_ref(), folder, &folder.url()).await?,
    };
    Ok(shards)
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

/// A listed shard.
#[derive(Debug)]
struct SelectedShard {
    shard: ShardRef,
    /// The glob or prefix that selected the shard. `None` if its URL did.
    pattern: Option<Arc<str>>,
}

/// The listing of one source.
struct Listing<'a> {
    reads: &'a ScopedStores,
    /// Limits concurrent HEAD requests.
    head_permits: Semaphore,
    /// Limits concurrent expansions of brace patterns, because they may need much memory.
    pattern_permits: Semaphore,
    object_count: Arc<ObjectCount>,
    /// The tables below the listed directories.
    tables: Arc<Mutex<TableRoots>>,
}

/// Number of listed objects of a source.
#[derive(Debug)]
struct ObjectCount {
    objects: AtomicUsize,
    max_objects: usize,
}

impl<'a> Listing<'a> {
    fn new(reads: &'a ScopedStores, max_objects: usize) -> Self {
        Self {
            reads,
            head_permits: Semaphore::new(CONCURRENT_HEADS),
            pattern_permits: Semaphore::new(CONCURRENT_PATTERNS),
            object_count: Arc::new(ObjectCount { objects: AtomicUsize::new(0), max_objects }),
            tables: Arc::default(),
        }
    }

    /// Lists the shards of the URLs. Also returns the location of each URL.
    async fn shards(&self, urls: &[String]) -> Result<(Vec<Location>, Vec<ShardRef>), SourceError> {
        self.reads.clear_link_cache();
        let mut selectors = ShardSelectors::default();
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
            for SelectedShard { shard, .. } in &found {
                self.reads.check_shard(&Location::parse(&shard.url)?, shard)?;
            }
            found.sort_by(|a, b| a.shard.url.cmp(&b.shard.url));
            for SelectedShard { shard, pattern } in found {
                selectors.add(&shard, pattern)?;
                shards.push(shard);
            }
        }
        Ok((locations, shards))
    }

    async fn list_one(&self, location: &Location, url: &str) -> Result<Vec<SelectedShard>, SourceError> {
        if !is_pattern(self.reads, location) {
            return self.list_location(location, url).await;
        }
        let _permit = self.pattern_permits.acquire().await.expect("the semaphore is never closed");
        let expanded = expand(self.reads, location)
            .map_err(|reason| SourceError::Url { url: url.to_owned(), reason })?;
        let lists = expanded.into_iter().map(|rest| async move {
            let one = Location { rest, ..location.clone() };
            if one.rest.contains(GLOB_CHARACTERS) && !is_local_path(self.reads, &one) {
                return self.list_glob(&one, url).await;
            }
            self.list_location(&one, &one.url()).await
        });
        let mut lists = futures::stream::iter(lists).buffered(CONCURRENT_HEADS);
        let mut shards = Vec::new();
        while let Some(found) = lists.try_next().await? {
            shards.extend(found);
        }
        Ok(shards)
    }

    /// Lists one object, or the objects of a directory.
    async fn list_location(
        &self,
        location: &Location,
        given: &str,
    ) -> Result<Vec<SelectedShard>, SourceError> {
        self.reads.check_object(location)?;
        if location.is_local() {
            return self.list_local_path(location, given).await;
        }
        let store = self.reads.open(location)?;
        if location.rest.is_empty() || location.rest.ends_with('/') {
            return self.list_prefix(store.as_ref(), location, given).await;
        }
        match self.head(store.as_ref(), location, given).await {
            Ok(shard) => Ok(vec![SelectedShard { shard, pattern: None }]),
            Err(SourceError::NotFound { .. }) if location.is_hub() => {
                self.list_prefix(store.as_ref(), location, given).await
            }
            Err(error) => Err(error),
        }
    }

    async fn list_local_path(
        &self,
        location: &Location,
        given: &str,
    ) -> Result<Vec<SelectedShard>, SourceError> {
        let permit = self.head_permits.acquire().await.expect("the semaphore is never closed");
        let path = PathBuf::from(&location.rest);
        let found = {
            let path = path.clone();
            unblock(self.reads.request_limit(), given, move || folder::find(&path)).await?
        };
        drop(permit);
        match found {
            Some(metadata) if metadata.is_dir() => {
                self.list_local_folder(location, EntrySelection::Visible, given).await
            }
            Some(metadata) => {
                self.object_count.add(1, given)?;
                Ok(vec![SelectedShard { shard: folder::file_shard(&path, &metadata)?, pattern: None }])
            }
            None => Err(SourceError::NotFound { url: given.to_owned() }),
        }
    }

    /// Lists the selected files of a local directory. Fails if there are none.
    async fn list_local_folder(
        &self,
        folder: &Location,
        selection: EntrySelection,
        given: &str,
    ) -> Result<Vec<SelectedShard>, SourceError> {
        let pattern = format!("{}/{}", folder.rest.trim_end_matches('/'), selection.as_str());
        let shards = self.list_local_files(folder, selection, given).await?;
        with_pattern(shards, &pattern, given)
    }

    /// Lists the selected files of a local directory.
    async fn list_local_files(
        &self,
        folder: &Location,
        selection: EntrySelection,
        given: &str,
    ) -> Result<Vec<ShardRef>, SourceError> {
        let (path, url) = (PathBuf::from(&folder.rest), given.to_owned());
        let (count, tables) = (Arc::clone(&self.object_count), Arc::clone(&self.tables));
        let list = move || {
            let (shards, of_tables) = folder::list_files(&path, &selection, || count.add(1, &url))?;
            let mut tables = tables.lock().unwrap_or_else(PoisonError::into_inner);
            of_tables.iter().for_each(|url| tables.observe(url));
            Ok::<_, SourceError>(shards)
        };
        unblock(LOCAL_DIRECTORY_TIMEOUT, given, list).await
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
        self.object_count.add(1, given)?;
        if !shard.has_validator() {
            return Err(SourceError::NoValidator { url: shard.url });
        }
        Ok(shard)
    }

    /// Lists the objects below a directory of a store. Fails if there are none.
    async fn list_prefix(
        &self,
        store: &dyn ObjectStore,
        location: &Location,
        given: &str,
    ) -> Result<Vec<SelectedShard>, SourceError> {
        let shards = self.list_objects_below(store, location, given).await?;
        with_pattern(shards, &format!("{}/", location.rest.trim_end_matches('/')), given)
    }

    /// Lists the objects below a directory of a store.
    async fn list_objects_below(
        &self,
        store: &dyn ObjectStore,
        location: &Location,
        given: &str,
    ) -> Result<Vec<ShardRef>, SourceError> {
        reject_http_listing(location, given)?;
        let prefix = location.key()?;
        let metas = self.list_recursively(store, location, Some(&prefix), given).await?;
        let is_selected = |meta: &ObjectMeta| {
            let parts = meta.location.prefix_match(&prefix)?;
            let path = parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/");
            Some(!path.is_empty() && EntrySelection::Visible.selects(&path))
        };
        let metas = metas.into_iter().filter(|meta| is_selected(meta) == Some(true)).collect();
        self.without_directories(store, location, metas, given).await
    }

    async fn list_glob(&self, location: &Location, given: &str) -> Result<Vec<SelectedShard>, SourceError> {
        reject_http_listing(location, given)?;
        let (folder, text) = split_at_glob(self.reads, location);
        let pattern =
            PathPattern::new(text).map_err(|reason| SourceError::Url { url: given.to_owned(), reason })?;
        let folder = Location { rest: folder.to_owned(), ..location.clone() };
        self.reads.check_object(&folder)?;
        if location.is_local() {
            if !std::path::Path::new(&folder.rest).is_dir() {
                return Err(SourceError::Empty { url: given.to_owned() });
            }
            return self.list_local_folder(&folder, EntrySelection::Glob(pattern), given).await;
        }
        let store = self.reads.open(location)?;
        let prefix = folder.key()?;
        let prefix = (!prefix.is_root()).then_some(&prefix);
        let metas = if pattern.max_depth() == Some(1) {
            self.list_objects(store.as_ref(), prefix, given).await?
        } else {
            self.list_recursively(store.as_ref(), location, prefix, given).await?
        };
        let matches = |meta: &ObjectMeta| {
            let path = meta.location.as_ref().strip_prefix(folder.rest.trim_start_matches('/'));
            path.is_some_and(|path| pattern.matches(path))
        };
        let metas: Vec<ObjectMeta> = metas.into_iter().filter(matches).collect();
        if metas.is_empty() {
            // An object can have a name such as `x[1].tar`.
            let shard = self.head(store.as_ref(), location, given).await;
            let shard = shard.map_err(|_| SourceError::Empty { url: given.to_owned() })?;
            return Ok(vec![SelectedShard { shard, pattern: None }]);
        }
        let shards = self.without_directories(store.as_ref(), location, metas, given).await?;
        with_pattern(shards, &location.rest, given)
    }

    /// Describes the objects as shards, without empty objects that mark directories. The names of these objects end with a slash,
    /// which the client of the store removes, so that no object with that name exists.
    async fn without_directories(
        &self,
        store: &dyn ObjectStore,
        location: &Location,
        metas: Vec<ObjectMeta>,
        given: &str,
    ) -> Result<Vec<ShardRef>, SourceError> {
        let shard = |meta: ObjectMeta| async move {
            if meta.size == 0 {
                let _permit = self.head_permits.acquire().await.expect("the semaphore is never closed");
                match store.head(&meta.location).await {
                    Ok(_) => {}
                    Err(object_store::Error::NotFound { .. }) => return Ok(None),
                    Err(error) => return Err(SourceError::from_store(given, error)),
                }
            }
            Ok(Some(shard_of(location, &meta)))
        };
        let shards = futures::stream::iter(metas).map(shard).buffered(CONCURRENT_HEADS);
        let mut shards: Vec<ShardRef> =
            shards.try_filter_map(|shard| async { Ok(shard) }).try_collect().await?;
        shards.sort_by(|a, b| a.url.cmp(&b.url));
        shards.dedup_by(|a, b| a.url == b.url);
        Ok(shards)
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
            self.object_count.add(1, given)?;
            if is_table_metadata(meta.location.as_ref()) {
                let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
                tables.observe(&location.url_of(&meta.location));
            }
            metas.push(meta);
        }
        Ok(metas)
    }

    /// Lists the objects of a directory without its subdirectories.
    async fn list_objects(
        &self,
        store: &dyn ObjectStore,
        prefix: Option<&Path>,
        given: &str,
    ) -> Result<Vec<ObjectMeta>, SourceError> {
        let listed = store.list_with_delimiter(prefix).await;
        let metas = listed.map_err(|error| SourceError::from_store(given, error))?.objects;
        self.object_count.add(metas.len(), given)?;
        Ok(metas)
    }
}

impl ObjectCount {
    /// Counts listed objects. Returns an error if the source has more than `max_objects`.
    fn add(&self, objects: usize, given: &str) -> Result<(), SourceError> {
        if self.objects.fetch_add(objects, Ordering::Relaxed).saturating_add(objects) <= self.max_objects {
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

/// Runs a blocking function for at most `limit`.
async fn unblock<T: Send + 'static>(
    limit: Duration,
    given: &str,
    list: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    let failed = |reason, retryable| SourceError::Store { url: given.to_owned(), reason, retryable };
    match timeout(limit, tokio::task::spawn_blocking(list)).await {
        Ok(Ok(listed)) => listed,
        Ok(Err(error)) => Err(failed(error.to_string(), false)),
        Err(_) => Err(failed(retry::no_response_reason(limit) + STORE_FIX, true)),
    }
}

/// Returns the shards that a glob or prefix selected. Fails if there are none.
fn with_pattern(
    shards: Vec<ShardRef>,
    pattern: &str,
    given: &str,
) -> Result<Vec<SelectedShard>, SourceError> {
    if shards.is_empty() {
        return Err(SourceError::Empty { url: given.to_owned() });
    }
    let pattern: Arc<str> = pattern.into();
    Ok(shards.into_iter().map(|shard| SelectedShard { shard, pattern: Some(pattern.clone()) }).collect())
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

#[cfg(test)]
mod tests;
