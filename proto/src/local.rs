//! Shorter ways between a worker and a client on one host: a Unix socket for the same gRPC services, and memory that the
//! worker lends to the client.
//!
//! The worker opens both sockets in a private directory and tells whoever asks over TCP where they are, together with
//! the host's boot id. A client on another host sees another boot id; one in another container of the same host finds
//! nothing at the path. Both stay with TCP at once.

mod link_id;
mod message;
mod shm_bytes;
mod shm_client;
mod shm_server;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::UnixListener;

pub(crate) use self::link_id::{LinkId, PeerProcess};
pub use self::shm_bytes::ShmBytes;
pub(crate) use self::shm_client::{ShmClient, ShmFetchReceiver};
pub(crate) use self::shm_server::{ShmFetchSender, ShmServer};

/// Names of the sockets in the private directory.
const SOCKET: &str = "worker.sock";
const MEMORY_SOCKET: &str = "memory.sock";
/// Where Linux tells what identifies this boot of this host.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// By which way batches travel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// The shortest that both ends offer: shared memory, else a Unix socket, else TCP.
    #[default]
    Auto,
    /// TCP only.
    Tcp,
    /// A Unix socket only.
    Unix,
    /// Shared memory; what does not fit into it comes through a Unix socket.
    Memory,
}

/// By which way bytes of a batch came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivePath {
    /// TCP.
    Tcp,
    /// A Unix socket.
    Unix,
    /// Shared memory.
    Memory,
}

impl ReceivePath {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Memory => "memory",
        }
    }
}

/// A worker's sockets for clients on its own host.
#[derive(Debug)]
pub struct LocalListener {
    pub(crate) place: LocalEndpoint,
    pub(crate) socket: UnixListener,
    pub(crate) memory: Option<(UnixListener, Arc<ShmServer>)>,
}

/// Where an entrance is.
#[derive(Debug, Clone)]
pub(crate) struct LocalEndpoint {
    /// The host's boot id.
    pub(crate) host: String,
    pub(crate) socket: PathBuf,
    pub(crate) memory_socket: Option<PathBuf>,
}

impl LocalListener {
    /// Opens the sockets in `folder`, which nobody but this user may enter, and which is kept until the worker ends. At
    /// most `memory_bytes` of memory are lent to clients at a time; `None` lends none. Must be called inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// When the sockets cannot be opened there, or the system does not tell its boot id.
    pub fn open(folder: &Path, memory_bytes: Option<u64>) -> io::Result<Self> {
        let host = this_host()?;
        let socket = folder.join(SOCKET);
        let memory_socket = memory_bytes.map(|_| folder.join(MEMORY_SOCKET));
        let listen = |path: &PathBuf| UnixListener::bind(path);
        let memory = match (&memory_socket, memory_bytes) {
            (Some(path), Some(bytes)) => Some((listen(path)?, ShmServer::new(bytes))),
            _ => None,
        };
        Ok(Self { socket: listen(&socket)?, memory, place: LocalEndpoint { host, socket, memory_socket } })
    }

    /// Bytes of memory that are lent or ready to be, as they change.
    pub fn lent_bytes(&self) -> Arc<ShmBytes> {
        self.memory.as_ref().map(|(_, lender)| lender.lent_bytes()).unwrap_or_default()
    }
}

/// What identifies this boot of this host.
///
/// # Errors
/// When the system does not tell.
pub(crate) fn this_host() -> io::Result<String> {
    let id = std::fs::read_to_string(BOOT_ID)?;
    match id.trim() {
        "" => Err(io::ErrorKind::InvalidData.into()),
        id => Ok(id.to_owned()),
    }
}

#[cfg(test)]
mod tests;
