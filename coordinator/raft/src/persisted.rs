//! What a member has on disk, and what it wants written there.

use feedline_cluster::records::Record;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};

use crate::entry::EntryPayload;
use crate::members::{MemberId, Members};
use crate::snapshot::ClusterSnapshot;

/// Index and term of the state that the first members start with.
const FIRST: u64 = 1;

/// What a member has on disk: from it a member starts again.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PersistedState {
    /// Term, vote and commit.
    pub hard_state: HardState,
    /// The state up to an index; index 0 where there is none.
    pub snapshot: Snapshot,
    /// The entries behind it.
    pub entries: Vec<Entry>,
}

/// Something to be written, as a whole or not at all, behind everything before it.
#[derive(Debug, Clone, PartialEq)]
pub enum LogWrite {
    /// Adds to what is there.
    Append {
        /// The number to give to `RaftNode::written`.
        number: u64,
        /// Term, vote and commit, where they have changed.
        hard_state: Option<HardState>,
        /// Entries; those that the log has from the first one's index on are replaced.
        entries: Vec<Entry>,
    },
    /// Replaces what is there by something that stands for it. Where that fails the old may stay, and is added to.
    Compact(Box<PersistedState>),
    /// Replaces what is there by a leader's snapshot.
    Install {
        /// The number to give to `RaftNode::written`.
        number: u64,
        /// What is there from now on.
        stored: Box<PersistedState>,
    },
}

impl LogWrite {
    /// The number to give to `RaftNode::written`; `None` where nobody waits for it.
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Append { number, .. } | Self::Install { number, .. } => Some(*number),
            Self::Compact(_) => None,
        }
    }
}

impl LogWrite {
    /// Records that are decided by what it appends, for those who look into a log.
    pub fn records(&self) -> Vec<Record> {
        let Self::Append { entries, .. } = self else { return Vec::new() };
        let records = |entry: &Entry| match EntryPayload::from_bytes(&entry.data) {
            Ok(EntryPayload::Decided(records)) => records,
            _ => Vec::new(),
        };
        entries.iter().flat_map(records).collect()
    }
}

impl PersistedState {
    /// What the first members of a cluster start with; the same for all.
    pub fn founded_by(members: &Members) -> Self {
        let mut stored = Self::default();
        stored.hard_state.term = FIRST;
        stored.hard_state.commit = FIRST;
        let voters = members.ids().map(MemberId::get).collect();
        let conf_state = ConfState { voters, ..ConfState::default() };
        stored.snapshot.data = ClusterSnapshot::founded_by(members.clone()).to_bytes().into();
        let meta = stored.snapshot.mut_metadata();
        (meta.index, meta.term) = (FIRST, FIRST);
        meta.set_conf_state(conf_state);
        stored
    }

    /// Whether there is nothing: this member was never part of a cluster.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Takes a write as a disk does.
    pub fn take(&mut self, write: LogWrite) {
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
            let behind = first.index.saturating_sub(self.snapshot.get_metadata().index.saturating_add(1));
            self.entries.truncate(behind as usize);
        }
        self.entries.extend(entries);
    }

    /// Whether entries follow each other and the snapshot; else what is wrong, in one clause.
    pub(crate) fn check(&self) -> Result<(), String> {
        let start = self.snapshot.get_metadata().index;
        let Some(last) = start.checked_add(self.entries.len() as u64) else {
            return Err(format!("entry {start} leaves no numbers to those behind it"));
        };
        for (place, entry) in self.entries.iter().enumerate() {
            let expected = start + 1 + place as u64;
            if entry.index != expected {
                return Err(format!("entry {} stands where entry {expected} belongs", entry.index));
            }
        }
        if self.hard_state.commit > last {
            return Err(format!(
                "entry {} was committed, and entry {last} is the last one there",
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
    fn numbers_that_nothing_can_follow_are_told() {
        let mut stored = PersistedState::default();
        stored.snapshot.mut_metadata().index = u64::MAX;
        let entry = Entry { index: 1, ..Entry::default() };
        stored.take(LogWrite::Append { number: 0, hard_state: None, entries: vec![entry] });
        let error = stored.check().unwrap_err();
        assert!(error.contains("leaves no numbers"), "{error}");
    }
}
