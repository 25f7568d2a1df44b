//! What a pipeline's `cache` keeps: each row as the operators before it made it, in memory or on disk.
//!
//! Rows are kept under the fingerprint of what made them, so that every job with the same data and the same operators
//! before its cache finds them, whatever comes after. A row is kept whole or not at all, and a cache that is full keeps what it
//! has: passes over a data set that is too large find a part of it here, where evicting the oldest would find none.

mod disk;
mod memory;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use feedline_core::pipeline::CacheTier;

use self::disk::DiskTier;
use self::memory::MemoryTier;
use crate::{RowCacheSettings, metrics};

/// Fingerprint of the data and the operators that made rows.
pub(crate) type Prefix = u128;

/// A row's id in its data set, and its bytes.
pub(crate) type Row = (u64, Bytes);

/// The tiers of one worker.
#[derive(Debug)]
pub(crate) struct Caches {
    memory: MemoryTier,
    disk: Option<DiskTier>,
}

impl Caches {
    /// Keeps up to `memory_bytes` in memory.
    ///
    /// # Errors
    /// When the system refuses to start a thread.
    pub(crate) fn new(memory_bytes: u64, disk: Option<RowCacheSettings>) -> std::io::Result<Self> {
        Ok(Self { memory: MemoryTier::new(memory_bytes), disk: disk.map(DiskTier::new).transpose()? })
    }

    /// Makes the rows of a prefix ready that were kept by an earlier life of this worker.
    ///
    /// # Errors
    /// A sentence where there is no such tier, or where its files cannot be read.
    pub(crate) async fn open(&self, prefix: Prefix, tier: CacheTier) -> Result<(), String> {
        match (tier, &self.disk) {
            (CacheTier::Memory, _) => Ok(()),
            (CacheTier::Disk, Some(disk)) => disk.open(prefix).await,
            (CacheTier::Disk, None) => Err(
                "the pipeline's cache is on disk, and this worker has none: start it with --cache-dir, or \
                     write `cache: {tier: memory}`"
                    .to_owned(),
            ),
        }
    }

    /// The rows of a prefix that are kept, in the order asked for.
    pub(crate) async fn get(&self, prefix: Prefix, tier: CacheTier, rows: Vec<u64>) -> Vec<Option<Bytes>> {
        let found = match (tier, &self.disk) {
            (CacheTier::Disk, Some(disk)) => disk.get(prefix, rows).await,
            _ => self.memory.get(prefix, &rows),
        };
        let hits = found.iter().filter(|row| row.is_some()).count();
        metrics::count_cache(tier.name(), hits, found.len() - hits);
        found
    }

    /// Keeps rows, as far as there is room.
    pub(crate) fn put(&self, prefix: Prefix, tier: CacheTier, rows: Vec<Row>) {
        match (tier, &self.disk) {
            (CacheTier::Disk, Some(disk)) => disk.put(prefix, rows),
            _ => self.memory.put(prefix, rows),
        }
    }

    /// Whether rows are worth being made for it: there is room, as far as is known.
    pub(crate) fn has_room(&self, tier: CacheTier) -> bool {
        match (tier, &self.disk) {
            (CacheTier::Disk, Some(disk)) => disk.has_room(),
            _ => self.memory.has_room(),
        }
    }

    /// Names the prefixes of the jobs that are worked on: the rows of the others go first.
    pub(crate) fn set_active(&self, prefixes: BTreeSet<Prefix>) {
        let prefixes = Arc::new(prefixes);
        if let Some(disk) = &self.disk {
            disk.set_active(Arc::clone(&prefixes));
        }
        self.memory.set_active(prefixes);
    }

    /// Lets go of rows in memory that no job is worked on with. Whether there were any.
    pub(crate) fn free_inactive(&self) -> bool {
        self.memory.free_inactive()
    }

    /// Bytes of memory that it holds.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.held_bytes() + self.disk.as_ref().map_or(0, DiskTier::waiting_bytes)
    }

    /// Bytes of disk that it holds.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk.as_ref().map_or(0, DiskTier::held_bytes)
    }

    /// Waits until everything that was put is on disk.
    pub(crate) async fn flush(&self) {
        if let Some(disk) = &self.disk {
            disk.flush().await;
        }
    }
}
