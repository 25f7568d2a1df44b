//! Which client borrows memory: by a number that nobody can guess, and only from the process that was told it.

use std::fmt;

use tokio::net::UnixStream;

/// What a link is called: 128 random bits, which only its client knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkId {
    /// One half.
    pub(crate) link: u64,
    /// The other.
    pub(crate) key: u64,
}

impl LinkId {
    /// A new one; `None` where the system gives no random numbers.
    pub(crate) fn random() -> Option<Self> {
        let [link, key] = feedline_access::random_numbers().ok()?;
        Some(Self { link, key })
    }
}

/// Who knows it may use it.
impl fmt::Debug for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkId(hidden)")
    }
}

/// A process of this host, at the other end of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerProcess(pub(crate) i32);

impl PeerProcess {
    /// The one at the other end, as the system tells.
    pub(crate) fn of(stream: &UnixStream) -> Option<Self> {
        stream.peer_cred().ok()?.pid().map(Self)
    }
}
