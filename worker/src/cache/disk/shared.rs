//! What the writer and the readers of a cache on disk share.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use super::folders::folder_name;
use super::index::{DiskIndex, lock};
use crate::cache::eviction::EvictionQueue;
use crate::cache::rows::Prefix;

/// What the writer and the readers share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Its part of the folder.
    pub(super) folder: PathBuf,
    /// Those that have been opened and hold rows, or may be given some.
    pub(super) prefixes: Mutex<BTreeMap<Prefix, Arc<DiskIndex>>>,
    /// What all prefixes in the folder hold, opened or not.
    pub(super) room: Mutex<EvictionQueue>,
    pub(super) waiting_bytes: AtomicU64,
    /// Writing has failed since jobs were named last.
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
        // A segment that was deleted meanwhile: from now on the writer says here what it deletes.
        kept.forget_deleted();
        Ok(kept)
    }
}
