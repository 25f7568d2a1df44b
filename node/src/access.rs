//! Certificates, tokens and the cluster's secret, as the command line names them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use feedline_access::token::{Claims, Scope, Tokens};
use feedline_access::{Bearer, Credentials, Secret, Tls, TlsFiles, now_s, warn_if_exposed};
use tokio::task::JoinHandle;

use crate::cli::{AccessArgs, ClientsArg, GuardArgs};
use crate::environment;
use crate::failure::Failure;

/// How often files of certificates and tokens are read again.
const LOOK: Duration = Duration::from_secs(5);
/// Time for which a coordinator's own token is good: whoever is named to `feedline members add` is shown one.
const COORDINATES_FOR: Duration = Duration::from_secs(300);
/// It shows another one this often, so that clocks of hosts may differ by minutes.
const COORDINATES_ANEW: Duration = Duration::from_secs(60);

impl AccessArgs {
    /// What is shown to others.
    pub(crate) fn credentials(&self) -> Result<Credentials, Failure> {
        self.credentials_of(false)
    }

    fn credentials_of(&self, admits_anybody: bool) -> Result<Credentials, Failure> {
        let has_files = self.tls_ca.is_some() || self.tls_cert.is_some();
        let files = TlsFiles {
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            ca: self.tls_ca.clone(),
            admits_anybody,
        };
        let tls = has_files.then(|| Tls::load(files)).transpose().map_err(Failure::wrong_use)?;
        let token = bearer(self.token_file.clone(), environment::token(), environment::token_file())?;
        Ok(Credentials { tls: tls.map(Arc::new), token: token.map(Arc::new) })
    }
}

/// The token: that of the command line's file, else the one in the environment, else that of the environment's file.
fn bearer(
    flag: Option<PathBuf>,
    token: Option<String>,
    file: Option<PathBuf>,
) -> Result<Option<Bearer>, Failure> {
    match (flag, token) {
        (None, Some(token)) => Ok(Some(Bearer::fixed(&token))),
        (flag, _) => flag.or(file).map(Bearer::load).transpose().map_err(Failure::wrong_use),
    }
}

/// Whom a role serves, and what it shows.
pub(crate) struct ServerSecurity {
    /// What it shows to others.
    pub(crate) credentials: Credentials,
    is_insecure: bool,
    /// Reads the files again.
    _look: Option<Look>,
}

/// Ends with whoever holds it.
struct Look(JoinHandle<()>);

impl Drop for Look {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ServerSecurity {
    /// Reads what the flags name. Must be called inside a tokio runtime.
    pub(crate) fn new(args: &GuardArgs) -> Result<Self, Failure> {
        let credentials = args.access.credentials_of(args.tls_clients == ClientsArg::Any)?;
        let look = Look(tokio::spawn(look(credentials.clone())));
        let has_files = credentials.tls.is_some() || credentials.token.is_some();
        Ok(Self { credentials, is_insecure: args.insecure, _look: has_files.then_some(look) })
    }

    /// What it listens with, where it has a certificate.
    pub(crate) fn tls(&self) -> Option<Arc<Tls>> {
        self.credentials.tls.clone().filter(|tls| tls.can_listen())
    }

    /// Whether whoever connects has to show a certificate.
    pub(crate) fn asks_for_certificates(&self) -> bool {
        self.tls().is_some_and(|tls| tls.is_mutual())
    }

    /// How addresses of this process begin.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls().is_some() { "https" } else { "http" }
    }

    /// Refuses to serve everybody who reaches an address, unless the user wants that. `knows_whom` says whether clients
    /// show who they are by more than certificates.
    pub(crate) fn check(&self, address: SocketAddr, knows_whom: bool, fix: &str) -> Result<(), Failure> {
        if address.ip().is_loopback() {
            return Ok(());
        }
        let open = match self.tls() {
            None => "without TLS, so that everybody on the way could read and change what is sent",
            Some(tls) if !tls.is_mutual() && !knows_whom => {
                "whoever asks, since nobody has to show who it is"
            }
            Some(_) => return Ok(()),
        };
        if self.is_insecure {
            tracing::warn!(%address, "--insecure: this address is served {open}");
            return Ok(());
        }
        Err(Failure::wrong_use(format!(
            "{address} is no loopback address and would be served {open}: {fix}, or say --insecure"
        )))
    }
}

/// Reads certificates and the token again, for as long as it runs.
async fn look(credentials: Credentials) {
    let mut interval = tokio::time::interval(LOOK);
    let mut said = [const { String::new() }; 2];
    loop {
        interval.tick().await;
        let (tls, token) = (credentials.tls.clone(), credentials.token.clone());
        let read = tokio::task::spawn_blocking(move || {
            [tls.map(|tls| tls.reload()), token.map(|token| token.reload())]
        });
        let Ok(read) = read.await else { continue };
        for ((what, read), said) in ["certificates", "token"].into_iter().zip(read).zip(&mut said) {
            match read {
                Some(Ok(true)) => {
                    tracing::info!("the {what} changed; new connections use what the files say now")
                }
                Some(Err(reason)) if *said != reason => {
                    tracing::warn!(
                        reason,
                        "the {what} changed and cannot be used; what was read before is still used"
                    );
                    *said = reason;
                    continue;
                }
                Some(Err(_)) => continue,
                Some(Ok(false)) | None => {}
            }
            said.clear();
        }
    }
}

/// Reads a cluster's secret.
pub(crate) fn read_secret(file: &Path) -> Result<Secret, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::wrong_use(format!(
            "cannot read the secret in {}: {error}; `feedline keys` makes one",
            file.display()
        ))
    })?;
    warn_if_exposed("a cluster's secret", file);
    Secret::parse(&text).map_err(|reason| Failure::wrong_use(format!("{}: {reason}", file.display())))
}

/// A token for the workers that this process starts, good for as long as they run.
pub(crate) fn worker_token(secret: &Secret) -> String {
    Tokens::new(secret).make(&own_claims(Scope::Work, None))
}

/// What a coordinator shows to the others.
pub(crate) fn coordinator_token(secret: &Secret) -> Bearer {
    let tokens = Tokens::new(secret);
    Bearer::made(COORDINATES_ANEW, move || {
        tokens.make(&own_claims(Scope::Coordinate, Some(now_s() + COORDINATES_FOR.as_secs())))
    })
}

fn own_claims(scope: Scope, expires_s: Option<u64>) -> Claims {
    let holder = format!("a {scope} role of a coordinator's host");
    Claims { holder, scopes: [scope].into(), tenant: None, expires_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_the_command_line_goes_before_the_environment_s_and_a_token_there_before_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let [flag, other] = ["flag", "other"].map(|name| folder.path().join(name));
        std::fs::write(&flag, "of-the-flag").unwrap();
        std::fs::write(&other, "of-the-file").unwrap();
        let nowhere = Some(folder.path().join("nowhere"));
        let token = Some("itself".to_owned());
        let shown = |bearer: Option<Bearer>| bearer.map(|bearer| bearer.token().to_string());
        let with = |flag, token, file| shown(bearer(flag, token, file).unwrap());
        assert_eq!(with(Some(flag), token.clone(), nowhere.clone()).as_deref(), Some("of-the-flag"));
        assert_eq!(with(None, token, nowhere.clone()).as_deref(), Some("itself"));
        assert_eq!(with(None, None, Some(other)).as_deref(), Some("of-the-file"));
        assert_eq!(with(None, None, None), None);
        assert!(bearer(None, None, nowhere).is_err());
    }
}
