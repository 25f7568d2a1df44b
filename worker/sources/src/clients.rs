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
use reqwest::header::HeaderMap;

use crate::access::StoreOptions;
use crate::bounded_store::BoundedStore;
use crate::credentials_client::CredentialsConnector;
use crate::governor::StoreGovernor;
use crate::guard::RequestGuard;
use crate::http_client::GuardedConnector;
use crate::hub;
use crate::identified_store::IdentifiedStore;
use crate::identity::StoreIdentity;
use crate::object::store_checksum::s3_headers;
use crate::profile::{self, Profile, ProfileCredentials, ProfileFiles, ProfileSource, RoleService};
use crate::retry::{REQUEST_TIMEOUT, client_retries, no_client_retries};
use crate::throttling::StoreKind;

/// Builds the client of a store for pipelines of a tenant. `root` is the scheme and the authority of a URL. `credentials` is
/// the name that the options have in the credentials file. A request fails within [`max_duration`](crate::retry::max_duration)
/// of the retry budget. `governor` admits the requests; `None` for local files.
///
/// # Errors
/// Returns an error if the scheme is unknown or the options are invalid. The message contains no values of options.
pub(crate) fn build(
    root: &str,
    (credentials, options): (Option<&str>, &StoreOptions),
    reads: &ReadPolicy,
    tenant: &TenantReads,
    retry_budget: Duration,
    governor: Option<Arc<StoreGovernor>>,
) -> Result<Arc<dyn ObjectStore>, String> {
    let scheme = root.split("://").next().unwrap_or_default();
    let built: object_store::Result<BoundedStore> = match scheme {
        "file" => Ok(BoundedStore::new(Arc::new(LocalFileSystem::new()), retry_budget)),
        "s3" | "s3a" => {
            let profile = profile::select(options)?;
            s3(root, (credentials, options), profile, reads, retry_budget)
        }
        "gs" => {
            let identity = StoreIdentity::new(StoreKind::Google, root, credentials, options);
            google(root, (identity, options), reads, retry_budget, |builder| builder)
        }
        "az" | "adl" | "azure" | "abfs" | "abfss" => {
            let identity = StoreIdentity::new(StoreKind::Azure, root, credentials, options);
            azure(root, (identity, options), reads, retry_budget, |builder| builder)
        }
        "hf" => hub::build(root, options, reads, retry_budget, client_options()),
        "http" | "https" => {
            let client_options = client_options().with_allow_http(scheme == "http");
            let builder =
                HttpBuilder::new().with_client_options(client_options).with_retry(no_client_retries());
            let guard = RequestGuard::for_web(reads, tenant);
            let guarded = builder.with_http_connector(GuardedConnector { guard, store: StoreKind::Web });
            guarded.with_url(root).build().map(|client| BoundedStore::new(Arc::new(client), retry_budget))
        }
        other => {
            return Err(format!("unknown URL scheme `{other}`: use file, s3, gs, az, hf, http or https"));
        }
    };
    let store = built.map_err(|error| options.without_values(&error.to_string()))?;
    Ok(Arc::new(store.with_governor(governor, retry_budget)))
}

/// Defines a function that builds a guarded client in two steps. An unguarded client fetches credentials, possibly from the
/// machine's metadata service. The guarded client reads data with these credentials, and rejects requests to metadata services.
/// A store that returns checksums only to requests with certain headers gets another guarded client, which sends them.
macro_rules! guarded_client {
    ($function:ident, $store:expr, $builder:ty, $key:ty, $checksum_headers:expr) => {
        fn $function(
            root: &str,
            (identity, options): (StoreIdentity, &StoreOptions),
            reads: &ReadPolicy,
            retry_budget: Duration,
            configure: impl Fn($builder) -> $builder,
        ) -> object_store::Result<BoundedStore> {
            let builder = |client: ClientOptions| {
                let builder = <$builder>::new().with_client_options(client);
                configure(apply(options, builder, <$builder>::with_config, <$key>::from_str).with_url(root))
            };
            let unguarded = builder(client_options())
                .with_retry(client_retries(retry_budget))
                .with_http_connector(CredentialsConnector)
                .build()?;
            let credentials = Arc::clone(unguarded.credentials());
            let guarded = |client: ClientOptions| {
                let connector = GuardedConnector { guard: RequestGuard::for_stores(reads), store: $store };
                let builder = builder(client).with_retry(no_client_retries());
                builder.with_credentials(Arc::clone(&credentials)).with_http_connector(connector).build()
            };
            let checksum_headers: Option<HeaderMap> = $checksum_headers;
            let for_checksums =
                checksum_headers.map(|headers| guarded(client_options().with_default_headers(headers)));
            let client = IdentifiedStore::new(guarded(client_options())?, identity);
            let client = Arc::new(client.with_checksum_client(for_checksums.transpose()?));
            Ok(BoundedStore::new(Arc::clone(&client) as Arc<dyn ObjectStore>, retry_budget)
                .with_pages(client))
        }
    };
}

guarded_client!(s3_client, StoreKind::S3, AmazonS3Builder, AmazonS3ConfigKey, Some(s3_headers()));
guarded_client!(google, StoreKind::Google, GoogleCloudStorageBuilder, GoogleConfigKey, None);
guarded_client!(azure, StoreKind::Azure, MicrosoftAzureBuilder, AzureConfigKey, None);

/// Builds a client of S3. An AWS profile provides the credentials if the options contain none.
fn s3(
    root: &str,
    (credentials, options): (Option<&str>, &StoreOptions),
    profile: Option<(Profile, ProfileFiles)>,
    reads: &ReadPolicy,
    retry_budget: Duration,
) -> object_store::Result<BoundedStore> {
    let Some((profile, files)) = profile else {
        let identity = StoreIdentity::new(StoreKind::S3, root, credentials, options);
        return s3_client(root, (identity, options), reads, retry_budget, |builder| builder);
    };
    let identity = StoreIdentity::of_profile(root, credentials, &profile);
    let has = |names: &[&str]| options.iter().any(|(key, _)| names.contains(&key));
    let mut more = Vec::new();
    if let Some(region) = profile.region.filter(|_| !has(&["aws_region", "aws_default_region"])) {
        more.push(("aws_region", region));
    }
    if let Some(endpoint) = profile.endpoint.filter(|_| !has(&["aws_endpoint", "aws_endpoint_url"])) {
        more.push(("aws_endpoint", endpoint));
    }
    if let ProfileSource::WebIdentity { role_arn, token_file } = profile.source {
        more.extend([("aws_role_arn", role_arn), ("aws_web_identity_token_file", token_file)]);
        let options = options.with(more);
        return s3_client(root, (identity, &options), reads, retry_budget, |builder| builder);
    }
    let options = options.with(more);
    let get = |names: &[&str]| {
        let found = options.iter().filter(|(key, _)| names.contains(key)).map(|(_, value)| value.to_owned());
        found.last()
    };
    let region = get(&["aws_region", "aws_default_region"]).unwrap_or_else(|| "us-east-1".to_owned());
    let endpoint = get(&["aws_endpoint_url_sts"]);
    let allows_http = endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://"));
    let roles = RoleService::new(endpoint, &region, &client_options().with_allow_http(allows_http))?;
    let provider = Arc::new(ProfileCredentials::new(&profile.name, files, roles));
    s3_client(root, (identity, &options), reads, retry_budget, |builder| {
        builder.with_credentials(Arc::clone(&provider) as _)
    })
}

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
