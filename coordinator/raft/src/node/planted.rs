//! Planted bugs: the simulation must find each of them.

use feedline_cluster::records::Record;

use super::leader::ReplyWaits;
#[cfg(feature = "plants")]
use super::settings::PlantedBug;
use super::settings::RaftSettings;

/// The records that enter the log: all of them.
#[cfg(not(feature = "plants"))]
pub(super) fn logged_records(_settings: &RaftSettings, records: &[Record]) -> Vec<Record> {
    records.to_vec()
}

/// The records that enter the log.
#[cfg(feature = "plants")]
pub(super) fn logged_records(settings: &RaftSettings, records: &[Record]) -> Vec<Record> {
    let forgotten = |record: &Record| match settings.plant {
        Some(PlantedBug::ForgetLeases) => matches!(record, Record::Granted { .. }),
        Some(PlantedBug::ForgetAssigned) => matches!(record, Record::Assigned { .. }),
        _ => false,
    };
    records.iter().filter(|record| !forgotten(record)).cloned().collect()
}

/// What replies wait for.
pub(super) fn reply_waits(settings: &RaftSettings) -> ReplyWaits {
    #[cfg(feature = "plants")]
    if let Some(plant) = settings.plant {
        return ReplyWaits {
            for_log: plant != PlantedBug::EarlyAnswer,
            for_lease: plant != PlantedBug::StaleLeader,
        };
    }
    let _ = settings;
    ReplyWaits { for_log: true, for_lease: true }
}

/// Whether membership changes are answered before they are committed.
pub(super) fn answers_changes_early(settings: &RaftSettings) -> bool {
    #[cfg(feature = "plants")]
    if settings.plant == Some(PlantedBug::EarlyChange) {
        return true;
    }
    let _ = settings;
    false
}

/// Whether hung writes count as durable.
pub(super) fn finishes_hung_writes(settings: &RaftSettings) -> bool {
    #[cfg(feature = "plants")]
    if settings.plant == Some(PlantedBug::HungWrite) {
        return true;
    }
    let _ = settings;
    false
}
