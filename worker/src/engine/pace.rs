//! How many rows a group takes: as many as the layout allows, but fewer of rows that operators are slow with, so that nobody
//! waits long for the first of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use feedline_data::layout::Layout;

/// What a group takes one thread at most, about, with the waits of its operators; one batch may take longer.
const GROUP_TIME: Duration = Duration::from_millis(250);
/// A group's part in the mean over the last ones.
const NEWEST: f64 = 0.25;

/// The pace of a job's rows, and what follows for the groups that are yet to begin.
#[derive(Debug)]
pub(crate) struct Pace {
    batch_rows: u32,
    most_rows: u32,
    /// Seconds that a row takes one thread, mean over the last groups, as the bits of an `f64`; 0 before the first one.
    row_s: AtomicU64,
}

impl Pace {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self { batch_rows: layout.batch_rows, most_rows: layout.group_rows, row_s: AtomicU64::new(0) }
    }

    /// A group of so many rows is finished, and took one thread so long.
    pub(crate) fn note(&self, rows: usize, took: Duration) {
        if rows == 0 {
            return;
        }
        // Another group that ends at the same moment may go uncounted.
        let before = f64::from_bits(self.row_s.load(Ordering::Relaxed));
        let newest = (took.as_secs_f64() / rows as f64).max(f64::MIN_POSITIVE);
        let mean = if before > 0.0 { before + NEWEST * (newest - before) } else { newest };
        self.row_s.store(mean.to_bits(), Ordering::Relaxed);
    }

    /// Rows of the next group: whole batches, one before the first group has told how long they take. Their number is a
    /// power of two or the layout's, so that most changes of pace change nothing.
    pub(crate) fn group_rows(&self) -> u32 {
        let row_s = f64::from_bits(self.row_s.load(Ordering::Relaxed));
        if row_s <= 0.0 {
            return self.batch_rows.min(self.most_rows);
        }
        let batches = GROUP_TIME.as_secs_f64() / (row_s * f64::from(self.batch_rows));
        let most = self.most_rows / self.batch_rows;
        if batches >= f64::from(most) {
            return self.most_rows;
        }
        let batches = batches.max(1.0) as u32;
        self.batch_rows * (1 << batches.ilog2())
    }

    /// Groups that have as many rows as one would have if they were fast.
    pub(crate) fn shrunk(&self) -> usize {
        (self.most_rows / self.group_rows().max(1)).max(1) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(batch_rows: u32, group_rows: u32) -> Pace {
        Pace { batch_rows, most_rows: group_rows, row_s: AtomicU64::new(0) }
    }

    #[test]
    fn a_job_begins_with_one_batch_and_goes_on_with_all_that_the_layout_allows() {
        let pace = pace(128, 640);
        assert_eq!(pace.group_rows(), 128);
        pace.note(128, Duration::from_micros(100));
        assert_eq!(pace.group_rows(), 640, "also where that is no power of two");
    }

    #[test]
    fn a_group_of_slow_rows_takes_a_quarter_of_a_second_at_most() {
        let pace = pace(20, 1040);
        pace.note(20, 20 * Duration::from_millis(4));
        assert_eq!(pace.group_rows(), 40, "160 ms; 320 would be too long");
        assert_eq!(pace.shrunk(), 26);
        for _ in 0..50 {
            pace.note(40, 40 * Duration::from_secs(1));
        }
        assert_eq!(pace.group_rows(), 20, "a batch is the least");
        for _ in 0..50 {
            pace.note(20, 20 * Duration::from_micros(1));
        }
        assert_eq!(pace.group_rows(), 1040, "and it follows when rows become fast");
    }

    #[test]
    fn a_group_without_rows_tells_nothing() {
        let pace = pace(20, 1040);
        pace.note(0, Duration::from_secs(1));
        assert_eq!(pace.group_rows(), 20);
    }
}
