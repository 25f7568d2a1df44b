//! The order of the rows of compressed datasets with a shuffle window.
//!
//! A *portion* is the rows of one dataset in one split. A shuffle window is in one portion, so no other split needs the blocks
//! of the window. The long runs of a dataset are dealt to lanes ([`crate::runs`]), and a portion has rows of the lane of its split.
//!
//! The splits of a lane may have fewer or more rows of a dataset than the lane. The rows of a lane that no split of the lane will
//! take are at its start: first those for splits without a lane, and then those for splits of other lanes. If another worker
//! computes them, it decompresses only the start of a run. Rows at the end of a lane would require the whole run.

use std::ops::Range;

use super::block_table::{BlockTable, pass_key};
use crate::permutation::Permutation;
use crate::random::mix64;
use crate::runs::deal;

/// The rows of one dataset in one split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Portion {
    /// The offset after the portion in the pass over the dataset.
    pub(crate) end: u64,
    pub(crate) lane: SplitLane,
}

/// The rows that a split takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SplitLane {
    /// Those of a lane.
    Lane(usize),
    /// Those of the runs that are not in lanes.
    Others,
    /// Any. The last splits of an epoch have no lane.
    Any,
}

impl SplitLane {
    /// The index in the lanes of a dataset, followed by its other runs. A dataset without lanes has only other runs.
    fn index(self, count: usize) -> Option<usize> {
        match self {
            Self::Lane(lane) => Some(lane.min(count - 1)),
            Self::Others => Some(count - 1),
            Self::Any => None,
        }
    }
}

/// The portions of one pass over a dataset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portions<'a> {
    /// All portions of the pass, in order.
    pub(crate) all: &'a [Portion],
    /// The portions of the pass if the weights of the mix do not change during the pass. They determine the rest of each lane, so
    /// that a change does not affect earlier rows.
    pub(crate) planned: &'a [Portion],
}

/// The runs of a dataset, dealt to lanes.
#[derive(Debug)]
pub(crate) struct DealtRuns {
    /// The runs of each lane, and the number of rows in the lane. The last entry is not a lane: it has the runs that any worker
    /// may decompress.
    lanes: Vec<(Vec<u32>, u64)>,
}

impl DealtRuns {
    /// Deals the long runs of a dataset to lanes. `deals_all`: a dataset with long runs has all of its runs in lanes.
    pub(crate) fn new(table: &BlockTable, lanes: usize, deals_all: bool) -> Self {
        let is_long = |run: u32| table.run(run as usize).len() > 1;
        let runs = 0..table.runs.len() as u32;
        let has_lanes = lanes > 0 && runs.clone().any(is_long);
        let (dealt, others): (Vec<u32>, Vec<u32>) =
            runs.partition(|run| has_lanes && (deals_all || is_long(*run)));
        let rows: Vec<u64> = dealt.iter().map(|run| table.run_rows(*run as usize)).collect();
        let others_rows = table.rows() - rows.iter().sum::<u64>();
        let mut dealt_to = vec![(Vec::new(), 0); if has_lanes { lanes } else { 0 }];
        for ((run, rows), lane) in dealt.into_iter().zip(&rows).zip(deal(&rows, dealt_to.len())) {
            dealt_to[lane].0.push(run);
            dealt_to[lane].1 += rows;
        }
        dealt_to.push((others, others_rows));
        Self { lanes: dealt_to }
    }

    /// Returns the runs in the order of a pass, lane by lane, and the number of rows of each lane.
    pub(super) fn order(&self, seed: u64, pass: u32) -> (Vec<u32>, Vec<u64>) {
        let key = pass_key(seed, pass);
        let shuffled = |runs: &[u32], key: u64| {
            let permutation = Permutation::new(runs.len() as u64, key);
            (0..runs.len() as u64).map(|index| runs[permutation.apply(index) as usize]).collect::<Vec<_>>()
        };
        let Some(((others, others_rows), lanes)) = self.lanes.split_last() else {
            return (Vec::new(), Vec::new());
        };
        let numbers: Vec<u32> = (0..lanes.len() as u32).collect();
        let (mut runs, mut rows) = (Vec::new(), Vec::new());
        for lane in shuffled(&numbers, mix64(key ^ 1)) {
            let (own, own_rows) = &lanes[lane as usize];
            runs.extend(shuffled(own, mix64(key ^ mix64(2 + u64::from(lane)))));
            rows.push(*own_rows);
        }
        runs.extend(shuffled(others, key));
        rows.push(*others_rows);
        (runs, rows)
    }
}

/// Adjacent rows of a lane at adjacent offsets of the pass.
#[derive(Debug)]
struct Piece {
    /// The first offset in the pass.
    start: u64,
    /// The offset of the first row in the rows of the runs, lane by lane.
    position: u64,
    /// The number of rows of a shuffle window. The last window of the piece may be shorter.
    window: u64,
}

/// Maps offsets in a pass to offsets in the rows of its runs, lane by lane.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pieces: Vec<Piece>,
    /// The offset after the last piece.
    end: u64,
}

/// The rows of one shuffle window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    /// The offsets in the pass.
    pub(super) offsets: Range<u64>,
    /// The offset of the first row in the rows of the runs, lane by lane.
    pub(super) position: u64,
}

impl Pieces {
    /// Divides a pass over a dataset whose lanes have these numbers of rows.
    pub(super) fn new(portions: Portions, lane_rows: &[u64], window: u64) -> Self {
        let mut left = LaneRows::new(portions.planned, lane_rows);
        let mut pieces = Self::default();
        for portion in portions.all {
            let lane = portion.lane.index(lane_rows.len());
            while pieces.end < portion.end {
                let rows = left.take(lane, portion.end - pieces.end);
                if rows.is_empty() {
                    return pieces;
                }
                pieces.push(rows, window);
            }
        }
        pieces
    }

    fn push(&mut self, rows: Range<u64>, window: u64) {
        let count = rows.end - rows.start;
        // Windows of the same size leave no short window at the end. They may be a little larger, because the portions of a mix
        // differ by a row.
        let windows = count.saturating_sub(window / 8).div_ceil(window.max(1)).max(1);
        let piece = Piece { start: self.end, position: rows.start, window: count.div_ceil(windows) };
        self.pieces.push(piece);
        self.end += count;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns the window that contains an offset of the pass.
    pub(super) fn window(&self, offset: u64) -> Window {
        let index = self.pieces.partition_point(|piece| piece.start <= offset) - 1;
        let piece = &self.pieces[index];
        let end = self.pieces.get(index + 1).map_or(self.end, |next| next.start);
        let before = (offset - piece.start) / piece.window * piece.window;
        let start = piece.start + before;
        Window { offsets: start..(start + piece.window).min(end), position: piece.position + before }
    }
}

/// The rows of each lane that no portion has taken.
struct LaneRows {
    /// The rows for splits without a lane, at the start of each lane.
    for_any: Vec<Range<u64>>,
    /// The rows for splits of other lanes, which follow.
    for_others: Vec<Range<u64>>,
    /// The rows for the splits of the lane, which follow.
    own: Vec<Range<u64>>,
}

impl LaneRows {
    fn new(planned: &[Portion], lane_rows: &[u64]) -> Self {
        let (mut wanted, mut any, mut end) = (vec![0; lane_rows.len()], 0, 0);
        for portion in planned {
            match portion.lane.index(lane_rows.len()) {
                Some(lane) => wanted[lane] += portion.end - end,
                None => any += portion.end - end,
            }
            end = portion.end;
        }
        // A pass need not contain all rows of a dataset. The other rows are at the ends of lanes.
        let mut left: Vec<u64> =
            wanted.iter().zip(lane_rows).map(|(wanted, rows)| rows.saturating_sub(*wanted)).collect();
        let others = wanted.iter().zip(lane_rows).map(|(wanted, rows)| wanted.saturating_sub(*rows)).sum();
        let has_lanes = lane_rows.len() > 1;
        let for_any = divide(if has_lanes { any } else { 0 }, &mut left);
        let for_others = divide(if has_lanes { others } else { 0 }, &mut left);
        let mut rows = Self { for_any: Vec::new(), for_others: Vec::new(), own: Vec::new() };
        let mut start = 0;
        for (lane, lane_rows) in lane_rows.iter().enumerate() {
            let ends = [start + for_any[lane], start + for_any[lane] + for_others[lane], start + lane_rows];
            rows.for_any.push(start..ends[0]);
            rows.for_others.push(ends[0]..ends[1]);
            rows.own.push(ends[1]..ends[2]);
            start = ends[2];
        }
        rows
    }

    /// Takes up to this number of rows for a split. Returns no rows only if none are left.
    fn take(&mut self, lane: Option<usize>, rows: u64) -> Range<u64> {
        let (first, second) = match lane {
            Some(lane) if !self.own[lane].is_empty() => return take(&mut self.own[lane], rows),
            Some(_) => (&mut self.for_others, &mut self.for_any),
            None => (&mut self.for_any, &mut self.for_others),
        };
        let mut left = first.iter_mut().chain(second).chain(&mut self.own);
        left.find(|left| !left.is_empty()).map_or(0..0, |left| take(left, rows))
    }
}

/// Divides rows evenly among lanes with these numbers of rows, and subtracts them.
fn divide(mut rows: u64, left: &mut [u64]) -> Vec<u64> {
    let mut taken = vec![0; left.len()];
    while rows > 0 {
        let open = left.iter().filter(|left| **left > 0).count() as u64;
        if open == 0 {
            break;
        }
        let share = rows.div_ceil(open);
        for (taken, left) in taken.iter_mut().zip(left.iter_mut()) {
            let count = share.min(rows).min(*left);
            *taken += count;
            *left -= count;
            rows -= count;
        }
    }
    taken
}

fn take(left: &mut Range<u64>, rows: u64) -> Range<u64> {
    let taken = left.start..left.end.min(left.start.saturating_add(rows));
    left.start = taken.end;
    taken
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::SplitLane::{Any, Lane, Others};
    use super::*;

    fn portions(sizes: &[(u64, SplitLane)]) -> Vec<Portion> {
        let mut end = 0;
        let portion = |&(rows, lane): &(u64, SplitLane)| {
            end += rows;
            Portion { end, lane }
        };
        sizes.iter().map(portion).collect()
    }

    fn windows(pieces: &Pieces) -> Vec<Window> {
        let mut windows: Vec<Window> = Vec::new();
        while windows.last().map_or(0, |window| window.offsets.end) < pieces.end {
            windows.push(pieces.window(windows.last().map_or(0, |window| window.offsets.end)));
        }
        windows
    }

    #[test]
    fn a_rest_is_at_the_start_of_its_lane_and_fills_other_portions() {
        // Lane 0 has 10 rows and splits with 8 rows. Lane 1 has 6 rows and splits with 8 rows.
        let all = portions(&[(4, Lane(0)), (4, Lane(1)), (4, Lane(0)), (4, Lane(1))]);
        let pieces = Pieces::new(Portions { all: &all, planned: &all }, &[10, 6, 0], 4);
        let places: Vec<_> = pieces.pieces.iter().map(|piece| (piece.start, piece.position)).collect();
        assert_eq!(
            places,
            [(0, 2), (4, 10), (8, 6), (12, 14), (14, 0)],
            "two rows of lane 0 are in the last split"
        );
    }

    #[test]
    fn windows_divide_a_portion_evenly() {
        let all = portions(&[(20, Lane(0)), (3, Others), (9, Any)]);
        let pieces = Pieces::new(Portions { all: &all, planned: &all }, &[40], 8);
        let windows: Vec<_> = windows(&pieces).into_iter().map(|window| window.offsets).collect();
        assert_eq!(windows, [0..7, 7..14, 14..20, 20..23, 23..32]);
    }

    proptest! {
        #[test]
        fn each_row_has_one_offset_and_a_change_affects_only_later_rows(
            lanes in prop::collection::vec(0u64..60, 1..6), sizes in prop::collection::vec((0u64..20, 0usize..8), 0..20),
            changed in 0usize..20, window in 1u64..30,
        ) {
            let total: u64 = lanes.iter().sum();
            let lane = |lane: usize| match lane {
                6 => Others,
                7 => Any,
                lane => Lane(lane),
            };
            let fill = |sizes: &[(u64, usize)]| {
                let (mut all, mut left) = (Vec::new(), total);
                for &(rows, number) in sizes {
                    all.push((rows.min(left), lane(number)));
                    left -= rows.min(left);
                }
                all.push((left, Any));
                portions(&all)
            };
            let planned = fill(&sizes);
            let (before, after) = sizes.split_at(changed.min(sizes.len()));
            let halved: Vec<_> = after.iter().map(|(rows, lane)| (rows / 2, *lane)).collect();
            let all = fill(&[before, &halved].concat());
            let pieces = Pieces::new(Portions { all: &all, planned: &planned }, &lanes, window);
            let mut rows: Vec<u64> = Vec::new();
            for window in windows(&pieces) {
                rows.extend(window.position..window.position + (window.offsets.end - window.offsets.start));
            }
            let unchanged = Pieces::new(Portions { all: &planned, planned: &planned }, &lanes, window);
            let prefix: u64 = before.iter().map(|(rows, _)| rows).sum::<u64>().min(total);
            for window in windows(&unchanged).into_iter().take_while(|window| window.offsets.end <= prefix) {
                prop_assert_eq!(&pieces.window(window.offsets.start), &window);
            }
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..total).collect::<Vec<_>>());
        }
    }
}
