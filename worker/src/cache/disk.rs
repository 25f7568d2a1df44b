//! The disk tier: one directory per prefix, with append-only segment files.
//!
//! Workers may share a cache directory. It is divided into parts, and each worker locks one part, which may contain
//! rows from an earlier worker. A worker process writes its own segments, and reads all segments of its part. Each row
//! has a length and a checksum, so that truncated or corrupted rows are ignored. Only the writer thread of a worker
//! creates and deletes files in its part. When a worker starts, it deletes the rows in parts that no worker has used
//! for a day, if the directory exceeds its size limit.

mod evict;
mod folders;
mod index;
mod shared;
mod write;

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use bytes::Bytes;
use feedline_data::memory::CACHE_WRITE_QUEUE_BYTES;
use tokio::sync::oneshot;

pub(crate) use self::folders::claim_part;
use self::folders::{delete_unused_parts, prefix_sizes, record_use};
use self::index::lock;
use self::shared::Shared;
use self::write::{SegmentWriter, WriterCommand};
use super::eviction::EvictionQueue;
use super::ledger::{Ledger, LedgerColumn};
use super::rows::{CacheValues, CachedRow, Prefix};
use crate::settings::RowCacheSettings;

/// Maximum number of commands that wait for the writer thread. A command stores the rows of one chunk.
const WRITE_QUEUE_CAPACITY: usize = 1024;

#[derive(Debug)]
pub(super) struct DiskTier {
    shared: Arc<Shared>,
    writer: mpsc::SyncSender<WriterCommand>,
    /// The locked file of the claimed part, or the reason why no part could be claimed.
    claim: Result<File, String>,
}

impl DiskTier {
    pub(super) fn new(settings: RowCacheSettings) -> io::Result<Self> {
        let (folder, claim) = match claim_part(&settings.folder) {
            Ok((folder, claim)) => {
                delete_unused_parts(&settings.folder, settings.folder_bytes);
                (folder, Ok(claim))
            }
            Err(error) => {
                let message = format!(
                    "cannot use the cache directory {}: {error}; choose another --cache-dir",
                    settings.folder.display()
                );
                (settings.folder.clone(), Err(message))
            }
        };
        let mut evictions = EvictionQueue::new(settings.limit_bytes);
        for (prefix, bytes) in prefix_sizes(&folder) {
            evictions.add(prefix, bytes);
        }
        let shared = Arc::new(Shared {
            folder,
            prefixes: Mutex::default(),
            evictions: Mutex::new(evictions),
            pending_bytes: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        });
        let (writer, commands) = mpsc::sync_channel(WRITE_QUEUE_CAPACITY);
        let writing = SegmentWriter::new(Arc::clone(&shared), settings.limit_bytes);
        std::thread::Builder::new()
            .name("feedline-cache".to_owned())
            .spawn(move || writing.run(&commands))?;
        Ok(Self { shared, writer, claim })
    }

    /// Counts each tenant's bytes in a ledger that all tiers share.
    pub(super) fn with_ledger(self, ledger: &Arc<Ledger>) -> Self {
        lock(&self.shared.evictions).use_ledger(ledger, LedgerColumn::Disk);
        self
    }

    /// Whether the tier has claimed a part of the directory.
    pub(super) fn is_usable(&self) -> bool {
        self.claim.is_ok()
    }

    /// Loads the index of the rows that earlier workers stored.
    pub(super) async fn open(&self, prefix: Prefix) -> Result<(), String> {
        self.claim.as_ref().map_err(String::clone)?;
        if self.shared.index(prefix).is_some() {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let read = tokio::task::spawn_blocking(move || shared.load(prefix)).await;
        read.map_err(|error| error.to_string())?.map(drop).map_err(|error| {
            let folder = self.shared.folder.display();
            format!("cannot read the cache directory {folder}: {error}; choose another --cache-dir")
        })
    }

    pub(super) async fn get(&self, prefix: Prefix, rows: Vec<u64>) -> Vec<Option<Bytes>> {
        let (count, Some(index)) = (rows.len(), self.shared.index(prefix)) else {
            return vec![None; rows.len()];
        };
        let read = move || rows.into_iter().map(|row| index.read(row)).collect();
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| vec![None; count])
    }

    pub(super) fn put(&self, prefix: Prefix, rows: Vec<CachedRow>) {
        let bytes: u64 = rows.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        if self.pending_bytes() + bytes > CACHE_WRITE_QUEUE_BYTES && self.pending_bytes() > 0 {
            return;
        }
        self.shared.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.writer.try_send(WriterCommand::Append(prefix, rows)).is_err() {
            self.shared.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn has_room(&self, prefix: Prefix) -> bool {
        let can_write =
            !self.shared.has_failed.load(Ordering::Relaxed) && self.pending_bytes() < CACHE_WRITE_QUEUE_BYTES;
        can_write && lock(&self.shared.evictions).has_room(prefix)
    }

    pub(super) fn set_active(&self, values: Arc<CacheValues>) {
        lock(&self.shared.evictions).set_active(&values);
        self.shared.has_failed.store(false, Ordering::Relaxed);
    }

    pub(super) fn pending_bytes(&self) -> u64 {
        self.shared.pending_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn held_bytes(&self) -> u64 {
        lock(&self.shared.evictions).held_bytes()
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        lock(&self.shared.evictions).capacity_bytes()
    }

    pub(super) async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        let writer = self.writer.clone();
        let sent = tokio::task::spawn_blocking(move || writer.send(WriterCommand::Flush(done))).await;
        if sent.is_ok_and(|sent| sent.is_ok()) {
            let _ = wait.await;
        }
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        if self.claim.is_ok() {
            record_use(&self.shared.folder);
        }
    }
}

/// Parses arbitrary bytes as a segment and reads its rows.
pub(super) fn read_arbitrary_bytes(folder: &std::path::Path, bytes: &[u8]) {
    std::fs::write(folder.join("1"), bytes).expect("the fuzzer's directory is writable");
    if let Ok(index) = index::DiskIndex::load(folder) {
        index.read_all();
    }
}

#[cfg(test)]
mod tests;
