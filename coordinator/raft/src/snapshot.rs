//! The replicated state as a member that follows has it, and as a snapshot holds it.

use feedline_cluster::records::Record;
use feedline_cluster::{Cluster, ReplicatedState};
use feedline_data::ids::Millis;
use serde::{Deserialize, Serialize};

use crate::entry::EntryPayload;
use crate::members::Members;

/// Version of a snapshot's form. Snapshots of releases that wrote none have the first.
const SNAPSHOT_VERSION: u32 = 1;

/// A snapshot's contents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClusterSnapshot {
    #[serde(default = "first_version")]
    version: u32,
    pub(crate) members: Members,
    /// Number of the last leader's life.
    pub(crate) life: u64,
    pub(crate) records: Vec<Record>,
}

impl ClusterSnapshot {
    pub(crate) fn founded_by(members: Members) -> Self {
        Self { version: SNAPSHOT_VERSION, members, life: 0, records: Vec::new() }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers, texts and lists of them always have a JSON form")
    }

    /// Reads one; one clause where that cannot be done.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let unreadable = |error: serde_json::Error| format!("a snapshot cannot be read: {error}");
        let SnapshotVersion { version } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if version != SNAPSHOT_VERSION {
            return Err(format!(
                "a snapshot has version {version}, and this release reads version {SNAPSHOT_VERSION}: \
                 start the coordinator with the release that wrote it"
            ));
        }
        serde_json::from_slice(bytes).map_err(unreadable)
    }
}

/// What is read of a snapshot first.
#[derive(Deserialize)]
struct SnapshotVersion {
    #[serde(default = "first_version")]
    version: u32,
}

fn first_version() -> u32 {
    1
}

/// The state after everything that was applied.
#[derive(Debug)]
pub(crate) struct AppliedState {
    settings: feedline_cluster::ClusterSettings,
    standby: ReplicatedState,
    pub(crate) members: Members,
    pub(crate) life: u64,
    /// Index of the last entry in it.
    pub(crate) index: u64,
}

impl AppliedState {
    pub(crate) fn new(settings: feedline_cluster::ClusterSettings) -> Self {
        let standby = ReplicatedState::new(settings.clone());
        Self { settings, standby, members: Members::default(), life: 0, index: 0 }
    }

    /// Begins anew with a snapshot.
    pub(crate) fn install(&mut self, index: u64, data: &[u8]) -> Result<(), String> {
        let snapshot = ClusterSnapshot::from_bytes(data)?;
        self.standby = ReplicatedState::new(self.settings.clone());
        for record in &snapshot.records {
            self.standby.apply(record);
        }
        (self.members, self.life, self.index) = (snapshot.members, snapshot.life, index);
        Ok(())
    }

    /// Takes what an entry says.
    pub(crate) fn apply(&mut self, data: &[u8]) -> Result<EntryPayload, String> {
        let payload = EntryPayload::from_bytes(data)?;
        match &payload {
            // Larger than that of every earlier leader, whatever the clocks of their hosts say.
            EntryPayload::Lead { life } => self.life = (self.life + 1).max(*life),
            EntryPayload::Decided(records) => records.iter().for_each(|record| self.standby.apply(record)),
        }
        Ok(payload)
    }

    pub(crate) fn snapshot(&self) -> ClusterSnapshot {
        ClusterSnapshot {
            version: SNAPSHOT_VERSION,
            members: self.members.clone(),
            life: self.life,
            records: self.standby.snapshot(),
        }
    }

    /// A state machine that goes on from here.
    pub(crate) fn lead(&self, life: u64, now: Millis) -> Cluster {
        self.standby.lead(life, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_without_a_version_is_read() {
        let snapshot = ClusterSnapshot::founded_by(Members::default());
        let mut json: serde_json::Value = serde_json::from_slice(&snapshot.to_bytes()).unwrap();
        json.as_object_mut().unwrap().remove("version").unwrap();
        assert_eq!(ClusterSnapshot::from_bytes(json.to_string().as_bytes()), Ok(snapshot));
    }

    #[test]
    fn a_snapshot_of_another_version_is_rejected_with_both_versions_whatever_it_holds() {
        let rejected = ClusterSnapshot::from_bytes(br#"{"version":99,"other":[]}"#).unwrap_err();
        assert!(rejected.contains("version 99") && rejected.contains("version 1:"), "{rejected}");
    }
}
