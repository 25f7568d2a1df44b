//! The workers that may receive splits of one job, ordered by the time at which each would finish one more split. Steps
//! update only the workers with a changed load.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::WorkerId;

/// A worker that may receive splits of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LeaseCandidate {
    pub(crate) worker: WorkerId,
    /// The cores that the plan allocates to the job on this worker. For an unplanned job, all candidates have the same
    /// number of cores.
    pub(crate) cores: f64,
}

/// The load of a worker, as a candidate for splits of one job.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CandidateLoad {
    /// Number of splits of the job that the worker has not computed.
    pub(crate) uncomputed: u32,
    /// Number of leased splits of all jobs, used to break ties.
    pub(crate) held: usize,
    /// Number of splits of the job that the worker needs to keep all of its cores busy.
    pub(crate) ahead: u32,
    pub(crate) memory_full: bool,
}

/// Candidates, ordered by the time at which they would finish one more split of the job, then by their number of leases.
#[derive(Debug, Default)]
pub(crate) struct CandidateQueue {
    candidates: BTreeMap<WorkerId, Candidate>,
    by_finish_time: BTreeSet<CandidateOrder>,
    /// Candidates that can accept splits that are not urgent.
    with_room: BTreeSet<CandidateOrder>,
    /// Maximum number of uncomputed splits of all candidates together.
    slots: usize,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    order: CandidateOrder,
    cores: f64,
    /// Number of splits that the worker computes within the time limit of the queue.
    slots: u32,
    load: CandidateLoad,
}

/// Sort key: relative time at which the worker would finish one more split, number of its leases, its id.
type CandidateOrder = (u64, usize, WorkerId);

/// Returns the relative time that `cores` need to compute this number of splits.
fn compute_time(splits: u32, cores: f64) -> u64 {
    (1e6 * f64::from(splits) / cores) as u64
}

impl CandidateQueue {
    /// Creates a queue of candidates without load. `leases_ahead` is the minimum number of splits ahead of a worker.
    pub(crate) fn new(candidates: &[LeaseCandidate], leases_ahead: u32) -> Self {
        let largest = candidates.iter().map(|candidate| candidate.cores).fold(f64::MIN_POSITIVE, f64::max);
        // A stream delivers its splits in order, so a much slower worker would delay the stream.
        let latest = compute_time(2 * leases_ahead, largest);
        let mut queue = Self::default();
        for candidate in candidates {
            let (worker, cores) = (candidate.worker, candidate.cores);
            let slots =
                (1..=leases_ahead).take_while(|splits| compute_time(*splits, cores) <= latest).count() as u32;
            let order = (compute_time(1, cores), 0, worker);
            let load = CandidateLoad { ahead: slots, ..CandidateLoad::default() };
            queue.candidates.insert(worker, Candidate { order, cores, slots, load });
            queue.slots += slots as usize;
            queue.by_finish_time.insert(order);
            queue.with_room.insert(order);
        }
        queue
    }

    /// Replaces the load of a candidate. If `load.ahead` does not exceed `min_ahead`, the number of leases ahead is derived
    /// from the cores.
    pub(crate) fn set_load(&mut self, worker: WorkerId, load: CandidateLoad, min_ahead: u32) {
        let Some(candidate) = self.candidates.get_mut(&worker) else { return };
        self.by_finish_time.remove(&candidate.order);
        self.with_room.remove(&candidate.order);
        let ahead = if load.ahead > min_ahead { load.ahead } else { candidate.slots };
        self.slots = self.slots - candidate.load.ahead as usize + ahead as usize;
        candidate.load = CandidateLoad { ahead, ..load };
        candidate.order = (compute_time(load.uncomputed + 1, candidate.cores), load.held, worker);
        self.by_finish_time.insert(candidate.order);
        if load.uncomputed < ahead && !load.memory_full {
            self.with_room.insert(candidate.order);
        }
    }

    /// Adds one split to the load of a candidate.
    pub(crate) fn add_split(&mut self, worker: WorkerId) {
        if let Some(candidate) = self.candidates.get(&worker) {
            let load = CandidateLoad { uncomputed: candidate.load.uncomputed + 1, ..candidate.load };
            // With `min_ahead` 0 the number of leases ahead does not change.
            self.set_load(worker, load, 0);
        }
    }

    pub(crate) fn contains(&self, worker: WorkerId) -> bool {
        self.candidates.contains_key(&worker)
    }

    /// Returns the number of further splits that are not urgent and that a candidate can accept.
    pub(crate) fn room_on(&self, worker: WorkerId) -> u32 {
        let accepting = self.candidates.get(&worker).filter(|candidate| !candidate.load.memory_full);
        accepting.map_or(0, |candidate| candidate.load.ahead.saturating_sub(candidate.load.uncomputed))
    }

    /// Returns the relative time that a candidate needs for this number of splits; `None` for other workers.
    pub(crate) fn finish_time(&self, worker: WorkerId, splits: u32) -> Option<u64> {
        self.candidates.get(&worker).map(|candidate| compute_time(splits, candidate.cores))
    }

    pub(crate) fn workers(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.candidates.keys().copied()
    }

    /// Maximum number of uncomputed splits of all candidates together.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Whether a split that is not urgent would be granted.
    pub(crate) fn has_room(&self) -> bool {
        !self.with_room.is_empty()
    }

    /// Returns the best candidate that `avoid` does not exclude, and the best of all candidates.
    pub(crate) fn choose(
        &self,
        is_urgent: bool,
        avoid: impl Fn(WorkerId) -> bool,
    ) -> (Option<WorkerId>, Option<WorkerId>) {
        let candidates = if is_urgent { &self.by_finish_time } else { &self.with_room };
        let best = candidates.iter().map(|(.., id)| *id).find(|id| !avoid(*id));
        (best, candidates.first().map(|(.., id)| *id))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidates(cores: &[f64]) -> Vec<LeaseCandidate> {
        let candidate =
            |(index, cores): (usize, &f64)| LeaseCandidate { worker: WorkerId(index as u64), cores: *cores };
        cores.iter().enumerate().map(candidate).collect()
    }

    #[test]
    fn splits_go_to_the_worker_that_finishes_them_first() {
        let mut queue = CandidateQueue::new(&candidates(&[1.0, 3.0]), 3);
        let chosen: Vec<u64> = std::iter::from_fn(|| {
            let worker = queue.choose(false, |_| false).0?;
            queue.add_split(worker);
            Some(worker.0)
        })
        .collect();
        assert_eq!(
            chosen,
            [1, 1, 0, 1, 0],
            "worker 0 has two slots: three splits would take longer than six of worker 1"
        );
        assert!(!queue.has_room());
        assert_eq!(queue.slots(), 5);
        assert_eq!(queue.choose(true, |_| false).0, Some(WorkerId(1)), "an urgent split needs no room");
        assert_eq!(queue.choose(true, |worker| worker.0 == 1), (Some(WorkerId(0)), Some(WorkerId(1))));
    }

    #[test]
    fn a_worker_with_full_memory_accepts_no_more_splits() {
        let mut queue = CandidateQueue::new(&candidates(&[1.0]), 3);
        let load = CandidateLoad { memory_full: true, ..CandidateLoad::default() };
        queue.set_load(WorkerId(0), load, 3);
        assert!(!queue.has_room());
        queue.set_load(WorkerId(0), CandidateLoad { ahead: 9, uncomputed: 8, ..CandidateLoad::default() }, 3);
        assert_eq!((queue.has_room(), queue.slots()), (true, 9), "many leases ahead replace the slots");
        queue.add_split(WorkerId(0));
        assert_eq!((queue.has_room(), queue.slots()), (false, 9));
        queue.set_load(WorkerId(4), load, 3);
        queue.add_split(WorkerId(4));
        assert_eq!(
            (queue.contains(WorkerId(0)), queue.contains(WorkerId(4)), queue.workers().count()),
            (true, false, 1)
        );
    }

    #[test]
    fn equal_workers_are_ordered_by_the_splits_that_they_hold() {
        let mut queue = CandidateQueue::new(&candidates(&[1.0, 1.0]), 3);
        queue.set_load(WorkerId(0), CandidateLoad { held: 2, ..CandidateLoad::default() }, 3);
        assert_eq!(queue.choose(false, |_| false).0, Some(WorkerId(1)));
    }

    proptest! {
        /// An updated queue equals a newly built queue.
        #[test]
        fn updates_equal_a_new_queue(
            cores in proptest::collection::vec(1u32..8, 1..6),
            steps in proptest::collection::vec((0u64..6, 0u32..5, 0usize..3, 0u32..6, any::<bool>()), 0..60),
        ) {
            let candidates = candidates(&cores.iter().map(|cores| f64::from(*cores)).collect::<Vec<_>>());
            let mut queue = CandidateQueue::new(&candidates, 3);
            let mut loads: BTreeMap<WorkerId, CandidateLoad> = BTreeMap::new();
            for (worker, uncomputed, held, ahead, memory_full) in steps {
                let load = CandidateLoad { uncomputed, held, ahead, memory_full };
                queue.set_load(WorkerId(worker), load, 3);
                loads.insert(WorkerId(worker), load);
                let mut anew = CandidateQueue::new(&candidates, 3);
                loads.iter().for_each(|(worker, load)| anew.set_load(*worker, *load, 3));
                prop_assert_eq!(&queue.by_finish_time, &anew.by_finish_time);
                prop_assert_eq!(&queue.with_room, &anew.with_room);
                prop_assert_eq!(queue.slots(), anew.slots());
                let slots: u32 = anew.candidates.values().map(|candidate| candidate.load.ahead).sum();
                prop_assert_eq!(queue.slots(), slots as usize);
            }
        }
    }
}
