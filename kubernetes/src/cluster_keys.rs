//! The keys of a cluster in Secrets: creates missing keys, renews old ones, copies keys to the namespaces of clients, and
//! replaces the secret of the cluster.
//!
//! The key of the certificate authority is in a Secret of its own, which pods do not mount. Processes that run at the same
//! time use the first Secret that the API server accepted.

mod copies;
mod lifetime;
mod renewal;
mod rotated_secret;
mod run;
mod settings;
#[cfg(test)]
mod tests;

use feedline_access::key_files::{
    AUTHORITY_CERTIFICATE, AUTHORITY_KEY, CLIENT_CERTIFICATE, INITIAL_TOKENS, ROLE_CERTIFICATE, SECRET_FILE,
};
use feedline_access::token::Tokens;
use feedline_access::{CertificateAuthority, Secret};
use kube::Client;

use self::lifetime::authority_days;
use self::rotated_secret::{ROTATED_ANNOTATION, parse_secret};
use self::run::{KeyRun, MAX_ATTEMPTS, too_many_changes};
pub use self::settings::{ClientCopies, ClusterKeySettings, KeySource};
use crate::secrets::{SecretChange, SecretFiles, SecretName, Secrets, StoredSecret};

/// Creates missing keys, renews old ones, and copies keys. Appends a sentence for each Secret to `report`, also before an
/// error. `now_s` is a Unix timestamp in seconds.
///
/// # Errors
/// Returns a message with the Secret and the fix.
pub async fn apply_cluster_keys(
    client: &Client,
    settings: &ClusterKeySettings,
    now_s: u64,
    report: &mut Vec<String>,
) -> Result<(), String> {
    let run = KeyRun { secrets: Secrets::new(client, &settings.labels), settings, now_s };
    let keys = match settings.source {
        KeySource::Existing => run.read_existing(report).await?,
        KeySource::All | KeySource::Tokens => run.create_or_renew(report).await?,
    };
    match &settings.copies {
        Some(copies) => copies::copy_keys(&run, copies, &keys, report).await,
        None => Ok(()),
    }
}

/// Replaces the secret of the cluster. The previous secret remains valid. Returns a sentence.
///
/// # Errors
/// Returns a message with the Secret and the fix.
pub async fn rotate_cluster_secret(
    client: &Client,
    settings: &ClusterKeySettings,
    now_s: u64,
) -> Result<String, String> {
    let run = KeyRun { secrets: Secrets::new(client, &settings.labels), settings, now_s };
    let name = settings.keys_name();
    for _ in 0..MAX_ATTEMPTS {
        let stored = run.read_required(&name).await?;
        let secret = parse_secret(&name, &stored)?;
        if secret.has_previous() {
            return Err(format!(
                "the Secret {name} still contains the previous secret of the cluster, whose tokens would become invalid: \
                 remove the second line of its key {SECRET_FILE} when these tokens are replaced"
            ));
        }
        let rotated = secret.rotated()?;
        let mut change = SecretChange::default();
        change.files.insert(SECRET_FILE.to_owned(), rotated.text() + "\n");
        change.annotations.insert(ROTATED_ANNOTATION, Some(now_s.to_string()));
        if run.secrets.update(&name, &stored, &change).await? {
            return Ok(format!(
                "replaced the secret of the cluster in the Secret {name}; the previous one remains valid; run `feedline keys apply` \
                 after ten minutes to renew the tokens"
            ));
        }
    }
    Err(too_many_changes(&name))
}

impl KeyRun<'_> {
    /// Reads a Secret that Feedline does not change.
    async fn read_existing(&self, report: &mut Vec<String>) -> Result<StoredSecret, String> {
        let name = self.settings.keys_name();
        let stored = self.read_required(&name).await?;
        self.check_complete(&name, &stored)?;
        report.push(format!("the Secret {name} is complete"));
        Ok(stored)
    }

    /// Creates the Secret if it does not exist, or renews its files.
    async fn create_or_renew(&self, report: &mut Vec<String>) -> Result<StoredSecret, String> {
        let name = self.settings.keys_name();
        for _ in 0..MAX_ATTEMPTS {
            let Some(stored) = self.secrets.read(&name).await? else {
                let files = self.new_files(report).await?;
                if self.secrets.create(&name, &files).await? {
                    report.push(format!("created the Secret {name} with {}", self.settings.describe()));
                    return Ok(StoredSecret::created(files));
                }
                report.push(format!("another process created the Secret {name} at the same time"));
                continue;
            };
            self.check_complete(&name, &stored)?;
            let change = renewal::due_changes(self, &stored).await?;
            if change.is_empty() {
                report.push(format!("the Secret {name} needs no change"));
                return Ok(stored);
            }
            if self.secrets.update(&name, &stored, &change).await? {
                report.push(format!("renewed {} in the Secret {name}", change.file_names()));
                return Ok(stored.changed(change));
            }
        }
        Err(too_many_changes(&name))
    }

    /// Returns the files of a new Secret.
    async fn new_files(&self, report: &mut Vec<String>) -> Result<SecretFiles, String> {
        let mut files = SecretFiles::new();
        if self.settings.source == KeySource::All {
            let authority = self.create_authority(report).await?;
            files.insert(AUTHORITY_CERTIFICATE.to_owned(), authority.certified_key().cert.clone());
            for certificate in [ROLE_CERTIFICATE, CLIENT_CERTIFICATE] {
                files.extend(self.issue(&authority, certificate)?);
            }
        }
        let secret = Secret::new()?;
        let tokens = Tokens::new(&secret);
        files.insert(SECRET_FILE.to_owned(), secret.text() + "\n");
        for token in INITIAL_TOKENS {
            files.insert(token.file.to_owned(), token.issue(&tokens, self.token_expiry_s()));
        }
        Ok(files)
    }

    /// Returns the authority, and creates its Secret if it does not exist.
    async fn create_authority(&self, report: &mut Vec<String>) -> Result<CertificateAuthority, String> {
        let name = self.settings.authority_name();
        for _ in 0..MAX_ATTEMPTS {
            if let Some(stored) = self.secrets.read(&name).await? {
                return self.load_authority(&name, &stored);
            }
            let authority = CertificateAuthority::new(authority_days(self.settings.days))?;
            let files = [(AUTHORITY_KEY.to_owned(), authority.certified_key().key.clone())].into();
            if self.secrets.create(&name, &files).await? {
                report.push(format!("created the Secret {name} with the key of the certificate authority"));
                return Ok(authority);
            }
        }
        Err(too_many_changes(&name))
    }

    /// Checks that a Secret has all files.
    fn check_complete(&self, name: &SecretName, stored: &StoredSecret) -> Result<(), String> {
        let mut missing = self.settings.required_files();
        missing.retain(|file| stored.file(file).trim().is_empty());
        let Some(first) = missing.first() else { return Ok(()) };
        let fix = match self.settings.source {
            KeySource::Existing => "create it from all files of `feedline keys new`",
            KeySource::All | KeySource::Tokens => {
                "add it, or delete the Secret, so that this command creates all keys again"
            }
        };
        let others = match missing.len() - 1 {
            0 => String::new(),
            others => format!(" (and {others} more)"),
        };
        Err(format!("the Secret {name} has no key {first}{others}: {fix}"))
    }
}
