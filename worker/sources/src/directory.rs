//! Directories with an `index.json` that names the shards of a dataset, as MosaicML Streaming and LitData write them.
//!
//! A worker lists the files of the index. Workers that index or read the shards read the index again, once per directory. While a
//! directory is indexed, a worker checks from time to time that its index is the current one.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use feedline_data::manifest::ShardRef;
use tokio::time::Instant;

use crate::error::SourceError;
use crate::list::{ShardSelectors, expand, is_pattern, list_files, list_folder};
use crate::location::Location;
use crate::object::{Object, head};
use crate::stores::ScopedStores;

const INDEX_NAME: &str = "index.json";
/// Maximum size of an `index.json`. An index of 100,000 shards is a tenth of this size.
const MAX_INDEX_BYTES: u64 = 256 << 20;
/// Time after which the version of a cached index is checked again while its directory is indexed.
const RECHECK_TIME: Duration = Duration::from_secs(1);
/// Maximum number of directories of a source.
const MAX_DIRECTORIES: usize = 4_096;

/// A parsed `index.json`.
pub(crate) trait DirectoryIndex: Send + Sync + Sized {
    /// The name of the format in error messages.
    const FORMAT: &'static str;

    /// Parses an index. An error is part of a sentence.
    fn parse(bytes: &[u8]) -> Result<Self, String>;

    /// The files of each shard in the order of the index. The first existing file of a shard is read.
    fn shards(&self) -> Vec<Vec<IndexedFile<'_>>>;

    /// Whether the index names a file.
    fn contains(&self, path: &str) -> bool;

    /// A sentence for the log about a part of the index that is ignored.
    fn warning(&self) -> Option<String> {
        None
    }
}

/// A file that an index names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexedFile<'a> {
    /// The path relative to the directory.
    pub(crate) path: &'a str,
    /// The expected size in bytes, if the index contains it.
    pub(crate) bytes: Option<u64>,
}

/// The directories of a source, with their cached indexes.
pub(crate) struct Directories<T> {
    reads: ScopedStores,
    urls: Vec<String>,
    folders: OnceLock<Result<Folders, SourceError>>,
    indexes: Mutex<HashMap<String, Arc<IndexCell<T>>>>,
}

/// The index of a directory, which one task at a time reads.
type IndexCell<T> = tokio::sync::Mutex<Option<CachedIndex<T>>>;

struct CachedIndex<T> {
    index: Arc<T>,
    version: String,
    /// When the version was the current one.
    checked_at: Instant,
}

/// Why an index is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexUse {
    /// To index a shard, with the current index of its directory.
    Indexing,
    /// To read rows of an indexed shard.
    Reading,
}

/// The directories of the URLs.
#[derive(Default)]
struct Folders {
    in_order: Vec<Location>,
    /// The stores of the directories, with the rests of their URLs.
    by_root: HashMap<String, HashSet<String>>,
}

impl<T: DirectoryIndex> Directories<T> {
    pub(crate) fn new(reads: &ScopedStores, urls: &[String]) -> Self {
        Self {
            reads: reads.clone(),
            urls: urls.to_vec(),
            folders: OnceLock::new(),
            indexes: Mutex::default(),
        }
    }

    /// Lists the shards of all directories: the directories in the order of the URLs, the shards in the order of the index.
    pub(crate) async fn list(&self) -> Result<Vec<ShardRef>, SourceError> {
        self.reads.clear_link_cache();
        let (mut shards, mut selectors) = (Vec::new(), ShardSelectors::default());
        for folder in &self.folders()?.in_order {
            // The index may have changed since an earlier listing.
            self.cells().remove(&folder.url());
            let index = self.load(folder, IndexUse::Indexing).await?;
            if let Some(warning) = index.warning() {
                tracing::warn!(url = %folder.url(), "{warning}");
            }
            let selector: Arc<str> = folder.url().into();
            for shard in self.list_one(folder, &index).await? {
                selectors.add(&shard, Some(selector.clone()))?;
                shards.push(shard);
            }
        }
        Ok(shards)
    }

    /// Returns the index that names a shard, and the shard's path in the directory.
    pub(crate) async fn index_of(
        &self,
        shard: &ShardRef,
        index_use: IndexUse,
    ) -> Result<(Arc<T>, String), SourceError> {
        let location = Location::parse(&shard.url)?;
        let known = self.folders()?.by_root.get(&location.root);
        let mut innermost = None;
        // A directory of the source may be below another one.
        let ends = location.rest.rmatch_indices('/').map(|(slash, _)| slash + 1).chain(std::iter::once(0));
        for end in ends {
            let (rest, path) = location.rest.split_at(end);
            if !known.is_some_and(|known| known.contains(rest)) {
                continue;
            }
            let folder = Location { root: location.root.clone(), rest: rest.to_owned() };
            let index = self.load(&folder, index_use).await?;
            if index.contains(path) {
                return Ok((index, path.to_owned()));
            }
            innermost.get_or_insert((index, path));
        }
        if let Some((index, path)) = innermost {
            return Ok((index, path.to_owned()));
        }
        let reason = "no URL of `source.url` contains the shard: run `feedline index --rebuild`";
        Err(SourceError::Url { url: shard.url.clone(), reason: reason.to_owned() })
    }

    fn folders(&self) -> Result<&Folders, SourceError> {
        let folders = self.folders.get_or_init(|| Folders::new(&self.reads, &self.urls, T::FORMAT));
        folders.as_ref().map_err(Clone::clone)
    }

    #[expect(
        clippy::await_holding_invalid_type,
        reason = "the lock is of one directory, so that concurrent reads load its index once"
    )]
    async fn load(&self, folder: &Location, index_use: IndexUse) -> Result<Arc<T>, SourceError> {
        let cell = self.cells().entry(folder.url()).or_default().clone();
        let mut cached = cell.lock().await;
        let is_current = |cached: &CachedIndex<T>| {
            index_use == IndexUse::Reading || cached.checked_at.elapsed() < RECHECK_TIME
        };
        if let Some(cached) = cached.as_ref().filter(|cached| is_current(cached)) {
            return Ok(Arc::clone(&cached.index));
        }
        let (checked_at, object) = (Instant::now(), self.open_index(folder).await?);
        let shard = object.shard();
        if let Some(cached) = cached.as_mut().filter(|cached| cached.version == shard.version) {
            cached.checked_at = checked_at;
            return Ok(Arc::clone(&cached.index));
        }
        let bytes = object.read(0..object.size_bytes()).await?;
        let parsed = T::parse(&bytes);
        let index = parsed
            .map(Arc::new)
            .map_err(|reason| SourceError::Unsupported { url: shard.url.clone(), reason })?;
        *cached = Some(CachedIndex { index: Arc::clone(&index), version: shard.version.clone(), checked_at });
        Ok(index)
    }

    fn cells(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<IndexCell<T>>>> {
        self.indexes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open_index(&self, folder: &Location) -> Result<Object, SourceError> {
        let location = file_in(folder, INDEX_NAME);
        let url = location.url();
        self.reads.check_object(&location)?;
        let store = self.reads.open(&location)?;
        let shard = head(store.as_ref(), &location, &url).await.map_err(|error| match error {
            SourceError::NotFound { .. } => SourceError::Url {
                url: folder.url(),
                reason: format!(
                    "it has no `{INDEX_NAME}`: write the URL of a directory that {} wrote, or change `source.format`",
                    T::FORMAT
                ),
            },
            other => other,
        })?;
        if shard.size_bytes > MAX_INDEX_BYTES {
            let reason = format!(
                "the index is {} bytes long; the limit is {MAX_INDEX_BYTES} bytes: divide the dataset into several directories",
                shard.size_bytes
            );
            return Err(SourceError::unsupported(&shard, reason));
        }
        let file = self.reads.check_shard(&location, &shard)?;
        Ok(self.reads.object(store, location.key()?, shard).with_file(file))
    }

    /// Returns the existing file of each shard. Fails if a file is missing or has another size.
    async fn list_one(&self, folder: &Location, index: &T) -> Result<Vec<ShardRef>, SourceError> {
        let wrong =
            |reason: String| SourceError::Unsupported { url: file_in(folder, INDEX_NAME).url(), reason };
        let shards = index.shards();
        let paths: Vec<&str> = shards.iter().flatten().map(|file| file.path).collect();
        if let Some(path) = paths.iter().find(|path| !is_relative_path(path)) {
            return Err(wrong(format!("`{path}` is not a path in the directory: write the dataset again")));
        }
        let listed = if folder.is_http() {
            list_files(&self.reads, paths.iter().map(|path| file_in(folder, path)).collect()).await?
        } else {
            list_folder(&self.reads, folder, &paths).await?
        };
        let listed: HashMap<&str, &ShardRef> =
            listed.iter().map(|shard| (shard.url.as_str(), shard)).collect();
        let mut found = Vec::with_capacity(shards.len());
        for files in shards {
            let of = |file: &IndexedFile<'_>| listed.get(file_in(folder, file.path).url().as_str()).copied();
            let Some((file, shard)) = files.iter().find_map(|file| Some((file, of(file)?))) else {
                let path = files.first().map_or("", |file| file.path);
                return Err(wrong(format!(
                    "the file `{path}` of the index does not exist: copy the whole directory, or write the dataset again"
                )));
            };
            if let Some(bytes) = file.bytes.filter(|bytes| *bytes != shard.size_bytes) {
                return Err(wrong(format!(
                    "`{}` is {} bytes long, but the index expects {bytes} bytes: copy the whole directory again",
                    file.path, shard.size_bytes
                )));
            }
            self.reads.check_shard(&Location::parse(&shard.url)?, shard)?;
            found.push(shard.clone());
        }
        Ok(found)
    }
}

impl Folders {
    fn new(reads: &ScopedStores, urls: &[String], format: &str) -> Result<Self, SourceError> {
        let mut folders = Self::default();
        for url in urls {
            let bad = |reason: String| SourceError::Url { url: url.clone(), reason };
            let location = Location::parse(url)?;
            for rest in expand(reads, &location).map_err(bad)? {
                let one = Location { rest, ..location.clone() };
                if one.rest.contains(['*', '?', '[']) && is_pattern(reads, &one) {
                    return Err(bad(format!(
                        "the format {format} reads whole directories: write the URL of each directory that has an `{INDEX_NAME}`"
                    )));
                }
                let rest = one.rest.strip_suffix(INDEX_NAME).unwrap_or(&one.rest).trim_end_matches('/');
                folders.add(Location { rest: format!("{rest}/"), ..one.clone() });
                if folders.in_order.len() > MAX_DIRECTORIES {
                    return Err(bad(format!(
                        "the source has more than {MAX_DIRECTORIES} directories: merge some of them"
                    )));
                }
            }
        }
        Ok(folders)
    }

    fn add(&mut self, folder: Location) {
        self.by_root.entry(folder.root.clone()).or_default().insert(folder.rest.clone());
        self.in_order.push(folder);
    }
}

fn file_in(folder: &Location, path: &str) -> Location {
    Location { root: folder.root.clone(), rest: format!("{}{path}", folder.rest) }
}

/// Whether a path stays in its directory.
fn is_relative_path(path: &str) -> bool {
    !path.contains('\\') && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_an_index_stay_in_its_directory() {
        for path in ["shard.00000.mds", "a/b.bin", "..a"] {
            assert!(is_relative_path(path), "{path}");
        }
        for path in ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a\\..\\b"] {
            assert!(!is_relative_path(path), "{path}");
        }
    }
}
