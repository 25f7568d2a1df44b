//! The audit of a coordinated job. Which rows of a round a stream gets depends on what is in them, so rows are compared by
//! rounds: of one that was begun or left in the middle any row may come, each once.

use std::collections::BTreeMap;
use std::ops::Range;

use feedline_data::layout::StreamPosition;
use feedline_data::position::Position;

use super::{Audit, AuditReport, CHUNK_ROWS};
use crate::batch::BatchInfo;

/// How often rows are to come in an epoch, by row id.
#[derive(Default)]
struct Wanted {
    /// In rounds that lie between start and stop.
    whole: Vec<u8>,
    /// In rounds of which some steps do.
    partly: Vec<u8>,
}

impl Audit {
    /// Counts the rows that a step has for a stream.
    pub(super) fn add_step(&mut self, info: &BatchInfo) {
        let Some((split, _)) = info.inputs.first() else { return };
        let pass = split.epoch * self.layout.passes;
        for id in &info.row_ids {
            self.count(pass, *id);
        }
    }

    /// Compares with the rounds that must have come.
    pub(super) fn report_rounds(&self, stop: Option<&Position>) -> AuditReport {
        let mut report = AuditReport { unexpected: self.strange, ..AuditReport::default() };
        let nothing = vec![0; self.sequence.dataset_rows() as usize];
        for epoch in 0..self.layout.epochs {
            let wanted = self.wanted(epoch, stop);
            let counts = self.counts.get(&(epoch * self.layout.passes)).unwrap_or(&nothing);
            for (row, &count) in counts.iter().enumerate() {
                let of = |times: &[u8]| u64::from(times.get(row).copied().unwrap_or(0));
                let (whole, partly, count) = (of(&wanted.whole), of(&wanted.partly), u64::from(count));
                // What may come and has come is taken for what had to.
                let expected = whole + partly.min(count.saturating_sub(whole));
                report.expected += expected;
                report.once += expected.min(count);
                report.missing += whole.saturating_sub(count);
                report.repeated += u64::from(whole + partly > 0 && count > whole + partly);
                report.unexpected += u64::from(whole + partly == 0 && count > 0);
            }
        }
        report
    }

    fn wanted(&self, epoch: u32, stop: Option<&Position>) -> Wanted {
        let mut wanted = Wanted::default();
        for round in 0..self.layout.splits(0) {
            let start = round * self.layout.split_rows;
            let end = (start + self.layout.split_rows).min(self.layout.epoch_rows());
            let (all, some) = self.passed(epoch, start..end, stop);
            let times = match (all, some) {
                (true, _) => &mut wanted.whole,
                (false, true) => &mut wanted.partly,
                (false, false) => continue,
            };
            times.resize(self.sequence.dataset_rows() as usize, 0);
            self.add_rows(epoch, start..end, times);
        }
        wanted
    }

    /// Whether all streams go through all of these rows between start and stop, and whether any stream goes through some.
    fn passed(&self, epoch: u32, rows: Range<u64>, stop: Option<&Position>) -> (bool, bool) {
        let [from, to] = [rows.start, rows.end].map(|row| StreamPosition { epoch, row });
        let last = StreamPosition { epoch: self.layout.epochs, row: 0 };
        let mut passed = (true, false);
        for (stream, start) in self.streams.iter().enumerate() {
            let stop = stop.and_then(|stop| stop.streams.get(stream)).copied().unwrap_or(last);
            passed.0 &= *start <= from && to <= stop;
            passed.1 |= *start < to && from < stop;
        }
        passed
    }

    fn add_rows(&self, epoch: u32, places: Range<u64>, times: &mut [u8]) {
        let mut orders = BTreeMap::new();
        let mut start = places.start;
        while start < places.end {
            let (pass, from) = self.pass_of(epoch, start);
            let left = self.layout.dataset_rows - from;
            let end = places.end.min(start + left.min(CHUNK_ROWS));
            let order = orders.entry(pass).or_insert_with(|| self.order(pass));
            for row in self.sequence.rows(order, from..from + (end - start)) {
                let times = &mut times[row.row_id as usize];
                *times = times.saturating_add(1);
            }
            start = end;
        }
    }
}
