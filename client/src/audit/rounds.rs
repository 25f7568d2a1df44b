//! The audit of a coordinated job. The stream of a row depends on the content of all rows in its round, so the audit
//! compares whole rounds. If only part of a round is between start and stop, any row of the round may be delivered at
//! most once.

use std::collections::BTreeMap;
use std::ops::Range;

use feedline_data::checkpoint::Position;
use feedline_data::layout::StreamPosition;

use super::{Audit, AuditReport, CHUNK_ROWS};
use crate::batch::BatchInfo;

/// Number of expected deliveries of each row in an epoch, by row id.
#[derive(Default)]
struct ExpectedDeliveries {
    /// Expected deliveries in rounds that are completely between start and stop.
    complete: Vec<u8>,
    /// Maximum deliveries in rounds that are only partly between start and stop.
    partial: Vec<u8>,
}

impl Audit {
    /// Counts the rows of a stream's batch in a step.
    pub(super) fn add_step(&mut self, info: &BatchInfo) {
        let Some((split, _)) = info.inputs.first() else { return };
        let pass = split.epoch * self.layout.passes;
        for id in &info.row_ids {
            self.count(pass, *id);
        }
    }

    /// Compares the counts with the rounds between start and stop.
    pub(super) fn report_rounds(&self, stop: Option<&Position>) -> AuditReport {
        let mut report = AuditReport { unexpected: self.unknown_rows, ..AuditReport::default() };
        let no_counts = vec![0; self.sequence.dataset_rows() as usize];
        for epoch in 0..self.layout.epochs {
            let expected = self.expected_rounds(epoch, stop);
            let counts = self.counts.get(&(epoch * self.layout.passes)).unwrap_or(&no_counts);
            for (row, &count) in counts.iter().enumerate() {
                let of = |deliveries: &[u8]| u64::from(deliveries.get(row).copied().unwrap_or(0));
                let (complete, partial, count) =
                    (of(&expected.complete), of(&expected.partial), u64::from(count));
                // A delivered row of a partial round counts as expected.
                let expected = complete + partial.min(count.saturating_sub(complete));
                report.expected += expected;
                report.once += expected.min(count);
                report.missing += complete.saturating_sub(count);
                report.repeated += u64::from(complete + partial > 0 && count > complete + partial);
                report.unexpected += u64::from(complete + partial == 0 && count > 0);
            }
        }
        report
    }

    fn expected_rounds(&self, epoch: u32, stop: Option<&Position>) -> ExpectedDeliveries {
        let mut expected = ExpectedDeliveries::default();
        for round in 0..self.layout.splits(0) {
            let start = round * self.layout.split_rows;
            let end = (start + self.layout.split_rows).min(self.layout.epoch_rows());
            let (is_complete, is_partial) = self.coverage(epoch, start..end, stop);
            let deliveries = match (is_complete, is_partial) {
                (true, _) => &mut expected.complete,
                (false, true) => &mut expected.partial,
                (false, false) => continue,
            };
            deliveries.resize(self.sequence.dataset_rows() as usize, 0);
            self.add_rows(epoch, start..end, deliveries);
        }
        expected
    }

    /// Returns whether all streams deliver all of the rows between start and stop, and whether any stream delivers any
    /// of them.
    fn coverage(&self, epoch: u32, rows: Range<u64>, stop: Option<&Position>) -> (bool, bool) {
        let [from, to] = [rows.start, rows.end].map(|row| StreamPosition { epoch, row });
        let last = StreamPosition { epoch: self.layout.epochs, row: 0 };
        let (mut is_complete, mut is_partial) = (true, false);
        for (stream, start) in self.streams.iter().enumerate() {
            let stop = stop.and_then(|stop| stop.streams.get(stream)).copied().unwrap_or(last);
            is_complete &= *start <= from && to <= stop;
            is_partial |= *start < to && from < stop;
        }
        (is_complete, is_partial)
    }

    fn add_rows(&self, epoch: u32, range: Range<u64>, deliveries: &mut [u8]) {
        let mut orders = BTreeMap::new();
        let mut start = range.start;
        while start < range.end {
            let (pass, from) = self.pass_of(epoch, start);
            let left = self.layout.dataset_rows - from;
            let end = range.end.min(start + left.min(CHUNK_ROWS));
            let order = orders.entry(pass).or_insert_with(|| self.order(pass));
            for row in self.sequence.rows(order, from..from + (end - start)) {
                let row = &mut deliveries[row.row_id as usize];
                *row = row.saturating_add(1);
            }
            start = end;
        }
    }
}
