//! Verifies exactly-once delivery. Counts the row ids of delivered batches, and compares the counts with the row order of the job.

use std::collections::BTreeMap;
use std::ops::Range;

use feedline_data::checkpoint::{OpenRange, Position};
use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::manifest::Manifest;
use feedline_data::mix::MixChange;
use feedline_data::pipeline::{OnError, Pipeline};
use feedline_data::sequence::{Sequence, SharedPass};
use serde::Serialize;

use crate::batch::BatchInfo;

/// Maximum number of rows per call that computes the row order.
const CHUNK_ROWS: u64 = 1 << 16;

/// The result of an audit, as row counts. Each row counts once per pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AuditReport {
    /// Number of rows between the start position and the stop position.
    pub expected: u64,
    /// Number of expected rows that were delivered once.
    pub once: u64,
    /// Number of expected rows that failed, and that workers skipped under `on_error: skip`.
    pub skipped: u64,
    /// Number of expected rows that were not delivered.
    pub missing: u64,
    /// Number of rows that were delivered more than once.
    pub repeated: u64,
    /// Number of delivered rows that were not expected.
    pub unexpected: u64,
}

impl AuditReport {
    /// Whether every expected row was delivered exactly once, and no other row was delivered.
    pub fn is_exact(&self) -> bool {
        self.once + self.skipped == self.expected && self.repeated == 0 && self.unexpected == 0
    }
}

/// Counts delivered rows. For each pass with delivered rows, needs one byte of memory per row.
#[derive(Debug)]
pub struct Audit {
    layout: Layout,
    sequence: Sequence,
    streams: Vec<StreamPosition>,
    open_ranges: Vec<OpenRange>,
    /// Number of deliveries of each row, for each pass of the job. Counts saturate at 255.
    counts: BTreeMap<u32, Vec<u8>>,
    /// Number of delivered row ids that the dataset does not have.
    unknown_rows: u64,
    /// Number of rows that workers skipped. `counts` contains them too.
    skipped_rows: u64,
    is_skipping: bool,
}

impl Audit {
    /// Creates an audit of a job. `start` is the position at which the job started. `None` means the beginning of the
    /// job.
    pub fn new(layout: Layout, inputs: &Manifest, pipeline: &Pipeline, start: Option<&Position>) -> Self {
        let streams = (0..layout.streams)
            .map(|stream| {
                let position = start.and_then(|start| start.streams.get(stream as usize)).copied();
                layout.normalise(stream, position.unwrap_or_default())
            })
            .collect();
        let open_ranges = start.map(|start| start.open_ranges.clone()).unwrap_or_default();
        let sequence = Sequence::new(pipeline, inputs, &layout);
        Self {
            layout,
            sequence,
            streams,
            open_ranges,
            counts: BTreeMap::new(),
            unknown_rows: 0,
            skipped_rows: 0,
            is_skipping: pipeline.on_error == OnError::Skip,
        }
    }

    /// Counts the rows of a batch, or of [`crate::Consumer::trailing`]. The job must be opened with `audit`.
    pub fn add(&mut self, info: &BatchInfo) {
        if self.is_skipping {
            self.skipped_rows += info.skipped.len() as u64;
        }
        if self.layout.coordinated {
            return self.add_step(info);
        }
        let mut ids = info.row_ids.iter();
        for (split, offsets) in &info.inputs {
            let first = self.layout.split_range(*split).start;
            for (offset, id) in offsets.clone().zip(ids.by_ref()) {
                let (pass, _) = self.pass_of(split.epoch, first + u64::from(offset));
                self.count(pass, *id);
            }
        }
    }

    /// Sets all changes of the mix weights since the start of the job.
    pub fn set_mix(&mut self, changes: &[MixChange]) {
        self.sequence = self.sequence.with_mix_changes(changes);
    }

    fn count(&mut self, pass: u32, row_id: u64) {
        let rows = self.sequence.dataset_rows() as usize;
        let counts = self.counts.entry(pass).or_insert_with(|| vec![0; rows]);
        match counts.get_mut(row_id as usize) {
            Some(count) => *count = count.saturating_add(1),
            None => self.unknown_rows += 1,
        }
    }

    fn order(&self, pass: u32) -> SharedPass {
        self.sequence.pass(pass)
    }

    /// Converts an index in the row sequence of an epoch to a pass, counted over all epochs, and an index in the pass.
    fn pass_of(&self, epoch: u32, index: u64) -> (u32, u64) {
        let rows = self.layout.dataset_rows;
        (epoch * self.layout.passes + (index / rows) as u32, index % rows)
    }

    /// Compares the counts with the rows up to the position `stop`. `None` means the end of the job.
    pub fn report(&self, stop: Option<&Position>) -> AuditReport {
        let mut report =
            if self.layout.coordinated { self.report_rounds(stop) } else { self.report_passes(stop) };
        report.skipped = self.skipped_rows.min(report.once);
        report.once -= report.skipped;
        report
    }

    fn report_passes(&self, stop: Option<&Position>) -> AuditReport {
        let mut expected = self.expected(stop);
        let mut report = AuditReport { unexpected: self.unknown_rows, ..AuditReport::default() };
        for pass in self.counts.keys() {
            expected.entry(*pass).or_default();
        }
        let no_counts = vec![0; self.sequence.dataset_rows() as usize];
        for (pass, expected) in expected {
            let counts = self.counts.get(&pass).unwrap_or(&no_counts);
            self.compare(pass, &expected, counts, &mut report);
        }
        report
    }

    /// Compares one pass. `is_expected` says for each index of the pass whether the row is expected.
    fn compare(&self, pass: u32, is_expected: &[bool], counts: &[u8], report: &mut AuditReport) {
        // A mix that restarts short datasets contains rows more than once in a pass.
        let mut expected = vec![0_u8; counts.len()];
        if is_expected.iter().any(|&expected| expected) {
            let order = self.order(pass);
            for start in (0..is_expected.len() as u64).step_by(CHUNK_ROWS as usize) {
                let end = (start + CHUNK_ROWS).min(is_expected.len() as u64);
                let rows = self.sequence.rows(&order, start..end);
                let expected_rows = rows.iter().zip(&is_expected[start as usize..end as usize]);
                for (row, _) in expected_rows.filter(|(_, expected)| **expected) {
                    let expected = &mut expected[row.row_id as usize];
                    *expected = expected.saturating_add(1);
                }
            }
        }
        for (&expected, &count) in expected.iter().zip(counts) {
            report.expected += u64::from(expected);
            report.once += u64::from(expected.min(count)) * u64::from(count <= expected);
            report.missing += u64::from(expected.saturating_sub(count));
            report.repeated += u64::from(count > expected.max(1));
            report.unexpected += u64::from(expected == 0 && count > 0);
        }
    }

    /// Returns for each pass whether the row at each index is between start and stop.
    fn expected(&self, stop: Option<&Position>) -> BTreeMap<u32, Vec<bool>> {
        let mut expected = BTreeMap::new();
        let end = StreamPosition { epoch: self.layout.epochs, row: 0 };
        for (stream, &start) in (0..).zip(&self.streams) {
            let stop = stop.and_then(|stop| stop.streams.get(stream as usize)).copied();
            self.set_stream(stream, start, stop.unwrap_or(end), &mut expected);
        }
        // Relaxed mode: ranges that were open at the start are delivered after it, and ranges that are open at the stop are not
        // delivered before it.
        let stopped = stop.map(|stop| stop.open_ranges.as_slice()).unwrap_or_default();
        for (ranges, is_expected) in [(self.open_ranges.as_slice(), true), (stopped, false)] {
            for range in ranges {
                self.set_range(range.epoch, range.start_row..range.end_row, is_expected, &mut expected);
            }
        }
        expected
    }

    fn set_stream(
        &self,
        stream: u32,
        start: StreamPosition,
        stop: StreamPosition,
        expected: &mut BTreeMap<u32, Vec<bool>>,
    ) {
        let rows = self.layout.stream_rows(stream);
        for epoch in start.epoch..self.layout.epochs.min(stop.epoch.saturating_add(1)) {
            let mut from = if epoch == start.epoch { start.row } else { 0 };
            let to = if epoch == stop.epoch { stop.row.min(rows) } else { rows };
            while from < to {
                let ordinal = from / self.layout.split_rows;
                let split = self.layout.split_range(SplitRef { epoch, ordinal, stream });
                let offset = from - ordinal * self.layout.split_rows;
                let taken = (to - from).min(split.end - split.start - offset);
                self.set_range(epoch, split.start + offset..split.start + offset + taken, true, expected);
                from += taken;
            }
        }
    }

    fn set_range(
        &self,
        epoch: u32,
        range: Range<u64>,
        is_expected: bool,
        expected: &mut BTreeMap<u32, Vec<bool>>,
    ) {
        for index in range {
            let (pass, index) = self.pass_of(epoch, index);
            let rows = expected.entry(pass).or_insert_with(|| vec![false; self.layout.dataset_rows as usize]);
            rows[index as usize] = is_expected;
        }
    }
}

mod rounds;
#[cfg(test)]
mod tests;
