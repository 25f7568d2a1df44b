//! Rows in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use super::{Prefix, Row};

/// Bytes that a row takes beside its own: its place in the map, its reference count, the allocator's share.
const ROW_OVERHEAD_BYTES: u64 = 128;

#[derive(Debug)]
pub(super) struct MemoryTier {
    capacity_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    prefixes: BTreeMap<Prefix, Kept>,
    bytes: u64,
    active: Arc<BTreeSet<Prefix>>,
    /// A row has not found room since rows left last.
    full: bool,
}

#[derive(Debug, Default)]
struct Kept {
    rows: HashMap<u64, Bytes>,
    bytes: u64,
}

impl MemoryTier {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the kept rows")
    }

    pub(super) fn get(&self, prefix: Prefix, rows: &[u64]) -> Vec<Option<Bytes>> {
        let state = self.lock();
        let kept = state.prefixes.get(&prefix);
        rows.iter().map(|row| kept?.rows.get(row).cloned()).collect()
    }

    pub(super) fn put(&self, prefix: Prefix, rows: Vec<Row>) {
        let mut state = self.lock();
        for (row, bytes) in rows {
            let size = bytes.len() as u64 + ROW_OVERHEAD_BYTES;
            if state.bytes + size > self.capacity_bytes {
                state.free_inactive();
            }
            if state.bytes + size > self.capacity_bytes {
                state.full = true;
                return;
            }
            let kept = state.prefixes.entry(prefix).or_default();
            if kept.rows.insert(row, bytes).is_none() {
                kept.bytes += size;
                state.bytes += size;
            }
        }
    }

    pub(super) fn has_room(&self) -> bool {
        let state = self.lock();
        !state.full || state.has_inactive()
    }

    pub(super) fn set_active(&self, active: Arc<BTreeSet<Prefix>>) {
        self.lock().active = active;
    }

    pub(super) fn free_inactive(&self) -> bool {
        self.lock().free_inactive()
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.lock().bytes
    }
}

impl State {
    fn has_inactive(&self) -> bool {
        self.prefixes.keys().any(|prefix| !self.active.contains(prefix))
    }

    fn free_inactive(&mut self) -> bool {
        let before = self.bytes;
        let Self { prefixes, bytes, active, full } = self;
        prefixes.retain(|prefix, kept| {
            let keep = active.contains(prefix);
            *bytes -= if keep { 0 } else { kept.bytes };
            keep
        });
        *full &= *bytes == before;
        *bytes < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: u64, length: usize) -> Row {
        (id, Bytes::from(vec![id as u8; length]))
    }

    fn active(tier: &MemoryTier, prefixes: impl IntoIterator<Item = Prefix>) {
        tier.set_active(Arc::new(prefixes.into_iter().collect()));
    }

    #[test]
    fn a_full_tier_keeps_what_it_has_until_its_jobs_end() {
        let tier = MemoryTier::new(3 * (1000 + ROW_OVERHEAD_BYTES));
        active(&tier, [1]);
        tier.put(1, (0..5).map(|id| row(id, 1000)).collect());
        let found: Vec<bool> = tier.get(1, &[4, 2, 1, 0]).iter().map(Option::is_some).collect();
        assert_eq!(found, [false, true, true, true]);
        assert!(!tier.has_room());
        active(&tier, [1, 2]);
        tier.put(2, vec![row(0, 1000)]);
        assert_eq!(tier.get(2, &[0]), [None]);
        active(&tier, [2]);
        assert!(tier.has_room(), "the first job's rows can go");
        tier.put(2, vec![row(0, 1000)]);
        assert_eq!(tier.get(2, &[0]), [Some(row(0, 1000).1)]);
        assert_eq!(tier.get(1, &[0]), [None]);
        assert_eq!(tier.held_bytes(), 1000 + ROW_OVERHEAD_BYTES);
    }

    #[test]
    fn a_row_that_is_put_twice_counts_once() {
        let tier = MemoryTier::new(1 << 20);
        tier.put(1, vec![row(7, 10), row(7, 10)]);
        assert_eq!(tier.held_bytes(), 10 + ROW_OVERHEAD_BYTES);
        assert!(tier.free_inactive());
        assert_eq!(tier.held_bytes(), 0);
        assert!(!tier.free_inactive());
    }
}
