//! Unbounded jobs that are being prepared wait for the first record of their topics, which determines the columns.

use std::collections::BTreeSet;

use feedline_data::ids::JobId;
use feedline_data::manifest::{IndexedShard, ShardIndex, ShardRef};

use crate::{Cluster, SavedIndexes};

impl Cluster {
    /// Starts the preparations of jobs again that wait for the first record of their topics.
    pub(crate) fn prepare_again(&mut self, due: &BTreeSet<JobId>) {
        for id in due {
            let Some(job) = self.jobs.get_mut(id).filter(|job| !job.is_ended()) else { continue };
            if job.first_record.take_due(self.now) {
                self.begin_preparation(*id, SavedIndexes::default());
            }
        }
    }

    /// Ends a preparation that has found no record, and schedules the next one.
    pub(crate) fn wait_for_first_record(&mut self, id: JobId) {
        self.drop_preparation(id);
        let now = self.now;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.first_record.on_no_record(now);
        }
    }

    /// Returns the listing of an unbounded job with the first offsets of its first listing. The topics may have received records
    /// since then, because the job waits for the first record. The partitions without new offsets have an empty index, so that they
    /// are not searched again. Returns `None` if no partition has new offsets.
    pub(crate) fn with_first_offsets(
        &mut self,
        id: JobId,
        listed: Vec<ShardRef>,
    ) -> Option<(Vec<ShardRef>, Vec<Option<IndexedShard>>)> {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.spec.pipeline.source.is_unbounded()) else {
            let indexed = vec![None; listed.len()];
            return Some((listed, indexed));
        };
        let listed = job.first_record.continued(listed);
        let searched = job.first_record.searched(&listed);
        if job.first_record.waits() && searched.iter().all(|is_searched| *is_searched) {
            return None;
        }
        job.first_record.listing.clone_from(&listed);
        let indexed = searched.iter().map(|is_searched| is_searched.then(|| ShardIndex::default().into()));
        Some((listed, indexed.collect()))
    }
}
