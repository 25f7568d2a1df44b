//! The durable state of a follower, which applies records and makes no decisions.

use feedline_data::checkpoint::Position;
use feedline_data::ids::{JobId, Millis};

use crate::records::Record;
use crate::state::job::{TouchedStreams, TrackedJob};
use crate::{Cluster, ClusterSettings};

/// The durable state after all applied records.
#[derive(Debug)]
pub struct ReplicatedState {
    cluster: Cluster,
}

impl ReplicatedState {
    /// Creates the state before the first record.
    pub fn new(settings: ClusterSettings) -> Self {
        Self { cluster: Cluster::new(settings, 0) }
    }

    /// Applies the next record.
    pub fn apply(&mut self, record: &Record) {
        self.cluster.apply(record);
        // Only a leader acts on changes, so a follower discards the change tracking.
        self.cluster.jobs_to_schedule.clear();
        self.cluster.redistribute_at = None;
        if let Some(job) = self.cluster.jobs.get_mut(&record.job()) {
            job.delivered_leases.clear();
            job.touched_streams = TouchedStreams::all();
        }
        self.cluster.jobs.take_visited();
    }

    /// Returns the records that rebuild the state.
    pub fn snapshot(&self) -> Vec<Record> {
        self.cluster.snapshot()
    }

    /// Returns the position of a job; `None` for an unknown job, or before its dataset is indexed.
    pub fn position(&self, job: JobId) -> Option<Position> {
        self.cluster.jobs.get(&job).and_then(TrackedJob::position)
    }

    /// Returns the state machine of a leader that continues from this state. See [`Cluster::restore`].
    pub fn to_leader(&self, incarnation: u64, now: Millis) -> Cluster {
        Cluster::restore(self.cluster.settings.clone(), incarnation, now, self.snapshot())
    }
}
