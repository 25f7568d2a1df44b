//! Bugs that the simulation must find, where a test asks for one.

use feedline_cluster::records::Record;

#[cfg(feature = "plants")]
use super::PlantedBug;
use super::RaftSettings;

/// What of these records goes into the log: all of them.
#[cfg(not(feature = "plants"))]
pub(super) fn kept(_settings: &RaftSettings, records: &[Record]) -> Vec<Record> {
    records.to_vec()
}

/// What of these records goes into the log.
#[cfg(feature = "plants")]
pub(super) fn kept(settings: &RaftSettings, records: &[Record]) -> Vec<Record> {
    let forgotten = |record: &Record| match settings.plant {
        Some(PlantedBug::ForgetLeases) => matches!(record, Record::Granted { .. }),
        Some(PlantedBug::ForgetAssigned) => matches!(record, Record::Assigned { .. }),
        _ => false,
    };
    records.iter().filter(|record| !forgotten(record)).cloned().collect()
}

/// Whether answers wait for the log, and for proof that nobody else leads.
pub(super) fn waits(settings: &RaftSettings) -> (bool, bool) {
    #[cfg(feature = "plants")]
    if let Some(plant) = settings.plant {
        return (plant != PlantedBug::EarlyAnswer, plant != PlantedBug::StaleLeader);
    }
    let _ = settings;
    (true, true)
}

/// Whether changes of the members are answered before they are decided.
pub(super) fn answers_changes_early(settings: &RaftSettings) -> bool {
    #[cfg(feature = "plants")]
    if settings.plant == Some(PlantedBug::EarlyChange) {
        return true;
    }
    let _ = settings;
    false
}

/// Whether what a disk that hangs has not written counts as written.
pub(super) fn passes_hung_writes(settings: &RaftSettings) -> bool {
    #[cfg(feature = "plants")]
    if settings.plant == Some(PlantedBug::HungWrite) {
        return true;
    }
    let _ = settings;
    false
}
