//! Opens stores and keeps them: one per scheme and authority, and per credentials.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use feedline_data::manifest::ShardRef;
use feedline_data::read_policy::ReadPolicy;
use feedline_data::tenants::TenantReads;
use feedline_data::urls::{UrlPolicy, expand_braces};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, coalesce_ranges};

use crate::access::ObjectAccess;
use crate::clients;
use crate::error::SourceError;
use crate::links::{AllowedFolders, LinkPolicy};
use crate::local::LocalFile;
use crate::location::Location;
use crate::object::{Object, head};

/// Ranges of one object with at most this many bytes between them are read in one request.
const COALESCE_GAP_BYTES: u64 = 64 << 10;
/// Largest object that is read whole before any row is: a tokenizer of a hundred languages has a tenth of it.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// What all of them take together that the operators of one pipeline read.
const MAX_FILES_BYTES: u64 = 512 << 20;

/// Opens and keeps one client per store.
pub struct Stores {
    access: ObjectAccess,
    open: Mutex<HashMap<StoreKey, Arc<dyn ObjectStore>>>,
}

/// Scheme and authority, the name of the credentials, and the prefixes of the tenant within which a web server may redirect.
type StoreKey = (String, Option<String>, Vec<String>);

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
        Self::with(ObjectAccess::new(options))
    }

    /// Stores that are reached so.
    pub fn with(access: ObjectAccess) -> Arc<Self> {
        Arc::new(Self { access, open: Mutex::default() })
    }

    /// The whole of a small object that a pipeline names, such as a `tokenizer.json`; `url` may be a plain path.
    ///
    /// # Errors
    /// When pipelines may not read from there, it is too large, or the store fails.
    pub async fn get(self: &Arc<Self>, url: &str) -> Result<Bytes, SourceError> {
        self.get_for(url, &TenantReads::default()).await
    }

    /// The same for a tenant's pipeline.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn get_for(self: &Arc<Self>, url: &str, tenant: &TenantReads) -> Result<Bytes, SourceError> {
        let object = self.file(url, tenant).await?;
        let bytes = object.read(0..object.size_bytes()).await?;
        Ok(bytes)
    }

    /// Reads the objects that the operators of one pipeline need, each once and whole, unless they are too large together.
    ///
    /// # Errors
    /// As [`Self::get`], and before any is read where they are too large.
    pub async fn files(
        self: &Arc<Self>,
        urls: BTreeSet<String>,
        tenant: &TenantReads,
    ) -> Result<BTreeMap<String, Bytes>, SourceError> {
        let (mut objects, mut all_bytes) = (Vec::new(), 0);
        for url in urls {
            let object = self.file(&url, tenant).await?;
            all_bytes += object.size_bytes();
            if all_bytes > MAX_FILES_BYTES {
                let reason = format!(
                    "with it the files that the pipeline's operators read have {all_bytes} bytes, and may have \
                     {MAX_FILES_BYTES} together: use fewer or smaller ones, or divide the pipeline"
                );
                return Err(SourceError::Unsupported { url, reason });
            }
            objects.push((url, object));
        }
        let mut files = BTreeMap::new();
        for (url, object) in objects {
            files.insert(url, object.read(0..object.size_bytes()).await?);
        }
        Ok(files)
    }

    /// An object that is small enough to be read whole.
    async fn file(self: &Arc<Self>, url: &str, tenant: &TenantReads) -> Result<Object, SourceError> {
        let reads = ScopedStores::new(Arc::clone(self), None, tenant);
        reads.check(url)?;
        let location = Location::parse(url)?;
        reads.check_object(&location)?;
        let store = reads.open(&location)?;
        let shard = head(store.as_ref(), &location, url).await?;
        let file = reads.check_shard(&location, &shard)?;
        if shard.size_bytes > MAX_FILE_BYTES {
            let reason = format!(
                "it has {} bytes, and a file that an operator reads has at most {MAX_FILE_BYTES}",
                shard.size_bytes
            );
            return Err(SourceError::unsupported(&shard, reason));
        }
        Ok(reads.object(store, location.key()?, shard).at(file))
    }

    /// Writes an object, whole or not at all. Folders of a local path are made.
    ///
    /// # Errors
    /// When the store refuses or fails; the object may be there all the same.
    pub async fn put(&self, url: &str, bytes: Bytes) -> Result<(), SourceError> {
        let location = Location::parse(url)?;
        let (store, key) = (self.open(&location, None, &TenantReads::default())?, location.key()?);
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
            return Err(bad("it is not a folder"));
        }
        let (store, folder) = (self.open(&location, None, &TenantReads::default())?, location.key()?);
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
        let (store, key) = (self.open(&location, None, &TenantReads::default())?, location.key()?);
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
        tenant: &TenantReads,
    ) -> Result<Arc<dyn ObjectStore>, SourceError> {
        // Other stores are not asked to keep to prefixes in what they redirect to.
        let redirects =
            if location.is_http() { tenant.urls.prefixes().map(str::to_owned).collect() } else { Vec::new() };
        let key = (location.root.clone(), credentials.map(str::to_owned), redirects);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = open.get(&key) {
            return Ok(store.clone());
        }
        let store = self
            .build(&location.root, credentials, tenant)
            .map_err(|reason| SourceError::Url { url: format!("{}/", location.root), reason })?;
        open.insert(key, store.clone());
        Ok(store)
    }

    fn build(
        &self,
        root: &str,
        credentials: Option<&str>,
        tenant: &TenantReads,
    ) -> Result<Arc<dyn ObjectStore>, String> {
        let Some(options) = self.access.options(credentials) else {
            return Err(format!("unknown credentials `{}`", credentials.unwrap_or_default()));
        };
        clients::build(root, options, self.access.reads(), tenant, self.access.retry_budget())
    }

    #[cfg(test)]
    pub(crate) fn insert(&self, root: &str, store: Arc<dyn ObjectStore>) {
        self.open.lock().unwrap().insert((root.to_owned(), None, Vec::new()), store);
    }
}

/// Stores as one pipeline may use them: with its credentials, and where pipelines, and those of its tenant, may read.
#[derive(Debug, Clone)]
pub(crate) struct ScopedStores {
    stores: Arc<Stores>,
    credentials: Option<String>,
    /// What the role lets be read.
    policy: ReadPolicy,
    /// What the job's tenant may read of that.
    tenant: TenantReads,
    links: Arc<LinkPolicy>,
}

impl ScopedStores {
    pub(crate) fn new(stores: Arc<Stores>, credentials: Option<String>, tenant: &TenantReads) -> Self {
        let policy = stores.access.reads().for_tenant(tenant);
        let folders = |policy: &UrlPolicy, fix| AllowedFolders { policy: policy.clone(), fix };
        let allowed = [
            folders(&policy.urls, "`--allow-url`"),
            folders(&tenant.urls, "the tenant's `urls` in the coordinator's file of tenants"),
        ];
        let links = Arc::new(LinkPolicy::new(stores.access.own_files().clone(), allowed));
        Self { stores, credentials, policy, tenant: tenant.clone(), links }
    }

    /// Checks a URL of the pipeline, with globs and braces.
    pub(crate) fn check(&self, url: &str) -> Result<(), SourceError> {
        self.policy.check_url(url).and_then(|()| self.tenant.check_url(url)).map_err(refused)
    }

    /// Checks that the credentials may be named, are known, and are for these URLs.
    pub(crate) fn check_credentials(&self, urls: &[String]) -> Result<(), SourceError> {
        let Some(name) = &self.credentials else { return Ok(()) };
        let may_name = self.tenant.check_credentials(name);
        may_name.and_then(|()| self.policy.check_credentials(name, urls)).map_err(refused)
    }

    /// Sees anew where the role's own files are: comes before many objects are checked.
    pub(crate) fn clear_link_cache(&self) {
        self.links.clear_cache();
    }

    /// Checks where an object, or a folder that is listed, really lies: by its own URL, and behind links.
    pub(crate) fn check_object(&self, location: &Location) -> Result<(), SourceError> {
        self.check_at(location, None).map(drop)
    }

    /// The same of an object that was found, in the version that was. Where it is a file of this host, it is read as this tells,
    /// since what was checked may change.
    pub(crate) fn check_shard(
        &self,
        location: &Location,
        shard: &ShardRef,
    ) -> Result<Option<LocalFile>, SourceError> {
        self.check_at(location, Some(shard))
    }

    fn check_at(
        &self,
        location: &Location,
        shard: Option<&ShardRef>,
    ) -> Result<Option<LocalFile>, SourceError> {
        if self.is_free(location) {
            return Ok(location.is_local().then(|| LocalFile::linked(&location.rest)));
        }
        let url = location.url();
        self.policy.check_object(&url).map_err(refused)?;
        self.tenant.check_object(&url).map_err(refused)?;
        if let Some(name) = &self.credentials {
            self.policy.check_object_credentials(name, &url).map_err(refused)?;
        }
        if location.is_local() {
            self.links.check(&location.rest, shard).map(Some).map_err(refused)
        } else {
            Ok(None)
        }
    }

    /// Whether nothing allowed what is read there.
    fn is_free(&self, location: &Location) -> bool {
        let local_is_free =
            || !location.is_local() || (self.links.is_unrestricted() && !self.policy.local_by_prefix);
        let any_url = self.policy.urls.is_open() && self.tenant.urls.is_open();
        any_url && self.credentials.is_none() && !location.is_http() && local_is_free()
    }

    /// An object of a store, whose reads are retried as the role's settings say.
    pub(crate) fn object(&self, store: Arc<dyn ObjectStore>, key: Path, shard: ShardRef) -> Object {
        Object::new(store, key, shard).with_retry_budget(self.stores.access.retry_budget())
    }

    /// The store of a location.
    pub(crate) fn open(&self, location: &Location) -> Result<Arc<dyn ObjectStore>, SourceError> {
        self.stores.open(location, self.credentials.as_deref(), &self.tenant)
    }

    /// Expands a URL's braces.
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
