//! Opens object stores, and caches one client per scheme, authority and credentials.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use feedline_data::ids::JobId;
use feedline_data::manifest::ShardRef;
use feedline_data::read_policy::ReadPolicy;
use feedline_data::tenants::TenantReads;
use feedline_data::urls::{UrlPolicy, expand_braces};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Extensions, GetOptions, GetRange, ObjectStore, ObjectStoreExt, coalesce_ranges};

use crate::access::ObjectAccess;
use crate::cache::ShardCacheMemory;
use crate::clients;
use crate::content::Decoders;
use crate::error::SourceError;
use crate::governors::{WorkerGovernors, store_identity};
#[cfg(feature = "kafka")]
use crate::guard::RequestGuard;
use crate::hub;
use crate::kafka::clients::KafkaClients;
use crate::links::{AllowedFolders, LinkPolicy};
use crate::local::LocalFile;
use crate::location::Location;
use crate::merged_reads::MergedReads;
use crate::object::{Object, head};
use crate::read_memory::ReadMemory;
use crate::requests::{RequestTag, within_active};
use crate::responses::read_body;
use crate::retry;
use crate::throttling::StoreKind;

/// Maximum gap between two ranges of an object that are read in one request.
const COALESCE_GAP_BYTES: u64 = 64 << 10;
/// Maximum size of a file that an operator reads. Large multilingual tokenizers are a tenth of this size.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Maximum total size of the files that the operators of one pipeline read.
const MAX_FILES_BYTES: u64 = 512 << 20;

/// The object stores that a worker can access, with cached clients.
pub struct Stores {
    access: ObjectAccess,
    clients: Mutex<HashMap<StoreKey, Arc<dyn ObjectStore>>>,
    governors: WorkerGovernors,
    merged_reads: Arc<MergedReads>,
    decoders: Arc<Decoders>,
    cache_memory: ShardCacheMemory,
    #[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "the feature is off"))]
    kafka: KafkaClients,
}

/// Scheme and authority, the name of the credentials, and the tenant's prefixes that a web server may redirect to.
type StoreKey = (String, Option<String>, Vec<String>);

impl std::fmt::Debug for Stores {
    /// Omits the clients, because their debug output contains keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stores").field("access", &self.access).finish_non_exhaustive()
    }
}

impl Stores {
    /// Creates stores with options such as `AWS_ENDPOINT`. A store ignores unknown options.
    pub fn new(options: Vec<(String, String)>) -> Arc<Self> {
        Self::with_access(ObjectAccess::new(options))
    }

    /// Creates stores with the credentials and the read policy of `access`.
    pub fn with_access(access: ObjectAccess) -> Arc<Self> {
        Self::with_memory(access, ReadMemory::default())
    }

    /// Creates stores of a worker, whose clients use `memory`.
    pub fn with_memory(access: ObjectAccess, memory: ReadMemory) -> Arc<Self> {
        let governors = WorkerGovernors::default();
        let cache_memory = ShardCacheMemory::new(&memory);
        let kafka = KafkaClients::new(memory);
        let (clients, merged_reads, decoders) = (Mutex::default(), Arc::default(), Arc::default());
        Arc::new(Self { access, clients, governors, merged_reads, decoders, cache_memory, kafka })
    }

    /// Reads a small object that a pipeline requires, such as a `tokenizer.json`. `url` may be a local path.
    ///
    /// # Errors
    /// Returns an error if the read policy rejects the URL, the object is too large, or the store fails.
    pub async fn get(self: &Arc<Self>, url: &str) -> Result<Bytes, SourceError> {
        self.get_for(url, &TenantReads::default()).await
    }

    /// Reads a small object for a tenant's pipeline.
    ///
    /// # Errors
    /// Returns an error if the read policy or the tenant's permissions reject the URL, the object is too large, or the
    /// store fails.
    pub async fn get_for(self: &Arc<Self>, url: &str, tenant: &TenantReads) -> Result<Bytes, SourceError> {
        let object = self.open_file(url, tenant).await?;
        object.read(0..object.size_bytes()).await
    }

    /// Reads the files that the operators of one pipeline require. Checks the total size before it reads a file.
    ///
    /// # Errors
    /// Returns an error if the read policy or the tenant's permissions reject a URL, the files are too large, or the
    /// store fails.
    pub async fn files(
        self: &Arc<Self>,
        urls: BTreeSet<String>,
        tenant: &TenantReads,
    ) -> Result<BTreeMap<String, Bytes>, SourceError> {
        let (mut objects, mut all_bytes) = (Vec::new(), 0);
        for url in urls {
            let object = self.open_file(&url, tenant).await?;
            all_bytes += object.size_bytes();
            if all_bytes > MAX_FILES_BYTES {
                let reason = format!(
                    "the pipeline's operator files total at least {all_bytes} bytes; the limit is {MAX_FILES_BYTES} bytes: use fewer or smaller files"
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

    /// Opens a file that an operator requires, and checks its size.
    async fn open_file(self: &Arc<Self>, url: &str, tenant: &TenantReads) -> Result<Object, SourceError> {
        let reads = ScopedStores::new(Arc::clone(self), None, tenant);
        reads.check(url)?;
        let location = Location::parse(url)?;
        reads.check_object(&location)?;
        let store = reads.open(&location)?;
        let shard = head(store.as_ref(), &location, url).await?;
        let file = reads.check_shard(&location, &shard)?;
        if shard.size_bytes > MAX_FILE_BYTES {
            let reason = format!(
                "the file is {} bytes long; the limit for operator files is {MAX_FILE_BYTES} bytes: use a smaller file",
                shard.size_bytes
            );
            return Err(SourceError::unsupported(&shard, reason));
        }
        Ok(reads.object(store, location.key()?, shard).with_file(file))
    }

    /// Writes an object atomically. Creates the parent directories of a local path.
    ///
    /// # Errors
    /// Returns an error if the store rejects the request or fails. After an error, the object may exist or not.
    pub async fn put(&self, url: &str, bytes: Bytes) -> Result<(), SourceError> {
        let location = Location::parse(url)?;
        let (store, key) = (self.open(&location, None, &TenantReads::default())?, location.key()?);
        store.put(&key, bytes.into()).await.map_err(|error| SourceError::from_store(url, error))?;
        Ok(())
    }

    /// Calls `on_object` with the relative path and the size of each object below a directory. A missing directory has no objects.
    ///
    /// # Errors
    /// Returns an error if the store fails or does not support listings. Web servers do not support listings.
    pub async fn list_folder(
        &self,
        url: &str,
        mut on_object: impl FnMut(&str, u64) + Send,
    ) -> Result<(), SourceError> {
        let bad = |reason: &str| SourceError::Url { url: url.to_owned(), reason: reason.to_owned() };
        let location = Location::parse(url)?;
        if location.is_http() {
            return Err(bad(
                "objects on a web server cannot be listed: use a local directory, or an s3, gs or az URL",
            ));
        }
        let path = std::path::Path::new(&location.rest);
        if location.is_local() && path.exists() && !path.is_dir() {
            return Err(bad("the path is not a directory"));
        }
        let (store, folder) = (self.open(&location, None, &TenantReads::default())?, location.key()?);
        let mut objects = store.list((!folder.is_root()).then_some(&folder));
        let failed = |error| SourceError::from_store(url, error);
        while let Some(object) = objects.try_next().await.map_err(failed)? {
            let (key, folder): (&str, &str) = (object.location.as_ref(), folder.as_ref());
            on_object(key.strip_prefix(folder).unwrap_or_default().trim_start_matches('/'), object.size);
        }
        Ok(())
    }

    /// Reads ranges of an object. Returns the bytes in the order of the ranges. Ranges that are close to each other share a request.
    ///
    /// # Errors
    /// Returns an error if the store fails or the object is too short.
    pub async fn get_ranges(&self, url: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, SourceError> {
        let location = Location::parse(url)?;
        let (store, key) = (self.open(&location, None, &TenantReads::default())?, location.key()?);
        let read = if location.is_local() {
            // `get_ranges` opens the file only once.
            store.get_ranges(&key, ranges).await
        } else {
            let limit = retry::max_duration(self.access.retry_budget());
            let read_one = |range| get_whole(store.as_ref(), &key, range, limit);
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
        // Clients of web servers differ by tenant, because redirects are restricted to the tenant's prefixes.
        let redirects =
            if location.is_http() { tenant.urls.prefixes().map(str::to_owned).collect() } else { Vec::new() };
        let key = (location.root.clone(), credentials.map(str::to_owned), redirects);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = clients.get(&key) {
            return Ok(store.clone());
        }
        let store = self
            .build(&location.root, credentials, tenant)
            .map_err(|reason| SourceError::Url { url: format!("{}/", location.root), reason })?;
        clients.insert(key, store.clone());
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
        let kind = StoreKind::of_scheme(root.split("://").next().unwrap_or_default());
        let governor = kind.map(|kind| {
            let key = store_identity(root, credentials, options);
            self.governors.open(key, root, kind)
        });
        let (reads, retry_budget) = (self.access.reads(), self.access.retry_budget());
        clients::build(root, (credentials, options), reads, tenant, retry_budget, governor)
    }

    /// The decoders of compressed shards.
    pub fn decoders(&self) -> &Arc<Decoders> {
        &self.decoders
    }

    /// The governors of all stores that the worker has opened.
    pub fn governors(&self) -> &WorkerGovernors {
        &self.governors
    }

    #[cfg(test)]
    pub(crate) fn insert(&self, root: &str, store: Arc<dyn ObjectStore>) {
        self.clients.lock().unwrap().insert((root.to_owned(), None, Vec::new()), store);
    }
}

/// Stores with the credentials and the permissions of one pipeline.
#[derive(Debug, Clone)]
pub(crate) struct ScopedStores {
    stores: Arc<Stores>,
    credentials: Option<String>,
    /// The read policy of the worker.
    policy: ReadPolicy,
    /// The read permissions of the job's tenant.
    tenant: TenantReads,
    links: Arc<LinkPolicy>,
    /// The job that reads; 0 without a job.
    job: JobId,
}

impl ScopedStores {
    pub(crate) fn new(stores: Arc<Stores>, credentials: Option<String>, tenant: &TenantReads) -> Self {
        let policy = stores.access.reads().for_tenant(tenant);
        let folders = |policy: &UrlPolicy, setting| AllowedFolders { policy: policy.clone(), setting };
        let allowed = [
            folders(&policy.urls, "`--allow-url`"),
            folders(&tenant.urls, "the tenant's `urls` in the tenants file of the coordinator"),
        ];
        let links = Arc::new(LinkPolicy::new(stores.access.own_files().clone(), allowed));
        Self { stores, credentials, policy, tenant: tenant.clone(), links, job: JobId(0) }
    }

    /// Sets the job for which the stores are read.
    pub(crate) fn set_job(&mut self, job: JobId) {
        self.job = job;
    }

    /// The job that reads; 0 without a job.
    pub(crate) fn job(&self) -> JobId {
        self.job
    }

    /// The decoders of compressed shards.
    pub(crate) fn decoders(&self) -> &Decoders {
        &self.stores.decoders
    }

    /// The memory of the caches of readers.
    pub(crate) fn cache_memory(&self) -> &ShardCacheMemory {
        &self.stores.cache_memory
    }

    /// Checks a URL of the pipeline, which may contain globs and braces.
    pub(crate) fn check(&self, url: &str) -> Result<(), SourceError> {
        self.policy.check_url(url).and_then(|()| self.tenant.check_url(url)).map_err(rejected)
    }

    /// Checks that the credentials are allowed, exist, and are valid for these URLs.
    pub(crate) fn check_credentials(&self, urls: &[String]) -> Result<(), SourceError> {
        let Some(name) = &self.credentials else { return Ok(()) };
        let is_allowed = self.tenant.check_credentials(name);
        is_allowed.and_then(|()| self.policy.check_credentials(name, urls)).map_err(rejected)
    }

    /// Clears the cached resolutions of symbolic links. A listing starts with an empty cache.
    pub(crate) fn clear_link_cache(&self) {
        self.links.clear_cache();
    }

    /// Checks the URL and the resolved path of an object or directory.
    pub(crate) fn check_object(&self, location: &Location) -> Result<(), SourceError> {
        self.check_at(location, None).map(drop)
    }

    /// Checks a listed object. For a local object, returns the checked file, which the caller must use for reading.
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
        if self.is_unrestricted(location) {
            return Ok(location.is_local().then(|| LocalFile::linked(&location.rest)));
        }
        let url = location.url();
        self.policy.check_object(&url).map_err(rejected)?;
        self.tenant.check_object(&url).map_err(rejected)?;
        if let Some(name) = &self.credentials {
            self.policy.check_object_credentials(name, &url).map_err(rejected)?;
        }
        if location.is_local() {
            self.links.check(&location.rest, shard).map(Some).map_err(rejected)
        } else {
            Ok(None)
        }
    }

    /// Whether all reads of the location's store are allowed.
    fn is_unrestricted(&self, location: &Location) -> bool {
        let is_local_unrestricted =
            || !location.is_local() || (self.links.is_unrestricted() && !self.policy.local_by_prefix);
        let any_url = self.policy.urls.allows_all() && self.tenant.urls.allows_all();
        any_url && self.credentials.is_none() && !location.is_http() && is_local_unrestricted()
    }

    /// Maximum duration of a request to a store, with its retries.
    pub(crate) fn request_limit(&self) -> Duration {
        retry::max_duration(self.stores.access.retry_budget())
    }

    /// Creates an object with the worker's retry budget.
    pub(crate) fn object(&self, store: Arc<dyn ObjectStore>, key: Path, shard: ShardRef) -> Object {
        let scheme = shard.url.split("://").next().unwrap_or_default();
        let merged_reads = StoreKind::of_scheme(scheme).map(|_| Arc::clone(&self.stores.merged_reads));
        let object = Object::new(store, key, shard).with_retry_budget(self.stores.access.retry_budget());
        object.with_job(self.job, merged_reads).with_decoders(Arc::clone(&self.stores.decoders))
    }

    /// Replaces the revision of a repository on the Hugging Face Hub by its current commit, so that all reads of a job see the
    /// same files. Returns other locations unchanged. A repository without a path becomes a directory.
    pub(crate) async fn pin(&self, location: Location, given: &str) -> Result<Location, SourceError> {
        if !location.is_hub() {
            return Ok(location);
        }
        self.check_object(&location)?;
        let store = self.open(&location)?;
        let rest = hub::pin(store.as_ref(), &location.rest).await;
        let rest = rest.map_err(|error| SourceError::from_store(given, error))?;
        Ok(Location { rest, ..location })
    }

    /// Reads a small object that describes a dataset, such as an index or a README.
    ///
    /// # Errors
    /// Returns an error if the object is larger than `max_bytes`, a policy rejects it, or the store fails.
    pub(crate) async fn read_file(&self, url: &str, max_bytes: u64) -> Result<Bytes, SourceError> {
        let location = self.pin(Location::parse(url)?, url).await?;
        self.check_object(&location)?;
        let store = self.open(&location)?;
        let shard = head(store.as_ref(), &location, url).await?;
        let file = self.check_shard(&location, &shard)?;
        if shard.size_bytes > max_bytes {
            let reason = format!(
                "the file is {} bytes long; the limit is {max_bytes} bytes: check that it belongs to the dataset",
                shard.size_bytes
            );
            return Err(SourceError::unsupported(&shard, reason));
        }
        let object = self.object(store, location.key()?, shard).with_file(file);
        object.read(0..object.size_bytes()).await
    }

    /// Opens the store of a location.
    pub(crate) fn open(&self, location: &Location) -> Result<Arc<dyn ObjectStore>, SourceError> {
        self.stores.open(location, self.credentials.as_deref(), &self.tenant)
    }

    #[cfg(feature = "kafka")]
    /// Checks a listed shard that is not an object, such as a partition.
    pub(crate) fn check_url(&self, url: &str) -> Result<(), SourceError> {
        self.policy.check_object(url).and_then(|()| self.tenant.check_object(url)).map_err(rejected)?;
        match &self.credentials {
            Some(name) => self.policy.check_object_credentials(name, url).map_err(rejected),
            None => Ok(()),
        }
    }

    #[cfg(feature = "kafka")]
    /// The clients of Kafka clusters, and the access of the worker.
    pub(crate) fn kafka(&self) -> (&KafkaClients, &ObjectAccess) {
        (&self.stores.kafka, &self.stores.access)
    }

    /// The guard of requests to other web servers of the pipeline.
    #[cfg(feature = "kafka")]
    pub(crate) fn web_guard(&self) -> RequestGuard {
        RequestGuard::for_web(&self.policy, &self.tenant)
    }

    #[cfg(feature = "kafka")]
    /// The name of the credentials of the pipeline.
    pub(crate) fn credentials(&self) -> Option<&str> {
        self.credentials.as_deref()
    }

    /// Expands the braces of a URL.
    pub(crate) fn expand(text: &str) -> Result<Vec<String>, String> {
        /// Maximum number of URLs of one pattern. A larger number is probably a mistake.
        const MAX_EXPANSIONS: usize = 1_000_000;
        expand_braces(text, MAX_EXPANSIONS)
    }
}

fn rejected(message: String) -> SourceError {
    SourceError::Rejected { message }
}

/// Reads a range of an object. Fails if the object is too short.
async fn get_whole(
    store: &dyn ObjectStore,
    key: &Path,
    range: Range<u64>,
    limit: Duration,
) -> Result<Bytes, object_store::Error> {
    let wanted = range.end - range.start;
    let tag = RequestTag::default();
    let clock = Arc::clone(&tag.clock);
    let mut extensions = Extensions::new();
    extensions.insert(tag);
    let options = GetOptions { range: Some(GetRange::Bounded(range)), extensions, ..GetOptions::default() };
    let read = async { read_body(store.get_opts(key, options).await?, wanted).await };
    let bytes = within_active(limit, &clock, read).await.unwrap_or_else(|| Err(no_response(limit)))?;
    if bytes.len() as u64 == wanted {
        return Ok(bytes);
    }
    let source = format!("the store returned {} bytes instead of {wanted}", bytes.len()).into();
    Err(object_store::Error::Generic { store: "ranges", source })
}

fn no_response(limit: Duration) -> object_store::Error {
    object_store::Error::Generic { store: "ranges", source: retry::no_response_reason(limit).into() }
}

#[cfg(test)]
mod tests;
