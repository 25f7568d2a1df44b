//! Who may do what: certificates for connections, tokens for people and roles, tickets for the rows of one job.
//!
//! A cluster has one [`Secret`], which its coordinators share. Two pairs of Ed25519 keys follow from it: one signs
//! [tokens](token), which say what whoever holds them may do and on behalf of which tenant; the other signs
//! [tickets](ticket), which a coordinator gives to the consumers of a job and which workers check with the public half.
//! So a worker can give nobody any right. [`Tls`] proves both ends of a connection to each other and goes on with new
//! certificates as their files change.

mod authority;
pub mod concurrency_limit;
mod credentials;
mod exposed;
mod incoming;
mod own_files;
mod sealed;
mod secret;
pub mod ticket;
mod tls;
pub mod token;

pub use self::authority::{Authority, Certified};
pub use self::credentials::{Bearer, Credentials};
pub use self::exposed::warn_if_exposed;
pub use self::incoming::incoming;
pub use self::own_files::{OwnFiles, OwnFilesSnapshot};
pub use self::secret::Secret;
pub use self::tls::{Protocol, Tls, TlsFiles};
pub use self::token::{Claims, Scope};
pub use tokio_rustls::client::TlsStream as ClientStream;
pub use tokio_rustls::server::TlsStream as ServerStream;

use std::time::{SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom, SystemRandom};

/// Two numbers that nobody can guess.
///
/// # Errors
/// One clause, when the system gives no random numbers.
pub fn random_numbers() -> Result<[u64; 2], String> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| "the system gives no random numbers".to_owned())?;
    let both = u128::from_le_bytes(bytes);
    Ok([both as u64, (both >> 64) as u64])
}

/// Seconds since 1970, UTC; 0 on a machine whose clock stands before that.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
