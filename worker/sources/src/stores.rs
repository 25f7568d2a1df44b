//! Opens stores and keeps them: one per scheme and authority.

use std::collections::HashMap;
use std::ops::Range;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig, coalesce_ranges};

use crate::error::SourceError;
use crate::list;
use crate::location::Location;
use crate::object::Object;

/// Ranges of one object with at most this many bytes between them are read in one request.
const COALESCE_GAP_BYTES: u64 = 64 << 10;

/// Opens and keeps one client per store.
pub struct Stores {
    options: Vec<(String, String)>,
    open: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
}

impl std::fmt::Debug for Stores {
    /// Without the options: they hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stores").finish_non_exhaustive()
    }
}

impl Stores {
    /// `options` are a store's settings by their usual names, such as `AWS_ENDPOINT`; what a store does not know it
    /// leaves alone.
    pub fn new(options: Vec<(String, String)>) -> Arc<Self> {
        let options = options.into_iter().map(|(key, value)| (key.to_ascii_lowercase(), value)).collect();
        Arc::new(Self { options, open: Mutex::default() })
    }

    /// The whole of a small object, such as a `tokenizer.json`; `url` may be a plain path.
    pub async fn get(&self, url: &str) -> Result<Bytes, SourceError> {
        let location = Location::parse(url)?;
        let store = self.open(&location)?;
        let shard = list::head(store.as_ref(), &location, url).await?;
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
        let (store, key) = (self.open(&location)?, location.key()?);
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
        let (store, folder) = (self.open(&location)?, location.key()?);
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
        let (store, key) = (self.open(&location)?, location.key()?);
        let read = if location.is_local() {
            // Opens the file once.
            store.get_ranges(&key, ranges).await
        } else {
            let read_one = |range| get_whole(store.as_ref(), &key, range);
            coalesce_ranges(ranges, read_one, COALESCE_GAP_BYTES).await
        };
        read.map_err(|error| SourceError::from_store(url, error))
    }

    pub(crate) fn open(&self, location: &Location) -> Result<Arc<dyn ObjectStore>, SourceError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = open.get(&location.root) {
            return Ok(store.clone());
        }
        let store = self
            .build(&location.root)
            .map_err(|reason| SourceError::Url { url: format!("{}/", location.root), reason })?;
        open.insert(location.root.clone(), store.clone());
        Ok(store)
    }

    #[cfg(test)]
    pub(crate) fn insert(&self, root: &str, store: Arc<dyn ObjectStore>) {
        self.open.lock().unwrap().insert(root.to_owned(), store);
    }

    fn build(&self, root: &str) -> Result<Arc<dyn ObjectStore>, String> {
        let scheme = root.split("://").next().unwrap_or_default();
        let text = |error: object_store::Error| error.to_string();
        Ok(match scheme {
            "file" => Arc::new(LocalFileSystem::new()),
            "s3" | "s3a" => {
                let builder =
                    AmazonS3Builder::new().with_client_options(client_options()).with_retry(retries());
                let builder = self.apply(builder, AmazonS3Builder::with_config, AmazonS3ConfigKey::from_str);
                Arc::new(builder.with_url(root).build().map_err(text)?)
            }
            "gs" => {
                let builder = GoogleCloudStorageBuilder::new()
                    .with_client_options(client_options())
                    .with_retry(retries());
                let builder =
                    self.apply(builder, GoogleCloudStorageBuilder::with_config, GoogleConfigKey::from_str);
                Arc::new(builder.with_url(root).build().map_err(text)?)
            }
            "az" | "adl" | "azure" | "abfs" | "abfss" => {
                let builder =
                    MicrosoftAzureBuilder::new().with_client_options(client_options()).with_retry(retries());
                let builder =
                    self.apply(builder, MicrosoftAzureBuilder::with_config, AzureConfigKey::from_str);
                Arc::new(builder.with_url(root).build().map_err(text)?)
            }
            "http" | "https" => {
                let options = client_options().with_allow_http(scheme == "http");
                let builder = HttpBuilder::new().with_client_options(options).with_retry(retries());
                Arc::new(builder.with_url(root).build().map_err(text)?)
            }
            other => {
                return Err(format!(
                    "the scheme `{other}` is not known: use file, s3, gs, az, http or https"
                ));
            }
        })
    }

    /// Hands a builder every option that it knows.
    fn apply<B, K>(
        &self,
        builder: B,
        with_config: fn(B, K, String) -> B,
        parse: fn(&str) -> Result<K, object_store::Error>,
    ) -> B {
        self.options.iter().fold(builder, |builder, (key, value)| match parse(key) {
            Ok(key) => with_config(builder, key, value.clone()),
            Err(_) => builder,
        })
    }
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

fn client_options() -> ClientOptions {
    ClientOptions::new().with_timeout(Duration::from_secs(30)).with_connect_timeout(Duration::from_secs(5))
}

fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(10),
            base: 2.0,
        },
        max_retries: 10,
        retry_timeout: Duration::from_secs(60),
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    async fn listed(stores: &Stores, folder: &str) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        let found = |name: &str, size| all.push((name.to_owned(), size));
        stores.list_folder(folder, found).await.expect("it can be listed");
        all.sort();
        all
    }

    #[tokio::test]
    async fn objects_are_written_listed_and_read_in_parts() {
        let folder = tempfile::tempdir().expect("a folder");
        let local = folder.path().to_str().expect("UTF-8").to_owned();
        let stores = Stores::new(Vec::new());
        stores.insert("mem://host", Arc::new(InMemory::new()));
        for base in [local.clone(), format!("file://{local}/b c"), "mem://host".into(), "mem://host/x".into()]
        {
            assert!(listed(&stores, &format!("{base}/new/")).await.is_empty());
            let object = Bytes::from((0..=255).collect::<Vec<u8>>());
            stores.put(&format!("{base}/new/sub/one"), object.clone()).await.expect("it can be written");
            stores.put(&format!("{base}/newer"), object.clone()).await.expect("it can be written");
            assert_eq!(listed(&stores, &format!("{base}/new/")).await, [("sub/one".to_owned(), 256)]);
            let url = format!("{base}/new/sub/one");
            let parts = stores.get_ranges(&url, &[200..256, 3..5]).await.expect("it can be read");
            assert_eq!(parts, [object.slice(200..256), object.slice(3..5)]);
            stores.get_ranges(&url, &[0..5, 250..257]).await.expect_err("it is shorter");
            let gone = stores.get_ranges(&format!("{base}/gone"), std::slice::from_ref(&(0..1))).await;
            assert!(matches!(gone, Err(SourceError::NotFound { .. })), "{gone:?}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_listed_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, b"").expect("a file");
        let stores = Stores::new(Vec::new());
        let file = file.to_str().expect("UTF-8");
        for (url, reason) in [("http://host/x/", "cannot be listed"), (file, "no folder")] {
            let error = stores.list_folder(url, |_, _| {}).await.expect_err("it is no folder").to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
