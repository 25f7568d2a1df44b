//! The order of rows in a mix of several datasets: the dataset and the row at each offset of a pass. The order is a pure
//! function of weights and row counts, and can be computed at any offset.
//!
//! Row `k` of a part with share `s` is due at time `(k + 1/2) / s`. Rows are ordered by due time; ties are ordered by the
//! index of the part. At every offset the number of rows of each part differs from its exact share by less than one row.
//! After a change of the weights, the remaining rows are ordered by the new weights.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::pipeline::{Mix, MixStop};

mod passes;

pub(crate) use self::passes::part_rows;

/// Half of the time between two rows of a part with share 1, in the unit of due times.
const HALF_ROW_TIME: u128 = 1 << 40;
/// The share of the part with the largest weight.
const LARGEST_SHARE: f64 = (1 << 20) as f64;

/// A change to the weights of a mix. It takes effect at an offset of a pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MixChange {
    /// The pass, counted over all epochs.
    pub pass: u32,
    /// The first offset in the pass at which the new weights apply. They also apply to all later passes.
    #[serde(rename = "place")]
    pub offset: u64,
    /// The weight of each dataset.
    pub weights: Vec<f64>,
}

/// [`check`](MixChange::check) rejects NaN, so equality is reflexive.
impl Eq for MixChange {}

impl MixChange {
    /// Checks the weights of a mix with this number of datasets.
    ///
    /// # Errors
    /// Returns a message that names the invalid weight.
    pub fn check(weights: &[f64], datasets: usize) -> Result<(), String> {
        if weights.len() != datasets {
            return Err(format!(
                "expected {datasets} weights, one per dataset of the mix, got {}",
                weights.len()
            ));
        }
        match weights.iter().find(|weight| !(weight.is_finite() && **weight > 0.0)) {
            Some(weight) => Err(format!("invalid weight {weight}: expected a finite number above 0")),
            None => Ok(()),
        }
    }

    /// Returns the changes that affect rows of `pass` or of later passes. The result is a suffix of `changes`.
    pub fn changes_from_pass(changes: &[Self], pass: u32) -> &[Self] {
        let later = changes.partition_point(|change| change.pass < pass);
        // The last earlier change applies to the start of the pass, unless another change replaces it there.
        let is_replaced = changes.get(later).is_some_and(|change| change.pass == pass && change.offset == 0);
        &changes[if is_replaced { later } else { later.saturating_sub(1) }..]
    }
}

/// The order of rows in one pass over a mix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixer {
    /// The phases in order; never empty. The first phase starts at offset 0.
    phases: Vec<Phase>,
    /// The number of rows of each dataset.
    rows: Vec<u64>,
    pass_rows: u64,
    max_part_repeats: u32,
    /// The number of times that a pass starts each dataset.
    part_repeats: Vec<u32>,
}

/// A range of offsets of a pass with constant weights.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Phase {
    start: u64,
    /// The number of rows of each part before the phase.
    rows_before: Vec<u64>,
    parts: Vec<MixerPart>,
}

/// One dataset of a mix in a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MixerPart {
    share: u128,
    /// Maximum number of rows of the part in the phase.
    max_rows: u64,
}

impl MixerPart {
    /// Returns the due time of a row of the part.
    fn due(&self, row: u64) -> u128 {
        (2 * u128::from(row) + 1) * HALF_ROW_TIME / self.share
    }

    /// Returns the number of rows that are due at or before `time`.
    fn count_until(&self, time: u128) -> u64 {
        let halves = ((time + 1) * self.share - 1) / HALF_ROW_TIME;
        u64::try_from(halves.div_ceil(2)).unwrap_or(u64::MAX).min(self.max_rows)
    }

    /// Returns the number of rows that are due before `time`.
    fn count_before(&self, time: u128) -> u64 {
        time.checked_sub(1).map_or(0, |before| self.count_until(before))
    }
}

/// A row of a mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MixedRow {
    /// The index of the dataset in the mix.
    pub part: usize,
    /// The number of rows of this dataset that precede the row in the pass. After a restart of the dataset, the number
    /// exceeds the dataset's row count.
    pub row: u64,
}

/// Converts weights to integers. The largest weight becomes [`LARGEST_SHARE`].
fn shares(weights: impl Iterator<Item = f64> + Clone) -> Vec<u128> {
    let largest = weights.clone().fold(f64::MIN_POSITIVE, f64::max);
    weights.map(|weight| (weight / largest * LARGEST_SHARE).round().max(1.0) as u128).collect()
}

impl Phase {
    /// Returns the number of rows of each part before a row of part `before` that is due at `time`. Counts start at the
    /// phase.
    fn counts_at(&self, time: u128, before: usize) -> Vec<u64> {
        let count = |(index, part): (usize, &MixerPart)| match index < before {
            true => part.count_until(time),
            false => part.count_before(time),
        };
        self.parts.iter().enumerate().map(count).collect()
    }

    /// Returns the number of rows of each part before an offset. Counts and offset are relative to the start of the phase.
    fn counts_before(&self, offset: u64) -> Vec<u64> {
        let total =
            |time: u128| -> u128 { self.parts.iter().map(|part| u128::from(part.count_until(time))).sum() };
        let (mut low, mut high) = (0_u128, 1_u128);
        while total(high) <= u128::from(offset) && high < u128::MAX / (4 * LARGEST_SHARE as u128) {
            high *= 2;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if total(middle) > u128::from(offset) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        // Some of the rows due at this time may precede the offset.
        let mut counts = self.counts_at(low, 0);
        let mut left = offset - counts.iter().sum::<u64>();
        for (count, part) in counts.iter_mut().zip(&self.parts) {
            if left > 0 && part.count_until(low) > *count {
                *count += 1;
                left -= 1;
            }
        }
        counts
    }

    /// Returns the number of rows of each part before an offset of the pass.
    fn pass_counts_before(&self, offset: u64) -> Vec<u64> {
        let counts = self.counts_before(offset - self.start);
        self.rows_before.iter().zip(counts).map(|(before, count)| before + count).collect()
    }

    fn set_weights(&mut self, weights: &[f64]) {
        for (part, share) in self.parts.iter_mut().zip(shares(weights.iter().copied())) {
            part.share = share;
        }
    }

    /// Appends the rows at a range of offsets of the pass.
    fn append_rows(&self, offsets: Range<u64>, rows: &mut Vec<MixedRow>) {
        let mut counts = self.counts_before(offsets.start - self.start);
        for _ in offsets {
            let open = self.parts.iter().enumerate().filter(|(index, part)| counts[*index] < part.max_rows);
            let Some((_, part)) = open.map(|(index, part)| (part.due(counts[index]), index)).min() else {
                return;
            };
            rows.push(MixedRow { part, row: self.rows_before[part] + counts[part] });
            counts[part] += 1;
        }
    }
}

impl Mixer {
    /// Creates the order of a mix. `rows` contains the number of rows of each dataset. Returns `None` if a pass would have
    /// more than [`u64::MAX`] rows.
    pub fn new(mix: &Mix, rows: &[u64]) -> Option<Self> {
        let restarts = mix.stop == MixStop::Restart;
        let shares = shares(mix.parts.iter().map(|part| part.weight));
        let part = |(&rows, share): (&u64, u128)| {
            let max_rows = if restarts { u64::MAX } else { rows };
            MixerPart { share, max_rows }
        };
        let parts = rows.iter().zip(shares).map(part).collect();
        let phase = Phase { start: 0, rows_before: vec![0; rows.len()], parts };
        let mut mixer = Self {
            phases: vec![phase],
            rows: rows.to_vec(),
            pass_rows: 0,
            max_part_repeats: 1,
            part_repeats: Vec::new(),
        };
        // The pass ends with the last row of the part that is exhausted first or last.
        let phase = &mixer.phases[0];
        let ends = phase.parts.iter().zip(rows).enumerate().filter(|(_, (_, rows))| **rows > 0);
        let mut ends: Vec<(u128, usize)> =
            ends.map(|(index, (part, rows))| (part.due(rows - 1), index)).collect();
        ends.sort_unstable();
        let end = if mix.stop == MixStop::First { ends.first() } else { ends.last() };
        let Some(&(time, part)) = end else { return Some(mixer) };
        let counts = phase.counts_at(time, part + 1);
        mixer.pass_rows = counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count))?;
        mixer.part_repeats = mixer.count_part_repeats(&counts)?;
        mixer.max_part_repeats = mixer.part_repeats.iter().copied().max().unwrap_or(1);
        Some(mixer)
    }

    /// Returns the order of a pass with changed weights. `weights` replaces the initial weights, and each change applies at
    /// its offset. The number of rows of the pass does not change.
    pub fn with_changes<'a>(
        &self,
        weights: Option<&[f64]>,
        changes: impl IntoIterator<Item = (u64, &'a [f64])>,
    ) -> Self {
        let mut mixer = self.clone();
        if let Some(weights) = weights {
            mixer.phases[0].set_weights(weights);
        }
        for (offset, weights) in changes.into_iter().filter(|(offset, _)| *offset < self.pass_rows) {
            let last = mixer.last_phase();
            let mut phase = last.clone();
            if offset > last.start {
                phase.rows_before = last.pass_counts_before(offset);
                phase.start = offset;
                let counts = phase.rows_before.iter().zip(&last.rows_before);
                for (part, (rows, rows_before_last)) in phase.parts.iter_mut().zip(counts) {
                    part.max_rows = part.max_rows.saturating_sub(rows - rows_before_last);
                }
                phase.set_weights(weights);
                mixer.phases.push(phase);
            } else if let Some(last) = mixer.phases.last_mut() {
                last.set_weights(weights);
            }
        }
        let counts = mixer.last_phase().pass_counts_before(self.pass_rows);
        mixer.part_repeats = mixer.count_part_repeats(&counts).unwrap_or_default();
        mixer
    }

    fn last_phase(&self) -> &Phase {
        &self.phases[self.phases.len() - 1]
    }

    /// Returns the number of times that a pass starts each dataset, for the given numbers of rows.
    fn count_part_repeats(&self, counts: &[u64]) -> Option<Vec<u32>> {
        let repeats =
            counts.iter().zip(&self.rows).map(|(count, rows)| count.div_ceil((*rows).max(1)).max(1));
        repeats.map(|repeats| u32::try_from(repeats).ok()).collect()
    }

    /// The number of rows of a pass.
    pub fn pass_rows(&self) -> u64 {
        self.pass_rows
    }

    /// The number of times that a pass starts the most repeated dataset, with the job's initial weights; 1 without
    /// `stop: restart`.
    pub fn max_part_repeats(&self) -> u32 {
        self.max_part_repeats
    }

    /// The number of times that a pass starts a dataset.
    pub fn part_repeats(&self, part: usize) -> u32 {
        self.part_repeats.get(part).copied().unwrap_or(1)
    }

    /// Returns the number of rows of each dataset before an offset of the pass. After a restart of a dataset, the number exceeds
    /// the dataset's row count.
    pub(crate) fn counts_before(&self, offset: u64) -> Vec<u64> {
        let phase = self.phases.partition_point(|phase| phase.start <= offset).saturating_sub(1);
        self.phases[phase].pass_counts_before(offset)
    }

    /// Returns the rows at a range of offsets of a pass, in order. Takes O(parts) time per row, plus O(log rows) for the
    /// first row.
    pub fn rows(&self, offsets: Range<u64>) -> Vec<MixedRow> {
        let mut rows = Vec::with_capacity((offsets.end - offsets.start) as usize);
        let first = self.phases.partition_point(|phase| phase.start <= offsets.start).saturating_sub(1);
        let ends = self.phases.iter().skip(first + 1).map(|phase| phase.start).chain([offsets.end]);
        let mut start = offsets.start;
        for (phase, end) in self.phases[first..].iter().zip(ends) {
            let end = end.min(offsets.end);
            if start < end {
                phase.append_rows(start..end, &mut rows);
                start = end;
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests;
