//! Builds the clients of object stores from options, by URL scheme.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use feedline_data::read_policy::ReadPolicy;
use feedline_data::tenants::TenantReads;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::{ClientOptions, ObjectStore};

use crate::access::StoreOptions;
use crate::bounded_store::BoundedStore;
use crate::guard::RequestGuard;
use crate::http_client::{CredentialsConnector, GuardedConnector};
use crate::retry::{REQUEST_TIMEOUT, client_retries};
use crate::throttling::StoreKind;

/// Builds the client of a store for pipelines of a tenant. `root` is the scheme and the authority of a URL. A request fails
/// within [`max_duration`](crate::retry::max_duration) of the retry budget.
///
/// # Errors
/// Returns an error if the scheme is unknown or the options are invalid. The message contains no values of options.
pub(crate) fn build(
    root: &str,
    options: &StoreOptions,
    reads: &ReadPolicy,
    tenant: &TenantReads,
    retry_budget: Duration,
) -> Result<Arc<dyn ObjectStore>, String> {
    let scheme = root.split("://").next().unwrap_or_default();
    let built: object_store::Result<BoundedStore> = match scheme {
        "file" => Ok(BoundedStore::new(Arc::new(LocalFileSystem::new()), retry_budget)),
        "s3" | "s3a" => s3(root, options, reads, retry_budget),
        "gs" => google(root, options, reads, retry_budget),
        "az" | "adl" | "azure" | "abfs" | "abfss" => azure(root, options, reads, retry_budget),
        "http" | "https" => {
            let client_options = client_options().with_allow_http(scheme == "http");
            let builder = HttpBuilder::new()
                .with_client_options(client_options)
                .with_retry(client_retries(retry_budget));
            let guard = RequestGuard::for_web(reads, tenant);
            let guarded = builder.with_http_connector(GuardedConnector { guard, store: StoreKind::Web });
            guarded.with_url(root).build().map(|client| BoundedStore::new(Arc::new(client), retry_budget))
        }
        other => {
            return Err(format!("unknown URL scheme `{other}`: use file, s3, gs, az, http or https"));
        }
    };
    let store = built.map_err(|error| options.without_values(&error.to_string()))?;
    Ok(Arc::new(store))
}

/// Defines a function that builds a guarded client in two steps. An unguarded client fetches credentials, possibly from the
/// machine's metadata service. The guarded client reads data with these credentials, and rejects requests to metadata services.
macro_rules! guarded_client {
    ($function:ident, $store:expr, $builder:ty, $key:ty) => {
        fn $function(
            root: &str,
            options: &StoreOptions,
            reads: &ReadPolicy,
            retry_budget: Duration,
        ) -> object_store::Result<BoundedStore> {
            let retries = client_retries(retry_budget);
            let builder = <$builder>::new().with_client_options(client_options()).with_retry(retries);
            let builder = apply(options, builder, <$builder>::with_config, <$key>::from_str).with_url(root);
            let unguarded = builder.clone().with_http_connector(CredentialsConnector).build()?;
            let credentials = Arc::clone(unguarded.credentials());
            let connector = GuardedConnector { guard: RequestGuard::for_stores(reads), store: $store };
            let guarded = builder.with_credentials(credentials).with_http_connector(connector);
            let client = Arc::new(guarded.build()?);
            Ok(BoundedStore::new(Arc::clone(&client) as Arc<dyn ObjectStore>, retry_budget)
                .with_pages(client))
        }
    };
}

guarded_client!(s3, StoreKind::S3, AmazonS3Builder, AmazonS3ConfigKey);
guarded_client!(google, StoreKind::Google, GoogleCloudStorageBuilder, GoogleConfigKey);
guarded_client!(azure, StoreKind::Azure, MicrosoftAzureBuilder, AzureConfigKey);

/// Sets the options that the builder supports.
fn apply<B, K>(
    options: &StoreOptions,
    builder: B,
    with_config: fn(B, K, String) -> B,
    parse: fn(&str) -> Result<K, object_store::Error>,
) -> B {
    options.iter().fold(builder, |builder, (key, value)| match parse(key) {
        Ok(key) => with_config(builder, key, value.to_owned()),
        Err(_) => builder,
    })
}

fn client_options() -> ClientOptions {
    ClientOptions::new().with_timeout(REQUEST_TIMEOUT).with_connect_timeout(Duration::from_secs(5))
}
