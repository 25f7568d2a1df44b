//! Opens stores and keeps them: one per scheme and authority, and per credentials.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use feedline_core::urls::expand_braces;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, coalesce_ranges};

use crate::access::Access;
use crate::clients;
use crate::error::SourceError;
use crate::links::Links;
use crate::list;
use crate::location::Location;
use crate::object::Object;

/// Ranges of one object with at most this many bytes between them are read in one request.
const COALESCE_GAP_BYTES: u64 = 64 << 10;
/// Largest object that is read whole before any row is: a tokenizer of a hundred languages has a tenth of it.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Opens and keeps one client per store.
pub struct Stores {
    access: Access,
    open: Mutex<HashMap<StoreKey, Arc<dyn ObjectStore>>>,
    links: Links,
}

/// Scheme and authority, and the name of the credentials.
type StoreKey = (String, Option<String>);

impl std::fmt::Debug for Stores {
    /// Without the clients, which would show their keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stores").field("access", &self.access).finish_non_exhaustive()
    }
}

impl Stores {
    /// `options` are a store's settings by their usual names, such as `AWS_ENDPOINT`; what a store does not know it
    /// leaves alone.
    pub fn new(options: Vec<(String, String)>) -> Arc<Self> {
        Self::with(Access::new(options))
    }

    /// Stores that are reached so.
    pub fn with(access: Access) -> Arc<Self> {
        Arc::new(Self { access, open: Mutex::default(), links: Links::default() })
    }

    /// The whole of a small object that a pipeline names, such as a `tokenizer.json`; `url` may be a plain path.
    ///
    /// # Errors
    /// When pipelines may not read from there, it is too large, or the store fails.
    pub async fn get(self: &Arc<Self>, url: &str) -> Result<Bytes, SourceError> {
        let reads = Reads::new(Arc::clone(self), None);
        reads.check(url)?;
        let location = Location::parse(url)?;
        reads.check_object(&location)?;
        let store = reads.open(&location)?;
        let shard = list::head(store.as_ref(), &location, url).await?;
        if shard.size_bytes > MAX_FILE_BYTES {
            let reason = format!(
                "it has {} bytes, and a file that an operator reads has at most {MAX_FILE_BYTES}",
                shard.size_bytes
            );
            return Err(SourceError::unsupported(&shard, reason));
        }
        let object = Object::new(store, location.key()?, shard);
        let bytes = object.read(0..object.size_bytes()).await?;
        Ok(bytes)
    }

    /// Writes an object, whole or not at all. Folders of a local path are made.
    ///
    /// # Errors
    /// When the store refuses or fails; the object may be there all the same.
    pub async fn put(&self, url: &str, bytes: Bytes) -> Result<(), SourceError> {
        let location = Location::parse(url)?;
        let (store, key) = (self.open(&location, None)?, location.key()?);
        store.put(&key, bytes.into()).await.map_err(|error| SourceError::from_store(url, error))?;
        Ok(())
    }

    /// Tells `found` of every object below a folder, by its path from there and its size in bytes. A folder that is not
    /// there has none.
    ///
    /// # Errors
    /// When the store cannot be listed, as a web server.
    pub async fn list_folder(
        &self,
        url: &str,
        mut found: impl FnMut(&str, u64) + Send,
    ) -> Result<(), SourceError> {
        let bad = |reason: &str| SourceError::Url { url: url.to_owned(), reason: reason.to_owned() };
        let location = Location::parse(url)?;
        if location.is_http() {
            return Err(bad("an http server cannot be listed: use a folder, or scheme s3, gs or az"));
        }
        let path = std::path::Path::new(&location.rest);
        if location.is_local() && path.exists() && !path.is_dir() {
            return Err(bad("it is no folder"));
        }
        let (store, folder) = (self.open(&location, None)?, location.key()?);
        let mut objects = store.list((!folder.is_root()).then_some(&folder));
        let failed = |error| SourceError::from_store(url, error);
        while let Some(object) = objects.try_next().await.map_err(failed)? {
            let (key, folder): (&str, &str) = (object.location.as_ref(), folder.as_ref());
            found(key.strip_prefix(folder).unwrap_or_default().trim_start_matches('/'), object.size);
        }
        Ok(())
    }

    /// Parts of an object, in the order asked for and each whole. Near ones share a request, and so memory.
    ///
    /// # Errors
    /// When the store fails, or the object is shorter.
    pub async fn get_ranges(&self, url: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, SourceError> {
        let location = Location::parse(url)?;
        let (store, key) = (self.open(&location, None)?, location.key()?);
        let read = if location.is_local() {
            // Opens the file once.
            store.get_ranges(&key, ranges).await
        } else {
            let read_one = |range| get_whole(store.as_ref(), &key, range);
            coalesce_ranges(ranges, read_one, COALESCE_GAP_BYTES).await
        };
        read.map_err(|error| SourceError::from_store(url, error))
    }

    fn open(
        &self,
        location: &Location,
        credentials: Option<&str>,
    ) -> Result<Arc<dyn ObjectStore>, SourceError> {
        let key = (location.root.clone(), credentials.map(str::to_owned));
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = open.get(&key) {
            return Ok(store.clone());
        }
        let store = self
            .build(&location.root, credentials)
            .map_err(|reason| SourceError::Url { url: format!("{}/", location.root), reason })?;
        open.insert(key, store.clone());
        Ok(store)
    }

    fn build(&self, root: &str, credentials: Option<&str>) -> Result<Arc<dyn ObjectStore>, String> {
        let Some(options) = self.access.options(credentials) else {
            let name = credentials.unwrap_or_default();
            return Err(match self.access.reads().check_credentials(name, &[]) {
                Err(sentence) => sentence,
                Ok(()) => format!("there are no credentials `{name}` here"),
            });
        };
        clients::build(root, options, self.access.reads())
    }

    #[cfg(test)]
    pub(crate) fn insert(&self, root: &str, store: Arc<dyn ObjectStore>) {
        self.open.lock().unwrap().insert((root.to_owned(), None), store);
    }
}

/// Stores as one pipeline may use them: with its credentials, and where pipelines may read.
#[derive(Debug, Clone)]
pub(crate) struct Reads {
    stores: Arc<Stores>,
    credentials: Option<String>,
}

impl Reads {
    pub(crate) fn new(stores: Arc<Stores>, credentials: Option<String>) -> Self {
        Self { stores, credentials }
    }

    /// Checks a URL as it stands in the pipeline, with globs and braces.
    pub(crate) fn check(&self, url: &str) -> Result<(), SourceError> {
        self.stores.access.reads().check_url(url).map_err(refused)
    }

    /// Checks that the credentials are known, and are for these URLs.
    pub(crate) fn check_credentials(&self, urls: &[String]) -> Result<(), SourceError> {
        let Some(name) = &self.credentials else { return Ok(()) };
        self.stores.access.reads().check_credentials(name, urls).map_err(refused)
    }

    /// Checks where an object, or a folder that is listed, really lies: by its own URL, and behind links. What was checked is
    /// remembered.
    pub(crate) fn check_object(&self, location: &Location) -> Result<(), SourceError> {
        let policy = self.stores.access.reads();
        if policy.urls.is_open() && self.credentials.is_none() && !location.is_http() {
            return Ok(());
        }
        let url = location.url();
        self.stores
            .links
            .check_once(&url, self.credentials.as_deref(), || {
                policy.check_object(&url)?;
                if let Some(name) = &self.credentials {
                    policy.check_credentials_of_object(name, &url)?;
                }
                if location.is_local() {
                    self.stores.links.check(&location.rest, &policy.urls)
                } else {
                    Ok(())
                }
            })
            .map_err(refused)
    }

    /// The store of a location.
    pub(crate) fn open(&self, location: &Location) -> Result<Arc<dyn ObjectStore>, SourceError> {
        self.stores.open(location, self.credentials.as_deref())
    }

    /// What a URL's braces stand for.
    pub(crate) fn expand(text: &str) -> Result<Vec<String>, String> {
        /// More URLs than this in one pattern are a typing mistake.
        const MAX_EXPANSIONS: usize = 1_000_000;
        expand_braces(text, MAX_EXPANSIONS)
    }
}

fn refused(sentence: String) -> SourceError {
    SourceError::Refused { sentence }
}

/// A range of an object; an error where the object ends before it does.
async fn get_whole(
    store: &dyn ObjectStore,
    key: &Path,
    range: Range<u64>,
) -> Result<Bytes, object_store::Error> {
    let wanted = range.end - range.start;
    let bytes = store.get_range(key, range).await?;
    if bytes.len() as u64 == wanted {
        return Ok(bytes);
    }
    let source = format!("{} bytes came where {wanted} were asked for", bytes.len()).into();
    Err(object_store::Error::Generic { store: "ranges", source })
}

#[cfg(test)]
mod tests;
