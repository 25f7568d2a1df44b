//! The durable state alone, as a coordinator keeps it that follows another.

use feedline_data::checkpoint::Position;
use feedline_data::ids::{JobId, Millis};

use super::job::{TouchedStreams, TrackedJob};
use super::records::Record;
use super::{Cluster, ClusterSettings};

/// The durable state after some records.
#[derive(Debug)]
pub struct ReplicatedState {
    cluster: Cluster,
}

impl ReplicatedState {
    /// The state before all records.
    pub fn new(settings: ClusterSettings) -> Self {
        Self { cluster: Cluster::new(settings, 0) }
    }

    /// The next record.
    pub fn apply(&mut self, record: &Record) {
        self.cluster.apply(record);
        // Only a leader looks at what has changed.
        self.cluster.stale.clear();
        if let Some(job) = self.cluster.jobs.get_mut(&record.job()) {
            job.released.clear();
            job.touched = TouchedStreams { all: true, ..TouchedStreams::default() };
        }
    }

    /// Records that rebuild the state.
    pub fn snapshot(&self) -> Vec<Record> {
        self.cluster.snapshot()
    }

    /// Where a job stands; `None` where its dataset is not known yet, or the job is not.
    pub fn position(&self, job: JobId) -> Option<Position> {
        self.cluster.jobs.get(&job).and_then(TrackedJob::position)
    }

    /// A state machine that goes on from here: [`Cluster::restore`].
    pub fn lead(&self, life: u64, now: Millis) -> Cluster {
        Cluster::restore(self.cluster.settings.clone(), life, now, self.snapshot())
    }
}
