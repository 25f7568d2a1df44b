//! The memory tier.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use super::eviction::EvictionQueue;
use super::ledger::{Ledger, LedgerColumn};
use super::rows::{CacheValues, CachedRow, Prefix};

/// Bytes that a row needs in addition to its size: entries of maps, its reference count, and the overhead of the
/// allocator.
const ROW_OVERHEAD_BYTES: u64 = 128;

#[derive(Debug)]
pub(super) struct MemoryTier {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    room: EvictionQueue,
    prefixes: BTreeMap<Prefix, Kept>,
}

/// The rows of one prefix.
#[derive(Debug, Default)]
struct Kept {
    rows: HashMap<u64, Bytes>,
    /// The ids of all rows, for fast eviction.
    ids: Vec<u64>,
}

impl MemoryTier {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        let state = State { room: EvictionQueue::new(capacity_bytes), prefixes: BTreeMap::new() };
        Self { state: Mutex::new(state) }
    }

    /// Counts the bytes of tenants in a ledger that other tiers share.
    pub(super) fn counted_in(self, ledger: &Arc<Ledger>) -> Self {
        self.lock().room.count_in(ledger, LedgerColumn::Memory);
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the cached rows")
    }

    pub(super) fn get(&self, prefix: Prefix, rows: &[u64]) -> Vec<Option<Bytes>> {
        let state = self.lock();
        let kept = state.prefixes.get(&prefix);
        rows.iter().map(|row| kept?.rows.get(row).cloned()).collect()
    }

    /// Stores rows, and evicts other rows if necessary.
    pub(super) fn put(&self, prefix: Prefix, mut rows: Vec<CachedRow>) {
        let mut state = self.lock();
        let kept = state.prefixes.get(&prefix);
        rows.retain(|(row, _)| kept.is_none_or(|kept| !kept.rows.contains_key(row)));
        let bytes = state.room.admit(prefix, &mut rows, (ROW_OVERHEAD_BYTES, 0));
        if rows.is_empty() {
            return;
        }
        let gone = state.make_room(prefix, bytes);
        let State { room, prefixes } = &mut *state;
        let kept = prefixes.entry(prefix).or_default();
        for (row, bytes) in rows {
            let size = size(&bytes);
            if kept.rows.insert(row, bytes).is_none() {
                kept.ids.push(row);
                room.add(prefix, size);
            }
        }
        // Free the memory of evicted rows after the lock.
        drop(state);
        drop(gone);
    }

    /// Whether the tier seems to have capacity for more rows of a prefix.
    pub(super) fn has_room(&self, prefix: Prefix) -> bool {
        self.lock().room.has_room(prefix)
    }

    pub(super) fn set_active(&self, worth: Arc<CacheValues>) {
        self.lock().room.set_active(&worth);
    }

    /// Evicts all rows that no running job uses. Returns whether there were any.
    pub(super) fn free_inactive(&self) -> bool {
        let mut state = self.lock();
        let mut gone = Vec::new();
        for prefix in state.room.inactive() {
            gone.extend(state.prefixes.remove(&prefix));
            state.room.clear(prefix);
        }
        drop(state);
        !gone.is_empty()
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.lock().room.held_bytes()
    }

    /// The capacity in bytes.
    pub(super) fn room_bytes(&self) -> u64 {
        self.lock().room.capacity_bytes()
    }
}

impl State {
    /// Removes rows that can be evicted for rows of a prefix, until this number of bytes is free.
    fn make_room(&mut self, wanted: Prefix, bytes: u64) -> Vec<Bytes> {
        let Self { room, prefixes } = self;
        let mut gone = Vec::new();
        while room.missing_bytes(bytes) > 0
            && let Some(victim) = room.next_victim(wanted)
            && let Some(kept) = prefixes.get_mut(&victim)
        {
            while room.missing_bytes(bytes) > 0
                && let Some(row) = kept.pop()
            {
                room.remove(victim, size(&row));
                gone.push(row);
            }
            if kept.rows.is_empty() {
                prefixes.remove(&victim);
            } else {
                kept.shrink();
            }
        }
        gone
    }
}

impl Kept {
    fn pop(&mut self) -> Option<Bytes> {
        let row = self.ids.pop()?;
        self.rows.remove(&row)
    }

    /// Shrinks the maps once most rows are evicted: each eviction pays for a few rows that are moved.
    fn shrink(&mut self) {
        if self.rows.len() < self.rows.capacity() / 4 {
            self.rows.shrink_to(2 * self.rows.len());
            self.ids.shrink_to(2 * self.ids.len());
        }
    }
}

fn size(row: &Bytes) -> u64 {
    row.len() as u64 + ROW_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests;
