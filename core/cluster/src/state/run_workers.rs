//! The workers that compute the splits of each lane or group of long runs, so that each run is decompressed once.

use std::collections::BTreeMap;

use feedline_data::ids::WorkerId;

use super::candidates::CandidateQueue;

/// The worker of each key of [`feedline_data::layout::Layout::run_key`]. The number of keys is bounded by the layout. Soft
/// state: a new leader assigns the keys again.
#[derive(Debug, Default)]
pub(crate) struct RunWorkers {
    by_key: BTreeMap<u64, WorkerId>,
}

impl RunWorkers {
    /// Returns the worker of a key. Assigns the key to the candidate with the fewest keys per core if it has no worker, or
    /// if its worker is not a candidate.
    pub(crate) fn worker(&mut self, key: u64, candidates: &CandidateQueue) -> Option<WorkerId> {
        if let Some(worker) = self.by_key.get(&key).filter(|worker| candidates.contains(**worker)) {
            return Some(*worker);
        }
        let keys = self.keys_by_worker();
        let count = |worker| keys.get(&worker).copied().unwrap_or(0);
        let time = |worker: &WorkerId| candidates.finish_time(*worker, count(*worker) + 1);
        let worker = candidates.workers().min_by_key(|worker| (time(worker), *worker))?;
        self.by_key.insert(key, worker);
        Some(worker)
    }

    /// Moves keys to workers that have none, from the workers with the most keys per core. The previous worker of a key
    /// computes the splits that it has already received.
    pub(crate) fn move_to(&mut self, new_workers: &[WorkerId], candidates: &CandidateQueue) {
        let mut keys = self.keys_by_worker();
        for &worker in new_workers {
            while let Some((&busiest, &count)) =
                keys.iter().max_by_key(|(worker, count)| candidates.finish_time(**worker, **count))
            {
                let own = keys.get(&worker).copied().unwrap_or(0);
                let (before, after) =
                    (candidates.finish_time(busiest, count), candidates.finish_time(worker, own + 1));
                if after.is_none() || before <= after {
                    break;
                }
                let Some(key) = self.by_key.iter_mut().rev().find(|(_, holder)| **holder == busiest) else {
                    break;
                };
                *key.1 = worker;
                keys.insert(busiest, count - 1);
                keys.insert(worker, own + 1);
            }
        }
    }

    fn keys_by_worker(&self) -> BTreeMap<WorkerId, u32> {
        let mut keys = BTreeMap::new();
        for worker in self.by_key.values() {
            *keys.entry(*worker).or_default() += 1;
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::candidates::LeaseCandidate;

    fn candidates(cores: &[(u64, f64)]) -> CandidateQueue {
        let candidate = |&(worker, cores)| LeaseCandidate { worker: WorkerId(worker), cores };
        CandidateQueue::new(&cores.iter().map(candidate).collect::<Vec<_>>(), 3)
    }

    fn assign(workers: &mut RunWorkers, keys: u64, candidates: &CandidateQueue) -> Vec<u64> {
        (0..keys).map(|key| workers.worker(key, candidates).expect("a candidate").0).collect()
    }

    #[test]
    fn keys_are_divided_by_cores_and_stay_on_their_worker() {
        let (mut workers, all) = (RunWorkers::default(), candidates(&[(1, 1.0), (2, 3.0)]));
        let first = assign(&mut workers, 8, &all);
        assert_eq!(first.iter().filter(|worker| **worker == 1).count(), 2);
        assert_eq!(assign(&mut workers, 8, &all), first);
        assert_eq!(workers.worker(9, &candidates(&[])), None);
    }

    #[test]
    fn only_the_keys_of_a_lost_worker_move() {
        let (mut workers, all) = (RunWorkers::default(), candidates(&[(1, 1.0), (2, 1.0), (3, 1.0)]));
        assert_eq!(assign(&mut workers, 6, &all), [1, 2, 3, 1, 2, 3]);
        let rest = candidates(&[(1, 1.0), (3, 1.0)]);
        let after = assign(&mut workers, 6, &rest);
        assert_eq!((after[0], after[2], after[3], after[5]), (1, 3, 1, 3));
        assert!(after[1] != after[4] && !after.contains(&2), "{after:?}");
    }

    #[test]
    fn a_new_worker_receives_its_share() {
        let (mut workers, two) = (RunWorkers::default(), candidates(&[(1, 1.0), (2, 1.0)]));
        assign(&mut workers, 6, &two);
        let three = candidates(&[(1, 1.0), (2, 1.0), (3, 1.0)]);
        workers.move_to(&[WorkerId(3)], &three);
        let after = assign(&mut workers, 6, &three);
        assert_eq!([1, 2, 3].map(|worker| after.iter().filter(|key| **key == worker).count()), [2, 2, 2]);
        workers.move_to(&[WorkerId(3), WorkerId(7)], &three);
        assert_eq!(assign(&mut workers, 6, &three), after, "an even division does not change");
    }
}
