//! One run of `feedline keys apply`: its settings, and the operations that all parts of it share.

use feedline_access::CertificateAuthority;
use feedline_access::key_files::{AUTHORITY_KEY, ROLE_CERTIFICATE};

use super::lifetime::authority_days;
use super::settings::ClusterKeySettings;
use crate::secrets::{SecretName, Secrets, StoredSecret};

/// Number of times that a change is tried again after another process has changed the same Secret.
pub(crate) const MAX_ATTEMPTS: usize = 5;

/// One run of the command.
pub(crate) struct KeyRun<'a> {
    pub(crate) secrets: Secrets<'a>,
    pub(crate) settings: &'a ClusterKeySettings,
    /// The time of the run as a Unix timestamp in seconds.
    pub(crate) now_s: u64,
}

impl KeyRun<'_> {
    /// Loads the authority from its Secret.
    pub(crate) fn load_authority(
        &self,
        name: &SecretName,
        stored: &StoredSecret,
    ) -> Result<CertificateAuthority, String> {
        let authority =
            CertificateAuthority::from_key(stored.file(AUTHORITY_KEY), authority_days(self.settings.days));
        authority.map_err(|_| {
            format!("the Secret {name} contains no private key in PEM in its key {AUTHORITY_KEY}: restore it from a backup")
        })
    }

    /// Issues a certificate, and returns both files.
    pub(crate) fn issue(
        &self,
        authority: &CertificateAuthority,
        files: [&str; 2],
    ) -> Result<[(String, String); 2], String> {
        let hosts = if files == ROLE_CERTIFICATE { self.settings.hosts.as_slice() } else { &[] };
        let name = format!("feedline {}", files[0].trim_end_matches(".pem"));
        let issued = authority.issue(&name, hosts, self.settings.days)?;
        Ok([(files[0].to_owned(), issued.cert), (files[1].to_owned(), issued.key)])
    }

    /// Returns the expiry of tokens that are created now as a Unix timestamp in seconds.
    pub(crate) fn token_expiry_s(&self) -> Option<u64> {
        self.settings.token_lifetime_s.map(|lifetime_s| self.now_s.saturating_add(lifetime_s))
    }

    /// Reads a Secret that must exist.
    pub(crate) async fn read_required(&self, name: &SecretName) -> Result<StoredSecret, String> {
        self.secrets.read(name).await?.ok_or_else(|| {
            format!(
                "the Secret {name} does not exist: create it from the files of `feedline keys new`, for example with `kubectl create secret generic`"
            )
        })
    }
}

/// The error after the last attempt to change a Secret.
pub(crate) fn too_many_changes(name: &SecretName) -> String {
    format!("other processes changed the Secret {name} {MAX_ATTEMPTS} times: run the command again")
}
