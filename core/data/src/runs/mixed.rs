//! Long runs of a mix of datasets. A split has rows of all datasets, so all datasets have the same number of lanes, and a split
//! takes the rows of each dataset from the same lane.

use serde::{Deserialize, Serialize};

use super::{
    LANE_DECODER_BYTES, MAX_LANES, MAX_REST, MIN_SPLITS_PER_LANE, RunLayout, SplitLimits, smallest_lanes,
};

/// Runs need no lanes if this number of workers may decompress all of them and a pass still decompresses little more.
const MANY_WORKERS: u64 = 500;

/// In storage order, the splits of one worker have this many times the rows of one run of each dataset. The next worker
/// decompresses half of a run of each dataset again on average.
const RUNS_PER_GROUP: u64 = 10;

/// The runs of one dataset of a mix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRuns {
    /// Whether any shard is compressed as a whole.
    pub is_compressed: bool,
    /// The number of rows in long runs.
    pub long_rows: u64,
    /// The largest memory of a decoder of a long run in bytes.
    pub decoder_bytes: u64,
    /// The mean number of rows of a long run, weighted by the rows of the runs.
    pub run_rows: u64,
    /// The number of rows of the smallest lane if all runs are dealt to 1, 2, 4, ... lanes; empty without long runs.
    pub lane_rows: Vec<u64>,
}

impl PartRuns {
    /// Summarizes runs: the number of rows of each, and whether it is long.
    pub(crate) fn new(runs: &[(u64, bool)], is_compressed: bool, decoder_bytes: u64) -> Self {
        let long = || runs.iter().filter(|(_, is_long)| *is_long).map(|(rows, _)| *rows);
        let long_rows: u64 = long().sum();
        if long_rows == 0 {
            return Self { is_compressed, ..Self::default() };
        }
        let squares: u128 = long().map(|rows| u128::from(rows) * u128::from(rows)).sum();
        let run_rows = (squares / u128::from(long_rows)) as u64;
        let rows: Vec<u64> = runs.iter().map(|(rows, _)| *rows).collect();
        Self { is_compressed, long_rows, decoder_bytes, run_rows, lane_rows: smallest_lanes(&rows) }
    }
}

/// One dataset of a mix with its part of the rows of a pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MixedRuns<'a> {
    pub(crate) runs: &'a PartRuns,
    /// The number of rows that a pass over the mix takes from one pass over the dataset.
    pub(crate) rows: u64,
    /// The number of rows of long runs that a pass over the mix takes from all passes over the dataset.
    pub(crate) long_rows: u64,
    /// The share of the rows of a pass, or of a split before a dataset is exhausted, whichever is larger.
    pub(crate) share: f64,
}

impl MixedRuns<'_> {
    fn rows_in(&self, split_rows: u64) -> u64 {
        (split_rows as f64 * self.share).ceil() as u64
    }

    /// The number of rows that a pass takes from the smallest of `1 << log` lanes; 0 if the dataset has fewer runs.
    fn smallest_lane(&self, log: u32) -> u64 {
        self.runs.lane_rows.get(log as usize).map_or(0, |rows| (*rows).min(self.rows >> log))
    }

    /// Whether almost all rows are in splits of their lane.
    fn fits(&self, log: u32, split_rows: u64) -> bool {
        // A lane may have one split more than another one.
        let in_splits = self.smallest_lane(log).saturating_sub(self.rows_in(split_rows) / 2) << log;
        in_splits >= self.rows - self.rows / MAX_REST
    }
}

impl RunLayout {
    /// Selects the number of lanes of shuffled passes over a mix, and the size of splits.
    pub(crate) fn of_mix(datasets: &[MixedRuns], pass_rows: u64, limits: SplitLimits) -> (Self, u64) {
        let with_runs = || datasets.iter().filter(|dataset| dataset.long_rows > 0);
        if is_negligible(with_runs(), MANY_WORKERS, pass_rows) {
            return (Self::default(), limits.without_runs());
        }
        for log in (0..=MAX_LANES.ilog2()).rev() {
            let lanes = 1 << log;
            let split_rows_of = |dataset: &MixedRuns| {
                let rows = (dataset.smallest_lane(log) / MIN_SPLITS_PER_LANE) as f64 / dataset.share;
                Some(rows as u64).filter(|rows| *rows > 0)
            };
            let split_rows =
                limits.at_most(with_runs().filter_map(split_rows_of).min().unwrap_or(limits.wanted));
            let (dealt, others): (Vec<&MixedRuns>, Vec<&MixedRuns>) =
                with_runs().partition(|dataset| dataset.fits(log, split_rows));
            let decoder_bytes: u64 = dealt.iter().map(|dataset| dataset.runs.decoder_bytes).sum();
            let has_memory = decoder_bytes.saturating_mul(lanes) <= LANE_DECODER_BYTES;
            // Each lane may decompress all runs of a dataset with too few of them.
            if lanes == 1 || has_memory && is_negligible(others.into_iter(), lanes, pass_rows) {
                let layout = Self { lanes: lanes as u32, lane_splits: 1, ..Self::default() };
                return (layout, split_rows);
            }
        }
        (Self::default(), limits.without_runs())
    }

    /// Selects the groups of splits of passes over a mix in storage order, and the size of splits.
    pub(crate) fn of_sequential_mix(
        datasets: &[MixedRuns],
        pass_rows: u64,
        passes: u32,
        limits: SplitLimits,
    ) -> (Self, u64) {
        if is_negligible(datasets.iter(), MANY_WORKERS, pass_rows) {
            return (Self::default(), limits.without_runs());
        }
        let split_rows = limits.at_most(limits.wanted);
        let run_rows = datasets.iter().map(|dataset| dataset.runs.run_rows).fold(0, u64::saturating_add);
        let (group_rows, epoch_rows) =
            (run_rows.saturating_mul(RUNS_PER_GROUP), pass_rows.saturating_mul(u64::from(passes)));
        // A second group would be small.
        let group_rows = if group_rows > epoch_rows / 2 { epoch_rows } else { group_rows };
        let group_splits = group_rows.div_ceil(split_rows).max(1);
        (Self { is_sequential: true, group_splits, ..Self::default() }, split_rows)
    }
}

/// Whether a pass decompresses little more if each of these workers decompresses all long runs of these datasets.
fn is_negligible<'a>(
    datasets: impl Iterator<Item = &'a MixedRuns<'a>>,
    workers: u64,
    pass_rows: u64,
) -> bool {
    let rows = datasets.map(|dataset| dataset.long_rows).fold(0, u64::saturating_add);
    rows.saturating_mul(workers - 1) <= pass_rows / MAX_REST
}
