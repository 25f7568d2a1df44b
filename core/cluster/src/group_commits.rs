//! Commits of delivered offsets to consumer groups (`commit_group`), which tools read that show the lag. A worker of the job writes
//! them, because the coordinator has no connection to the brokers. Nothing waits for a commit, and nothing reads it again.

use feedline_data::committed_offsets::offsets_of_growth;
use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::messages::GroupCommit;

use crate::Cluster;
use crate::state::group_commits::PlannedCommit;
use crate::state::worker::TrackedWorker;

/// The time between two commits of a job.
pub(crate) const COMMIT_INTERVAL_MS: Millis = 5_000;
/// How long the plan of a worker contains the last commit of an ended job.
const LAST_COMMIT_MS: Millis = 30_000;

impl Cluster {
    /// Schedules the first commit of a job that has started, if it has a consumer group.
    pub(crate) fn begin_group_commits(&mut self, id: JobId) {
        let has_group =
            |id| self.jobs.get(&id).is_some_and(|job| job.spec.pipeline.source.commit_group().is_some());
        if has_group(id) {
            self.group_commits.due.set(id, self.now.saturating_add(COMMIT_INTERVAL_MS));
        }
    }

    /// Updates the commits that are due.
    pub(crate) fn commit_due_groups(&mut self) {
        while let Some(id) = self.group_commits.due.pop_due(self.now) {
            if self.jobs.get(&id).is_some_and(|job| job.running_layout().is_some()) {
                self.plan_group_commit(id);
                self.group_commits.due.set(id, self.now.saturating_add(COMMIT_INTERVAL_MS));
            } else {
                self.remove_group_commit(id);
            }
        }
    }

    /// Plans the last commit of a job that ends. Its workers receive the commit with the plan without the job.
    pub(crate) fn finish_group_commits(&mut self, id: JobId) {
        if self.group_commits.due.contains(id) {
            self.plan_group_commit(id);
            self.group_commits.due.set(id, self.now.saturating_add(LAST_COMMIT_MS));
        }
    }

    /// The commits of a worker's plan.
    pub(crate) fn planned_commits(&self, worker: &TrackedWorker) -> Vec<GroupCommit> {
        let commit = |job: &JobId| {
            let planned = self.group_commits.planned.get(job)?;
            Some(GroupCommit { job: *job, delivered: planned.delivered, offsets: planned.offsets.clone() })
        };
        worker.commits.iter().filter_map(commit).collect()
    }

    fn plan_group_commit(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let Some(layout) = &job.layout else { return };
        self.examined_items += job.streams.len() as u64;
        let open = job.open_splits.iter().map(|(split, open)| (split, open.offset));
        let delivered = layout.delivered_rows(job.streams.positions(), open);
        let accepts_work = |id: &WorkerId| self.workers.get(id).is_some_and(TrackedWorker::accepts_work);
        let growth = job.growth.as_ref().map(|growth| &growth.recorded);
        let round = delivered.rows / (layout.split_rows * u64::from(layout.streams)).max(1);
        let offsets = growth.map(|growth| offsets_of_growth(growth, round)).unwrap_or_default();
        self.examined_items += offsets.len() as u64;
        let before = self.group_commits.planned.get(&id);
        // A worker that has read the topics has the index and a connection.
        let own = before.map(|planned| planned.worker).into_iter().chain(job.workers.iter().copied());
        let Some(worker) = own.chain(self.live_workers.iter().copied()).find(accepts_work) else { return };
        let planned = PlannedCommit { worker, delivered, offsets };
        if before == Some(&planned) {
            return;
        }
        if before.is_some_and(|before| before.worker != worker) {
            self.remove_group_commit(id);
        }
        self.group_commits.planned.insert(id, planned);
        if let Some(found) = self.workers.get_mut(&worker) {
            found.commits.insert(id);
            found.revision += 1;
        }
    }

    fn remove_group_commit(&mut self, id: JobId) {
        let Some(planned) = self.group_commits.planned.remove(&id) else { return };
        if let Some(worker) = self.workers.get_mut(&planned.worker)
            && worker.commits.remove(&id)
        {
            worker.revision += 1;
        }
    }
}
