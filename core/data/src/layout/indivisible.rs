//! The layout of a job whose batches are indivisible, such as sampled graphs.
//!
//! The size of such a batch depends on the operator that forms it, and not on the rows of the source. A batch of a few KiB of seeds
//! may have 100 MB. Splits are therefore short, so that several workers compute the batches of one consumer. The shuffle window
//! does not affect them, because seeds are small.

use super::{Layout, MAX_SPLITS, MIN_SPLITS_PER_STREAM, stream_count};
use crate::manifest::DatasetSummary;
use crate::pipeline::Pipeline;

/// Assumed size of a batch, if it is not known.
const ASSUMED_BATCH_BYTES: u64 = 64 << 20;
/// Maximum expected size of the batches of a split, unless a batch is larger.
const MAX_DELIVERED_BYTES: u64 = 256 << 20;
/// Maximum number of rows of a split. Offsets in a split have 32 bits.
pub(super) const MAX_SPLIT_ROWS: u64 = 1 << 31;

impl Layout {
    /// Computes the layout of a job with indivisible batches.
    pub(super) fn indivisible(
        pipeline: &Pipeline,
        dataset: &DatasetSummary,
        epochs: u32,
        virtual_consumers: u32,
    ) -> Self {
        let (batch, streams) = (u64::from(pipeline.batch_size()), stream_count(pipeline, virtual_consumers));
        let rows = pipeline.pass_rows(dataset).saturating_mul(u64::from(pipeline.repeat_count()));
        let batch_bytes = dataset.batch_bytes.unwrap_or(ASSUMED_BATCH_BYTES).max(1);
        let share = rows / (MIN_SPLITS_PER_STREAM * u64::from(streams)) / batch;
        let batches = (MAX_DELIVERED_BYTES / batch_bytes).min(share);
        let batches =
            batches.max(rows.div_ceil(MAX_SPLITS).div_ceil(batch)).min(MAX_SPLIT_ROWS / batch).max(1);
        let layout =
            Self::with_splits(pipeline, dataset, epochs, streams, batch * batches, pipeline.batch_size());
        Self { indivisible: true, ..layout }
    }

    /// The number of parts of a split that threads compute independently of each other: its rows, or its indivisible batches.
    pub fn split_parts(&self) -> u64 {
        if self.indivisible { self.split_rows / u64::from(self.batch_rows.max(1)) } else { self.split_rows }
    }

    /// Whether these input rows of a split are all input rows of one batch of an indivisible job.
    pub fn is_whole_batch(&self, split_rows: u32, start: u32, end: u32) -> bool {
        start.is_multiple_of(self.batch_rows)
            && start < split_rows
            && end == start.saturating_add(self.batch_rows).min(split_rows)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{pipeline, summary};
    use super::super::{SplitRef, StreamPosition};
    use super::*;
    use crate::pipeline::Remainder;

    fn layout(head: &str, rows: u64, streams: u32, batch_bytes: Option<u64>) -> Layout {
        let dataset = DatasetSummary { batch_bytes, ..summary(rows, 0) };
        Layout::indivisible(&pipeline(head, "batch: {size: 10}"), &dataset, 2, streams)
    }

    #[test]
    fn a_split_has_batches_of_at_most_256_mib() {
        // Rows, streams and expected bytes of a batch; expected batches of a split.
        let cases = [
            (600_000, 1, Some(100 << 20), 2),
            (600_000, 1, Some(256 << 20), 1),
            (600_000, 1, Some(1 << 40), 1),
            (700_000, 1, Some(1 << 40), 2),
            (600_000, 1, Some(1 << 20), 256),
            (600_000, 1, None, 4),
            (10_000, 1, Some(1 << 10), 125),
            (10_000, 5, Some(0), 25),
            (90, 1, Some(1), 1),
            (0, 1, Some(1), 1),
            (u64::MAX, 1, Some(1 << 30), (1 << 31) / 10),
        ];
        for (rows, streams, batch_bytes, batches) in cases {
            for head in ["", "shuffle: {window: 100000}", "on_error: skip"] {
                let layout = layout(head, rows, streams, batch_bytes);
                assert_eq!(
                    (layout.split_rows, layout.group_rows, layout.batch_rows),
                    (10 * batches, 10, 10),
                    "{head} {rows} {streams} {batch_bytes:?}"
                );
                assert!(layout.indivisible && layout.runs.is_empty());
            }
        }
        assert_eq!(layout("order: relaxed", 10_000, 5, Some(0)).streams, 1);
        assert!(layout("", 1 << 40, 1, Some(1 << 40)).split_rows >= 1 << 24, "there are not too many splits");
    }

    #[test]
    fn steps_are_known_although_operators_remove_rows() {
        let layout = layout("on_error: skip", 1_005, 2, Some(100 << 20));
        assert!(layout.changes_rows);
        assert_eq!(layout.steps(), Some(51));
        assert_eq!((layout.step_rows(49), layout.step_rows(50)), (20, 5));
        let step = |row| layout.step_of(StreamPosition { epoch: 0, row });
        assert_eq!([0, 10, 19, 500].map(step), [Some(0), Some(1), Some(1), Some(50)]);
        let dropping = Layout { remainder: Remainder::Drop, ..layout };
        assert_eq!((dropping.steps(), dropping.dropped_rows()), (Some(50), 5));
    }

    #[test]
    fn a_whole_batch_has_all_input_rows_up_to_the_next_batch() {
        let layout = layout("", 1_000, 1, None);
        let is_whole = |start, end| layout.is_whole_batch(25, start, end);
        assert!(is_whole(0, 10) && is_whole(10, 20) && is_whole(20, 25));
        assert!(!is_whole(0, 9) && !is_whole(0, 20) && !is_whole(5, 15) && !is_whole(20, 30));
        assert!(!is_whole(30, 25) && !is_whole(30, 40) && !is_whole(u32::MAX - 5, u32::MAX));
    }

    proptest! {
        #[test]
        fn a_resumed_job_keeps_its_splits_if_the_expected_size_of_a_batch_changes(
            rows in 1u64..4_000_000, streams in 1u32..5, before in 0u64..1 << 29, after in 0u64..1 << 29,
        ) {
            let original = layout("", rows, streams, Some(before));
            let resumed = layout("", rows, streams, Some(after)).resumed(original.split_rows);
            prop_assert_eq!(resumed, original);
        }

        #[test]
        fn batches_are_the_same_for_every_split_length_of_a_stream(
            rows in 1u64..3_000, batch_mib in 1u64..400, split_batches in 1u64..6,
        ) {
            // With one stream, the split length does not change the order of rows.
            let original = layout("", rows, 1, Some(batch_mib << 20));
            let resumed = original.clone().resumed(10 * split_batches);
            prop_assert_eq!(resumed.split_rows, 10 * split_batches);
            let batches = |layout: &Layout| {
                let mut batches = Vec::new();
                for ordinal in 0..layout.splits(0) {
                    let split = SplitRef { epoch: 0, ordinal, stream: 0 };
                    let (range, len) = (layout.split_range(split), layout.split_len(split));
                    let starts = (0..len).step_by(10);
                    batches.extend(starts.map(|start| {
                        let end = (start + 10).min(len);
                        assert!(layout.is_whole_batch(len, start, end));
                        range.start + u64::from(start)..range.start + u64::from(end)
                    }));
                }
                batches
            };
            prop_assert_eq!(batches(&original), batches(&resumed));
            prop_assert_eq!(Some(batches(&original).len() as u64), original.steps());
        }
    }
}
