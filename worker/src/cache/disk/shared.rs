//! The state that the writer thread and the readers of the disk tier share.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use super::folders::folder_name;
use super::index::{DiskIndex, lock};
use crate::cache::eviction::EvictionQueue;
use crate::cache::rows::Prefix;

/// The state that the writer thread and the readers share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The claimed part of the directory.
    pub(super) folder: PathBuf,
    /// The indexes of opened prefixes.
    pub(super) prefixes: Mutex<BTreeMap<Prefix, Arc<DiskIndex>>>,
    /// Counts the bytes of all prefixes in the directory, including prefixes that are not opened.
    pub(super) evictions: Mutex<EvictionQueue>,
    /// Bytes of rows in the queue of the writer thread.
    pub(super) pending_bytes: AtomicU64,
    /// Whether a write has failed since the active prefixes were last set. The tier then stores no rows.
    pub(super) has_failed: AtomicBool,
}

impl Shared {
    pub(super) fn index(&self, prefix: Prefix) -> Option<Arc<DiskIndex>> {
        lock(&self.prefixes).get(&prefix).cloned()
    }

    pub(super) fn folder(&self, prefix: Prefix) -> PathBuf {
        self.folder.join(folder_name(prefix))
    }

    pub(super) fn load(&self, prefix: Prefix) -> io::Result<Arc<DiskIndex>> {
        let loaded = Arc::new(DiskIndex::load(&self.folder(prefix))?);
        let index = Arc::clone(lock(&self.prefixes).entry(prefix).or_insert(loaded));
        // The writer may have deleted segments before the index was registered. From now on, the writer removes deleted
        // segments from the index itself.
        index.remove_deleted_segments();
        Ok(index)
    }
}
