//! Recent losses of workers that no suspect has caused. While workers are lost for other reasons, such as preemption or a network
//! partition, the third loss of a split is weak evidence, so a split is excused several times.
//!
//! This is soft state of the leader. The records contain only the losses that count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use feedline_data::ids::{JobId, Millis};
use feedline_data::layout::SplitRef;

/// The time for which a loss, a failover or a worker that reports again matters.
const MEMORY_MS: Millis = 60_000;
/// Maximum number of losses of a split that do not count because of other losses.
const MAX_EXCUSED: u32 = 10;

#[derive(Debug, Default)]
pub(crate) struct Unrest {
    /// The end of the time after a failover, or after a worker that had counted as lost has reported again.
    until: Millis,
    /// The splits of lost workers that had no split that had been lost before.
    losses: VecDeque<(Millis, BTreeSet<(JobId, SplitRef)>)>,
    /// The number of losses of each split that did not count because of other losses.
    excused: BTreeMap<(JobId, SplitRef), u32>,
    /// The number of losses of each split that did not count because more losses are permitted.
    tolerated: BTreeMap<(JobId, SplitRef), u32>,
}

impl Unrest {
    /// Records a failover, or a worker that counted as lost and has reported again.
    pub(crate) fn on_disturbance(&mut self, now: Millis) {
        self.until = now + MEMORY_MS;
    }

    /// Records the loss of a worker without a split that had been lost before.
    pub(crate) fn on_unexplained_loss(&mut self, now: Millis, splits: BTreeSet<(JobId, SplitRef)>) {
        self.forget_old_losses(now);
        self.losses.push_back((now, splits));
    }

    /// Whether a further loss of a split does not count, because workers without the split are lost too, or because the settings permit
    /// this number of further losses. The loss of a worker excuses one other loss.
    pub(crate) fn excuses(&mut self, now: Millis, split: (JobId, SplitRef), permitted: u32) -> bool {
        self.has_other_causes(now, split) || self.tolerates(split, permitted)
    }

    fn tolerates(&mut self, split: (JobId, SplitRef), permitted: u32) -> bool {
        let tolerated = self.tolerated.get(&split).copied().unwrap_or_default();
        let tolerates = tolerated < permitted;
        if tolerates {
            self.tolerated.insert(split, tolerated + 1);
        }
        tolerates
    }

    fn has_other_causes(&mut self, now: Millis, split: (JobId, SplitRef)) -> bool {
        self.forget_old_losses(now);
        let excused = self.excused.get(&split).copied().unwrap_or_default();
        if excused == MAX_EXCUSED {
            return false;
        }
        let other_loss = self.losses.iter().position(|(_, own)| !own.contains(&split));
        let has_other_causes =
            now < self.until || other_loss.is_some_and(|at| self.losses.remove(at).is_some());
        if has_other_causes {
            self.excused.insert(split, excused + 1);
        }
        has_other_causes
    }

    fn forget_old_losses(&mut self, now: Millis) {
        self.losses.retain(|(at, _)| at + MEMORY_MS > now);
    }

    /// Forgets the splits of a job that has ended.
    pub(crate) fn forget(&mut self, job: JobId) {
        self.excused.retain(|(other, _), _| *other != job);
        self.tolerated.retain(|(other, _), _| *other != job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId(1);
    const SPLIT: SplitRef = SplitRef { epoch: 0, ordinal: 3, stream: 0 };

    #[test]
    fn a_split_is_excused_while_other_workers_are_lost() {
        let mut unrest = Unrest::default();
        let split = (JOB, SPLIT);
        unrest.on_unexplained_loss(1_000, [split].into());
        assert!(!unrest.excuses(2_000, split, 0), "the worker had the split");
        unrest.on_unexplained_loss(3_000, BTreeSet::new());
        assert_eq!([4_000, 5_000].map(|now| unrest.excuses(now, split, 0)), [true, false]);
        let other = (JOB, SplitRef { ordinal: 4, ..SPLIT });
        unrest.on_unexplained_loss(6_000, BTreeSet::new());
        assert!(!unrest.excuses(66_000, other, 0), "the loss is too old");
        unrest.on_disturbance(70_000);
        let excused = (0..20).filter(|_| unrest.excuses(71_000, split, 0)).count();
        assert_eq!(excused, 9, "ten with the first one");
        assert!(unrest.excuses(71_000, other, 0));
        unrest.forget(JOB);
        assert!(unrest.excuses(72_000, split, 0) && !unrest.excuses(130_000, split, 0));
    }
    #[test]
    fn the_settings_permit_further_losses() {
        let mut unrest = Unrest::default();
        let split = (JOB, SPLIT);
        let mut excuses = |permitted| unrest.excuses(1_000, split, permitted);
        assert_eq!([excuses(2), excuses(2), excuses(2)], [true, true, false]);
        unrest.forget(JOB);
        assert!(unrest.excuses(1_000, split, 1));
    }
}
