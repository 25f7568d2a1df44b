//! Access control: certificates for connections, tokens for users and roles, and tickets for the rows of one job.
//!
//! A cluster has one [`Secret`], which its coordinators share. Two Ed25519 key pairs are derived from it. One pair signs
//! [tokens](token), which contain the rights and the tenant of their owner. The other pair signs [tickets](ticket), which a
//! coordinator issues to the consumers of a job, and which workers verify with the public key. Therefore, a worker cannot
//! issue tokens or tickets. A coordinator reloads its secret when the file changes ([`ClusterSecret`]). [`Tls`] authenticates
//! both ends of a connection, and reloads certificates when their files change.

mod accept;
mod authority;
mod certificate;
mod cluster_secret;
mod credentials;
mod expiry;
mod exposed;
mod incoming;
pub mod key_files;
mod protected_files;
mod sealed;
mod secret;
pub mod ticket;
mod tls;
pub mod token;

pub use self::accept::{accept_next, plain_connections};
pub use self::authority::{CertificateAuthority, CertifiedKey};
pub use self::certificate::{certificate_contains_host, certificate_expiry_s};
pub use self::cluster_secret::{ClusterKeys, ClusterSecret};
pub use self::credentials::{BearerToken, Credentials};
pub use self::exposed::warn_if_exposed;
pub use self::incoming::incoming_connections;
pub use self::protected_files::{ProtectedFiles, ProtectedFilesSnapshot};
pub use self::secret::Secret;
pub use self::tls::{Protocol, Tls, TlsFiles, check_server_name, system_authorities};
pub use self::token::{Claims, Scope};
pub use tokio_rustls::client::TlsStream as ClientStream;
pub use tokio_rustls::server::TlsStream as ServerStream;

use std::time::{SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom, SystemRandom};

/// Returns two random numbers for security-relevant ids.
///
/// # Errors
/// Returns a message if the system cannot generate random numbers.
pub fn random_numbers() -> Result<[u64; 2], String> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| "cannot generate random numbers".to_owned())?;
    let both = u128::from_le_bytes(bytes);
    Ok([both as u64, (both >> 64) as u64])
}

/// Returns the current Unix time in seconds; 0 if the clock is before 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
