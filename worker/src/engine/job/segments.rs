//! The segments of an unbounded job on one worker: those that contain leased rows, with their row orders.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use feedline_data::layout::SplitRef;
use feedline_data::manifest::{Block, ShardRef};
use feedline_data::messages::JobSegments;
use feedline_data::order::RowRef;
use feedline_data::pipeline::Pipeline;
use feedline_data::segments::{Segment, SegmentOrder};

/// The segments of the current plan.
pub(crate) struct SegmentTable {
    seed: u64,
    window: u64,
    streams: u32,
    segments: Mutex<BTreeMap<u64, SegmentEntry>>,
}

/// A segment, whose order is computed when a group needs it.
#[derive(Clone)]
struct SegmentEntry {
    segment: Segment,
    shards: Arc<BTreeMap<u32, ShardRef>>,
    rows: Arc<OnceLock<Arc<SegmentRows>>>,
}

/// The order of a segment, and the partitions that its blocks belong to.
#[derive(Debug)]
pub(crate) struct SegmentRows {
    pub(crate) order: SegmentOrder,
    shards: Arc<BTreeMap<u32, ShardRef>>,
}

impl SegmentTable {
    pub(super) fn new(pipeline: &Pipeline, streams: u32) -> Self {
        Self { seed: pipeline.seed, window: pipeline.shuffle.window, streams, segments: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, SegmentEntry>> {
        self.segments.lock().expect("no thread panics while it holds the segments")
    }

    /// Replaces the segments. Segments never change, so those that are known keep their orders.
    pub(super) fn set(&self, planned: &JobSegments) {
        let shards: Arc<BTreeMap<u32, ShardRef>> = Arc::new(planned.partitions.iter().cloned().collect());
        let mut segments = self.lock();
        let mut before = std::mem::take(&mut *segments);
        for segment in &planned.segments {
            let entry = before.remove(&segment.first_round).unwrap_or_else(|| SegmentEntry {
                segment: segment.clone(),
                shards: Arc::clone(&shards),
                rows: Arc::default(),
            });
            segments.insert(segment.first_round, entry);
        }
    }

    /// The number of rows of a split without padding; `None` if the plan does not contain its segment.
    pub(super) fn split_rows(&self, split: SplitRef) -> Option<u32> {
        let segments = self.lock();
        let (_, entry) = segments.range(..=split.ordinal).next_back()?;
        let rows = entry.segment.rows_of(self.streams, split);
        (split.ordinal < entry.segment.end_round()).then_some((rows.end - rows.start) as u32)
    }

    /// Returns the rows of the segment that contains a split; `None` if the plan does not contain the segment.
    pub(super) fn rows_of(&self, split: SplitRef) -> Option<Arc<SegmentRows>> {
        let entry = {
            let segments = self.lock();
            let (_, entry) = segments.range(..=split.ordinal).next_back()?;
            (split.ordinal < entry.segment.end_round()).then(|| entry.clone())?
        };
        let SegmentEntry { segment, shards, rows } = entry;
        // Computing an order takes time, so other threads may use the table meanwhile.
        let rows = rows.get_or_init(|| {
            let order = SegmentOrder::new(segment, self.streams, self.seed, self.window);
            Arc::new(SegmentRows { order, shards })
        });
        Some(Arc::clone(rows))
    }
}

impl SegmentRows {
    /// Returns the partition and the block of a row.
    pub(super) fn block(&self, row: &RowRef) -> (&ShardRef, &Block) {
        let block = self.order.block(row.block).expect("the order of the segment returned the row");
        let shard = self.shards.get(&row.shard).expect("a plan contains the partitions of its segments");
        (shard, &block.block)
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::ids::JobId;
    use feedline_data::pipeline::Source;
    use feedline_data::segments::OffsetRange;

    use super::*;

    fn planned(rounds: std::ops::Range<u64>) -> JobSegments {
        let segment = |first_round| Segment {
            first_round: 2 * first_round,
            rounds: 2,
            first_row_id: 10 * first_round,
            epoch: 0,
            ranges: vec![OffsetRange {
                partition: 3,
                from: 10 * first_round,
                to: 10 * first_round + 10,
                row_bytes: 100,
            }],
        };
        let shard = ShardRef {
            url: "kafka://a:1/t/3".to_owned(),
            version: "x@0-0".to_owned(),
            ..ShardRef::default()
        };
        JobSegments { job: JobId(1), partitions: vec![(3, shard)], segments: rounds.map(segment).collect() }
    }

    #[test]
    fn segments_of_the_plan_are_known_and_keep_their_orders() {
        let pipeline = Pipeline::builder("p").source(Source::text("d")).batch(4).build().unwrap();
        let table = SegmentTable::new(&pipeline, 1);
        let split = |ordinal| SplitRef { epoch: 0, ordinal, stream: 0 };
        assert!(table.rows_of(split(0)).is_none());
        table.set(&planned(0..2));
        let first = table.rows_of(split(3)).unwrap();
        assert_eq!(
            [0, 1, 2, 3, 4].map(|ordinal| table.split_rows(split(ordinal))),
            [Some(5), Some(5), Some(5), Some(5), None]
        );
        table.set(&planned(1..3));
        assert!(table.rows_of(split(1)).is_none(), "the plan does not contain it any more");
        assert!(Arc::ptr_eq(&table.rows_of(split(2)).unwrap(), &first));
        let rows = first.order.rows(split(2), 0..8);
        let offsets: Vec<(String, u64)> = rows
            .iter()
            .map(|row| {
                let (shard, block) = first.block(row);
                (shard.url.clone(), block.offset + u64::from(row.row))
            })
            .collect();
        assert_eq!(
            offsets,
            (10..15).map(|offset| ("kafka://a:1/t/3".to_owned(), offset)).collect::<Vec<_>>()
        );
    }
}
