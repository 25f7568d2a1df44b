//! Cached rows of pipelines: each row as the operators before the cache computed it, in memory, on disk or in the
//! object store.
//!
//! Rows are stored under a fingerprint of their data and operators, the prefix, so that every job with the same data
//! and the same operators before its cache finds them. A row is stored as a whole or not at all. A full cache never
//! evicts rows of a prefix for rows of the same prefix: a pass over a dataset that is too large then finds a part of
//! its rows, while evicting the oldest rows would leave none of them. Rows of other prefixes are evicted for rows
//! that save more time for each byte.

mod disk;
mod eviction;
mod format_version;
mod ledger;
mod memory;
mod rows;
mod store;

use std::sync::Arc;

use bytes::Bytes;
use feedline_data::messages::TierCapacity;
use feedline_data::pipeline::CacheTier;
use feedline_sources::Stores;

use self::disk::DiskTier;
use self::ledger::Ledger;
use self::memory::MemoryTier;
pub(crate) use self::rows::{CacheValues, CachedRow, Prefix, Tenant};
use self::store::StoreTier;
use crate::metrics;
use crate::settings::{RowCacheSettings, StoreCacheSettings};

/// The cache tiers of one worker.
#[derive(Debug)]
pub(crate) struct Caches {
    memory: MemoryTier,
    disk: Option<DiskTier>,
    /// Whether a plan may cache rows on disk.
    is_disk_for_plans: bool,
    store: Option<StoreTier>,
}

impl Caches {
    /// Creates the tiers. The memory tier holds up to `memory_bytes`.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub(crate) fn new(
        memory_bytes: u64,
        disk: Option<RowCacheSettings>,
        store: Option<(StoreCacheSettings, Arc<Stores>)>,
    ) -> std::io::Result<Self> {
        let ledger = Arc::new(Ledger::default());
        let is_disk_for_plans = disk.as_ref().is_some_and(|disk| disk.is_for_plans);
        let disk = disk.map(DiskTier::new).transpose()?;
        Ok(Self {
            memory: MemoryTier::new(memory_bytes).counted_in(&ledger),
            is_disk_for_plans,
            disk: disk.map(|disk| disk.counted_in(&ledger)),
            store: store.map(|(place, stores)| StoreTier::new(place, stores)),
        })
    }

    /// Loads the rows of a prefix that an earlier life of this worker stored.
    ///
    /// # Errors
    /// Returns a message if the worker does not have the tier, or cannot read its files.
    pub(crate) async fn open(&self, prefix: Prefix, tier: CacheTier) -> Result<(), String> {
        match (tier, &self.disk) {
            (CacheTier::Memory, _) => Ok(()),
            (CacheTier::Disk, Some(disk)) => disk.open(prefix).await,
            (CacheTier::Disk, None) => Err(
                "the pipeline's cache is on disk, and this worker has none: start it with --cache-dir, or \
                     write `cache: {tier: memory}`"
                    .to_owned(),
            ),
            (CacheTier::Store, _) => match &self.store {
                Some(store) => store.open(prefix).await,
                None => Err(
                    "the pipeline's cache is in the object store, and this worker knows no place there: start it with \
                     --cache-store URL, or write `cache: {tier: memory}`"
                        .to_owned(),
                ),
            },
        }
    }

    /// Returns cached rows of a prefix, in the order of the ids; `None` for a missing row.
    pub(crate) async fn get(&self, prefix: Prefix, tier: CacheTier, rows: Vec<u64>) -> Vec<Option<Bytes>> {
        let found = match (tier, &self.disk, &self.store) {
            (CacheTier::Disk, Some(disk), _) => disk.get(prefix, rows).await,
            (CacheTier::Store, _, Some(store)) => store.get(prefix, rows).await,
            _ => self.memory.get(prefix, &rows),
        };
        let hits = found.iter().filter(|row| row.is_some()).count();
        metrics::count_cache(tier.name(), hits, found.len() - hits);
        found
    }

    /// Stores rows, as far as the tier has capacity.
    pub(crate) fn put(&self, prefix: Prefix, tier: CacheTier, rows: Vec<CachedRow>) {
        match (tier, &self.disk, &self.store) {
            (CacheTier::Disk, Some(disk), _) => disk.put(prefix, rows),
            (CacheTier::Store, _, Some(store)) => store.put(prefix, rows),
            _ => self.memory.put(prefix, rows),
        }
    }

    /// Whether the tier seems to have capacity for more rows of a prefix.
    pub(crate) fn has_room(&self, prefix: Prefix, tier: CacheTier) -> bool {
        match (tier, &self.disk, &self.store) {
            (CacheTier::Disk, Some(disk), _) => disk.has_room(prefix),
            (CacheTier::Store, _, Some(store)) => store.has_room(),
            _ => self.memory.has_room(prefix),
        }
    }

    /// Sets the prefixes of running jobs, with the value of their rows. Rows of other prefixes are evicted first,
    /// then those with the smallest value.
    pub(crate) fn set_active(&self, worth: CacheValues) {
        if let Some(store) = &self.store {
            store.set_active(Arc::new(worth.keys().copied().collect()));
        }
        let worth = Arc::new(worth);
        if let Some(disk) = &self.disk {
            disk.set_active(Arc::clone(&worth));
        }
        self.memory.set_active(worth);
    }

    /// The capacity of each tier that plans may use, and how much of it is used.
    pub(crate) fn rooms(&self) -> Vec<TierCapacity> {
        let room = |tier, (room_bytes, held_bytes)| TierCapacity { tier, room_bytes, held_bytes };
        let memory = room(CacheTier::Memory, (self.memory.room_bytes(), self.memory.held_bytes()));
        let disk = self
            .disk
            .as_ref()
            .filter(|disk| self.is_disk_for_plans && disk.is_usable())
            .map(|disk| (disk.room_bytes(), disk.held_bytes()));
        let store = self.store.as_ref().map(|store| (store.room_bytes(), store.held_bytes()));
        let disk = disk.map(|bytes| room(CacheTier::Disk, bytes));
        let store = store.map(|bytes| room(CacheTier::Store, bytes));
        [Some(memory), disk, store].into_iter().flatten().collect()
    }

    /// Evicts rows in memory that no running job uses. Returns whether there were any.
    pub(crate) fn free_inactive(&self) -> bool {
        self.memory.free_inactive()
    }

    /// Bytes of memory that all tiers hold.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let disk = self.disk.as_ref().map_or(0, DiskTier::waiting_bytes);
        self.memory.held_bytes() + disk + self.store.as_ref().map_or(0, StoreTier::waiting_bytes)
    }

    /// Bytes of disk that the disk tier holds.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk.as_ref().map_or(0, DiskTier::held_bytes)
    }

    /// Waits until all stored rows are on disk or in the object store.
    pub(crate) async fn flush(&self) {
        if let Some(disk) = &self.disk {
            disk.flush().await;
        }
        if let Some(store) = &self.store {
            store.flush().await;
        }
    }
}

/// Reads `bytes` as a file of rows on disk, in `folder`, and as a segment in the object store.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_kept_rows(folder: &std::path::Path, bytes: &[u8]) {
    disk::read_any(folder, bytes);
    store::read_any(bytes);
}

/// The values of prefixes that only plans cache.
#[cfg(test)]
fn planned(worths: impl IntoIterator<Item = (Prefix, f64)>) -> CacheValues {
    let value = |saved_s_per_byte| rows::CacheValue { saved_s_per_byte, ..Default::default() };
    worths.into_iter().map(|(prefix, worth)| (prefix, value(worth))).collect()
}
