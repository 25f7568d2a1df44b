//! Records: decisions that survive a restart of the coordinator. Applying all records in order rebuilds the durable state.

use feedline_data::growth::{Growth, GrowthPartition};
use feedline_data::ids::{JobId, SessionId, WorkerId};
use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::manifest::DatasetSummary;
use feedline_data::messages::{JobSpec, JobState};
use feedline_data::mix::MixChange;
use feedline_data::segments::Segment;
use serde::{Deserialize, Serialize};

use crate::state::ended_job::DroppedPipeline;
use crate::state::slot_ownership::SlotOwnership;
use crate::state::suspects::LostWorkers;

/// Maximum number of splits in one record, so that a record fits into one log entry.
const MAX_RECORD_SPLITS: usize = 16_384;

/// A decision of the state machine about one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// A job was opened.
    Opened {
        /// The id of the job.
        job: JobId,
        /// The specification of the job.
        spec: Box<JobSpec>,
    },
    /// The job's dataset was indexed, which determines the order of its rows.
    #[serde(rename = "ready")]
    DatasetIndexed {
        /// The job.
        job: JobId,
        /// The dataset.
        dataset: Box<DatasetSummary>,
        /// In a compacted log: what remains of the pipeline of an ended job, if the pipeline was dropped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dropped: Option<Box<DroppedPipeline>>,
    },
    /// Splits were leased to a worker.
    Granted {
        /// The job.
        job: JobId,
        /// The worker.
        worker: WorkerId,
        /// The splits.
        splits: Vec<SplitRef>,
    },
    /// Leases of a worker were revoked.
    Revoked {
        /// The job.
        job: JobId,
        /// The worker.
        worker: WorkerId,
        /// The splits.
        splits: Vec<SplitRef>,
        /// Whether the worker was lost before it had computed these splits. A later record without this flag withdraws the
        /// loss, because the worker has reported again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        lost: bool,
    },
    /// Relaxed mode: splits were assigned to a consumer.
    Assigned {
        /// The job.
        job: JobId,
        /// The consumer; `None` if the splits of a lost consumer are free again.
        consumer: Option<u32>,
        /// The splits.
        splits: Vec<SplitRef>,
    },
    /// A consumer has delivered rows.
    Advanced {
        /// The job.
        job: JobId,
        /// Deterministic mode: the next undelivered row of streams.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        streams: Vec<(u32, StreamPosition)>,
        /// Relaxed mode: the next undelivered offset of splits.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        splits: Vec<(SplitRef, u32)>,
    },
    /// Elastic jobs: slots moved to a rank, which starts at their recorded positions.
    SlotsMoved {
        /// The job.
        job: JobId,
        /// The rank; `None` for slots that wait for a rank.
        rank: Option<u32>,
        /// The session of the rank.
        session: SessionId,
        /// The slots.
        slots: Vec<u32>,
    },
    /// In a compacted log: the progress of a job.
    #[serde(rename = "stands")]
    Progress {
        /// The job.
        job: JobId,
        /// The next undelivered row of each stream; in relaxed mode, the start of the next unassigned split.
        streams: Vec<StreamPosition>,
        /// Relaxed mode: assigned undelivered splits, each with its consumer and the offset of its next undelivered row.
        #[serde(rename = "open", default, skip_serializing_if = "Vec::is_empty")]
        open_splits: Vec<(SplitRef, Option<u32>, u32)>,
        /// Elastic jobs: the owner of each slot.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        slots: Vec<SlotOwnership>,
        /// Epoch and round of the latest split, in the order of the job, that has been granted.
        #[serde(rename = "granted", default, skip_serializing_if = "Option::is_none")]
        last_granted: Option<(u32, u64)>,
        /// The mix weight changes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mix: Vec<MixChange>,
        /// The workers that were lost before they had computed a split.
        #[serde(default, skip_serializing_if = "LostWorkers::is_empty")]
        lost: LostWorkers,
        /// Unbounded jobs: the recorded partitions and the undelivered segments.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        growth: Option<Box<Growth>>,
    },
    /// Unbounded jobs: partitions were added, or the next rows of the job are those of a segment.
    Grown {
        /// The job.
        job: JobId,
        /// The new partitions.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        partitions: Vec<GrowthPartition>,
        /// The segment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        segment: Option<Segment>,
        /// Milliseconds since the start of the segment's epoch.
        #[serde(default)]
        epoch_ms: u64,
    },
    /// The weights of a mix change after all granted splits.
    #[serde(rename = "remixed")]
    WeightsChanged {
        /// The job.
        job: JobId,
        /// The offset of the change and the new weights.
        change: MixChange,
    },
    /// The job ended.
    Ended {
        /// The job.
        job: JobId,
        /// The final state of the job.
        state: JobState,
    },
}

impl Record {
    /// Returns the job that the record changes.
    pub fn job(&self) -> JobId {
        match self {
            Self::Opened { job, .. }
            | Self::DatasetIndexed { job, .. }
            | Self::Granted { job, .. }
            | Self::Revoked { job, .. }
            | Self::Assigned { job, .. }
            | Self::Advanced { job, .. }
            | Self::SlotsMoved { job, .. }
            | Self::Progress { job, .. }
            | Self::WeightsChanged { job, .. }
            | Self::Grown { job, .. }
            | Self::Ended { job, .. } => *job,
        }
    }

    /// Splits off a record with the first [`MAX_RECORD_SPLITS`] splits; `None` if this record does not exceed the limit.
    pub(crate) fn split_off_part(&mut self) -> Option<Self> {
        let splits = self.splits_mut().filter(|splits| splits.len() > MAX_RECORD_SPLITS)?;
        let rest = splits.split_off(MAX_RECORD_SPLITS);
        let part = self.clone();
        *self.splits_mut()? = rest;
        Some(part)
    }

    fn splits_mut(&mut self) -> Option<&mut Vec<SplitRef>> {
        match self {
            Self::Granted { splits, .. } | Self::Revoked { splits, .. } | Self::Assigned { splits, .. } => {
                Some(splits)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_with_many_splits_becomes_several_records() {
        let splits: Vec<SplitRef> = (0..2 * MAX_RECORD_SPLITS as u64 + 1)
            .map(|ordinal| SplitRef { epoch: 0, ordinal, stream: 0 })
            .collect();
        let of = |splits: &[SplitRef]| Record::Granted {
            job: JobId(1),
            worker: WorkerId(2),
            splits: splits.to_vec(),
        };
        let mut record = of(&splits);
        let parts: Vec<Record> = std::iter::from_fn(|| record.split_off_part()).collect();
        assert_eq!(
            parts,
            [of(&splits[..MAX_RECORD_SPLITS]), of(&splits[MAX_RECORD_SPLITS..2 * MAX_RECORD_SPLITS])]
        );
        assert_eq!(record, of(&splits[2 * MAX_RECORD_SPLITS..]));
        assert_eq!(record.split_off_part(), None);
        let mut ended = Record::Ended { job: JobId(1), state: JobState::Completed };
        assert_eq!(ended.split_off_part(), None);
    }
}
