//! What is known of the stores that jobs read, and of which of their bytes stay on a host.

use feedline_data::ids::JobId;
use feedline_data::messages::saturating_sum;
use feedline_data::pipeline::Pipeline;

use super::terms::{LOCAL_STORE, store_of};
use super::{JobWindows, Observer, recent_of_consumer};

use crate::model::{JobConsumerSample, JobModel, Locality};

/// What the jobs of a store have seen of it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ObservedStore {
    /// What those that wait for it get of it together, in bytes per second; those that have seen its limit.
    waiting: f64,
    is_full: bool,
    /// What the others take of it.
    others: f64,
    /// The largest limit that any of them has seen, waiting now or not.
    largest: f64,
}

impl ObservedStore {
    pub(super) fn add(&mut self, model: &JobModel, waits: bool) {
        let cap = model.bandwidth.cap();
        self.largest = self.largest.max(cap.unwrap_or(0.0));
        match cap.filter(|_| waits) {
            Some(cap) => (self.waiting, self.is_full) = (self.waiting + cap, true),
            None => self.others += model.rows_per_s * model.store_bytes,
        }
    }

    /// What it gives to all together; 0 where no limit has been seen. While jobs wait for it that is what flows: each of
    /// them sees its own part of the store only.
    pub(super) fn limit(&self) -> f64 {
        if self.is_full {
            self.waiting + self.others
        } else if self.largest > 0.0 {
            self.largest.max(self.others)
        } else {
            0.0
        }
    }
}

/// Whether workers read what the pipeline names from their own disks.
pub fn reads_local_files(pipeline: &Pipeline) -> bool {
    store_of(pipeline) == LOCAL_STORE
}

impl Observer {
    /// What of a job's bytes does not cross its workers' network.
    pub fn locality(&self, job: JobId) -> Locality {
        self.jobs.get(&job).map(JobWindows::locality).unwrap_or_default()
    }
}

impl JobWindows {
    /// What of the job's bytes has lately stayed on workers' own hosts.
    pub(super) fn locality(&self) -> Locality {
        let recent: Vec<JobConsumerSample> = self.consumers.values().filter_map(recent_of_consumer).collect();
        let taken = saturating_sum(recent.iter().map(|one| one.bytes));
        let received = saturating_sum(recent.iter().map(|one| one.network_bytes));
        // Bytes are received before they are taken.
        let over_network = if taken > 0 { (received as f64 / taken as f64).min(1.0) } else { 1.0 };
        let store_is_local = reads_local_files(&self.facts.pipeline);
        Locality { store_is_local, consumers_share: 1.0 - over_network }
    }
}
