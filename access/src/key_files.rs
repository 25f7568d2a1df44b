//! Names of the files with the keys of a cluster, and the tokens among them.

use crate::token::{Claims, Scope, Tokens};

/// The certificate of the cluster's authority, which all processes trust.
pub const AUTHORITY_CERTIFICATE: &str = "ca.pem";
/// The private key of the authority.
pub const AUTHORITY_KEY: &str = "ca-key.pem";
/// The certificate of coordinators and workers, and its private key.
pub const ROLE_CERTIFICATE: [&str; 2] = ["role.pem", "role-key.pem"];
/// The certificate of clients, and its private key.
pub const CLIENT_CERTIFICATE: [&str; 2] = ["client.pem", "client-key.pem"];
/// The secret of the cluster.
pub const SECRET_FILE: &str = "secret";
/// The token of a client.
pub const CLIENT_TOKEN: &str = "client.token";

/// A token that is created together with the secret of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct InitialToken {
    /// The file with the token.
    pub file: &'static str,
    holder: &'static str,
    scopes: &'static [Scope],
}

/// The tokens that are created together with the secret of a cluster.
pub const INITIAL_TOKENS: [InitialToken; 3] = [
    InitialToken { file: "worker.token", holder: "worker", scopes: &[Scope::Work] },
    InitialToken {
        file: CLIENT_TOKEN,
        holder: "client",
        scopes: &[Scope::Submit, Scope::Consume, Scope::Observe],
    },
    InitialToken {
        file: "admin.token",
        holder: "admin",
        scopes: &[Scope::Admin, Scope::Observe, Scope::Submit],
    },
];

impl InitialToken {
    /// Returns the text of the file with a new token. It has no line end, because the prometheus-operator puts the text of
    /// a Secret into a header as it is. `expires_s` is a Unix timestamp in seconds.
    pub fn issue(&self, tokens: &Tokens, expires_s: Option<u64>) -> String {
        let scopes = self.scopes.iter().copied().collect();
        tokens.issue(&Claims { holder: self.holder.to_owned(), scopes, tenant: None, expires_s })
    }
}
