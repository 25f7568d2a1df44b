//! The position of a job: the next undelivered row of every stream. A job can resume from a position on any number of
//! workers and consumers.

use serde::{Deserialize, Serialize};

use crate::growth::GrowthPosition;
use crate::layout::{Layout, StreamPosition};
use crate::manifest::{ContentId, DatasetSummary, Manifest, TopicRanges};
use crate::mix::MixChange;
use crate::pipeline::{OrderMode, PipelineId};

/// The position of a job. A training checkpoint stores the position as JSON. The job can resume only with the same dataset
/// and, unless the user accepts another one, the same pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Format version.
    pub version: u32,
    /// The id of the pipeline.
    pub pipeline: PipelineId,
    /// Fingerprint of the dataset.
    pub dataset: String,
    /// The content id of the dataset. Unknown in a position of an earlier release, which only its fingerprint identifies.
    #[serde(default, skip_serializing_if = "ContentId::is_unknown")]
    pub content: ContentId,
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
    /// Unbounded jobs: the recorded partitions, and the segments after this position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<Box<GrowthPosition>>,
    /// Bounded jobs on topics: the ranges of offsets. `None` in a position of an earlier release, in a mix with files, if the topics
    /// exceed the limits of [`TopicRanges::check`], and in an unbounded job, whose offsets are in `growth`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranges: Option<Box<TopicRanges>>,
    /// Jobs with indivisible batches: the number of rows of a split. The expected size of a batch may differ when the job resumes,
    /// but the order of rows must not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_rows: Option<u64>,
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

/// The ids of the pipeline and the dataset of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprints {
    /// The id of the pipeline.
    pub pipeline: PipelineId,
    /// Fingerprint of the dataset.
    pub dataset: String,
    /// The content id of the dataset.
    pub content: ContentId,
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
            content: fingerprints.content,
            order: OrderMode::Deterministic,
            virtual_consumers: layout.streams,
            streams: streams.map(|stream| stream_at(layout, stream, at.epoch, step_of(stream))).collect(),
            open_ranges: Vec::new(),
            mix: layout.mix_changes_from(at.epoch).to_vec(),
            growth: None,
            // The caller adds the ranges of the state.
            ranges: None,
            split_rows: layout.indivisible.then_some(layout.split_rows),
        }
    }

    /// The number of rows of a split, if the position contains it.
    pub fn stored_split_rows(&self) -> Option<u64> {
        self.growth.as_ref().map(|growth| growth.split_rows).or(self.split_rows)
    }

    /// Checks that this position refers to the rows of a dataset. `saved_with` is the index of the dataset that the position
    /// was saved with, if it is known. `accept_reuploaded` accepts shards with another validator if indexing reads only parts
    /// of them, and these parts are equal.
    ///
    /// # Errors
    /// Returns a message that names the shards that changed, and the fix.
    pub fn check_content(
        &self,
        dataset: &DatasetSummary,
        manifest: &Manifest,
        saved_with: Option<&Manifest>,
        accept_reuploaded: bool,
    ) -> Result<(), String> {
        if self.growth.is_some()
            || !self.has_content_of(dataset)
            || self.content.is_same_content(&dataset.content)
        {
            return Ok(());
        }
        let named =
            saved_with.map(|saved| saved.describe_changes(manifest)).filter(|named| !named.is_empty());
        // A content id does not tell which shards have other checksums.
        let is_rewritten = || saved_with.is_some_and(|saved| saved.has_other_checksums(manifest));
        if self.content.may_be_reuploaded(&dataset.content) && !is_rewritten() {
            if accept_reuploaded {
                return Ok(());
            }
            let named = named.map_or_else(String::new, |named| format!(": {named}"));
            return Err(format!(
                "the dataset may have changed since the position was saved{named}; indexing reads only parts of these shards, and \
                 these parts are equal: if the same data was written again, resume with `--accept-reuploaded`, or `accept_reuploaded=True` in Python; otherwise restore \
                 the original shards, or start without the position"
            ));
        }
        Err(match named {
            Some(named) => format!(
                "the dataset changed since the position was saved: {named}; restore the original shards, or start without the position"
            ),
            None => format!(
                "the dataset changed since the position was saved (content {}, but it is now {}, with {} rows in {} shards), and the \
                 index that it was saved with is not available to name the shards; restore the original shards, or start without \
                 the position",
                self.content.short(),
                dataset.content.short(),
                dataset.rows,
                dataset.shards
            ),
        })
    }

    /// Whether both this position and the dataset have a content id. Otherwise their fingerprints are compared.
    fn has_content_of(&self, dataset: &DatasetSummary) -> bool {
        !self.content.is_unknown() && !dataset.content.is_unknown()
    }

    /// Returns a message that names the differences to the pipeline of the position, and the fix.
    fn check_pipeline(&self, pipeline: &PipelineId) -> Result<(), String> {
        if self.pipeline.is_same_pipeline(pipeline) {
            return Ok(());
        }
        Err(format!(
            "the position was saved with a different pipeline ({}); use the original pipeline file, or continue with this one by \
             `--accept-changed-pipeline`, or `accept_changed_pipeline=True` in Python",
            self.pipeline.describe_differences(pipeline)
        ))
    }

    /// Checks that this position belongs to a job. `accept_changed_pipeline` accepts another pipeline with the same batches and splits.
    /// [`Self::check_content`] compares the contents of the dataset.
    ///
    /// # Errors
    /// Returns a message that names the difference and the fix.
    pub fn check(
        &self,
        pipeline: &PipelineId,
        accept_changed_pipeline: bool,
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
        if accept_changed_pipeline && !self.pipeline.is_same_pipeline(pipeline) {
            self.pipeline.check_accepted(pipeline, order)?;
        } else {
            self.check_pipeline(pipeline)?;
        }
        // The growth identifies the topics.
        let is_same_source = self.growth.is_some() || self.has_content_of(dataset);
        if !is_same_source && self.dataset != dataset.fingerprint {
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
        if layout.indivisible {
            self.check_batch_ends(layout)?;
        }
        match &self.growth {
            Some(growth) => {
                let open = self
                    .open_ranges
                    .iter()
                    .map(|range| StreamPosition { epoch: range.epoch, row: range.start_row });
                growth.check(layout, &self.streams.iter().copied().chain(open).collect::<Vec<_>>())
            }
            None if layout.unbounded => {
                Err("the position does not contain the state of the topics; use an unmodified checkpoint"
                    .to_owned())
            }
            None => Ok(()),
        }
    }
}

impl Position {
    /// Checks that a position of a job with indivisible batches has the splits of the layout, and is between batches.
    fn check_batch_ends(&self, layout: &Layout) -> Result<(), String> {
        if self.split_rows != Some(layout.split_rows) {
            return Err(format!(
                "invalid position: its splits have {} rows, but those of the job have {}; use an unmodified checkpoint",
                self.split_rows.unwrap_or(0),
                layout.split_rows
            ));
        }
        let streams = (0..).zip(&self.streams).map(|(stream, position)| (stream, position.row));
        let open = self.open_ranges.iter().map(|range| (0, range.start_row));
        for (stream, row) in streams.chain(open) {
            let is_between =
                row.is_multiple_of(u64::from(layout.batch_rows)) || row == layout.stream_rows(stream);
            if !is_between {
                return Err(format!(
                    "invalid position: row {row} of virtual consumer {stream} is within a batch of {} rows; use an unmodified checkpoint",
                    layout.batch_rows
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
mod tests;
