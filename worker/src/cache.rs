//! The row caches of a worker: in memory, on disk and in the object store. A cache point stores the rows that the operators
//! before it computed.
//!
//! The key of a row is a prefix and a row id. The prefix is a fingerprint of the dataset and of the operators before
//! the cache point, so that jobs with the same dataset and operators share rows. A cache never evicts rows to store
//! other rows with the same prefix. If a dataset is larger than the cache, each pass therefore finds some of its rows.
//! An LRU policy would evict every row before the next pass reads it. Rows with other prefixes are evicted if they save
//! less time per byte.

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
pub(crate) use self::disk::claim_part;
use self::ledger::Ledger;
use self::memory::MemoryTier;
pub(crate) use self::rows::{CacheValues, CachedRow, Prefix, Tenant, TenantCacheLimit};
use self::store::StoreTier;
use crate::metrics;
use crate::settings::{RowCacheSettings, StoreCacheSettings};

/// The cache tiers of one worker.
#[derive(Debug)]
pub(crate) struct Caches {
    memory: MemoryTier,
    disk: Option<DiskTier>,
    /// Whether the planner may cache rows on disk.
    can_plan_disk: bool,
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
        let can_plan_disk = disk.as_ref().is_some_and(|disk| disk.allows_planned_caches);
        let disk = disk.map(DiskTier::new).transpose()?;
        Ok(Self {
            memory: MemoryTier::new(memory_bytes).with_ledger(&ledger),
            can_plan_disk,
            disk: disk.map(|disk| disk.with_ledger(&ledger)),
            store: store.map(|(settings, stores)| StoreTier::new(settings, stores)),
        })
    }

    /// Loads the index of the rows that are already stored on disk or in the object store.
    ///
    /// # Errors
    /// Returns an error if the worker does not have this tier, or cannot read its files.
    pub(crate) async fn open(&self, prefix: Prefix, tier: CacheTier) -> Result<(), String> {
        match (tier, &self.disk) {
            (CacheTier::Memory, _) => Ok(()),
            (CacheTier::Disk, Some(disk)) => disk.open(prefix).await,
            (CacheTier::Disk, None) => Err(
                "the pipeline caches rows on disk, but this worker has no cache directory: start the worker with --cache-dir, \
                 or write `cache: {tier: memory}` in the pipeline"
                    .to_owned(),
            ),
            (CacheTier::Store, _) => match &self.store {
                Some(store) => store.open(prefix).await,
                None => Err(
                    "the pipeline caches rows in an object store, but this worker has no cache URL: start the worker with \
                     --cache-store URL, or write `cache: {tier: memory}` in the pipeline"
                        .to_owned(),
                ),
            },
        }
    }

    /// Returns the cached rows in the order of `rows`. A missing row is `None`.
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

    /// Stores the rows that fit into the tier.
    pub(crate) fn put(&self, prefix: Prefix, tier: CacheTier, rows: Vec<CachedRow>) {
        match (tier, &self.disk, &self.store) {
            (CacheTier::Disk, Some(disk), _) => disk.put(prefix, rows),
            (CacheTier::Store, _, Some(store)) => store.put(prefix, rows),
            _ => self.memory.put(prefix, rows),
        }
    }

    /// Whether the tier probably has space for another row of the prefix.
    pub(crate) fn has_room(&self, prefix: Prefix, tier: CacheTier) -> bool {
        match (tier, &self.disk, &self.store) {
            (CacheTier::Disk, Some(disk), _) => disk.has_room(prefix),
            (CacheTier::Store, _, Some(store)) => store.has_room(),
            _ => self.memory.has_room(prefix),
        }
    }

    /// Sets the prefixes of the running jobs and the values of their rows. Rows of other prefixes are evicted first, and then
    /// the rows with the smallest value.
    pub(crate) fn set_active(&self, values: CacheValues) {
        if let Some(store) = &self.store {
            store.set_active(Arc::new(values.keys().copied().collect()));
        }
        let values = Arc::new(values);
        if let Some(disk) = &self.disk {
            disk.set_active(Arc::clone(&values));
        }
        self.memory.set_active(values);
    }

    /// Returns the capacity and usage of each tier that the planner may use.
    pub(crate) fn capacities(&self) -> Vec<TierCapacity> {
        let capacity = |tier, room_bytes, held_bytes| TierCapacity {
            tier,
            capacity_bytes: room_bytes,
            used_bytes: held_bytes,
        };
        let memory = capacity(CacheTier::Memory, self.memory.capacity_bytes(), self.memory.held_bytes());
        let disk = self.disk.as_ref().filter(|disk| self.can_plan_disk && disk.is_usable());
        let disk = disk.map(|disk| capacity(CacheTier::Disk, disk.capacity_bytes(), disk.held_bytes()));
        let store = self.store.as_ref();
        let store = store.map(|store| capacity(CacheTier::Store, store.capacity_bytes(), store.held_bytes()));
        [Some(memory), disk, store].into_iter().flatten().collect()
    }

    /// Evicts the rows in memory that no running job uses. Returns whether rows were evicted.
    pub(crate) fn free_inactive(&self) -> bool {
        self.memory.free_inactive()
    }

    /// Memory that all tiers use, including rows that are not yet written to disk or the object store.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let disk = self.disk.as_ref().map_or(0, DiskTier::pending_bytes);
        self.memory.held_bytes() + disk + self.store.as_ref().map_or(0, StoreTier::pending_bytes)
    }

    /// Disk space that the disk tier uses.
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

/// Parses `bytes` as a segment on disk, written to `folder`, and as a segment in the object store.
pub(crate) fn read_cached_rows(folder: &std::path::Path, bytes: &[u8]) {
    disk::read_arbitrary_bytes(folder, bytes);
    store::read_arbitrary_bytes(bytes);
}

/// The values of prefixes without a `cache` operator.
#[cfg(test)]
fn planned(values: impl IntoIterator<Item = (Prefix, f64)>) -> CacheValues {
    let value = |saved_s_per_byte| rows::CacheValue { saved_s_per_byte, ..Default::default() };
    values.into_iter().map(|(prefix, saved)| (prefix, value(saved))).collect()
}
