//! The applied state of a member, and its snapshots.

use feedline_cluster::records::Record;
use feedline_cluster::{Cluster, ReplicatedState};
use feedline_data::ids::Millis;
use serde::{Deserialize, Serialize};

use crate::entry::EntryPayload;
use crate::members::{MemberId, Members};

/// Version of the snapshot format. A snapshot without a version has version 1.
const SNAPSHOT_VERSION: u32 = 1;

/// Maximum number of removed ids in the state. The oldest are forgotten.
const MAX_REMOVED_MEMBERS: usize = 1024;

/// The contents of a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClusterSnapshot {
    #[serde(default = "first_version")]
    version: u32,
    pub(crate) members: Members,
    /// The ids of removed members, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    removed: Vec<MemberId>,
    /// The incarnation of the last leader's state machine.
    #[serde(rename = "life")]
    pub(crate) incarnation: u64,
    pub(crate) records: Vec<Record>,
}

impl ClusterSnapshot {
    pub(crate) fn bootstrap(members: Members) -> Self {
        Self { version: SNAPSHOT_VERSION, members, removed: Vec::new(), incarnation: 0, records: Vec::new() }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("records can be encoded as JSON")
    }

    /// Decodes a snapshot. The error is part of a sentence.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let unreadable = |error: serde_json::Error| format!("invalid snapshot: {error}");
        let SnapshotVersion { version } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if version != SNAPSHOT_VERSION {
            return Err(format!(
                "a snapshot has version {version}, but this release reads version {SNAPSHOT_VERSION}: \
                 start the coordinator with the release that wrote it"
            ));
        }
        serde_json::from_slice(bytes).map_err(unreadable)
    }
}

/// The version of a snapshot, which is decoded first.
#[derive(Deserialize)]
struct SnapshotVersion {
    #[serde(default = "first_version")]
    version: u32,
}

fn first_version() -> u32 {
    1
}

/// The state after all applied entries.
#[derive(Debug)]
pub(crate) struct AppliedState {
    settings: feedline_cluster::ClusterSettings,
    replicated: ReplicatedState,
    pub(crate) members: Members,
    /// The ids of removed members, oldest first. They can neither vote nor join again.
    pub(crate) removed: Vec<MemberId>,
    pub(crate) incarnation: u64,
    /// Index of the last applied entry.
    pub(crate) index: u64,
}

impl AppliedState {
    pub(crate) fn new(settings: feedline_cluster::ClusterSettings) -> Self {
        let replicated = ReplicatedState::new(settings.clone());
        let (members, removed) = (Members::default(), Vec::new());
        Self { settings, replicated, members, removed, incarnation: 0, index: 0 }
    }

    /// Replaces the state with a snapshot.
    pub(crate) fn install(&mut self, index: u64, data: &[u8]) -> Result<(), String> {
        let snapshot = ClusterSnapshot::from_bytes(data)?;
        self.replicated = ReplicatedState::new(self.settings.clone());
        for record in &snapshot.records {
            self.replicated.apply(record);
        }
        (self.members, self.removed) = (snapshot.members, snapshot.removed);
        (self.incarnation, self.index) = (snapshot.incarnation, index);
        Ok(())
    }

    /// Removes a member for good.
    pub(crate) fn remove_member(&mut self, id: MemberId) {
        if self.members.0.remove(&id).is_some() {
            self.removed.push(id);
            let excess = self.removed.len().saturating_sub(MAX_REMOVED_MEMBERS);
            self.removed.drain(..excess);
        }
    }

    /// Applies an entry.
    pub(crate) fn apply(&mut self, payload: &EntryPayload) {
        match payload {
            // The incarnation increases even if the clocks of the hosts differ.
            EntryPayload::Lead { incarnation } => self.incarnation = (self.incarnation + 1).max(*incarnation),
            EntryPayload::Records(records) => records.iter().for_each(|record| self.replicated.apply(record)),
        }
    }

    pub(crate) fn snapshot(&self) -> ClusterSnapshot {
        ClusterSnapshot {
            version: SNAPSHOT_VERSION,
            members: self.members.clone(),
            removed: self.removed.clone(),
            incarnation: self.incarnation,
            records: self.replicated.snapshot(),
        }
    }

    /// Returns a state machine that continues from this state.
    pub(crate) fn to_leader(&self, incarnation: u64, now: Millis) -> Cluster {
        self.replicated.to_leader(incarnation, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_without_a_version_is_read() {
        let snapshot = ClusterSnapshot::bootstrap(Members::default());
        let mut json: serde_json::Value = serde_json::from_slice(&snapshot.to_bytes()).unwrap();
        json.as_object_mut().unwrap().remove("version").unwrap();
        assert_eq!(ClusterSnapshot::from_bytes(json.to_string().as_bytes()), Ok(snapshot));
    }

    #[test]
    fn a_bounded_number_of_removed_members_is_part_of_a_snapshot() {
        let settings = feedline_cluster::ClusterSettings::default();
        let mut state = AppliedState::new(settings.clone());
        let ids: Vec<MemberId> = (1..=MAX_REMOVED_MEMBERS as u64 + 2).filter_map(MemberId::new).collect();
        for id in &ids {
            state.remove_member(*id);
            assert!(state.removed.is_empty(), "it was not a member");
        }
        for id in &ids {
            state.members.0.insert(*id, String::new());
            state.remove_member(*id);
        }
        assert_eq!(state.removed, ids[2..]);
        let mut restored = AppliedState::new(settings);
        restored.install(7, &state.snapshot().to_bytes()).unwrap();
        assert_eq!((restored.removed, restored.index), (state.removed, 7));
    }

    #[test]
    fn a_snapshot_of_another_version_is_rejected_with_both_versions() {
        let rejected = ClusterSnapshot::from_bytes(br#"{"version":99,"other":[]}"#).unwrap_err();
        assert!(rejected.contains("version 99") && rejected.contains("version 1:"), "{rejected}");
    }
}
