//! Loads the certificates, tokens and secrets that the command line names.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use feedline_access::token::{Claims, Scope};
use feedline_access::{
    BearerToken, ClusterSecret, Credentials, Secret, Tls, TlsFiles, now_s, warn_if_exposed,
};

use crate::cli::{AccessArgs, ClientAuthArg, SecretArgs, ServerAccessArgs};
use crate::environment;
use crate::failure::Failure;
use crate::reload::ReloadedCredentials;

/// Lifetime of the token with which a coordinator authenticates to other coordinators. It is short, because every
/// address that is passed to `feedline members add` receives a token.
const PEER_TOKEN_LIFETIME: Duration = Duration::from_secs(300);
/// Interval between renewals of the tokens of roles. It is much shorter than [`PEER_TOKEN_LIFETIME`], so that clocks may
/// differ by minutes.
const ROLE_TOKEN_RENEWAL: Duration = Duration::from_secs(60);

impl AccessArgs {
    /// Loads the credentials that this process presents to servers.
    pub(crate) fn credentials(&self) -> Result<Credentials, Failure> {
        self.load_credentials(false)
    }

    /// Like [`Self::credentials`], for a process that runs for a long time. Must be called inside a tokio runtime.
    pub(crate) fn reloaded_credentials(&self) -> Result<ReloadedCredentials, Failure> {
        self.credentials().map(ReloadedCredentials::new)
    }

    fn load_credentials(&self, allows_unverified_clients: bool) -> Result<Credentials, Failure> {
        let has_files = self.tls_ca.is_some() || self.tls_cert.is_some();
        let files = TlsFiles {
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            ca: self.tls_ca.clone(),
            allows_unverified_clients,
        };
        let tls = has_files.then(|| Tls::load(files)).transpose().map_err(Failure::invalid_usage)?;
        let token = load_token(self.token_file.clone(), environment::token(), environment::token_file())?;
        Ok(Credentials { tls: tls.map(Arc::new), token: token.map(Arc::new) })
    }
}

/// Loads the token from the first source that is set: the file that the flag names, the token in the environment, or the
/// file that the environment names.
fn load_token(
    flag: Option<PathBuf>,
    token: Option<String>,
    file: Option<PathBuf>,
) -> Result<Option<BearerToken>, Failure> {
    match (flag, token) {
        (None, Some(token)) => Ok(Some(BearerToken::fixed(&token))),
        (flag, _) => flag.or(file).map(BearerToken::load).transpose().map_err(Failure::invalid_usage),
    }
}

/// The clients that a role accepts, and the credentials that it presents.
pub(crate) struct ServerSecurity {
    /// Credentials that the role presents to servers.
    pub(crate) credentials: Credentials,
    is_insecure: bool,
    /// Reloads the files of the credentials.
    _reloaded: ReloadedCredentials,
}

impl ServerSecurity {
    /// Loads the files that the flags name, and reloads them until this value is dropped. Must be called inside a tokio
    /// runtime.
    pub(crate) fn new(args: &ServerAccessArgs) -> Result<Self, Failure> {
        let credentials = args.access.load_credentials(args.tls_clients == ClientAuthArg::Any)?;
        let reloaded = ReloadedCredentials::new(credentials.clone());
        Ok(Self { credentials, is_insecure: args.insecure, _reloaded: reloaded })
    }

    /// Like [`Self::new`], for a server whose clients have no tokens, so that they need certificates also with
    /// `--tls-clients any`.
    pub(crate) fn for_certified_clients(args: &ServerAccessArgs) -> Result<Self, Failure> {
        Self::new(&ServerAccessArgs { tls_clients: ClientAuthArg::Certified, ..args.clone() })
    }

    /// Returns the TLS settings of the server, if it has a certificate.
    pub(crate) fn tls(&self) -> Option<Arc<Tls>> {
        self.credentials.tls.clone().filter(|tls| tls.can_listen())
    }

    /// Whether clients must present a certificate.
    pub(crate) fn requires_certificates(&self) -> bool {
        self.tls().is_some_and(|tls| tls.is_mutual())
    }

    /// Returns the scheme of the server's URL.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls().is_some() { "https" } else { "http" }
    }

    /// Rejects an address that would accept every client, unless it is a loopback address or the user gave `--insecure`.
    /// `has_tokens` is true if clients authenticate with tokens.
    pub(crate) fn check_listen_address(
        &self,
        address: SocketAddr,
        has_tokens: bool,
        fix: &str,
    ) -> Result<(), Failure> {
        if address.ip().is_loopback() {
            return Ok(());
        }
        let problem = match self.tls() {
            None => "without TLS, others on the network could read and modify the traffic",
            Some(tls) if !tls.is_mutual() && !has_tokens => {
                "without authentication, every client could connect"
            }
            Some(_) => return Ok(()),
        };
        if self.is_insecure {
            tracing::warn!(%address, "--insecure: {problem}");
            return Ok(());
        }
        Err(Failure::invalid_usage(format!(
            "cannot listen on {address}, which is not a loopback address: {problem}; {fix}, or pass --insecure"
        )))
    }
}

/// Reads a cluster's secret.
pub(crate) fn read_secret(file: &Path) -> Result<Secret, Failure> {
    let secret = Secret::load(file).map_err(Failure::invalid_usage)?;
    warn_if_exposed("a cluster's secret", file);
    Ok(secret)
}

impl SecretArgs {
    /// Loads the secret of a coordinator, if the user gave one.
    pub(crate) fn load(&self) -> Result<Option<Arc<ClusterSecret>>, Failure> {
        let secret = self.secret_file.clone().map(ClusterSecret::load).transpose();
        Ok(secret.map_err(Failure::invalid_usage)?.map(Arc::new))
    }
}

/// Returns a token for the workers that this process starts. It does not expire.
pub(crate) fn worker_token(secret: Arc<ClusterSecret>) -> BearerToken {
    BearerToken::generated(ROLE_TOKEN_RENEWAL, move || {
        secret.keys().tokens.issue(&role_claims(Scope::Work, None))
    })
}

/// Returns the token with which a coordinator authenticates to other coordinators.
pub(crate) fn coordinator_token(secret: Arc<ClusterSecret>) -> BearerToken {
    BearerToken::generated(ROLE_TOKEN_RENEWAL, move || {
        let expires_s = now_s() + PEER_TOKEN_LIFETIME.as_secs();
        secret.keys().tokens.issue(&role_claims(Scope::Coordinate, Some(expires_s)))
    })
}

/// Returns the token with which a follower reads the decisions of the leader.
pub(crate) fn observer_token(secret: Arc<ClusterSecret>) -> BearerToken {
    BearerToken::generated(ROLE_TOKEN_RENEWAL, move || {
        let expires_s = now_s() + PEER_TOKEN_LIFETIME.as_secs();
        secret.keys().tokens.issue(&role_claims(Scope::Observe, Some(expires_s)))
    })
}

fn role_claims(scope: Scope, expires_s: Option<u64>) -> Claims {
    let holder = format!("{scope} role on a coordinator's host");
    Claims { holder, scopes: [scope].into(), tenant: None, expires_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_file_of_the_command_line_takes_precedence_over_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let [flag, other] = ["flag", "other"].map(|name| folder.path().join(name));
        std::fs::write(&flag, "flag-token").unwrap();
        std::fs::write(&other, "file-token").unwrap();
        let missing = Some(folder.path().join("missing"));
        let token = Some("env-token".to_owned());
        let load = |flag, token, file| {
            load_token(flag, token, file).unwrap().map(|bearer| bearer.token().to_string())
        };
        assert_eq!(load(Some(flag), token.clone(), missing.clone()).as_deref(), Some("flag-token"));
        assert_eq!(load(None, token, missing.clone()).as_deref(), Some("env-token"));
        assert_eq!(load(None, None, Some(other)).as_deref(), Some("file-token"));
        assert_eq!(load(None, None, None), None);
        assert!(load_token(None, None, missing).is_err());
    }
}
