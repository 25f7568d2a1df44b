//! The layout of a job that resumes from a position with the length of its splits.

use super::indivisible::MAX_SPLIT_ROWS;
use super::{Layout, MAX_SPLITS};

/// Maximum number of rows of a split in the position of an unbounded job, unless a batch is larger.
const MAX_UNBOUNDED_SPLIT_ROWS: u64 = 1 << 20;

impl Layout {
    /// Returns the layout of an unbounded job, or of a job with indivisible batches, that resumes from a position with this number
    /// of rows per split. The estimated size of a row or batch may differ from that in the original job. Other jobs and an invalid
    /// number keep the layout, and the check of the position then rejects it.
    #[must_use]
    pub fn resumed(self, split_rows: u64) -> Self {
        if split_rows == 0 || !split_rows.is_multiple_of(u64::from(self.batch_rows)) {
            return self;
        }
        if self.unbounded && split_rows <= MAX_UNBOUNDED_SPLIT_ROWS.max(u64::from(self.batch_rows)) {
            return self.unbounded_with_splits(split_rows);
        }
        let has_few_splits = self.epoch_rows() / split_rows <= MAX_SPLITS;
        if self.indivisible && split_rows <= MAX_SPLIT_ROWS && has_few_splits {
            return Self { split_rows, ..self };
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::layout;
    use super::*;
    use crate::pipeline::Remainder;

    #[test]
    fn only_valid_lengths_of_splits_that_can_change_are_adopted() {
        let divisible = layout(1 << 30, 2, 10, Remainder::Emit, 3);
        let indivisible = Layout { indivisible: true, ..divisible.clone() };
        let unbounded = Layout { unbounded: true, group_rows: 20, ..divisible.clone() };
        let split_rows = |layout: &Layout, rows| layout.clone().resumed(rows).split_rows;
        for invalid in [0, 5, 15, 31, u64::MAX, 10 << 31] {
            assert_eq!(split_rows(&indivisible, invalid), 30, "{invalid}");
            assert_eq!(split_rows(&unbounded, invalid), 30, "{invalid}");
        }
        assert_eq!(split_rows(&divisible, 20_000), 30);
        assert_eq!(split_rows(&indivisible, 20_000), 20_000);
        assert_eq!(split_rows(&indivisible, 1_000), 30, "a million splits are too many");
        let resumed = unbounded.resumed(10);
        assert_eq!((resumed.split_rows, resumed.group_rows), (10, 10));
        assert_eq!(resumed.dataset_rows % 20, 0);
    }
}
