//! Chooses the workers that may receive splits of a job: the workers of the plan, or a share of all workers for an unplanned
//! job.

use feedline_data::ids::{JobId, WorkerId};

use crate::Cluster;
use crate::state::candidates::{CandidateQueue, LeaseCandidate};
use crate::state::worker::SplitParts;

/// Number of workers of an unplanned job, as a multiple of its even share of all workers. With few jobs, every job uses all
/// workers. With many jobs, each worker serves only a few jobs.
const UNPLANNED_SPREAD_FACTOR: usize = 4;

impl Cluster {
    /// Chooses the lease candidates of a job if the plan or the workers have changed, and updates changed loads.
    pub(crate) fn update_candidates(&mut self, id: JobId) {
        if self.jobs.get(&id).is_some_and(|job| job.candidates.is_none()) {
            self.choose_candidates(id);
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(split) = job.running_layout().map(SplitParts::of) else { return };
        let Some(candidates) = &mut job.candidates else { return };
        let changed = std::mem::take(&mut job.changed_loads);
        self.examined_items += changed.len() as u64;
        let slots = candidates.slots();
        for worker in changed {
            if let Some(found) = self.workers.get(&worker) {
                let least = self.settings.leases_ahead;
                candidates.set_load(worker, found.load(id, least, split), least);
            }
        }
        // The number of splits ahead of each stream depends on the capacity of all candidates.
        job.touched_streams.all |= candidates.slots() != slots;
    }

    fn choose_candidates(&mut self, id: JobId) {
        let planned = self.planned_candidates(id);
        let is_planned = !planned.is_empty();
        let candidates = if is_planned { planned } else { self.unplanned_candidates(id) };
        self.set_core_limits(id, (!is_planned).then_some(candidates.as_slice()));
        let candidates = self.graph_candidates(id, candidates);
        self.examined_items += candidates.len() as u64;
        for candidate in &candidates {
            if let Some(worker) = self.workers.get_mut(&candidate.worker) {
                worker.candidate_of.insert(id);
            }
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.changed_loads.extend(candidates.iter().map(|candidate| candidate.worker));
            let is_new = |worker: &WorkerId| !job.workers.contains(worker);
            job.new_candidates = candidates.iter().map(|candidate| candidate.worker).filter(is_new).collect();
            job.candidates = Some(CandidateQueue::new(&candidates, self.settings.leases_ahead));
            job.is_planned = is_planned;
            job.touched_streams.all = true;
        }
    }

    /// Returns the live workers that the plan assigns to a job.
    fn planned_candidates(&self, id: JobId) -> Vec<LeaseCandidate> {
        let planned = self.planned_workers.get(&id).into_iter().flatten();
        let candidates = planned.map(|(worker, cores)| LeaseCandidate { worker: *worker, cores: *cores });
        candidates.filter(|candidate| self.accepts_work(candidate.worker)).collect()
    }

    /// Returns the workers for an unplanned job. The jobs of a tenant with a core quota share the quota evenly. Each job
    /// uses the smallest number of workers that provide its cores, rather than small fractions of many workers.
    fn unplanned_candidates(&self, id: JobId) -> Vec<LeaseCandidate> {
        let job = &self.jobs[&id];
        let candidates = match job.graph() {
            Some(graph) => self.unplanned_graph_workers(id, graph),
            None => workers_for_unplanned_job(&self.live_workers, id, self.running_jobs.total()),
        };
        let running = self.running_jobs.of_tenant(&job.spec.tenant);
        let Some(quota) = self.cores_quota(job).filter(|_| running > 0) else { return candidates };
        let part = quota / f64::from(running);
        // Consecutive job ids start at different workers.
        let start = (id.0 as usize).wrapping_mul(7) % candidates.len().max(1);
        let mut chosen: Vec<LeaseCandidate> = Vec::new();
        let mut cores = 0.0;
        for candidate in candidates.iter().cycle().skip(start).take(candidates.len()) {
            if cores >= part && !chosen.is_empty() {
                break;
            }
            let own = f64::from(self.workers[&candidate.worker].cores.max(1));
            cores += own;
            chosen.push(LeaseCandidate { worker: candidate.worker, cores: own });
        }
        let share = (part / cores).min(1.0);
        chosen.iter_mut().for_each(|candidate| candidate.cores *= share);
        chosen.sort_unstable_by_key(|candidate| candidate.worker);
        chosen
    }

    pub(crate) fn accepts_work(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|worker| worker.accepts_work())
    }

    /// Redistributes the unplanned jobs over the workers, shortly after the number of running jobs has changed, and when jobs of an
    /// earlier leader may use workers that do not hold their graphs.
    pub(crate) fn redistribute_if_due(&mut self) {
        let has_other_jobs = self.redistribute_at.take_if(|at| *at <= self.now).is_some();
        let may_load_graphs = self.graphs_kept_until.take_if(|until| *until <= self.now).is_some();
        if !has_other_jobs && !may_load_graphs {
            return;
        }
        let unplanned = self.jobs.values().filter(|job| job.running_layout().is_some() && !job.is_planned);
        let unplanned: Vec<JobId> = unplanned.map(|job| job.id).collect();
        self.examined_items += unplanned.len() as u64;
        unplanned.into_iter().for_each(|id| self.refresh_candidates_of(id));
    }
}

/// Returns the workers for one of `jobs` running jobs. Consecutive job ids use adjacent workers.
fn workers_for_unplanned_job(live: &[WorkerId], job: JobId, jobs: usize) -> Vec<LeaseCandidate> {
    let count = (UNPLANNED_SPREAD_FACTOR * live.len()).div_ceil(jobs.max(1)).min(live.len());
    let start = (job.0 as usize).wrapping_mul(count) % live.len().max(1);
    let chosen = live.iter().cycle().skip(start).take(count);
    let mut candidates: Vec<LeaseCandidate> =
        chosen.map(|worker| LeaseCandidate { worker: *worker, cores: 1.0 }).collect();
    candidates.sort_unstable_by_key(|candidate| candidate.worker);
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_spread_over_four_times_their_share_of_the_workers() {
        let live: Vec<WorkerId> = (1..=12).map(WorkerId).collect();
        let workers = |job: u64, jobs: usize| -> Vec<u64> {
            workers_for_unplanned_job(&live, JobId(job), jobs)
                .into_iter()
                .map(|candidate| candidate.worker.0)
                .collect()
        };
        assert_eq!(workers(1, 0), (1..=12).collect::<Vec<_>>());
        assert_eq!(workers(1, 4), (1..=12).collect::<Vec<_>>());
        assert_eq!(
            (workers(0, 16), workers(1, 16), workers(5, 16)),
            (vec![1, 2, 3], vec![4, 5, 6], vec![4, 5, 6])
        );
        assert_eq!(workers(2, 10), [1, 2, 3, 11, 12], "five workers from the eleventh on");
        assert_eq!(workers((1 << 40) + 1, 16), [4, 5, 6], "ids of later leaders are large");
        assert!(workers_for_unplanned_job(&[], JobId(1), 3).is_empty());
    }
}
