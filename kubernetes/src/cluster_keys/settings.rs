//! Settings of the keys of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use feedline_access::Scope;
use feedline_access::key_files::{
    AUTHORITY_CERTIFICATE, CLIENT_CERTIFICATE, INITIAL_TOKENS, ROLE_CERTIFICATE, SECRET_FILE,
};

use crate::secrets::SecretName;

/// The keys that are created and renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySource {
    /// Certificates, the secret and tokens.
    All,
    /// The secret and tokens. Another program creates the certificates.
    Tokens,
    /// None: the Secret exists, and is only checked.
    Existing,
}

/// Settings of the keys of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterKeySettings {
    /// The namespace of the cluster.
    pub namespace: String,
    /// Name of the Secret with the keys.
    pub secret: String,
    /// Name of the Secret with the private key of the certificate authority.
    pub authority_secret: String,
    /// The keys that are created and renewed.
    pub source: KeySource,
    /// Names and addresses in the certificate of coordinators and workers.
    pub hosts: Vec<String>,
    /// Validity of certificates in days.
    pub days: u32,
    /// Validity of tokens in seconds; `None` creates tokens that do not expire.
    pub token_lifetime_s: Option<u64>,
    /// Labels of created Secrets.
    pub labels: BTreeMap<String, String>,
    /// Copies of keys for clients.
    pub copies: Option<ClientCopies>,
}

/// Copies of the CA, a client certificate and a token in other namespaces.
#[derive(Debug, Clone)]
pub struct ClientCopies {
    /// The namespaces.
    pub namespaces: Vec<String>,
    /// Name of the Secret in these namespaces.
    pub name: String,
    /// Scopes of the token.
    pub scopes: BTreeSet<Scope>,
    /// Tenant of the token; `None` covers all tenants.
    pub tenant: Option<String>,
    /// Secret of type `kubernetes.io/tls` with the client certificate; `None` copies the certificate from the Secret with
    /// the keys.
    pub certificate_secret: Option<String>,
}

impl ClusterKeySettings {
    pub(crate) fn keys_name(&self) -> SecretName {
        SecretName::new(&self.namespace, &self.secret)
    }

    pub(crate) fn authority_name(&self) -> SecretName {
        SecretName::new(&self.namespace, &self.authority_secret)
    }

    /// Returns the files that the Secret must contain.
    pub(crate) fn required_files(&self) -> Vec<&'static str> {
        let mut files = Vec::new();
        if self.source != KeySource::Tokens {
            files.push(AUTHORITY_CERTIFICATE);
            files.extend(ROLE_CERTIFICATE);
            files.extend(CLIENT_CERTIFICATE);
        }
        files.push(SECRET_FILE);
        files.extend(INITIAL_TOKENS.iter().map(|token| token.file));
        files
    }

    /// Describes new keys.
    pub(crate) fn describe(&self) -> String {
        let tokens = match self.token_lifetime_s {
            Some(lifetime_s) if lifetime_s.is_multiple_of(86_400) => {
                format!("tokens that are valid for {} days", lifetime_s / 86_400)
            }
            Some(lifetime_s) => format!("tokens that are valid for {lifetime_s} s"),
            None => "tokens that never expire".to_owned(),
        };
        match self.source {
            KeySource::All => {
                format!(
                    "certificates that are valid for {} days for {}, and {tokens}",
                    self.days,
                    self.hosts.join(", ")
                )
            }
            KeySource::Tokens | KeySource::Existing => tokens,
        }
    }
}
