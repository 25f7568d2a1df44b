//! A position: where a job's consumers stand. Small, readable, and enough to rewind the whole service.

use serde::{Deserialize, Serialize};

use crate::layout::{Layout, StreamPosition};
use crate::manifest::DatasetSummary;
use crate::mix::MixChange;
use crate::pipeline::OrderMode;

/// Where a job stands. A training checkpoint stores it as JSON; restoring it needs the same pipeline and dataset, on
/// any number of workers and consumers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Format version, 1.
    pub version: u32,
    /// Fingerprint of the pipeline.
    pub pipeline: String,
    /// Fingerprint of the dataset.
    pub dataset: String,
    /// Order mode of the job.
    pub order: OrderMode,
    /// Virtual consumers of the job.
    pub virtual_consumers: u32,
    /// The next undelivered row of each stream: of each virtual consumer in deterministic mode; in relaxed mode of
    /// the one sequence from which splits are taken.
    pub streams: Vec<StreamPosition>,
    /// Relaxed mode: ranges before the stream's position whose rows have not been delivered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<OpenRange>,
    /// How the weights of a mix change, as far as it tells what comes from here on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mix: Vec<MixChange>,
}

/// Rows taken by a consumer of a relaxed job and not delivered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OpenRange {
    /// Epoch, from 0.
    pub epoch: u32,
    /// First row.
    pub from: u64,
    /// Row after the last.
    pub to: u64,
}

/// The present version of [`Position`].
pub const POSITION_VERSION: u32 = 1;

impl Position {
    /// Checks that this position belongs to a job.
    ///
    /// # Errors
    /// One sentence that says what differs and what to do.
    pub fn check(
        &self,
        pipeline: &str,
        dataset: &DatasetSummary,
        order: OrderMode,
        layout: &Layout,
    ) -> Result<(), String> {
        if self.version != POSITION_VERSION {
            return Err(format!(
                "the position has version {}, this release reads version {POSITION_VERSION}; restore it with the release that wrote it",
                self.version
            ));
        }
        if self.pipeline != pipeline {
            return Err(format!(
                "the position belongs to another pipeline (fingerprint {}, this one is {pipeline}); use the pipeline file it was saved with",
                self.pipeline
            ));
        }
        if self.dataset != dataset.fingerprint {
            return Err(format!(
                "the position belongs to other data (fingerprint {}, this is {}, with {} rows in {} shards); restore the shards it was saved with",
                self.dataset, dataset.fingerprint, dataset.rows, dataset.shards
            ));
        }
        if self.order != order {
            return Err("the position was saved in the other order mode; set `order` as it was".to_owned());
        }
        if self.streams.len() != layout.streams as usize {
            return Err(format!(
                "the position has {} streams, the job {}; open the job with virtual_consumers {}",
                self.streams.len(),
                layout.streams,
                self.virtual_consumers
            ));
        }
        for (stream, position) in self.streams.iter().enumerate() {
            if position.epoch < layout.epochs && position.row > layout.stream_rows(stream as u32) {
                return Err(format!(
                    "the position says row {} for virtual consumer {stream}, which has only {} rows in an epoch; the file was edited",
                    position.row,
                    layout.stream_rows(stream as u32)
                ));
            }
        }
        Ok(())
    }
}
