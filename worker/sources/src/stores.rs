//! Opens stores and keeps them: one per scheme and authority.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use crate::error::SourceError;
use crate::list;
use crate::location::Location;
use crate::object::Object;

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
