//! The recorded segments of an unbounded job, with sums of their rows and blocks. The leader needs these totals before each listing,
//! and the segments may have millions of ranges.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::segments::Segment;

/// Segments in the order of their rounds. The sums are derived from the segments, so they are not stored.
#[derive(Debug, Clone, Default)]
pub struct RecordedSegments {
    segments: Vec<Segment>,
    /// For each segment, the totals of all segments up to and including it. These include the removed segments.
    sums: Vec<SegmentTotals>,
    /// The totals of the removed segments.
    removed: SegmentTotals,
}

/// Totals of several segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentTotals {
    /// The number of rows without padding.
    pub rows: u64,
    /// The number of blocks.
    pub blocks: u64,
}

impl RecordedSegments {
    /// Appends a segment. Its rounds follow those of the last segment.
    pub fn push(&mut self, segment: Segment) {
        let before = self.totals_before(self.segments.len());
        self.sums.push(SegmentTotals {
            rows: before.rows.saturating_add(segment.rows()),
            blocks: before.blocks.saturating_add(segment.blocks()),
        });
        self.segments.push(segment);
    }

    /// Removes the segments that do not end after a round.
    pub(super) fn trim(&mut self, round: u64) {
        let first = self.first_after(round);
        self.removed = self.totals_before(first);
        self.sums.drain(..first);
        self.segments.drain(..first);
    }

    /// Returns the segments that end after a round.
    pub fn ending_after(&self, round: u64) -> &[Segment] {
        &self.segments[self.first_after(round)..]
    }

    /// Returns the totals of the segments that end after a round. Takes O(log segments) time.
    pub fn totals_after(&self, round: u64) -> SegmentTotals {
        let before = self.totals_before(self.first_after(round));
        let all = self.totals_before(self.segments.len());
        SegmentTotals { rows: all.rows - before.rows, blocks: all.blocks - before.blocks }
    }

    /// The index of the first segment that ends after a round.
    fn first_after(&self, round: u64) -> usize {
        self.segments.partition_point(|segment| segment.end_round() <= round)
    }

    /// The totals of the segments before an index, and of the removed segments.
    fn totals_before(&self, index: usize) -> SegmentTotals {
        index.checked_sub(1).map_or(self.removed, |last| self.sums[last])
    }
}

impl From<Vec<Segment>> for RecordedSegments {
    fn from(segments: Vec<Segment>) -> Self {
        let mut recorded = Self::default();
        for segment in segments {
            recorded.push(segment);
        }
        recorded
    }
}

impl Deref for RecordedSegments {
    type Target = [Segment];

    fn deref(&self) -> &[Segment] {
        &self.segments
    }
}

impl<'a> IntoIterator for &'a RecordedSegments {
    type Item = &'a Segment;
    type IntoIter = std::slice::Iter<'a, Segment>;

    fn into_iter(self) -> Self::IntoIter {
        self.segments.iter()
    }
}

impl PartialEq for RecordedSegments {
    fn eq(&self, other: &Self) -> bool {
        // The sums depend on the removed segments.
        self.segments == other.segments
    }
}

impl Eq for RecordedSegments {}

impl Serialize for RecordedSegments {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.segments.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RecordedSegments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(|segments: Vec<Segment>| segments.into())
    }
}
