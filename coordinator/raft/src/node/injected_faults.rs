//! Injected faults: the simulation must detect each fault.

use feedline_cluster::records::Record;

use super::leader::ReplyWaits;
use super::settings::{InjectedFault, RaftSettings};

/// Returns the records that are written to the log: all records, unless a simulation injects a fault.
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
    ReplyWaits {
        for_log: settings.fault != Some(InjectedFault::EarlyAnswer),
        for_lease: settings.fault != Some(InjectedFault::StaleLeader),
    }
}

/// Returns whether membership changes are answered before they are committed.
pub(super) fn answers_changes_early(settings: &RaftSettings) -> bool {
    settings.fault == Some(InjectedFault::EarlyChange)
}

/// Returns whether hung writes count as durable.
pub(super) fn finishes_hung_writes(settings: &RaftSettings) -> bool {
    settings.fault == Some(InjectedFault::HungWrite)
}
