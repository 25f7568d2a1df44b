//! A worker's sockets for clients on its own host, in a private directory that is gone with the worker. One that was left
//! by a worker that had no time to tidy up goes when the next one starts.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use feedline_proto::local::{LocalListener, ShmBytes, Transport};
use tempfile::TempDir;

use crate::failure::{Failure, reason};

/// Part of a worker's memory that may be lent to clients.
const LENT_PART: u64 = 4;
/// What names of private directories begin with.
const PREFIX: &str = "feedline-worker-";

/// By which way batches travel; for tests and for finding faults.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum TransportArg {
    /// The shortest that both ends offer.
    #[default]
    Auto,
    /// TCP only.
    Tcp,
    /// A Unix socket.
    Unix,
    /// Shared memory, and a Unix socket for what does not fit.
    Memory,
}

impl From<TransportArg> for Transport {
    fn from(transport: TransportArg) -> Self {
        match transport {
            TransportArg::Auto => Self::Auto,
            TransportArg::Tcp => Self::Tcp,
            TransportArg::Unix => Self::Unix,
            TransportArg::Memory => Self::Memory,
        }
    }
}

/// An entrance that was opened.
pub(crate) struct OpenedListener {
    /// The sockets.
    pub(crate) entrance: LocalListener,
    /// Where they lie.
    pub(crate) folder: SocketFolder,
    /// Bytes of memory that are lent, as they change.
    pub(crate) lent_bytes: Arc<ShmBytes>,
}

/// A private directory; removed when this is dropped.
pub(crate) struct SocketFolder {
    folder: TempDir,
    /// Locked for as long as this process lives.
    _in_use: File,
}

impl SocketFolder {
    /// Makes one in `parent`, and removes those of workers that are gone.
    pub(crate) fn make(parent: &Path) -> io::Result<Self> {
        remove_left(parent);
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        let in_use = File::open(folder.path())?;
        in_use.try_lock()?;
        Ok(Self { folder, _in_use: in_use })
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the directories that nobody has locked. One without sockets may be about to be locked, and stays.
fn remove_left(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let path = entry.path();
        if ours
            && fs::read_dir(&path).is_ok_and(|mut sockets| sockets.next().is_some())
            && File::open(&path).is_ok_and(|folder| folder.try_lock().is_ok())
        {
            // Somebody else may remove it at the same time; a directory of another user cannot be removed.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Opens an entrance for a worker with this much memory; `None` where TCP is wanted, or nothing else can be had and
/// nobody insists.
pub(crate) fn open(transport: TransportArg, memory_bytes: u64) -> Result<Option<OpenedListener>, Failure> {
    let lent = match transport {
        TransportArg::Tcp => return Ok(None),
        TransportArg::Unix => None,
        TransportArg::Auto | TransportArg::Memory => Some(memory_bytes / LENT_PART),
    };
    let opened = SocketFolder::make(&std::env::temp_dir())
        .and_then(|folder| LocalListener::open(folder.path(), lent).map(|entrance| (folder, entrance)));
    match opened {
        Ok((folder, entrance)) => {
            let lent_bytes = entrance.lent_bytes();
            Ok(Some(OpenedListener { entrance, folder, lent_bytes }))
        }
        Err(error) if transport == TransportArg::Auto => {
            tracing::warn!(%error, "no local socket can be opened; clients on this host use TCP");
            Ok(None)
        }
        Err(error) => Err(Failure::failed(format!(
            "cannot open a local socket: {}; use --transport tcp, or point TMPDIR at a short path of a local disk",
            reason(&error)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_gone_are_removed_and_those_of_the_living_stay() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |name: &str| parent.path().join(name);
        for name in ["feedline-worker-left", "feedline-worker-new", "another"] {
            fs::create_dir(folder(name)).unwrap();
        }
        fs::write(folder("feedline-worker-left").join("worker.sock"), "").unwrap();
        fs::write(folder("another").join("worker.sock"), "").unwrap();
        let living = SocketFolder::make(parent.path()).unwrap();
        fs::write(living.path().join("worker.sock"), "").unwrap();
        let second = SocketFolder::make(parent.path()).unwrap();
        assert!(!folder("feedline-worker-left").exists(), "nobody has it");
        assert!(folder("feedline-worker-new").exists(), "its owner may be about to lock it");
        assert!(folder("another").exists() && living.path().exists() && second.path().exists());
        let path = second.path().to_owned();
        drop(second);
        assert!(!path.exists());
    }
}
