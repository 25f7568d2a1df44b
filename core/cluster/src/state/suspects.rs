//! The splits of one job whose workers were lost before they had computed the split. A row that crashes its worker would
//! otherwise move from worker to worker without end.
//!
//! Confirmed losses are durable, so that they survive a failover. A loss is unconfirmed while a consumer cannot reach the
//! worker but the worker's lease has not expired; unconfirmed losses are soft state.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::WorkerId;
use feedline_data::layout::SplitRef;
use feedline_data::messages::MAX_LOST_WORKERS;
use serde::{Deserialize, Serialize};

/// The confirmed losses of a job, as stored in a compacted log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LostWorkers {
    /// For each undelivered split, the workers that were lost before they had computed it.
    pub splits: Vec<(SplitRef, Vec<WorkerId>)>,
    /// The number of times that rows of a split were given up: after [`MAX_LOST_WORKERS`] losses and after each further loss.
    pub given_up: u32,
}

impl LostWorkers {
    /// Whether no worker was lost.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What may happen to a split after its losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suspicion {
    /// At most one worker was lost, which is not evidence against the split.
    None,
    /// The split runs alone on a worker, so that other splits are not blamed for the next loss.
    Isolated,
    /// The split waits until its losses are confirmed or withdrawn.
    Undecided,
    /// A worker reports the next group of the split as failed, without computing it.
    GivenUp,
}

#[derive(Debug, Default)]
pub(crate) struct SuspectSplits {
    confirmed: BTreeMap<SplitRef, Vec<WorkerId>>,
    unconfirmed: BTreeMap<SplitRef, BTreeSet<WorkerId>>,
    given_up: u32,
}

impl SuspectSplits {
    pub(crate) fn restore(lost: &LostWorkers) -> Self {
        let confirmed = lost.splits.iter().cloned().collect();
        Self { confirmed, unconfirmed: BTreeMap::new(), given_up: lost.given_up }
    }

    /// The durable part, for a compacted log.
    pub(crate) fn to_record(&self) -> LostWorkers {
        let splits = self.confirmed.iter().map(|(split, lost)| (*split, lost.clone())).collect();
        LostWorkers { splits, given_up: self.given_up }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.confirmed.is_empty() && self.unconfirmed.is_empty()
    }

    /// The number of times that rows were given up.
    pub(crate) fn given_up(&self) -> u32 {
        self.given_up
    }

    pub(crate) fn confirm(&mut self, split: SplitRef, worker: WorkerId) {
        self.withdraw_unconfirmed(split, worker);
        let lost = self.confirmed.entry(split).or_default();
        if !lost.contains(&worker) {
            lost.push(worker);
            // Each further loss gives up further rows of the split.
            self.given_up += u32::from(lost.len() >= MAX_LOST_WORKERS as usize);
        }
    }

    /// Withdraws a loss, because the worker has reported again. A split that was given up stays given up.
    pub(crate) fn withdraw(&mut self, split: SplitRef, worker: WorkerId) {
        self.withdraw_unconfirmed(split, worker);
        let Some(lost) = self.confirmed.get_mut(&split) else { return };
        if lost.len() < MAX_LOST_WORKERS as usize {
            lost.retain(|other| *other != worker);
            if lost.is_empty() {
                self.confirmed.remove(&split);
            }
        }
    }

    pub(crate) fn suspect(&mut self, split: SplitRef, worker: WorkerId) {
        if !self.confirmed.get(&split).is_some_and(|lost| lost.contains(&worker)) {
            self.unconfirmed.entry(split).or_default().insert(worker);
        }
    }

    pub(crate) fn withdraw_unconfirmed(&mut self, split: SplitRef, worker: WorkerId) {
        if let Some(workers) = self.unconfirmed.get_mut(&split) {
            workers.remove(&worker);
            if workers.is_empty() {
                self.unconfirmed.remove(&split);
            }
        }
    }

    /// Removes the splits for which `is_done` holds.
    pub(crate) fn remove(&mut self, is_done: impl Fn(SplitRef) -> bool) {
        if !self.is_empty() {
            self.confirmed.retain(|split, _| !is_done(*split));
            self.unconfirmed.retain(|split, _| !is_done(*split));
        }
    }

    /// The workers whose confirmed losses count for a split.
    pub(crate) fn confirmed(&self, split: SplitRef) -> &[WorkerId] {
        self.confirmed.get(&split).map_or(&[], Vec::as_slice)
    }

    /// The splits with confirmed losses of a worker.
    pub(crate) fn confirmed_by(&self, worker: WorkerId) -> Vec<SplitRef> {
        let lost = self.confirmed.iter().filter(|(_, lost)| lost.contains(&worker));
        lost.map(|(split, _)| *split).collect()
    }

    /// All splits with losses, in the order of the job.
    pub(crate) fn splits(&self) -> BTreeSet<SplitRef> {
        self.confirmed.keys().chain(self.unconfirmed.keys()).copied().collect()
    }

    /// The number of workers that were lost with a split, confirmed or not.
    pub(crate) fn losses(&self, split: SplitRef) -> u32 {
        let count = self.confirmed.get(&split).map_or(0, Vec::len)
            + self.unconfirmed.get(&split).map_or(0, BTreeSet::len);
        count as u32
    }

    pub(crate) fn suspicion(&self, split: SplitRef) -> Suspicion {
        let confirmed = self.confirmed.get(&split).map_or(0, Vec::len) as u32;
        match self.losses(split) {
            _ if confirmed >= MAX_LOST_WORKERS => Suspicion::GivenUp,
            losses if losses >= MAX_LOST_WORKERS => Suspicion::Undecided,
            losses if losses + 1 == MAX_LOST_WORKERS => Suspicion::Isolated,
            _ => Suspicion::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPLIT: SplitRef = SplitRef { epoch: 0, ordinal: 3, stream: 0 };

    #[test]
    fn the_third_loss_is_decided_once_all_losses_are_confirmed() {
        let mut suspects = SuspectSplits::default();
        assert_eq!((suspects.suspicion(SPLIT), suspects.is_empty()), (Suspicion::None, true));
        let mut seen = Vec::new();
        for worker in 1..=3 {
            suspects.suspect(SPLIT, WorkerId(worker));
            suspects.suspect(SPLIT, WorkerId(worker));
            seen.push(suspects.suspicion(SPLIT));
        }
        assert_eq!(seen, [Suspicion::None, Suspicion::Isolated, Suspicion::Undecided]);
        for worker in 1..=3 {
            assert_eq!((suspects.suspicion(SPLIT), suspects.given_up()), (Suspicion::Undecided, 0));
            suspects.confirm(SPLIT, WorkerId(worker));
            suspects.suspect(SPLIT, WorkerId(worker));
        }
        assert_eq!((suspects.suspicion(SPLIT), suspects.given_up()), (Suspicion::GivenUp, 1));
        suspects.confirm(SPLIT, WorkerId(4));
        suspects.withdraw(SPLIT, WorkerId(2));
        assert_eq!((suspects.losses(SPLIT), suspects.given_up()), (4, 2), "the decision is final");
        let restored = SuspectSplits::restore(&suspects.to_record());
        assert_eq!((restored.suspicion(SPLIT), restored.given_up()), (Suspicion::GivenUp, 2));
        suspects.remove(|split| split == SPLIT);
        assert_eq!((suspects.splits().len(), suspects.given_up()), (0, 2));
    }

    #[test]
    fn a_worker_that_reports_again_was_not_lost() {
        let mut suspects = SuspectSplits::default();
        suspects.confirm(SPLIT, WorkerId(1));
        suspects.suspect(SPLIT, WorkerId(2));
        assert_eq!(suspects.suspicion(SPLIT), Suspicion::Isolated);
        assert_eq!(
            (suspects.confirmed_by(WorkerId(1)), suspects.confirmed_by(WorkerId(2))),
            (vec![SPLIT], vec![])
        );
        suspects.withdraw(SPLIT, WorkerId(1));
        suspects.withdraw_unconfirmed(SPLIT, WorkerId(2));
        suspects.withdraw(SPLIT, WorkerId(9));
        assert!(suspects.is_empty() && suspects.to_record().is_empty());
    }
}
