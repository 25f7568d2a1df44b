//! A worker's Unix sockets for clients on its own host, in a private directory. The worker removes the directory when
//! it exits. The next worker removes the directories of workers that have crashed.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use feedline_data::memory::MemoryLimits;
use feedline_proto::local::{LocalListener, ShmBytes, Transport};
use tempfile::TempDir;

use crate::failure::{Failure, reason};

/// Prefix of the names of private directories.
const FOLDER_PREFIX: &str = "feedline-worker-";

/// The transport of batches.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum TransportArg {
    /// The fastest transport that the worker and the client support.
    #[default]
    Auto,
    /// Only TCP, which needs no directory for sockets.
    Tcp,
    /// A Unix socket.
    Unix,
    /// Shared memory, and a Unix socket for larger batches.
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

/// An open local listener.
pub(crate) struct OpenedListener {
    /// The listener.
    pub(crate) listener: LocalListener,
    /// The directory of the sockets.
    pub(crate) folder: SocketFolder,
    /// The current number of bytes that clients have mapped.
    pub(crate) shared_bytes: Arc<ShmBytes>,
}

/// A private directory, which is removed when this value is dropped.
pub(crate) struct SocketFolder {
    folder: TempDir,
    /// Locked file in the directory, which shows that this process is running.
    _lock: File,
}

impl SocketFolder {
    /// Creates a directory in `parent`, and removes the directories of workers that have exited.
    pub(crate) fn create(parent: &Path) -> io::Result<Self> {
        remove_abandoned(parent);
        let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir_in(parent)?;
        let lock = File::open(folder.path())?;
        lock.try_lock()?;
        Ok(Self { folder, _lock: lock })
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the directories that no process has locked. Keeps directories without sockets, because their owners may be
/// about to lock them.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_socket_folder = entry.file_name().to_str().is_some_and(|name| name.starts_with(FOLDER_PREFIX));
        let path = entry.path();
        if is_socket_folder
            && fs::read_dir(&path).is_ok_and(|mut sockets| sockets.next().is_some())
            && File::open(&path).is_ok_and(|folder| folder.try_lock().is_ok())
        {
            // This fails if another process is also removing the directory, or if another user owns it.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Opens the sockets of a worker with this much memory. Returns `None` for TCP, or if `Auto` cannot open a socket.
pub(crate) fn open(transport: TransportArg, memory_bytes: u64) -> Result<Option<OpenedListener>, Failure> {
    open_in(&std::env::temp_dir(), transport, memory_bytes)
}

/// Opens the sockets in a directory inside `parent`.
fn open_in(
    parent: &Path,
    transport: TransportArg,
    memory_bytes: u64,
) -> Result<Option<OpenedListener>, Failure> {
    let shared_limit = match transport {
        TransportArg::Tcp => return Ok(None),
        TransportArg::Unix => None,
        TransportArg::Auto | TransportArg::Memory => {
            Some(MemoryLimits::new(memory_bytes).shared_memory_bytes())
        }
    };
    let opened = SocketFolder::create(parent).and_then(|folder| {
        LocalListener::open(folder.path(), shared_limit).map(|listener| (folder, listener))
    });
    match opened {
        Ok((folder, listener)) => {
            let shared_bytes = listener.shared_bytes();
            Ok(Some(OpenedListener { listener, folder, shared_bytes }))
        }
        Err(error) if transport == TransportArg::Auto => {
            tracing::warn!(
                "cannot open a socket in {}: {}; clients on this host use TCP; set TMPDIR to a writable directory with a short path, or pass --transport tcp",
                parent.display(),
                reason(&error)
            );
            Ok(None)
        }
        Err(error) => Err(Failure::failed(format!(
            "cannot open a socket in {}: {}; set TMPDIR to a writable directory with a short path, or pass --transport tcp",
            parent.display(),
            reason(&error)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unusable_temporary_directory_is_named_with_the_fix() {
        let parent = tempfile::tempdir().unwrap();
        let missing = parent.path().join("missing");
        assert!(open_in(&missing, TransportArg::Tcp, 1 << 20).unwrap().is_none(), "TCP needs no directory");
        let error = open_in(&missing, TransportArg::Unix, 1 << 20).err().unwrap().to_string();
        for part in [missing.to_str().unwrap(), "no such file or directory", "TMPDIR", "--transport tcp"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn only_directories_of_exited_workers_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |name: &str| parent.path().join(name);
        for name in ["feedline-worker-crashed", "feedline-worker-new", "another"] {
            fs::create_dir(folder(name)).unwrap();
        }
        fs::write(folder("feedline-worker-crashed").join("worker.sock"), "").unwrap();
        fs::write(folder("another").join("worker.sock"), "").unwrap();
        let running = SocketFolder::create(parent.path()).unwrap();
        fs::write(running.path().join("worker.sock"), "").unwrap();
        let second = SocketFolder::create(parent.path()).unwrap();
        assert!(!folder("feedline-worker-crashed").exists(), "no process has locked it");
        assert!(folder("feedline-worker-new").exists(), "its owner may be about to lock it");
        assert!(folder("another").exists() && running.path().exists() && second.path().exists());
        let path = second.path().to_owned();
        drop(second);
        assert!(!path.exists());
    }
}
