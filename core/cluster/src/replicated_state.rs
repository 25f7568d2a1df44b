//! The durable state of a follower: it applies records and decides nothing.

use feedline_data::checkpoint::Position;
use feedline_data::ids::{JobId, Millis};

use crate::records::Record;
use crate::state::job::{TouchedStreams, TrackedJob};
use crate::{Cluster, ClusterSettings};

/// The durable state after a number of records.
#[derive(Debug)]
pub struct ReplicatedState {
    cluster: Cluster,
}

impl ReplicatedState {
    /// The state before all records.
    pub fn new(settings: ClusterSettings) -> Self {
        Self { cluster: Cluster::new(settings, 0) }
    }

    /// Applies the next record.
    pub fn apply(&mut self, record: &Record) {
        self.cluster.apply(record);
        // Only a leader checks what has changed.
        self.cluster.jobs_to_schedule.clear();
        self.cluster.redistribute_at = None;
        if let Some(job) = self.cluster.jobs.get_mut(&record.job()) {
            job.released.clear();
            job.touched = TouchedStreams::all();
        }
        self.cluster.jobs.take_visited();
    }

    /// Records that rebuild the state.
    pub fn snapshot(&self) -> Vec<Record> {
        self.cluster.snapshot()
    }

    /// The position of a job; `None` for an unknown job, and before its dataset is known.
    pub fn position(&self, job: JobId) -> Option<Position> {
        self.cluster.jobs.get(&job).and_then(TrackedJob::position)
    }

    /// A state machine that continues from this state: [`Cluster::restore`].
    pub fn lead(&self, life: u64, now: Millis) -> Cluster {
        Cluster::restore(self.cluster.settings.clone(), life, now, self.snapshot())
    }
}
