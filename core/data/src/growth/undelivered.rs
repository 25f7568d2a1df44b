//! Estimates the undelivered rows of an unbounded job.

use std::collections::BTreeMap;

use super::Growth;
use crate::layout::{Layout, StreamPosition};

/// The segment of the next row of at least one stream.
struct StartedSegment {
    rows: u64,
    /// The number of splits of all streams.
    splits: u64,
    /// The number of splits of which no row is delivered, over the streams whose next row is in the segment.
    whole_splits: u64,
}

impl StartedSegment {
    /// The number of rows of the whole splits.
    fn rows_left(&self) -> u64 {
        (u128::from(self.rows) * u128::from(self.whole_splits) / u128::from(self.splits)) as u64
    }
}

impl Growth {
    /// Estimates the number of rows of the segments after these positions. The rows of a segment are assumed to be distributed
    /// evenly among its splits, so the estimate may differ by one row for each stream. Takes O(streams * log segments) time.
    pub fn rows_after(&self, layout: &Layout, streams: &[StreamPosition]) -> u64 {
        let stream_count = (streams.len() as u64).max(1);
        let mut rows_of_later_segments = 0_u128;
        let mut rows_of_started_splits = 0_u64;
        let mut started_segments: BTreeMap<u64, StartedSegment> = BTreeMap::new();
        for position in streams {
            let round = position.row / layout.split_rows;
            let Some(segment) = self.segments.ending_after(round).first() else { continue };
            let later_rows = self.segments.totals_after(segment.end_round()).rows;
            let started = started_segments.entry(segment.first_round).or_insert_with(|| StartedSegment {
                rows: self.segments.totals_after(segment.first_round).rows - later_rows,
                splits: segment.rounds.saturating_mul(stream_count).max(1),
                whole_splits: 0,
            });
            let row = position.row.max(layout.split_rows.saturating_mul(segment.first_round));
            let end = layout.split_rows.saturating_mul(segment.end_round());
            started.whole_splits += end.saturating_sub(row) / layout.split_rows;
            let offset = row % layout.split_rows;
            if offset > 0 {
                // The rows of a split are before its padding.
                rows_of_started_splits += (started.rows / started.splits).saturating_sub(offset);
            }
            rows_of_later_segments += u128::from(later_rows);
        }
        let rows_of_whole_splits: u64 = started_segments.values().map(StartedSegment::rows_left).sum();
        let rows_of_later_segments = (rows_of_later_segments / u128::from(stream_count)) as u64;
        rows_of_later_segments.saturating_add(rows_of_whole_splits).saturating_add(rows_of_started_splits)
    }
}
