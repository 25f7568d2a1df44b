//! AWS profiles: the shared files `config` and `credentials`, and the credentials of a profile, which are renewed before they
//! expire. Error messages contain names of profiles and files, but no other values.

mod credential;
mod ini;
mod process;
mod role;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::access::{StoreOptions, is_true};
use crate::access_denied::AccessDenied;

use self::credential::{CredentialError, ExpiringCredential, Section};

pub(crate) use self::credential::ProfileSource;
pub(crate) use self::role::RoleService;

/// Maximum size of a file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum number of profiles that refer to each other with `source_profile`.
const MAX_DEPTH: usize = 8;
/// Time before the expiry at which credentials are renewed.
const RENEWAL_MARGIN: Duration = Duration::from_secs(300);
/// Minimum time between two attempts to renew credentials that are still valid, and between two checks of the files.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

/// A profile of the shared files.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) name: String,
    pub(crate) source: ProfileSource,
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
}

/// The paths of the shared files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProfileFiles {
    config: Option<PathBuf>,
    credentials: Option<PathBuf>,
}

impl fmt::Debug for Profile {
    /// Omits the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Selects the profile for a store: the profile that the options name, or the profile `default` if it exists. Other
/// credentials in the options take precedence.
///
/// # Errors
/// Returns a message if the named profile does not exist, or a file is invalid.
pub(crate) fn select(options: &StoreOptions) -> Result<Option<(Profile, ProfileFiles)>, String> {
    let get = |names: &[&str]| {
        let is_set = |(key, value): &(&str, &str)| names.contains(key) && !value.is_empty();
        options.iter().filter(is_set).map(|(_, value)| value.to_owned()).last()
    };
    let has_keys = get(&["aws_access_key_id", "access_key_id"]).is_some()
        && get(&["aws_secret_access_key", "secret_access_key"]).is_some();
    if has_keys || is_true(get(&["aws_skip_signature", "skip_signature"]).as_deref()) {
        return Ok(None);
    }
    let others: [&[&str]; 3] = [
        &["aws_web_identity_token_file", "web_identity_token_file"],
        &["aws_container_credentials_relative_uri", "container_credentials_relative_uri"],
        &["aws_container_credentials_full_uri", "container_credentials_full_uri"],
    ];
    let named = get(&["aws_profile", "aws_default_profile"]);
    let has_others = if named.is_some() { &others[..1] } else { &others[..] };
    if has_others.iter().any(|names| get(names).is_some()) {
        return Ok(None);
    }
    let files = ProfileFiles {
        config: get(&["aws_config_file"]).map(PathBuf::from),
        credentials: get(&["aws_shared_credentials_file"]).map(PathBuf::from),
    };
    let profile = files.read(named.as_deref().unwrap_or("default"), named.is_some())?;
    Ok(profile.map(|profile| (profile, files)))
}

impl ProfileFiles {
    /// Reads a profile. Returns `None` if the profile has no credentials and is not `required`.
    fn read(&self, name: &str, required: bool) -> Result<Option<Profile>, String> {
        let profiles = self.profiles()?;
        let Some(section) = profiles.get(name) else {
            if !required {
                return Ok(None);
            }
            let known: Vec<&str> = profiles.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(format!(
                "the AWS profile `{name}` does not exist in {}; known: {known}",
                self.describe()
            ));
        };
        match source_of(&profiles, name, 0)? {
            Some(source) => Ok(Some(Profile {
                name: name.to_owned(),
                source,
                region: section.get("region").cloned(),
                endpoint: section.get("endpoint_url").cloned(),
            })),
            None if required => Err(format!(
                "the AWS profile `{name}` in {} has no credentials: add aws_access_key_id and aws_secret_access_key, role_arn, or \
                 credential_process",
                self.describe()
            )),
            None => Ok(None),
        }
    }

    /// Reads the profiles of both files. The keys of the credentials file take precedence.
    fn profiles(&self) -> Result<BTreeMap<String, Section>, String> {
        let mut profiles: BTreeMap<String, Section> = BTreeMap::new();
        for (path, is_config) in [(&self.config, true), (&self.credentials, false)] {
            let Some(text) = path.as_deref().map(read_file).transpose()?.flatten() else { continue };
            for (title, section) in ini::parse(&text) {
                let name = match (is_config, title.strip_prefix("profile")) {
                    (true, Some(name)) if name.starts_with([' ', '\t']) => name.trim().to_owned(),
                    (true, _) if title != "default" => continue,
                    _ => title,
                };
                profiles.entry(name).or_default().extend(section);
            }
        }
        Ok(profiles)
    }

    fn describe(&self) -> String {
        let paths = [&self.config, &self.credentials].into_iter().flatten();
        let paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
        if paths.is_empty() { "the AWS configuration".to_owned() } else { paths.join(" and ") }
    }

    /// The modification times of the files.
    fn modified(&self) -> [Option<SystemTime>; 2] {
        let modified = |path: &Option<PathBuf>| fs::metadata(path.as_deref()?).ok()?.modified().ok();
        [modified(&self.config), modified(&self.credentials)]
    }
}

/// Parses the text of a configuration file of AWS. This is the entry point of the fuzz target `aws_config`.
pub fn read_config(text: &str) {
    for (title, section) in ini::parse(text) {
        assert!(!title.contains('\n') && section.keys().all(|key| !key.contains('\n')));
    }
}

/// Reads a file. Returns `None` if it does not exist.
fn read_file(path: &Path) -> Result<Option<String>, String> {
    let cannot = |reason: &dyn fmt::Display| format!("cannot read {}: {reason}", path.display());
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot(&error)),
        Ok(metadata) if metadata.len() > MAX_FILE_BYTES => {
            return Err(cannot(&format!("the file is longer than {MAX_FILE_BYTES} bytes")));
        }
        Ok(_) => {}
    }
    let bytes = fs::read(path).map_err(|error| cannot(&error))?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Returns how a profile gets its credentials; `None` if it has none.
fn source_of(
    profiles: &BTreeMap<String, Section>,
    name: &str,
    depth: usize,
) -> Result<Option<ProfileSource>, String> {
    let Some(section) = profiles.get(name) else {
        return Err(format!("`source_profile` refers to the AWS profile `{name}`, which does not exist"));
    };
    let get = |key: &str| section.get(key).filter(|value| !value.is_empty()).cloned();
    let keys = || match (get("aws_access_key_id"), get("aws_secret_access_key")) {
        (Some(key_id), Some(secret_key)) => {
            Some(ProfileSource::Static { key_id, secret_key, token: get("aws_session_token") })
        }
        _ => None,
    };
    if let Some(role_arn) = get("role_arn") {
        if let Some(token_file) = get("web_identity_token_file") {
            return Ok(Some(ProfileSource::WebIdentity { role_arn, token_file }));
        }
        let source = match get("source_profile") {
            Some(other) if other == name => keys(),
            Some(other) if depth < MAX_DEPTH => source_of(profiles, &other, depth + 1)?,
            Some(_) => {
                return Err(format!(
                    "the AWS profile `{name}` has a cycle or more than {MAX_DEPTH} levels of `source_profile`"
                ));
            }
            None => keys(),
        };
        let Some(source) = source else {
            if get("credential_source").is_some() {
                return Err(unsupported(name, "`credential_source`"));
            }
            return Err(format!(
                "the AWS profile `{name}` has a role without credentials that may assume it: add `source_profile`"
            ));
        };
        let session_name = get("role_session_name").unwrap_or_else(|| "feedline".to_owned());
        let (external_id, source) = (get("external_id"), Box::new(source));
        return Ok(Some(ProfileSource::Role { role_arn, session_name, external_id, source }));
    }
    if let Some(found) = keys() {
        return Ok(Some(found));
    }
    if let Some(command) = get("credential_process") {
        return Ok(Some(ProfileSource::Process { command }));
    }
    if ["sso_session", "sso_start_url"].iter().any(|key| get(key).is_some()) {
        return Err(unsupported(name, "SSO"));
    }
    Ok(None)
}

/// The error for a profile whose credentials only the AWS CLI can get.
fn unsupported(name: &str, what: &str) -> String {
    format!(
        "the AWS profile `{name}` uses {what}, which Feedline does not support: add `credential_process = aws configure \
         export-credentials --profile {name} --format process` to another profile"
    )
}

/// Provides the credentials of a profile, and renews them before they expire or after the files have changed.
pub(crate) struct ProfileCredentials {
    files: ProfileFiles,
    name: String,
    roles: RoleService,
    cached: Mutex<Option<CachedCredential>>,
    /// Allows one renewal at a time.
    renewals: Semaphore,
}

struct CachedCredential {
    credential: ExpiringCredential,
    modified: [Option<SystemTime>; 2],
    checked_at: Instant,
}

impl fmt::Debug for ProfileCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProfileCredentials").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ProfileCredentials {
    pub(crate) fn new(name: &str, files: ProfileFiles, roles: RoleService) -> Self {
        let (cached, renewals) = (Mutex::default(), Semaphore::new(1));
        Self { files, name: name.to_owned(), roles, cached, renewals }
    }

    /// Returns the cached credentials if they need no renewal now.
    fn fresh(&self) -> Option<Arc<AwsCredential>> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = cached.as_mut()?;
        if cached.checked_at.elapsed() < RENEWAL_PAUSE && !cached.credential.expires_within(Duration::ZERO) {
            return Some(Arc::clone(&cached.credential.credential));
        }
        let is_unchanged = self.files.modified() == cached.modified;
        if !is_unchanged || cached.credential.expires_within(RENEWAL_MARGIN) {
            return None;
        }
        cached.checked_at = Instant::now();
        Some(Arc::clone(&cached.credential.credential))
    }

    /// Returns the cached credentials if they are valid and another request renews them.
    fn while_renewed(&self) -> Option<Arc<AwsCredential>> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = cached.as_ref().filter(|_| self.renewals.available_permits() == 0)?;
        let is_valid = !cached.credential.expires_within(Duration::ZERO);
        is_valid.then(|| Arc::clone(&cached.credential.credential))
    }

    async fn renew(&self) -> Result<Arc<AwsCredential>, CredentialError> {
        let _permit = self.renewals.acquire().await.expect("the semaphore is never closed");
        if let Some(credential) = self.fresh() {
            return Ok(credential);
        }
        let modified = self.files.modified();
        let renewed = match self.files.read(&self.name, true) {
            Ok(Some(profile)) => self.roles.resolve(&profile.source).await,
            Ok(None) => {
                Err(CredentialError::permanent(format!("the AWS profile `{}` has no credentials", self.name)))
            }
            Err(reason) => Err(CredentialError::permanent(reason)),
        };
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        match (renewed, cached.as_mut()) {
            (Ok(credential), _) => {
                let current = Arc::clone(&credential.credential);
                *cached = Some(CachedCredential { credential, modified, checked_at: Instant::now() });
                Ok(current)
            }
            (Err(error), Some(cached)) if !cached.credential.expires_within(Duration::ZERO) => {
                tracing::warn!(
                    error = error.reason,
                    "cannot renew the credentials; the current credentials are still valid"
                );
                cached.checked_at = Instant::now();
                Ok(Arc::clone(&cached.credential.credential))
            }
            (Err(error), _) => Err(error),
        }
    }
}

#[async_trait]
impl CredentialProvider for ProfileCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        if let Some(credential) = self.fresh().or_else(|| self.while_renewed()) {
            return Ok(credential);
        }
        self.renew().await.map_err(|error| {
            let CredentialError { reason, is_retryable } = error;
            let denied = if is_retryable { "" } else { "access denied: " };
            let sentence =
                format!("{denied}cannot get the credentials of the AWS profile `{}`: {reason}", self.name);
            let source = Box::new(AccessDenied::new(sentence));
            if is_retryable {
                object_store::Error::Generic { store: "AWS profile", source }
            } else {
                object_store::Error::Unauthenticated { path: String::new(), source }
            }
        })
    }
}

#[cfg(test)]
mod tests;
