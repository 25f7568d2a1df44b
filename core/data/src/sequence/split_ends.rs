//! The rows of each dataset in each split of a pass.

use std::sync::Arc;

use crate::layout::{Layout, SplitRef};
use crate::mix::Mixer;
use crate::order::{Portion, SplitLane};
use crate::runs::RunLayout;

/// The properties of a layout that determine where the splits of a pass end.
#[derive(Debug, Clone)]
pub(super) struct SplitEnds {
    pass_rows: u64,
    passes: u32,
    split_rows: u64,
    /// The number of rows in full splits at the start of an epoch.
    full_split_rows: u64,
    /// The offsets in an epoch after each of its last, shorter splits, and after its last row.
    last_ends: Arc<[u64]>,
    runs: RunLayout,
}

impl SplitEnds {
    pub(super) fn new(layout: &Layout) -> Self {
        let streams = if layout.coordinated { 1 } else { layout.streams };
        let last_split = |stream| {
            let full = layout.full_split_rows() / layout.split_rows / u64::from(streams);
            layout.split_range(SplitRef { epoch: 0, ordinal: full, stream }).end
        };
        let last_ends = (0..streams).map(last_split).chain([layout.epoch_rows()]).collect();
        Self {
            pass_rows: layout.dataset_rows,
            passes: layout.passes,
            split_rows: layout.split_rows,
            full_split_rows: layout.full_split_rows(),
            last_ends,
            runs: layout.runs,
        }
    }

    /// Returns the offset after each split of a pass, and the lane of the split.
    pub(super) fn of_pass(&self, pass: u32) -> Vec<Portion> {
        let start = u64::from(pass % self.passes.max(1)) * self.pass_rows;
        let end = start + self.pass_rows;
        let full_end = self.full_split_rows.clamp(start, end);
        let (mut ends, mut at) = (Vec::new(), start);
        while at < full_end {
            let number = at / self.split_rows;
            at = ((number + 1) * self.split_rows).min(full_end);
            let lane = match self.runs.lane_of(number) {
                Some(lane) => SplitLane::Lane(lane as usize),
                None => SplitLane::Others,
            };
            ends.push(Portion { end: at - start, lane });
        }
        for last_end in self.last_ends.iter().map(|last_end| *last_end.min(&end)) {
            if last_end > at {
                at = last_end;
                ends.push(Portion { end: at - start, lane: SplitLane::Any });
            }
        }
        ends
    }
}

/// Returns the portions of each dataset of a mix, for each time that the pass starts the dataset. `splits` are the splits of the
/// pass, and `rows` are the numbers of rows of the datasets.
pub(super) fn portions_of_mix(splits: &[Portion], mixer: &Mixer, rows: &[u64]) -> Vec<Vec<Vec<Portion>>> {
    let mut portions: Vec<Vec<Vec<Portion>>> = vec![Vec::new(); rows.len()];
    let mut at = vec![0; rows.len()];
    for split in splits {
        for (part, count) in mixer.counts_before(split.end).into_iter().enumerate() {
            while at[part] < count {
                let repeat = at[part] / rows[part];
                let end = count.min((repeat + 1) * rows[part]);
                portions[part].resize(repeat as usize + 1, Vec::new());
                portions[part][repeat as usize]
                    .push(Portion { end: end - repeat * rows[part], lane: split.lane });
                at[part] = end;
            }
        }
    }
    portions
}
