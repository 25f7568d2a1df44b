//! The targets of an elastic job's slots. All of it is soft state: the next reports restore it.

use std::collections::BTreeSet;

use feedline_data::ids::Millis;

#[derive(Debug, Default)]
pub(crate) struct SlotRebalance {
    /// The rank that is to own each slot; empty until slots were dealt in this life.
    pub(crate) targets: Vec<Option<u32>>,
    /// The ranks to which the slots were dealt.
    pub(crate) ranks: BTreeSet<u32>,
    pub(crate) dealt_at: Millis,
    /// Slots at which their present owners have stopped.
    pub(crate) stopped: BTreeSet<u32>,
    /// When the first rank reported.
    pub(crate) first_report_at: Option<Millis>,
    /// When the targets are checked next; 0 for the next step.
    pub(crate) due_at: Millis,
}

impl SlotRebalance {
    /// Checks the targets in the next step, since ranks or slots have changed.
    pub(crate) fn request(&mut self) {
        self.due_at = 0;
    }
}
