//! Lost workers that loaded a graph. A graph may crash each worker that loads it, for example because it needs more memory than
//! the workers have.
//!
//! The losses of a job count until a worker has loaded the job. After two losses, at most one further worker loads it at a time.
//! After three losses, or as many as the settings permit, no further worker loads it, and the job fails unless other workers have loaded it. The losses are soft
//! state, because a new leader assigns the graphs anew.

use std::collections::BTreeSet;

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::{GraphLoadState, JobState, MAX_LOST_WORKERS};

use crate::state::candidates::LeaseCandidate;
use crate::{Cluster, Ready};

impl Cluster {
    /// Counts a lost worker that was loading the graphs of these jobs.
    pub(crate) fn count_lost_loads(&mut self, worker: WorkerId, jobs: &BTreeSet<JobId>, ready: &mut Ready) {
        for id in jobs {
            let Some(job) = self.jobs.get_mut(id).filter(|job| job.running_layout().is_some()) else {
                continue;
            };
            job.graph_workers.lost.insert(worker);
            let lost = job.graph_workers.lost.len();
            let has_many_losses = lost >= self.settings.limits.lost_workers as usize;
            self.suspect_jobs.insert(*id);
            if has_many_losses && !self.is_loaded_anywhere(*id) {
                let message = format!(
                    "{lost} workers were lost while they loaded the graph of the job; look for the reason in the logs and exit statuses of the workers, such as too little memory for the graph, then use workers with more memory, or repair the graph"
                );
                self.end_job(*id, JobState::Failed(message), ready);
            }
        }
    }

    /// Forgets the losses of a job that a worker has loaded.
    pub(crate) fn forget_lost_loads(&mut self, id: JobId, worker: WorkerId) {
        let is_loaded = self.graph_state_of(id, worker) == Some(GraphLoadState::Loaded);
        if let Some(job) = self.jobs.get_mut(&id).filter(|_| is_loaded) {
            job.graph_workers.lost.clear();
        }
    }

    /// Removes workers that would start to load a job, if this may crash them. Loads that run continue.
    pub(crate) fn limit_loads(&self, id: JobId, assigned: &mut Vec<LeaseCandidate>) {
        let losses = self.jobs.get(&id).map_or(0, |job| job.graph_workers.lost.len());
        if losses + 1 < MAX_LOST_WORKERS as usize {
            return;
        }
        let state = |worker: WorkerId| self.graph_state_of(id, worker);
        let has_begun = |candidate: &LeaseCandidate| state(candidate.worker).is_some();
        let loads = |candidate: &LeaseCandidate| state(candidate.worker) == Some(GraphLoadState::Loading);
        let may_load = losses < self.settings.limits.lost_workers as usize || !self.is_loaded_anywhere(id);
        let next = assigned.iter().find(|candidate| !has_begun(candidate)).map(|candidate| candidate.worker);
        let next = next.filter(|_| may_load && !assigned.iter().any(loads));
        assigned.retain(|candidate| has_begun(candidate) || Some(candidate.worker) == next);
    }

    fn is_loaded_anywhere(&self, id: JobId) -> bool {
        self.workers.values().any(|worker| worker.graph_state(id) == Some(GraphLoadState::Loaded))
    }

    fn graph_state_of(&self, id: JobId, worker: WorkerId) -> Option<GraphLoadState> {
        self.workers.get(&worker)?.graph_state(id)
    }
}
