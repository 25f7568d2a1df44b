//! The next owners of an elastic job's slots. The state is soft: the next reports restore it.

use std::collections::BTreeSet;

use feedline_data::ids::Millis;

#[derive(Debug, Default)]
pub(crate) struct SlotRebalance {
    /// The next owner of each slot; empty before the first assignment in this incarnation.
    pub(crate) targets: Vec<Option<u32>>,
    /// The ranks at the last assignment.
    pub(crate) ranks: BTreeSet<u32>,
    pub(crate) dealt_at: Millis,
    /// Slots that their current owners have stopped.
    pub(crate) stopped_slots: BTreeSet<u32>,
    /// The time of the first report of a rank.
    pub(crate) first_report_at: Option<Millis>,
    /// The time of the next check of the targets; 0 for the next step.
    pub(crate) due_at: Millis,
}

impl SlotRebalance {
    /// Schedules a check of the targets for the next step, because ranks or slots have changed.
    pub(crate) fn request(&mut self) {
        self.due_at = 0;
    }
}
