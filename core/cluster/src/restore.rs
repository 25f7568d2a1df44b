//! Rebuilds the state machine from records, and compacts its state to a minimal list of records.

use feedline_data::ids::{JobId, Millis};
use feedline_data::manifest::ContentId;
use feedline_data::messages::saved_index_key;

use crate::records::Record;
use crate::state::job::TrackedJob;
use crate::state::worker::TrackedWorker;
use crate::{Cluster, ClusterSettings, SavedIndexes};

impl Cluster {
    /// Rebuilds the durable state from records, in the order in which they were persisted. The lease times of workers with
    /// leases and of consumers with splits start at `now`.
    pub fn restore(
        settings: ClusterSettings,
        incarnation: u64,
        now: Millis,
        records: impl IntoIterator<Item = Record>,
    ) -> Self {
        let mut cluster = Self::new(settings, incarnation);
        cluster.now = now;
        for record in records {
            cluster.apply(&record);
        }
        let jobs: Vec<JobId> = cluster.jobs.keys().copied().collect();
        for id in jobs {
            cluster.restore_job(id);
        }
        cluster.keep_graphs();
        if cluster.jobs.values().any(|job| !job.is_ended()) {
            cluster.unrest.on_disturbance(now);
        }
        cluster
    }

    fn restore_job(&mut self, id: JobId) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.is_ended()) else { return };
        job.delivered_leases.clear();
        job.restore_consumers(now);
        job.watch_epoch(true);
        for consumer in job.consumers.keys() {
            self.consumer_reports.set((id, *consumer), now);
        }
        for (split, lease) in job.leases.iter() {
            job.lease_ages.push(now, split);
            for worker in lease.holders().map(|holder| holder.worker) {
                if !self.workers.contains_key(&worker) {
                    self.workers.insert(worker, TrackedWorker::new(now, 1));
                    self.worker_reports.set(worker, now);
                }
                if let Some(found) = self.workers.get_mut(&worker) {
                    found.add_lease(id, split);
                }
                job.workers.insert(worker);
            }
        }
        if !job.suspects.is_empty() {
            self.suspect_jobs.insert(id);
        }
        if job.dataset.is_none() {
            self.begin_preparation(id, SavedIndexes::default());
        } else {
            self.begin_group_commits(id);
        }
    }

    /// Returns the jobs with datasets in preparation and the keys of their saved indexes. After [`Self::restore`] the driver
    /// passes the saved indexes to [`Self::set_saved_index`].
    pub fn preparing_jobs(&self) -> Vec<(JobId, String)> {
        let key = |job: &JobId| Some((*job, saved_index_key(&self.jobs[job].spec)?));
        self.preparations.keys().filter_map(key).collect()
    }

    /// Returns the content id of a preparing job's start position; unknown without a start position.
    pub fn start_content(&self, job: JobId) -> ContentId {
        let start = self.jobs.get(&job).and_then(|found| found.spec.start.as_ref());
        start.map(|start| start.content.clone()).unwrap_or_default()
    }

    /// Sets the saved indexes of a preparing job's source. A job that requests a new index ignores the latest index.
    pub fn set_saved_index(&mut self, job: JobId, saved: SavedIndexes) {
        let reindex = self.jobs.get(&job).is_some_and(|found| found.spec.reindex);
        if let Some(preparation) = self.preparations.get_mut(&job) {
            preparation.saved_index = saved.latest.filter(|_| !reindex);
            preparation.start_index = saved.of_start;
        }
    }

    /// Returns the records of a compacted log, which rebuild the current durable state.
    pub fn snapshot(&self) -> Vec<Record> {
        let mut records: Vec<Record> = self.jobs.values().flat_map(TrackedJob::snapshot).collect();
        let ended = |job: &JobId| {
            let state = self.jobs.get(job).and_then(|found| found.end_state.clone());
            state.map(|state| Record::Ended { job: *job, state })
        };
        // Ended jobs are removed in the order in which they ended, so their records keep this order.
        records.extend(self.ended_jobs.iter().filter_map(ended));
        records
    }
}
