//! A worker's access to object stores: store options from the environment, named credentials, and the read policy. Messages and
//! debug output contain no secret values.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use feedline_access::ProtectedFiles;
use feedline_data::read_policy::ReadPolicy;
use feedline_data::urls::UrlPolicy;
use object_store::ClientConfigKey;
use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;

use crate::kafka_options::{KAFKA_OPTIONS, check_kafka_options};
use crate::retry::DEFAULT_RETRY_BUDGET;

/// The options of the Hugging Face Hub, which have the names of its environment variables.
const HUB_OPTIONS: [&str; 2] = ["hf_endpoint", "hf_token"];
/// Option names that error messages suggest. Stores support more options.
const SUGGESTED_OPTIONS: [&str; 25] = [
    "hf_token",
    "hf_endpoint",
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_profile",
    "aws_region",
    "aws_endpoint",
    "aws_allow_http",
    "aws_virtual_hosted_style_request",
    "aws_skip_signature",
    "aws_role_arn",
    "aws_web_identity_token_file",
    "google_service_account",
    "google_service_account_key",
    "google_application_credentials",
    "google_skip_signature",
    "azure_storage_account_name",
    "azure_storage_account_key",
    "azure_storage_sas_key",
    "azure_client_id",
    "azure_client_secret",
    "azure_tenant_id",
    "azure_endpoint",
    "azure_skip_signature",
];

/// Options that select an AWS profile, and the shared files that contain it.
const PROFILE_OPTIONS: [&str; 3] = ["aws_profile", "aws_config_file", "aws_shared_credentials_file"];

/// Minimum length of an option value that is removed from messages. Shorter values, such as `true`, are assumed not to be
/// secret.
const MIN_SECRET_BYTES: usize = 5;

/// Names and values of store options. Debug output contains no values.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct StoreOptions(Vec<(String, String)>);

impl StoreOptions {
    pub(crate) fn new(options: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(options.into_iter().map(|(key, value)| (key.to_ascii_lowercase(), value)).collect())
    }

    /// Adds options that take precedence.
    pub(crate) fn with(&self, more: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        let more = more.into_iter().map(|(key, value)| (key.to_owned(), value));
        Self(self.0.iter().cloned().chain(more).collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Replaces the values of the options in a text, such as the error message of a store, with `...`.
    pub(crate) fn without_values(&self, text: &str) -> String {
        let values = self.iter().map(|(_, value)| value).filter(|value| value.len() >= MIN_SECRET_BYTES);
        let mut values: Vec<&str> = values.collect();
        // A value may contain another one.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.into_iter().fold(text.to_owned(), |text, value| text.replace(value, "..."))
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|(key, _)| key)).finish()
    }
}

/// Named credentials: store options that replace the options from the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credential {
    options: StoreOptions,
    urls: UrlPolicy,
}

impl Credential {
    /// Creates credentials from store options. Pipelines can use them only for URLs that `urls` allows.
    ///
    /// # Errors
    /// Returns an error if no store supports an option. The message contains the option name, but no value.
    pub fn new(options: impl IntoIterator<Item = (String, String)>, urls: UrlPolicy) -> Result<Self, String> {
        let options = StoreOptions::new(options);
        for (key, _) in options.iter() {
            check_key(key)?;
        }
        check_kafka_options(options.iter())?;
        Ok(Self { options, urls })
    }

    /// Checks that at least one store supports an option.
    ///
    /// # Errors
    /// Returns an error that contains the option name.
    pub fn check_option(key: &str) -> Result<(), String> {
        check_key(&key.to_ascii_lowercase())
    }

    /// The URLs that the credentials are valid for.
    pub fn urls(&self) -> &UrlPolicy {
        &self.urls
    }
}

/// A worker's access to object stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectAccess {
    options: StoreOptions,
    credentials: BTreeMap<String, Credential>,
    reads: ReadPolicy,
    own_files: ProtectedFiles,
    retry_budget: Duration,
}

impl Default for ObjectAccess {
    /// Access to all URLs except metadata services, without options and credentials.
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl ObjectAccess {
    /// Creates access with store options from the environment, such as `AWS_ENDPOINT`. Stores ignore unknown options.
    pub fn new(options: Vec<(String, String)>) -> Self {
        let reads = ReadPolicy { credentials: Some(BTreeMap::new()), ..ReadPolicy::default() };
        Self {
            options: StoreOptions::new(options),
            credentials: BTreeMap::new(),
            reads,
            own_files: ProtectedFiles::default(),
            retry_budget: DEFAULT_RETRY_BUDGET,
        }
    }

    /// Adds credentials that pipelines may use by name.
    #[must_use]
    pub fn with_credentials(mut self, credentials: BTreeMap<String, Credential>) -> Self {
        let scopes = credentials.iter().map(|(name, credential)| (name.clone(), credential.urls.clone()));
        self.reads.credentials = Some(scopes.collect());
        self.credentials = credentials;
        self
    }

    /// Allows pipelines to read only URLs that `urls` allows.
    #[must_use]
    pub fn with_allowed_urls(mut self, urls: UrlPolicy) -> Self {
        self.reads.urls = urls;
        self
    }

    /// Sets whether pipelines may read from addresses of metadata services.
    #[must_use]
    pub fn with_metadata_addresses(mut self, allowed: bool) -> Self {
        self.reads.metadata_addresses = allowed;
        self
    }

    /// Sets whether pipelines may read local files only below an allowed prefix.
    #[must_use]
    pub fn with_local_by_prefix(mut self, required: bool) -> Self {
        self.reads.local_by_prefix = required;
        self
    }

    /// Rejects reads of the process's own files, even if a prefix allows them.
    #[must_use]
    pub fn with_own_files(mut self, own_files: ProtectedFiles) -> Self {
        self.own_files = own_files;
        self
    }

    /// Sets how long a failing request is retried.
    #[must_use]
    pub fn with_retry_budget(mut self, retry_budget: Duration) -> Self {
        self.retry_budget = retry_budget;
        self
    }

    /// How long a failing request is retried.
    pub fn retry_budget(&self) -> Duration {
        self.retry_budget
    }

    /// The process's own files, which pipelines must not read.
    pub fn own_files(&self) -> &ProtectedFiles {
        &self.own_files
    }

    /// The read policy for pipelines.
    pub fn reads(&self) -> &ReadPolicy {
        &self.reads
    }

    /// The options for opening a store. Named credentials replace all options of the environment. `None` if the name is unknown.
    pub(crate) fn options(&self, credentials: Option<&str>) -> Option<&StoreOptions> {
        match credentials {
            None => Some(&self.options),
            Some(name) => self.credentials.get(name).map(|credential| &credential.options),
        }
    }
}

/// Whether the value of an option is true.
pub(crate) fn is_true(value: Option<&str>) -> bool {
    value.is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "true" | "1" | "on" | "yes"))
}

/// Checks that at least one store supports an option.
fn check_key(key: &str) -> Result<(), String> {
    let is_known = HUB_OPTIONS.contains(&key)
        || KAFKA_OPTIONS.contains(&key)
        || AmazonS3ConfigKey::from_str(key).is_ok()
        || GoogleConfigKey::from_str(key).is_ok()
        || AzureConfigKey::from_str(key).is_ok()
        || ClientConfigKey::from_str(key).is_ok()
        || PROFILE_OPTIONS.contains(&key);
    if is_known {
        return Ok(());
    }
    let similarity = |known: &&str| strsim::jaro_winkler(key, known);
    let nearest = SUGGESTED_OPTIONS
        .iter()
        .chain(KAFKA_OPTIONS)
        .copied()
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    let hint = nearest.filter(|nearest| similarity(nearest) > 0.7);
    let hint = hint.map(|nearest| format!("; did you mean `{nearest}`?")).unwrap_or_default();
    // A key that is not a valid option name may be a secret, so the message does not contain it.
    let is_name = key.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    let shown = if is_name && key.len() <= 64 { format!(" `{key}`") } else { String::new() };
    Err(format!("unknown store option{shown}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    fn access() -> ObjectAccess {
        let urls = UrlPolicy::new(["s3://bucket"]).unwrap();
        let options = [pair("AWS_ACCESS_KEY_ID", "HUSHID"), pair("aws_secret_access_key", "HUSHKEY")];
        let credentials = BTreeMap::from([("one".to_owned(), Credential::new(options, urls).unwrap())]);
        ObjectAccess::new(vec![pair("AWS_SECRET_ACCESS_KEY", "HUSHENV")]).with_credentials(credentials)
    }

    #[test]
    fn debug_output_contains_no_secrets() {
        let stores = crate::Stores::with_access(access());
        for text in [format!("{:?}", access()), format!("{:#?}", access()), format!("{stores:?}")] {
            assert!(!text.contains("HUSH"), "{text}");
        }
        let text = format!("{:?}", access());
        assert!(text.contains("one") && text.contains("aws_secret_access_key"), "{text}");
    }

    #[test]
    fn named_credentials_replace_all_options() {
        let access = access();
        let keys = |name| -> Option<Vec<&str>> {
            access.options(name).map(|options| options.iter().map(|(key, _)| key).collect())
        };
        assert_eq!(keys(Some("one")).unwrap(), ["aws_access_key_id", "aws_secret_access_key"]);
        assert_eq!(keys(None).unwrap(), ["aws_secret_access_key"]);
        assert_eq!(keys(Some("other")), None);
        assert!(access.reads().check_credentials("one", &["s3://bucket/x".to_owned()]).is_ok());
        assert!(access.reads().check_credentials("one", &["s3://other/x".to_owned()]).is_err());
        assert!(access.reads().check_credentials("two", &[]).unwrap_err().contains("known: one"));
    }

    #[test]
    fn errors_name_unknown_options_without_their_values() {
        let error_of = |key: &str| Credential::new([pair(key, "HUSH")], UrlPolicy::default()).unwrap_err();
        assert_eq!(
            error_of("aws_acess_key_id"),
            "unknown store option `aws_acess_key_id`; did you mean `aws_access_key_id`?"
        );
        assert_eq!(error_of("wJalrXUtnFEMI/K7MDENG"), "unknown store option");
        for key in ["aws_region", "google_service_account", "azure_storage_account_key", "timeout"] {
            assert!(Credential::new([pair(key, "1")], UrlPolicy::default()).is_ok(), "{key}");
        }
    }

    #[test]
    fn values_are_removed_from_error_messages() {
        let options = StoreOptions::new([pair("aws_allow_http", "HUSH!"), pair("aws_region", "east")]);
        assert_eq!(
            options.without_values("failed to parse \"HUSH!\" at least"),
            "failed to parse \"...\" at least"
        );
        let options =
            StoreOptions::new([pair("aws_region", "HUSH!"), pair("aws_secret_access_key", "HUSH!-secret")]);
        assert_eq!(options.without_values("the key HUSH!-secret is invalid"), "the key ... is invalid");
    }
}
