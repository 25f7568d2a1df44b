//! Long runs: parts of compressed shards that can only be decompressed from their start, so that one worker should compute
//! all of their rows.
//!
//! In a shuffled pass, runs are dealt to *lanes*. The splits of a pass take rows from each lane in turn, and all splits of
//! a lane go to one worker. The worker then continues the decoders of the lane from split to split. Without shuffling,
//! the rows keep storage order, and the splits that begin in the same group of runs go to one worker.

mod mixed;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

pub(crate) use self::mixed::MixedRuns;
pub use self::mixed::PartRuns;

/// Maximum number of groups of runs in storage order, which limits the state of the coordinator.
const MAX_GROUPS: usize = 4_096;
/// Maximum number of lanes.
const MAX_LANES: usize = 64;
/// Memory of the decoders of all lanes. One worker may read all lanes.
const LANE_DECODER_BYTES: u64 = 128 << 20;
/// Minimum number of splits per lane. The rows of a lane that do not fill a split are decompressed twice.
const MIN_SPLITS_PER_LANE: u64 = 20;
/// Minimum number of splits per group of runs in storage order. The start of a run may be decompressed twice.
const MIN_SPLITS_PER_GROUP: u64 = 8;
/// At most this part of the rows of the runs is not in the splits of lanes.
const MAX_REST: u64 = 20;
/// Number of splits of each lane in a cycle, so that other rows can be distributed evenly.
const SPLITS_PER_CYCLE: u64 = 4;

/// The long runs of a dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSummary {
    /// The number of rows in long runs.
    pub rows: u64,
    /// The largest memory of a decoder of a run in bytes.
    pub decoder_bytes: u64,
    /// The first row of each group of runs in storage order. A group consists of one run, or of several if there are many.
    pub group_starts: Vec<u64>,
    /// The row after each group.
    pub group_ends: Vec<u64>,
    /// The number of rows of the smallest lane if runs are dealt to 1, 2, 4, ... lanes.
    pub lane_rows: Vec<u64>,
}

impl RunSummary {
    /// Summarizes long runs, which are ranges of rows in storage order.
    pub(crate) fn new(runs: &[Range<u64>], decoder_bytes: u64) -> Self {
        let rows: Vec<u64> = runs.iter().map(|run| run.end - run.start).collect();
        let mut summary = Self { rows: rows.iter().sum(), decoder_bytes, ..Self::default() };
        for group in runs.chunks(runs.len().div_ceil(MAX_GROUPS).max(1)) {
            summary.group_starts.extend(group.first().map(|run| run.start));
            summary.group_ends.extend(group.last().map(|run| run.end));
        }
        summary.lane_rows = smallest_lanes(&rows);
        summary
    }

    /// Whether the dataset has no long runs.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the number of the group that contains a row.
    pub fn group_of(&self, row: u64) -> Option<u64> {
        let number = self.group_starts.partition_point(|start| *start <= row).checked_sub(1)?;
        (row < *self.group_ends.get(number)?).then_some(number as u64)
    }

    fn mean_group_rows(&self) -> u64 {
        self.rows / (self.group_starts.len() as u64).max(1)
    }
}

/// Deals runs with these numbers of rows to lanes, the largest first, each to the smallest lane. Returns the lane of each run.
pub(crate) fn deal(rows: &[u64], lanes: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|run| Reverse(rows[*run]));
    let mut smallest: BinaryHeap<Reverse<(u64, usize)>> = (0..lanes).map(|lane| Reverse((0, lane))).collect();
    let mut lane_of = vec![0; rows.len()];
    for run in order {
        let Some(Reverse((sum, lane))) = smallest.pop() else { break };
        lane_of[run] = lane;
        smallest.push(Reverse((sum + rows[run], lane)));
    }
    lane_of
}

/// Returns the number of rows of the smallest lane if runs are dealt to 1, 2, 4, ... lanes.
fn smallest_lanes(rows: &[u64]) -> Vec<u64> {
    let lanes = std::iter::successors(Some(1), |lanes| Some(2 * lanes));
    let lanes = lanes.take_while(|lanes| *lanes <= rows.len().min(MAX_LANES));
    lanes.map(|lanes| smallest_lane(rows, lanes)).collect()
}

fn smallest_lane(rows: &[u64], lanes: usize) -> u64 {
    let mut sums = vec![0; lanes];
    for (lane, rows) in deal(rows, lanes).into_iter().zip(rows) {
        sums[lane] += rows;
    }
    sums.into_iter().min().unwrap_or(0)
}

/// Whether a dataset has other rows than those of long runs. The blocks at both ends of a split of such rows are decompressed
/// twice, so these splits must not be small.
fn is_mixed(runs: &RunSummary, dataset_rows: u64) -> bool {
    dataset_rows.saturating_sub(runs.rows) > dataset_rows / MAX_REST
}

/// The limits of the size of a split, from which the layout of a job selects one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SplitLimits {
    /// The size without runs.
    pub(crate) wanted: u64,
    pub(crate) min: u64,
    /// The size is a multiple of this number.
    pub(crate) unit: u64,
}

impl SplitLimits {
    /// The size of a split without long runs.
    pub(crate) fn without_runs(self) -> u64 {
        self.wanted.max(self.unit).next_multiple_of(self.unit.max(1))
    }

    fn at_most(self, rows: u64) -> u64 {
        self.wanted.min(rows).max(self.min).max(self.unit).next_multiple_of(self.unit.max(1))
    }
}

/// How the splits of a pass are divided among lanes. The splits form cycles. A cycle begins with splits of lanes, each in turn,
/// followed by splits of rows that are not in runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLayout {
    /// The number of lanes; 0 without lanes.
    pub lanes: u32,
    /// The number of splits of each lane in a cycle.
    pub lane_splits: u32,
    /// The number of other splits in a cycle.
    pub other_splits: u32,
    /// Whether rows keep storage order, so that groups of runs replace lanes.
    pub is_sequential: bool,
    /// In the storage order of a mix, the number of consecutive splits that one worker computes; otherwise 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub group_splits: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl RunLayout {
    /// Whether any worker may compute any split.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Selects the number of lanes of shuffled passes, and the size of splits.
    pub(crate) fn shuffled(runs: &RunSummary, dataset_rows: u64, limits: SplitLimits) -> (Self, u64) {
        let others = dataset_rows.saturating_sub(runs.rows);
        let is_mixed = is_mixed(runs, dataset_rows);
        let limits = if is_mixed { SplitLimits { min: limits.wanted, ..limits } } else { limits };
        let max_lanes = (LANE_DECODER_BYTES / runs.decoder_bytes.max(1)).max(1);
        for (log, &smallest) in runs.lane_rows.iter().enumerate().rev() {
            let lanes = 1_u64 << log;
            let split_rows = limits.at_most(smallest / MIN_SPLITS_PER_LANE);
            let splits = smallest / split_rows;
            let in_splits = lanes * splits * split_rows;
            if splits == 0 || lanes > max_lanes || lanes > 1 && in_splits < runs.rows - runs.rows / MAX_REST {
                continue;
            }
            let lane_splits = SPLITS_PER_CYCLE.min(splits);
            let other_splits = u32::try_from(others / split_rows * lane_splits / splits).unwrap_or(u32::MAX);
            let (lanes, lane_splits) = (lanes as u32, lane_splits as u32);
            return (Self { lanes, lane_splits, other_splits, ..Self::default() }, split_rows);
        }
        (Self::default(), limits.at_most(limits.wanted))
    }

    /// Selects the size of splits of passes in storage order.
    pub(crate) fn sequential(runs: &RunSummary, dataset_rows: u64, limits: SplitLimits) -> (Self, u64) {
        let splits =
            if is_mixed(runs, dataset_rows) { MIN_SPLITS_PER_GROUP / 2 } else { MIN_SPLITS_PER_GROUP };
        let split_rows = limits.at_most(runs.mean_group_rows() / splits);
        (Self { is_sequential: true, ..Self::default() }, split_rows)
    }

    /// The number of splits of a cycle.
    fn cycle(&self) -> u64 {
        self.splits_of_lanes() + u64::from(self.other_splits)
    }

    fn splits_of_lanes(&self) -> u64 {
        u64::from(self.lanes) * u64::from(self.lane_splits)
    }

    /// The lane of a split, whose number counts the splits of an epoch in the order of their rows. `None` if the split has rows
    /// outside of long runs.
    pub fn lane_of(&self, number: u64) -> Option<u32> {
        if self.lanes == 0 {
            return None;
        }
        let slot = number.checked_rem(self.cycle())?;
        (slot < self.splits_of_lanes()).then(|| (slot % u64::from(self.lanes)) as u32)
    }
}

#[cfg(test)]
mod tests;
