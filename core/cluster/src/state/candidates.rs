//! The workers that may get splits of one job, ordered by the time at which each would have computed one more. Steps update
//! only the workers with a changed load.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::WorkerId;

/// A worker that may get splits of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LeaseCandidate {
    pub(crate) worker: WorkerId,
    /// The cores of this worker that the plan allocates to the job; without a plan, the same number for each worker.
    pub(crate) cores: f64,
}

/// How busy a worker is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CandidateLoad {
    /// Splits of the job that the worker has still to compute.
    pub(crate) uncomputed: u32,
    /// Splits of all jobs that the worker holds. Breaks ties.
    pub(crate) held: usize,
    /// Splits of the job that keep all of its cores busy.
    pub(crate) ahead: u32,
    pub(crate) memory_full: bool,
}

/// Workers by the time at which they would have computed one more split of the job, then by the splits that they hold.
#[derive(Debug, Default)]
pub(crate) struct CandidateQueue {
    candidates: BTreeMap<WorkerId, Candidate>,
    all: BTreeSet<CandidateOrder>,
    /// Candidates with room for splits that are not urgent.
    with_room: BTreeSet<CandidateOrder>,
    /// Sum of the splits that the candidates may hold uncomputed.
    slots: usize,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    order: CandidateOrder,
    cores: f64,
    /// Splits that its cores compute in the time that the queue allows.
    slots: u32,
    load: CandidateLoad,
}

/// The time at which a worker would have computed one more split, without a unit; the splits that it holds; its id.
type CandidateOrder = (u64, usize, WorkerId);

/// A relative measure of the time in which `cores` compute this number of splits.
fn compute_time(splits: u32, cores: f64) -> u64 {
    (1e6 * f64::from(splits) / cores) as u64
}

impl CandidateQueue {
    /// Candidates without load. `leases_ahead` is the least number of splits ahead of a worker.
    pub(crate) fn new(candidates: &[LeaseCandidate], leases_ahead: u32) -> Self {
        let largest = candidates.iter().map(|candidate| candidate.cores).fold(f64::MIN_POSITIVE, f64::max);
        // A stream takes its splits in order: a worker that needs longer for one delays the stream more than it helps.
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
            queue.all.insert(order);
            queue.with_room.insert(order);
        }
        queue
    }

    /// Replaces the load of a candidate. More leases ahead than `least` replace the number that the candidate's cores allow.
    pub(crate) fn set_load(&mut self, worker: WorkerId, load: CandidateLoad, least: u32) {
        let Some(candidate) = self.candidates.get_mut(&worker) else { return };
        self.all.remove(&candidate.order);
        self.with_room.remove(&candidate.order);
        let ahead = if load.ahead > least { load.ahead } else { candidate.slots };
        self.slots = self.slots - candidate.load.ahead as usize + ahead as usize;
        candidate.load = CandidateLoad { ahead, ..load };
        candidate.order = (compute_time(load.uncomputed + 1, candidate.cores), load.held, worker);
        self.all.insert(candidate.order);
        if load.uncomputed < ahead && !load.memory_full {
            self.with_room.insert(candidate.order);
        }
    }

    /// Adds one split to the load of a candidate.
    pub(crate) fn add_split(&mut self, worker: WorkerId) {
        if let Some(candidate) = self.candidates.get(&worker) {
            let load = CandidateLoad { uncomputed: candidate.load.uncomputed + 1, ..candidate.load };
            // The number of leases ahead stays.
            self.set_load(worker, load, 0);
        }
    }

    pub(crate) fn contains(&self, worker: WorkerId) -> bool {
        self.candidates.contains_key(&worker)
    }

    pub(crate) fn workers(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.candidates.keys().copied()
    }

    /// Splits that all candidates together may hold uncomputed.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Whether a split that is not urgent would be granted.
    pub(crate) fn has_room(&self) -> bool {
        !self.with_room.is_empty()
    }

    /// The first candidate that `avoid` does not exclude, and the first of all.
    pub(crate) fn choose(
        &self,
        is_urgent: bool,
        avoid: impl Fn(WorkerId) -> bool,
    ) -> (Option<WorkerId>, Option<WorkerId>) {
        let candidates = if is_urgent { &self.all } else { &self.with_room };
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
    fn splits_go_to_the_worker_that_computes_them_first() {
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
    fn a_worker_with_full_memory_has_no_room() {
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
        /// A queue that is updated equals one that is built anew.
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
                prop_assert_eq!(&queue.all, &anew.all);
                prop_assert_eq!(&queue.with_room, &anew.with_room);
                prop_assert_eq!(queue.slots(), anew.slots());
                let slots: u32 = anew.candidates.values().map(|candidate| candidate.load.ahead).sum();
                prop_assert_eq!(queue.slots(), slots as usize);
            }
        }
    }
}
