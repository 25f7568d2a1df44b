//! Injected faults: the simulation must detect each fault.

use feedline_cluster::records::Record;

use super::leader::ReplyWaits;
#[cfg(feature = "fault-injection")]
use super::settings::InjectedFault;
use super::settings::RaftSettings;

/// Returns the records that are written to the log: all records.
#[cfg(not(feature = "fault-injection"))]
pub(super) fn logged_records(_settings: &RaftSettings, records: &[Record]) -> Vec<Record> {
    records.to_vec()
}

/// Returns the records that are written to the log.
#[cfg(feature = "fault-injection")]
pub(super) fn logged_records(settings: &RaftSettings, records: &[Record]) -> Vec<Record> {
    let forgotten = |record: &Record| match settings.fault {
        Some(InjectedFault::ForgetLeases) => matches!(record, Record::Granted { .. }),
        Some(InjectedFault::ForgetAssigned) => matches!(record, Record::Assigned { .. }),
        _ => false,
    };
    records.iter().filter(|record| !forgotten(record)).cloned().collect()
}

/// Returns the conditions that replies wait for.
pub(super) fn reply_waits(settings: &RaftSettings) -> ReplyWaits {
    #[cfg(feature = "fault-injection")]
    if let Some(fault) = settings.fault {
        return ReplyWaits {
            for_log: fault != InjectedFault::EarlyAnswer,
            for_lease: fault != InjectedFault::StaleLeader,
        };
    }
    let _ = settings;
    ReplyWaits { for_log: true, for_lease: true }
}

/// Returns whether membership changes are answered before they are committed.
pub(super) fn answers_changes_early(settings: &RaftSettings) -> bool {
    #[cfg(feature = "fault-injection")]
    if settings.fault == Some(InjectedFault::EarlyChange) {
        return true;
    }
    let _ = settings;
    false
}

/// Returns whether hung writes count as durable.
pub(super) fn finishes_hung_writes(settings: &RaftSettings) -> bool {
    #[cfg(feature = "fault-injection")]
    if settings.fault == Some(InjectedFault::HungWrite) {
        return true;
    }
    let _ = settings;
    false
}
