//! Identity of a client that maps shared memory: a random id, valid only for the process that received it.

use std::fmt;

use tokio::net::UnixStream;

/// Id of a link: 128 random bits, which only the client of the link knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkId {
    /// First half.
    pub(crate) link: u64,
    /// Second half.
    pub(crate) key: u64,
}

impl LinkId {
    /// Returns a new id; `None` if the system cannot generate random numbers.
    pub(crate) fn random() -> Option<Self> {
        let [link, key] = feedline_access::random_numbers().ok()?;
        Some(Self { link, key })
    }
}

/// The id grants access, so logs do not contain it.
impl fmt::Debug for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkId(hidden)")
    }
}

/// A process of this host that is connected over a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerProcess(pub(crate) i32);

impl PeerProcess {
    /// Returns the process at the other end of a socket, as the system reports it.
    pub(crate) fn of(stream: &UnixStream) -> Option<Self> {
        stream.peer_cred().ok()?.pid().map(Self)
    }
}
