//! The persisted state of a member, and the writes that change it.

use feedline_cluster::records::Record;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};

use crate::entry::EntryPayload;
use crate::members::{MemberId, Members};
use crate::snapshot::ClusterSnapshot;

/// Index and term of the snapshot that the first members start from.
const BOOTSTRAP_INDEX: u64 = 1;

/// The persisted state of a member, from which it restarts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PersistedState {
    /// Term, vote and commit.
    pub hard_state: HardState,
    /// The state up to an index. Index 0 means no snapshot.
    pub snapshot: Snapshot,
    /// The entries after the snapshot.
    pub entries: Vec<Entry>,
}

/// An atomic write. Writes are applied in order.
#[derive(Debug, Clone, PartialEq)]
pub enum LogWrite {
    /// Appends to the log.
    Append {
        /// The number for `RaftNode::on_written`.
        number: u64,
        /// Term, vote and commit, if changed.
        hard_state: Option<HardState>,
        /// Entries to append. They replace all existing entries from the index of the first entry onwards.
        entries: Vec<Entry>,
    },
    /// Replaces the log with an equivalent smaller log. If the write fails, the old log stays in use.
    Compact(Box<PersistedState>),
    /// Replaces the log with a snapshot from a leader.
    Install {
        /// The number for `RaftNode::on_written`.
        number: u64,
        /// The new state.
        stored: Box<PersistedState>,
    },
}

impl LogWrite {
    /// Returns the number for `RaftNode::on_written`; `None` for a compaction.
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Append { number, .. } | Self::Install { number, .. } => Some(*number),
            Self::Compact(_) => None,
        }
    }

    /// Returns the records in the appended entries, for tools that read a log.
    pub fn records(&self) -> Vec<Record> {
        let Self::Append { entries, .. } = self else { return Vec::new() };
        let records = |entry: &Entry| match EntryPayload::from_bytes(&entry.data) {
            Ok(EntryPayload::Records(records)) => records,
            _ => Vec::new(),
        };
        entries.iter().flat_map(records).collect()
    }
}

impl PersistedState {
    /// Returns the state that each of the first members of a cluster starts from.
    pub fn bootstrap(members: &Members) -> Self {
        let mut stored = Self::default();
        stored.hard_state.term = BOOTSTRAP_INDEX;
        stored.hard_state.commit = BOOTSTRAP_INDEX;
        let voters = members.ids().map(MemberId::get).collect();
        let conf_state = ConfState { voters, ..ConfState::default() };
        stored.snapshot.data = ClusterSnapshot::bootstrap(members.clone()).to_bytes().into();
        let meta = stored.snapshot.mut_metadata();
        (meta.index, meta.term) = (BOOTSTRAP_INDEX, BOOTSTRAP_INDEX);
        meta.set_conf_state(conf_state);
        stored
    }

    /// Returns whether this member was never part of a cluster.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Applies a write.
    pub fn apply(&mut self, write: LogWrite) {
        match write {
            LogWrite::Append { hard_state, entries, .. } => {
                if let Some(hard_state) = hard_state {
                    self.hard_state = hard_state;
                }
                self.append(entries);
            }
            LogWrite::Compact(stored) | LogWrite::Install { stored, .. } => *self = *stored,
        }
    }

    fn append(&mut self, entries: Vec<Entry>) {
        if let Some(first) = entries.first() {
            let kept = first.index.saturating_sub(self.snapshot.get_metadata().index.saturating_add(1));
            self.entries.truncate(kept as usize);
        }
        self.entries.extend(entries);
    }

    /// Checks that the entries are consecutive and follow the snapshot. The error is part of a sentence.
    pub(crate) fn check(&self) -> Result<(), String> {
        let start = self.snapshot.get_metadata().index;
        let Some(last) = start.checked_add(self.entries.len() as u64) else {
            return Err(format!(
                "the snapshot index {start} is too large: it leaves no indexes for log entries"
            ));
        };
        for (place, entry) in self.entries.iter().enumerate() {
            let expected = start + 1 + place as u64;
            if entry.index != expected {
                return Err(format!("the log contains entry {} instead of entry {expected}", entry.index));
            }
        }
        if self.hard_state.commit > last {
            return Err(format!(
                "entry {} is committed, but the log ends with entry {last}",
                self.hard_state.commit
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_snapshot_index_is_rejected() {
        let mut stored = PersistedState::default();
        stored.snapshot.mut_metadata().index = u64::MAX;
        let entry = Entry { index: 1, ..Entry::default() };
        stored.apply(LogWrite::Append { number: 0, hard_state: None, entries: vec![entry] });
        let error = stored.check().unwrap_err();
        assert!(error.contains("leaves no indexes"), "{error}");
    }
}
