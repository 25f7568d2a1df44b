//! The state that the writer and the readers of a disk tier share.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use super::folders::folder_name;
use super::index::{DiskIndex, lock};
use crate::cache::eviction::EvictionQueue;
use crate::cache::rows::Prefix;

/// The state that the writer and the readers share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The claimed part of the folder.
    pub(super) folder: PathBuf,
    /// The indexes of opened prefixes.
    pub(super) prefixes: Mutex<BTreeMap<Prefix, Arc<DiskIndex>>>,
    /// The bytes of all prefixes in the folder, opened or not.
    pub(super) room: Mutex<EvictionQueue>,
    pub(super) waiting_bytes: AtomicU64,
    /// Whether writing has failed since the active prefixes were last set.
    pub(super) failed: AtomicBool,
}

impl Shared {
    pub(super) fn kept(&self, prefix: Prefix) -> Option<Arc<DiskIndex>> {
        lock(&self.prefixes).get(&prefix).cloned()
    }

    pub(super) fn folder(&self, prefix: Prefix) -> PathBuf {
        self.folder.join(folder_name(prefix))
    }

    pub(super) fn load(&self, prefix: Prefix) -> io::Result<Arc<DiskIndex>> {
        let loaded = Arc::new(DiskIndex::load(&self.folder(prefix))?);
        let kept = Arc::clone(lock(&self.prefixes).entry(prefix).or_insert(loaded));
        // The segment was deleted at the same time. From now on the writer removes deleted segments from this index.
        kept.forget_deleted();
        Ok(kept)
    }
}
