//! The disk tier: segments of records, with one folder for each prefix.
//!
//! Workers may share a folder. Each worker claims the first part of the folder that no other worker holds, and finds
//! the rows that an earlier worker stored in that part. Every life of a worker writes its own segments and reads all
//! segments. A record contains its length and a checksum, so truncated or damaged records are ignored. Only the
//! writer thread creates and deletes files in the claimed part. A worker that claims a part also deletes rows from
//! parts that no worker holds, if they are unused for a day and exceed the limit of the folder.

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

use self::folders::{claim, clear_unused, found, note_use};
use self::index::lock;
use self::shared::Shared;
use self::write::{SegmentWriter, WriterCommand};
use super::eviction::EvictionQueue;
use super::ledger::{Ledger, LedgerColumn};
use super::rows::{CacheValues, CachedRow, Prefix};
use crate::settings::RowCacheSettings;

/// The largest number of chunks that wait to be written.
const WAITING_ORDERS: usize = 1024;

#[derive(Debug)]
pub(super) struct DiskTier {
    shared: Arc<Shared>,
    writer: mpsc::SyncSender<WriterCommand>,
    /// The claim on a part of the folder, or the reason why there is none.
    claim: Result<File, String>,
}

impl DiskTier {
    pub(super) fn new(place: RowCacheSettings) -> io::Result<Self> {
        let (folder, claim) = match claim(&place.folder) {
            Ok((folder, claim)) => {
                clear_unused(&place.folder, place.folder_bytes);
                (folder, Ok(claim))
            }
            Err(error) => {
                let message = format!(
                    "the cache in {} cannot be used: {error}; choose another --cache-dir",
                    place.folder.display()
                );
                (place.folder.clone(), Err(message))
            }
        };
        let mut room = EvictionQueue::new(place.limit_bytes);
        for (prefix, bytes) in found(&folder) {
            room.add(prefix, bytes);
        }
        let shared = Arc::new(Shared {
            folder,
            prefixes: Mutex::default(),
            room: Mutex::new(room),
            waiting_bytes: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        });
        let (writer, orders) = mpsc::sync_channel(WAITING_ORDERS);
        let writing = SegmentWriter::new(Arc::clone(&shared), place.limit_bytes);
        std::thread::Builder::new().name("feedline-cache".to_owned()).spawn(move || writing.run(&orders))?;
        Ok(Self { shared, writer, claim })
    }

    /// Counts the bytes of tenants in a ledger that other tiers share.
    pub(super) fn counted_in(self, ledger: &Arc<Ledger>) -> Self {
        lock(&self.shared.room).count_in(ledger, LedgerColumn::Disk);
        self
    }

    /// Whether the tier has claimed a part of the folder.
    pub(super) fn is_usable(&self) -> bool {
        self.claim.is_ok()
    }

    /// Finds the rows of earlier lives.
    pub(super) async fn open(&self, prefix: Prefix) -> Result<(), String> {
        self.claim.as_ref().map_err(String::clone)?;
        if self.shared.kept(prefix).is_some() {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let read = tokio::task::spawn_blocking(move || shared.load(prefix)).await;
        read.map_err(|error| error.to_string())?.map(drop).map_err(|error| {
            let folder = self.shared.folder.display();
            format!("the cache in {folder} cannot be read: {error}; choose another --cache-dir")
        })
    }

    pub(super) async fn get(&self, prefix: Prefix, rows: Vec<u64>) -> Vec<Option<Bytes>> {
        let (count, Some(kept)) = (rows.len(), self.shared.kept(prefix)) else {
            return vec![None; rows.len()];
        };
        let read = move || rows.into_iter().map(|row| kept.read(row)).collect();
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| vec![None; count])
    }

    pub(super) fn put(&self, prefix: Prefix, rows: Vec<CachedRow>) {
        let bytes: u64 = rows.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        if self.waiting_bytes() + bytes > CACHE_WRITE_QUEUE_BYTES && self.waiting_bytes() > 0 {
            return;
        }
        self.shared.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.writer.try_send(WriterCommand::Keep(prefix, rows)).is_err() {
            self.shared.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Whether the tier seems to have capacity for more rows of a prefix.
    pub(super) fn has_room(&self, prefix: Prefix) -> bool {
        let is_writing =
            !self.shared.failed.load(Ordering::Relaxed) && self.waiting_bytes() < CACHE_WRITE_QUEUE_BYTES;
        is_writing && lock(&self.shared.room).has_room(prefix)
    }

    pub(super) fn set_active(&self, worth: Arc<CacheValues>) {
        lock(&self.shared.room).set_active(&worth);
        self.shared.failed.store(false, Ordering::Relaxed);
    }

    pub(super) fn waiting_bytes(&self) -> u64 {
        self.shared.waiting_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn held_bytes(&self) -> u64 {
        lock(&self.shared.room).held_bytes()
    }

    /// The capacity in bytes.
    pub(super) fn room_bytes(&self) -> u64 {
        lock(&self.shared.room).capacity_bytes()
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
            note_use(&self.shared.folder);
        }
    }
}

/// Reads every row of arbitrary bytes.
#[cfg(feature = "fuzzing")]
pub(super) fn read_any(folder: &std::path::Path, bytes: &[u8]) {
    std::fs::write(folder.join("1"), bytes).expect("the fuzzer's folder is writable");
    if let Ok(index) = index::DiskIndex::load(folder) {
        index.read_all();
    }
}

#[cfg(test)]
mod tests;
