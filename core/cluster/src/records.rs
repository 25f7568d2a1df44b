//! The decisions that outlive the coordinator. Replaying them in order rebuilds its durable state.

use feedline_data::ids::{JobId, SessionId, WorkerId};
use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::manifest::DatasetSummary;
use feedline_data::messages::{JobSpec, JobState};
use feedline_data::mix::MixChange;
use serde::{Deserialize, Serialize};

use super::slots::SlotOwnership;

/// Splits in one record: what is recorded together fits into one entry of the log.
pub(super) const MOST_SPLITS: usize = 16_384;

/// One decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// A job was accepted.
    Opened {
        /// Its id.
        job: JobId,
        /// What it is.
        spec: Box<JobSpec>,
    },
    /// The job's dataset is known: its order is fixed from here on.
    Ready {
        /// The job.
        job: JobId,
        /// The dataset.
        dataset: DatasetSummary,
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
    /// A worker no longer holds these splits.
    Revoked {
        /// The job.
        job: JobId,
        /// The worker.
        worker: WorkerId,
        /// The splits.
        splits: Vec<SplitRef>,
    },
    /// Relaxed mode: splits were given to a consumer.
    Assigned {
        /// The job.
        job: JobId,
        /// The consumer; `None` takes them back from one that was lost.
        consumer: Option<u32>,
        /// The splits.
        splits: Vec<SplitRef>,
    },
    /// Consumers have taken rows.
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
    /// Elastic jobs: slots were given to a rank, which begins where the log has them.
    SlotsMoved {
        /// The job.
        job: JobId,
        /// The rank; `None` where its slots wait for one.
        rank: Option<u32>,
        /// The rank's session.
        session: SessionId,
        /// The slots.
        slots: Vec<u32>,
    },
    /// In a compacted log: where the job stood.
    Stands {
        /// The job.
        job: JobId,
        /// The next undelivered row of each stream; in relaxed mode the next split that nobody has taken.
        streams: Vec<StreamPosition>,
        /// Relaxed mode: splits taken and not done, with their consumer and next offset.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        open: Vec<(SplitRef, Option<u32>, u32)>,
        /// Elastic jobs: who had each slot.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        slots: Vec<SlotOwnership>,
        /// Epoch and round of the furthest split that was ever granted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        granted: Option<(u32, u64)>,
        /// How the weights of its mix have changed.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mix: Vec<MixChange>,
    },
    /// The weights of its mix change, behind everything that was granted.
    Remixed {
        /// The job.
        job: JobId,
        /// Where, and to what.
        change: MixChange,
    },
    /// The job ended.
    Ended {
        /// The job.
        job: JobId,
        /// How.
        state: JobState,
    },
}

impl Record {
    /// The job that it is about.
    pub fn job(&self) -> JobId {
        match self {
            Self::Opened { job, .. }
            | Self::Ready { job, .. }
            | Self::Granted { job, .. }
            | Self::Revoked { job, .. }
            | Self::Assigned { job, .. }
            | Self::Advanced { job, .. }
            | Self::SlotsMoved { job, .. }
            | Self::Stands { job, .. }
            | Self::Remixed { job, .. }
            | Self::Ended { job, .. } => *job,
        }
    }

    /// Takes the first splits off a record that has more than [`MOST_SPLITS`], as a record of their own; `None` where it
    /// has not.
    pub(super) fn take_part(&mut self) -> Option<Self> {
        let splits = self.splits_mut().filter(|splits| splits.len() > MOST_SPLITS)?;
        let rest = splits.split_off(MOST_SPLITS);
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
    fn a_record_of_many_splits_is_told_in_parts() {
        let splits: Vec<SplitRef> = (0..2 * MOST_SPLITS as u64 + 1)
            .map(|ordinal| SplitRef { epoch: 0, ordinal, stream: 0 })
            .collect();
        let of = |splits: &[SplitRef]| Record::Granted {
            job: JobId(1),
            worker: WorkerId(2),
            splits: splits.to_vec(),
        };
        let mut record = of(&splits);
        let parts: Vec<Record> = std::iter::from_fn(|| record.take_part()).collect();
        assert_eq!(parts, [of(&splits[..MOST_SPLITS]), of(&splits[MOST_SPLITS..2 * MOST_SPLITS])]);
        assert_eq!(record, of(&splits[2 * MOST_SPLITS..]));
        assert_eq!(record.take_part(), None);
        let mut ended = Record::Ended { job: JobId(1), state: JobState::Completed };
        assert_eq!(ended.take_part(), None);
    }
}
