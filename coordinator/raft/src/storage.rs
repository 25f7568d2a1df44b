//! The log in memory, for reads by raft. Compaction limits its size. [`crate::log`] stores the log on disk.

use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage as RaftStorage, StorageError};

use crate::persisted::PersistedState;

/// The log in memory.
#[derive(Debug)]
pub(crate) struct MemoryStorage {
    hard_state: HardState,
    /// The applied membership.
    conf_state: ConfState,
    snapshot: Snapshot,
    /// Index and term of the entry before the first entry.
    previous: (u64, u64),
    entries: Vec<Entry>,
}

impl MemoryStorage {
    pub(crate) fn new(stored: PersistedState) -> Self {
        let PersistedState { hard_state, snapshot, entries } = stored;
        let meta = snapshot.get_metadata();
        let (conf_state, previous) = (meta.get_conf_state().clone(), (meta.index, meta.term));
        let mut storage = Self { hard_state, conf_state, snapshot, previous, entries };
        // The commit index on disk may be older.
        storage.hard_state.commit = storage.hard_state.commit.max(previous.0);
        storage.hard_state.term = storage.hard_state.term.max(previous.1);
        storage
    }

    /// Returns the state from which this log can be restored.
    pub(crate) fn stored(&self) -> PersistedState {
        let base = self.snapshot.get_metadata().index;
        let entries = self.entries.iter().filter(|entry| entry.index > base).cloned().collect();
        PersistedState { hard_state: self.hard_state.clone(), snapshot: self.snapshot.clone(), entries }
    }

    /// Returns the term, vote and commit to write to disk.
    pub(crate) fn stored_state(&self) -> HardState {
        self.hard_state.clone()
    }

    pub(crate) fn snapshot_index(&self) -> u64 {
        self.snapshot.get_metadata().index
    }

    pub(crate) fn set_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    pub(crate) fn set_conf_state(&mut self, conf_state: ConfState) {
        self.conf_state = conf_state;
    }

    pub(crate) fn conf_state(&self) -> &ConfState {
        &self.conf_state
    }

    /// Appends entries. They replace all existing entries from the index of the first entry onwards.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let position = first.index.saturating_sub(self.previous.0 + 1) as usize;
        self.entries.truncate(position);
        self.entries.extend_from_slice(entries);
    }

    /// Replaces the log with a snapshot from a leader.
    pub(crate) fn install(&mut self, snapshot: Snapshot) {
        let meta = snapshot.get_metadata();
        self.previous = (meta.index, meta.term);
        self.conf_state = meta.get_conf_state().clone();
        self.hard_state.commit = self.hard_state.commit.max(meta.index);
        self.entries.clear();
        self.snapshot = snapshot;
    }

    /// Installs `data`, the state up to `index`, as the snapshot. Drops the entries before the snapshot except for the last
    /// `kept`, which together have at most `kept_bytes`.
    pub(crate) fn compact(&mut self, index: u64, data: Bytes, kept: u64, kept_bytes: u64) {
        let Ok(term) = self.term(index) else { return };
        let mut snapshot = Snapshot { data, ..Snapshot::default() };
        let meta = snapshot.mut_metadata();
        (meta.index, meta.term) = (index, term);
        meta.set_conf_state(self.conf_state.clone());
        self.snapshot = snapshot;
        let cut = index.saturating_sub(self.last_entries(index, kept, kept_bytes));
        if cut > self.previous.0
            && let Ok(term) = self.term(cut)
        {
            self.entries.drain(..(cut - self.previous.0) as usize);
            self.previous = (cut, term);
        }
    }

    /// Returns the number of the last entries up to `index`, at most `kept` with together at most `kept_bytes`.
    fn last_entries(&self, index: u64, kept: u64, kept_bytes: u64) -> u64 {
        let applied = index.saturating_sub(self.previous.0) as usize;
        let mut bytes = 0;
        let last = self.entries.iter().take(applied).rev().take(kept as usize);
        let fitting = last.take_while(|entry| {
            bytes += entry_bytes(entry);
            bytes <= kept_bytes
        });
        fitting.count() as u64
    }

    fn last(&self) -> u64 {
        self.previous.0 + self.entries.len() as u64
    }
}

/// Returns the size of an entry without the overhead of its encoding.
pub(crate) fn entry_bytes(entry: &Entry) -> u64 {
    (entry.data.len() + entry.context.len()) as u64
}

impl RaftStorage for MemoryStorage {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.previous.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        let position = |index: u64| (index - self.previous.0 - 1) as usize;
        let Some(wanted) = self.entries.get(position(low)..position(high)) else {
            return Err(Error::Store(StorageError::Unavailable));
        };
        let mut entries = wanted.to_vec();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.previous.0 {
            return Ok(self.previous.1);
        }
        let position = index.checked_sub(self.previous.0 + 1).ok_or(Error::Store(StorageError::Compacted))?;
        let entry = self.entries.get(position as usize);
        entry.map(|entry| entry.term).ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.previous.0 + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> Result<Snapshot> {
        if self.snapshot.get_metadata().index < request_index {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        Ok(self.snapshot.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_small_entries_before_a_snapshot_stay() {
        let first_after_compaction = |kept: u64, kept_bytes: u64| {
            let mut storage = MemoryStorage::new(PersistedState::default());
            let entry = |index| Entry { index, data: vec![0; 100].into(), ..Entry::default() };
            storage.append(&(1..=5).map(entry).collect::<Vec<_>>());
            storage.compact(4, Bytes::new(), kept, kept_bytes);
            assert_eq!(storage.last_index().unwrap(), 5);
            storage.first_index().unwrap()
        };
        assert_eq!(first_after_compaction(10, 1_000), 1);
        assert_eq!(first_after_compaction(1, 1_000), 4);
        assert_eq!(first_after_compaction(10, 250), 3);
        assert_eq!(first_after_compaction(10, 99), 5);
    }
}
