//! The memory tier.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use super::eviction::EvictionQueue;
use super::ledger::{Ledger, LedgerColumn};
use super::rows::{CacheValues, CachedRow, Prefix};

/// Memory that a row needs in addition to its bytes: map entries, a reference count, and the overhead of the allocator.
const ROW_OVERHEAD_BYTES: u64 = 128;

#[derive(Debug)]
pub(super) struct MemoryTier {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    evictions: EvictionQueue,
    prefixes: BTreeMap<Prefix, PrefixRows>,
}

/// The rows of one prefix.
#[derive(Debug, Default)]
struct PrefixRows {
    rows: HashMap<u64, Bytes>,
    /// The ids of all rows. Eviction removes the last id without a search.
    ids: Vec<u64>,
}

impl MemoryTier {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        let state = State { evictions: EvictionQueue::new(capacity_bytes), prefixes: BTreeMap::new() };
        Self { state: Mutex::new(state) }
    }

    /// Counts each tenant's bytes in a ledger that all tiers share.
    pub(super) fn with_ledger(self, ledger: &Arc<Ledger>) -> Self {
        self.lock().evictions.use_ledger(ledger, LedgerColumn::Memory);
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the cached rows")
    }

    pub(super) fn get(&self, prefix: Prefix, rows: &[u64]) -> Vec<Option<Bytes>> {
        let state = self.lock();
        let stored = state.prefixes.get(&prefix);
        rows.iter().map(|row| stored?.rows.get(row).cloned()).collect()
    }

    /// Stores rows, and evicts other rows if necessary.
    pub(super) fn put(&self, prefix: Prefix, mut rows: Vec<CachedRow>) {
        let mut state = self.lock();
        let stored = state.prefixes.get(&prefix);
        rows.retain(|(row, _)| stored.is_none_or(|stored| !stored.rows.contains_key(row)));
        let bytes = state.evictions.admit(prefix, &mut rows, (ROW_OVERHEAD_BYTES, 0));
        if rows.is_empty() {
            return;
        }
        let evicted = state.make_room(prefix, bytes);
        let State { evictions, prefixes } = &mut *state;
        let stored = prefixes.entry(prefix).or_default();
        let held_bytes = evictions.held_bytes();
        for (row, bytes) in rows {
            let charged_bytes = charged_bytes(&bytes);
            if stored.rows.insert(row, bytes).is_none() {
                stored.ids.push(row);
                evictions.add(prefix, charged_bytes);
            }
        }
        evictions.count_stored(evictions.held_bytes() - held_bytes);
        // Release the lock before the memory of the evicted rows is freed.
        drop(state);
        drop(evicted);
    }

    pub(super) fn has_room(&self, prefix: Prefix) -> bool {
        self.lock().evictions.has_room(prefix)
    }

    pub(super) fn set_active(&self, values: Arc<CacheValues>) {
        self.lock().evictions.set_active(&values);
    }

    /// Evicts all rows that no running job uses. Returns whether rows were evicted.
    pub(super) fn free_inactive(&self) -> bool {
        let mut state = self.lock();
        let mut evicted = Vec::new();
        for prefix in state.evictions.inactive_prefixes() {
            evicted.extend(state.prefixes.remove(&prefix));
            state.evictions.clear(prefix);
        }
        drop(state);
        !evicted.is_empty()
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.lock().evictions.held_bytes()
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.lock().evictions.capacity_bytes()
    }
}

impl State {
    /// Evicts rows until `bytes` bytes are free for rows of the prefix `wanted`, or no more rows can be evicted. Returns the
    /// evicted rows.
    fn make_room(&mut self, wanted: Prefix, bytes: u64) -> Vec<Bytes> {
        let Self { evictions, prefixes } = self;
        let mut evicted = Vec::new();
        while evictions.missing_bytes(bytes) > 0
            && let Some(victim) = evictions.next_victim(wanted)
            && let Some(stored) = prefixes.get_mut(&victim)
        {
            let held_bytes = evictions.held_bytes();
            while evictions.missing_bytes(bytes) > 0
                && let Some(row) = stored.pop()
            {
                evictions.remove(victim, charged_bytes(&row));
                evicted.push(row);
            }
            evictions.count_evicted(victim, held_bytes - evictions.held_bytes());
            if stored.rows.is_empty() {
                prefixes.remove(&victim);
            } else {
                stored.shrink();
            }
        }
        evicted
    }
}

impl PrefixRows {
    fn pop(&mut self) -> Option<Bytes> {
        let row = self.ids.pop()?;
        self.rows.remove(&row)
    }

    /// Shrinks the maps when fewer than a quarter of their entries are used. The cost of a shrink is amortized over the evictions.
    fn shrink(&mut self) {
        if self.rows.len() < self.rows.capacity() / 4 {
            self.rows.shrink_to(2 * self.rows.len());
            self.ids.shrink_to(2 * self.ids.len());
        }
    }
}

/// The number of bytes that a row counts against the capacity.
fn charged_bytes(row: &Bytes) -> u64 {
    row.len() as u64 + ROW_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests;
