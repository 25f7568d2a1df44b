//! Certificates, tokens and the cluster's secret, as the command line names them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use feedline_access::token::{Claims, Scope, Tokens};
use feedline_access::{Bearer, Credentials, Secret, Tls, TlsFiles};
use tokio::task::JoinHandle;

use crate::cli::{AccessArgs, ClientsArg, GuardArgs};
use crate::environment;
use crate::failure::Failure;

/// How often files of certificates and tokens are read again.
const LOOK: Duration = Duration::from_secs(5);

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
        let token = match &self.token_file {
            Some(file) => Some(Bearer::load(file.clone()).map_err(Failure::wrong_use)?),
            None => environment::token().map(|token| Bearer::fixed(&token)),
        };
        Ok(Credentials { tls: tls.map(Arc::new), token: token.map(Arc::new) })
    }
}

/// Whom a role serves, and what it shows.
pub(crate) struct Guard {
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

impl Guard {
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
    Secret::parse(&text).map_err(|reason| Failure::wrong_use(format!("{}: {reason}", file.display())))
}

/// A token for roles of this process and those that it starts.
pub(crate) fn own_token(secret: &Secret, scope: Scope) -> String {
    let holder = format!("a {scope} role of a coordinator's host");
    let claims = Claims { holder, scopes: [scope].into(), tenant: None, expires_s: None };
    Tokens::new(secret).make(&claims)
}
