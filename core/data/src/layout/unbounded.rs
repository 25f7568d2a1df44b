//! The layout of an unbounded job.

use super::{DEFAULT_SPLIT_ROWS, Layout, MAX_SPLIT_BYTES, group_rows, stream_count};
use crate::manifest::DatasetSummary;
use crate::pipeline::{Pipeline, Remainder};
use crate::runs::RunLayout;

/// Number of rows of an unbounded job: more than a job can read within a thousand years.
const UNBOUNDED_ROWS: u64 = 1 << 56;
/// Maximum number of rows of a split of an unbounded job with a shuffle window. Segments may be shorter than the window.
const MAX_UNBOUNDED_SPLIT_ROWS: u64 = 1 << 13;

impl Layout {
    /// Returns this layout with splits of another length: whole rounds.
    pub(super) fn unbounded_with_splits(mut self, split_rows: u64) -> Self {
        let round_rows = split_rows * u64::from(self.streams);
        self.dataset_rows = (UNBOUNDED_ROWS / round_rows).max(1) * round_rows;
        self.group_rows = self.group_rows.min(split_rows as u32);
        self.split_rows = split_rows;
        self
    }

    /// Computes the layout of an unbounded job: one epoch of full rounds.
    pub(super) fn unbounded(pipeline: &Pipeline, dataset: &DatasetSummary, virtual_consumers: u32) -> Self {
        let batch = u64::from(pipeline.batch_size());
        let streams = stream_count(pipeline, virtual_consumers).max(1);
        let mean_row_bytes = (dataset.bytes / dataset.rows.max(1)).max(1);
        let wanted = DEFAULT_SPLIT_ROWS.max(pipeline.shuffle.window.min(MAX_UNBOUNDED_SPLIT_ROWS));
        let split_rows = wanted.min(MAX_SPLIT_BYTES / mean_row_bytes).max(batch).next_multiple_of(batch);
        let round_rows = split_rows * u64::from(streams);
        Self {
            dataset_rows: (UNBOUNDED_ROWS / round_rows).max(1) * round_rows,
            passes: 1,
            epochs: 1,
            streams,
            batch_rows: pipeline.batch_size(),
            remainder: Remainder::Carry,
            changes_rows: true,
            split_rows,
            group_rows: group_rows(pipeline, mean_row_bytes, split_rows),
            coordinated: false,
            mix_changes: Vec::new(),
            runs: RunLayout::default(),
            unbounded: true,
            indivisible: false,
        }
    }
}
