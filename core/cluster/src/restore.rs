//! The state machine is rebuilt from its records, and compacted to the fewest records that rebuild it.

use std::sync::Arc;

use feedline_data::ids::{JobId, Millis};
use feedline_data::manifest::Manifest;
use feedline_data::messages::source_key;

use crate::records::Record;
use crate::state::job::TrackedJob;
use crate::state::worker::TrackedWorker;
use crate::{Cluster, ClusterSettings};

impl Cluster {
    /// Rebuilds the durable state from records, in the order in which they were persisted. Workers with leases and consumers
    /// with splits count as seen at `now`, so that they keep them if they report within the lease time.
    pub fn restore(
        settings: ClusterSettings,
        life: u64,
        now: Millis,
        records: impl IntoIterator<Item = Record>,
    ) -> Self {
        let mut cluster = Self::new(settings, life);
        cluster.now = now;
        for record in records {
            cluster.apply(&record);
        }
        let jobs: Vec<JobId> = cluster.jobs.keys().copied().collect();
        for id in jobs {
            cluster.restore_job(id);
        }
        cluster
    }

    fn restore_job(&mut self, id: JobId) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.is_ended()) else { return };
        job.released.clear();
        job.restore_consumers(now);
        for consumer in job.consumers.keys() {
            self.consumer_reports.set((id, *consumer), now);
        }
        for (split, lease) in job.leases.iter() {
            job.ages.push(now, split);
            for worker in lease.holders().map(|holder| holder.worker) {
                if !self.workers.contains_key(&worker) {
                    self.workers.insert(worker, TrackedWorker::new(now, 1));
                    self.worker_reports.set(worker, now);
                }
                if let Some(found) = self.workers.get_mut(&worker) {
                    found.hold(id, split);
                }
                job.workers.insert(worker);
            }
        }
        if job.dataset.is_none() {
            self.begin_preparation(id, None);
        }
    }

    /// Jobs with datasets in preparation, and the keys of their sources. After [`Self::restore`] the driver passes their
    /// saved indexes to [`Self::set_saved`].
    pub fn preparing(&self) -> Vec<(JobId, String)> {
        let key = |job: &JobId| {
            let spec = &self.jobs[job].spec;
            source_key(&spec.tenant, &spec.pipeline.source)
        };
        self.preparations.keys().map(|job| (*job, key(job))).collect()
    }

    /// Sets the saved index of a preparing job's dataset, unless the job asked for a new index.
    pub fn set_saved(&mut self, job: JobId, saved: Arc<Manifest>) {
        let reindex = self.jobs.get(&job).is_some_and(|found| found.spec.reindex);
        if let Some(preparation) = self.preparations.get_mut(&job).filter(|_| !reindex) {
            preparation.saved = Some(saved);
        }
    }

    /// The records that rebuild the present durable state, as a compacted log contains them.
    pub fn snapshot(&self) -> Vec<Record> {
        let mut records: Vec<Record> = self.jobs.values().flat_map(TrackedJob::snapshot).collect();
        let ended = |job: &JobId| {
            let state = self.jobs.get(job).and_then(|found| found.ended.clone());
            state.map(|state| Record::Ended { job: *job, state })
        };
        // In the order in which the jobs ended, since they are forgotten in that order.
        records.extend(self.ended.iter().filter_map(ended));
        records
    }
}
