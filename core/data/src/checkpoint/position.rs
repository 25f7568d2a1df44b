//! The position of a job: the next undelivered row of every stream. A job can resume from a position on any number of
//! workers and consumers.

use serde::{Deserialize, Serialize};

use crate::layout::{Layout, StreamPosition};
use crate::manifest::DatasetSummary;
use crate::mix::MixChange;
use crate::pipeline::OrderMode;

/// The position of a job. A training checkpoint stores the position as JSON. The job can resume only with the same pipeline
/// and dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Format version.
    pub version: u32,
    /// Fingerprint of the pipeline.
    pub pipeline: String,
    /// Fingerprint of the dataset.
    pub dataset: String,
    /// Order mode of the job.
    pub order: OrderMode,
    /// The number of virtual consumers of the job.
    pub virtual_consumers: u32,
    /// The next undelivered row of each stream. A deterministic job has a stream for each virtual consumer; a relaxed job
    /// has one stream, from which consumers take splits.
    pub streams: Vec<StreamPosition>,
    /// Relaxed mode: ranges of undelivered rows before the stream's position.
    #[serde(rename = "open", default, skip_serializing_if = "Vec::is_empty")]
    pub open_ranges: Vec<OpenRange>,
    /// Mix weight changes that affect rows after this position.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mix: Vec<MixChange>,
}

/// Undelivered rows that are assigned to a consumer of a relaxed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OpenRange {
    /// Epoch, from 0.
    pub epoch: u32,
    /// The first row.
    #[serde(rename = "from")]
    pub start_row: u64,
    /// The row after the last row of the range.
    #[serde(rename = "to")]
    pub end_row: u64,
}

/// The format version of [`Position`].
pub const POSITION_VERSION: u32 = 1;

/// Fingerprints of the pipeline and the dataset of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprints {
    /// Fingerprint of the pipeline.
    pub pipeline: String,
    /// Fingerprint of the dataset.
    pub dataset: String,
}

/// A step of a job whose layout determines the number of steps. Rank `r` owns the streams `r`, `r + ranks`, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobStep {
    /// The number of ranks of the job.
    pub ranks: u32,
    /// Epoch, from 0.
    pub epoch: u32,
    /// The next step of the epoch.
    pub step: u64,
    /// The number of streams of each rank that have already delivered the step, starting with the rank's first stream.
    pub streams_ahead: u32,
}

impl Position {
    /// Returns the position of a deterministic job at a step.
    pub fn at_step(layout: &Layout, fingerprints: Fingerprints, at: JobStep) -> Self {
        let step_of = |stream: u32| at.step + u64::from(stream / at.ranks.max(1) < at.streams_ahead);
        let streams = 0..layout.streams;
        Self {
            version: POSITION_VERSION,
            pipeline: fingerprints.pipeline,
            dataset: fingerprints.dataset,
            order: OrderMode::Deterministic,
            virtual_consumers: layout.streams,
            streams: streams.map(|stream| stream_at(layout, stream, at.epoch, step_of(stream))).collect(),
            open_ranges: Vec::new(),
            mix: layout.mix_changes_from(at.epoch).to_vec(),
        }
    }

    /// Checks that this position belongs to a job.
    ///
    /// # Errors
    /// Returns a message that names the difference and the fix.
    pub fn check(
        &self,
        pipeline: &str,
        dataset: &DatasetSummary,
        order: OrderMode,
        layout: &Layout,
    ) -> Result<(), String> {
        if self.version != POSITION_VERSION {
            return Err(format!(
                "the position has version {}, but this release reads version {POSITION_VERSION}; restore it with the release that wrote it",
                self.version
            ));
        }
        if self.pipeline != pipeline {
            return Err(format!(
                "the position was saved with a different pipeline (fingerprint {}, but this pipeline has {pipeline}); use the original pipeline file",
                self.pipeline
            ));
        }
        if self.dataset != dataset.fingerprint {
            return Err(format!(
                "the position was saved with a different dataset (fingerprint {}, but this dataset has {}, with {} rows in {} shards); restore the original shards",
                self.dataset, dataset.fingerprint, dataset.rows, dataset.shards
            ));
        }
        if self.order != order {
            return Err(
                "the position was saved with a different `order`; use the same `order` as before in the pipeline".to_owned()
            );
        }
        if self.streams.len() != layout.streams as usize {
            return Err(format!(
                "the position has {} streams, but the job has {}; set virtual_consumers to {}",
                self.streams.len(),
                layout.streams,
                self.virtual_consumers
            ));
        }
        for (stream, position) in self.streams.iter().enumerate() {
            if position.epoch < layout.epochs && position.row > layout.stream_rows(stream as u32) {
                return Err(format!(
                    "invalid position: row {} of virtual consumer {stream} is beyond its {} rows per epoch; use an unmodified checkpoint",
                    position.row,
                    layout.stream_rows(stream as u32)
                ));
            }
        }
        Ok(())
    }
}

/// Returns the position of a stream before a step of an epoch.
fn stream_at(layout: &Layout, stream: u32, epoch: u32, step: u64) -> StreamPosition {
    let steps = layout.steps();
    let is_next_epoch = steps.is_some_and(|steps| step >= steps);
    let (epoch, step) = if is_next_epoch { (epoch.saturating_add(1), 0) } else { (epoch, step) };
    if epoch >= layout.epochs || steps == Some(0) {
        return StreamPosition { epoch: layout.epochs, row: 0 };
    }
    let row = step.saturating_mul(u64::from(layout.batch_rows)).min(layout.stream_rows(stream));
    layout.normalise(stream, StreamPosition { epoch, row })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Remainder;

    /// Two streams of 6 rows, 3 steps of 2 rows, 2 epochs.
    fn layout(dataset_rows: u64) -> Layout {
        Layout {
            dataset_rows,
            passes: 1,
            epochs: 2,
            streams: 2,
            batch_rows: 2,
            remainder: Remainder::Emit,
            changes_rows: false,
            split_rows: 4,
            group_rows: 2,
            coordinated: false,
            mix_changes: Vec::new(),
        }
    }

    fn at_step(layout: &Layout, ranks: u32, epoch: u32, step: u64, streams_ahead: u32) -> Vec<(u32, u64)> {
        let fingerprints = Fingerprints { pipeline: "p".to_owned(), dataset: "d".to_owned() };
        let position = Position::at_step(layout, fingerprints, JobStep { ranks, epoch, step, streams_ahead });
        position.streams.iter().map(|stream| (stream.epoch, stream.row)).collect()
    }

    #[test]
    fn a_step_determines_the_position_of_every_stream() {
        let layout = layout(12);
        assert_eq!(at_step(&layout, 1, 0, 1, 0), [(0, 2), (0, 2)]);
        assert_eq!(at_step(&layout, 1, 0, 2, 1), [(1, 0), (0, 4)], "the first stream has delivered step 2");
        assert_eq!(at_step(&layout, 2, 0, 2, 1), [(1, 0), (1, 0)], "the first stream of each rank");
        assert_eq!(at_step(&layout, 1, 0, 3, 0), [(1, 0), (1, 0)]);
        assert_eq!(at_step(&layout, 1, 1, 3, 0), [(2, 0), (2, 0)]);
        assert_eq!(at_step(&layout, 1, u32::MAX, u64::MAX, 0), [(2, 0), (2, 0)]);
    }

    #[test]
    fn a_job_without_rows_is_at_its_end() {
        let layout = Layout { epochs: 1_000_000, ..layout(0) };
        assert_eq!(at_step(&layout, 1, 0, 0, 0), [(1_000_000, 0); 2]);
    }
}
