//! Local transports between a worker and a client on one host: the gRPC services over a Unix socket, and shared memory.
//!
//! The worker opens both sockets in a private directory. A client asks for their paths and for the boot id of the host over
//! TCP. A client on another host sees another boot id, and a client in another container does not find the sockets. Both
//! continue with TCP immediately.

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

/// File names of the sockets in the private directory.
const SOCKET_NAME: &str = "worker.sock";
const MEMORY_SOCKET: &str = "memory.sock";
/// File with the id of the current boot of this host.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// The transport that a client uses for batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// The fastest transport that both sides support: shared memory, then a Unix socket, then TCP.
    #[default]
    Auto,
    /// TCP only.
    Tcp,
    /// A Unix socket only.
    Unix,
    /// Shared memory. Pieces that do not fit are sent through a Unix socket.
    Memory,
}

/// The transport over which a client received bytes of a batch.
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
    /// Name of the transport in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Memory => "memory",
        }
    }
}

/// The sockets of a worker for clients on the same host.
#[derive(Debug)]
pub struct LocalListener {
    pub(crate) endpoint: LocalEndpoint,
    pub(crate) socket: UnixListener,
    pub(crate) memory: Option<(UnixListener, Arc<ShmServer>)>,
}

/// The address of a local listener.
#[derive(Debug, Clone)]
pub(crate) struct LocalEndpoint {
    /// Boot id of the host.
    pub(crate) boot_id: String,
    pub(crate) socket: PathBuf,
    pub(crate) memory_socket: Option<PathBuf>,
}

impl LocalListener {
    /// Opens the sockets in `folder`, a private directory that must exist until the worker ends. Shares at most
    /// `memory_bytes` of memory with clients at a time; `None` disables shared memory. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if a socket cannot be opened, or the system does not report a boot id.
    pub fn open(folder: &Path, memory_bytes: Option<u64>) -> io::Result<Self> {
        let boot_id = boot_id()?;
        let socket = folder.join(SOCKET_NAME);
        let memory_socket = memory_bytes.map(|_| folder.join(MEMORY_SOCKET));
        let listen = |path: &PathBuf| UnixListener::bind(path);
        let memory = match (&memory_socket, memory_bytes) {
            (Some(path), Some(bytes)) => Some((listen(path)?, ShmServer::new(bytes))),
            _ => None,
        };
        let endpoint = LocalEndpoint { boot_id, socket, memory_socket };
        Ok(Self { socket: listen(&endpoint.socket)?, memory, endpoint })
    }

    /// Counter of the shared bytes, leased or idle.
    pub fn shared_bytes(&self) -> Arc<ShmBytes> {
        self.memory.as_ref().map(|(_, server)| server.shared_bytes()).unwrap_or_default()
    }
}

/// Returns the id of the current boot of this host.
///
/// # Errors
/// Returns an error if the system does not report a boot id.
pub(crate) fn boot_id() -> io::Result<String> {
    let id = std::fs::read_to_string(BOOT_ID_FILE)?;
    match id.trim() {
        "" => Err(io::ErrorKind::InvalidData.into()),
        id => Ok(id.to_owned()),
    }
}

#[cfg(test)]
mod tests;
