//! Proves that every row came exactly once: counts the row ids that batches account for and compares them with the
//! order that the job must have had.

use std::collections::BTreeMap;
use std::ops::Range;

use feedline_data::layout::{Layout, SplitRef, StreamPosition};
use feedline_data::manifest::Manifest;
use feedline_data::mix::MixChange;
use feedline_data::pipeline::Pipeline;
use feedline_data::position::{OpenRange, Position};
use feedline_data::sequence::{Sequence, SharedPass};
use serde::Serialize;

use crate::batch::BatchInfo;

/// Rows whose order is computed at a time.
const CHUNK_ROWS: u64 = 1 << 16;

/// What an audit found, in rows. A row of another pass over the data is another row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AuditReport {
    /// Rows between the start and the stop position.
    pub expected: u64,
    /// Expected rows that came once.
    pub once: u64,
    /// Expected rows that did not come.
    pub missing: u64,
    /// Rows that came more than once.
    pub repeated: u64,
    /// Rows that came and were not expected.
    pub unexpected: u64,
}

impl AuditReport {
    /// Whether every expected row came once, and no other.
    pub fn is_exact(&self) -> bool {
        self.once == self.expected && self.repeated == 0 && self.unexpected == 0
    }
}

/// Counts what arrives. Needs one byte for each row and pass that it has seen rows of.
#[derive(Debug)]
pub struct Audit {
    layout: Layout,
    sequence: Sequence,
    streams: Vec<StreamPosition>,
    open: Vec<OpenRange>,
    /// How often each row came, by pass over all epochs; stays at 255.
    counts: BTreeMap<u32, Vec<u8>>,
    /// Rows that no dataset of this size has.
    strange: u64,
}

impl Audit {
    /// An audit of a job of this pipeline from `start` on, or from its beginning. `inputs` is the job's manifest.
    pub fn new(layout: Layout, inputs: &Manifest, pipeline: &Pipeline, start: Option<&Position>) -> Self {
        let streams = (0..layout.streams)
            .map(|stream| {
                let position = start.and_then(|start| start.streams.get(stream as usize)).copied();
                layout.normalise(stream, position.unwrap_or_default())
            })
            .collect();
        let open = start.map(|start| start.open.clone()).unwrap_or_default();
        let sequence = Sequence::new(pipeline, inputs, &layout.mix);
        Self { layout, sequence, streams, open, counts: BTreeMap::new(), strange: 0 }
    }

    /// Counts the rows that a batch, or what trails behind the last one, accounts for. The job must have been opened
    /// with `audit`.
    pub fn add(&mut self, info: &BatchInfo) {
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

    /// Takes over how the job's mix has changed by now.
    pub fn remix(&mut self, changes: &[MixChange]) {
        self.sequence = self.sequence.remixed(changes);
    }

    fn count(&mut self, pass: u32, row_id: u64) {
        let rows = self.sequence.dataset_rows() as usize;
        let counts = self.counts.entry(pass).or_insert_with(|| vec![0; rows]);
        match counts.get_mut(row_id as usize) {
            Some(count) => *count = count.saturating_add(1),
            None => self.strange += 1,
        }
    }

    fn order(&self, pass: u32) -> SharedPass {
        self.sequence.pass(pass)
    }

    /// The pass, over all epochs, of a place in an epoch's row sequence; and the place in it.
    fn pass_of(&self, epoch: u32, place: u64) -> (u32, u64) {
        let rows = self.layout.dataset_rows;
        (epoch * self.layout.passes + (place / rows) as u32, place % rows)
    }

    /// Compares with what must have come up to `stop`, or up to the job's end.
    pub fn report(&self, stop: Option<&Position>) -> AuditReport {
        if self.layout.coordinated {
            return self.report_rounds(stop);
        }
        let mut marks = self.expected(stop);
        let mut report = AuditReport { unexpected: self.strange, ..AuditReport::default() };
        for pass in self.counts.keys() {
            marks.entry(*pass).or_default();
        }
        let nothing = vec![0; self.sequence.dataset_rows() as usize];
        for (pass, marks) in marks {
            let counts = self.counts.get(&pass).unwrap_or(&nothing);
            self.compare(pass, &marks, counts, &mut report);
        }
        report
    }

    fn compare(&self, pass: u32, marks: &[bool], counts: &[u8], report: &mut AuditReport) {
        // A mix that begins short datasets again has rows more than once in a pass.
        let mut expected = vec![0_u8; counts.len()];
        if marks.iter().any(|&marked| marked) {
            let order = self.order(pass);
            for start in (0..marks.len() as u64).step_by(CHUNK_ROWS as usize) {
                let end = (start + CHUNK_ROWS).min(marks.len() as u64);
                let rows = self.sequence.rows(&order, start..end);
                for (row, _) in
                    rows.iter().zip(&marks[start as usize..end as usize]).filter(|(_, marked)| **marked)
                {
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

    /// For each pass, which places of its row sequence lie between start and stop.
    fn expected(&self, stop: Option<&Position>) -> BTreeMap<u32, Vec<bool>> {
        let mut marks = BTreeMap::new();
        let end = StreamPosition { epoch: self.layout.epochs, row: 0 };
        for (stream, &start) in (0..).zip(&self.streams) {
            let stop = stop.and_then(|stop| stop.streams.get(stream as usize)).copied();
            self.mark_stream(stream, start, stop.unwrap_or(end), &mut marks);
        }
        // Ranges that a relaxed job took and did not deliver: before the start they came, before the stop they did not.
        let stopped = stop.map(|stop| stop.open.as_slice()).unwrap_or_default();
        for (ranges, marked) in [(self.open.as_slice(), true), (stopped, false)] {
            for range in ranges {
                self.mark(range.epoch, range.from..range.to, marked, &mut marks);
            }
        }
        marks
    }

    fn mark_stream(
        &self,
        stream: u32,
        start: StreamPosition,
        stop: StreamPosition,
        marks: &mut BTreeMap<u32, Vec<bool>>,
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
                self.mark(epoch, split.start + offset..split.start + offset + taken, true, marks);
                from += taken;
            }
        }
    }

    fn mark(&self, epoch: u32, places: Range<u64>, marked: bool, marks: &mut BTreeMap<u32, Vec<bool>>) {
        for place in places {
            let (pass, place) = self.pass_of(epoch, place);
            let marks = marks.entry(pass).or_insert_with(|| vec![false; self.layout.dataset_rows as usize]);
            marks[place as usize] = marked;
        }
    }
}

mod rounds;
#[cfg(test)]
mod tests;
