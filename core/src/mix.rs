//! How rows of several datasets are mixed: which dataset the row at any place of a pass comes from, and the how-manieth of it that is. Pure
//! arithmetic on weights and numbers of rows, computable at any place.
//!
//! The `k`-th row of a part with share `s` is due at the time `(k + 1/2) / s`; rows come in the order of these times, and of parts where
//! two are the same. So at every place each part has had its share of the rows before it to less than one row.

use std::ops::Range;

use crate::pipeline::{Mix, MixStop};

/// Units of time for one row of a part with share 1, in halves: the precision in which rows are compared.
const UNIT: u128 = 1 << 40;
/// Share of the part with the largest weight.
const LARGEST_SHARE: f64 = (1 << 20) as f64;

/// The mix of one pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixer {
    parts: Vec<Part>,
    pass_rows: u64,
    rounds: u32,
    /// How often each dataset is begun in a pass.
    part_rounds: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    share: u128,
    /// Rows of the dataset.
    rows: u64,
    /// Rows of it that a pass may have at most.
    bound: u64,
}

impl Part {
    /// When its `row`-th row is due.
    fn due(&self, row: u64) -> u128 {
        (2 * u128::from(row) + 1) * UNIT / self.share
    }

    /// Rows that are due at `time` or before.
    fn count(&self, time: u128) -> u64 {
        let halves = ((time + 1) * self.share - 1) / UNIT;
        u64::try_from(halves.div_ceil(2)).unwrap_or(u64::MAX).min(self.bound)
    }

    /// Rows that are due before `time`.
    fn count_before(&self, time: u128) -> u64 {
        time.checked_sub(1).map_or(0, |before| self.count(before))
    }
}

/// Which row of a mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MixedRow {
    /// Place of the dataset in the mix.
    pub part: usize,
    /// Rows of it before this one in the pass. Where a dataset is gone over several times, beyond its rows.
    pub row: u64,
}

impl Mixer {
    /// The mix of datasets with so many rows. `None` where a pass would have more rows than can be counted.
    pub fn new(mix: &Mix, rows: &[u64]) -> Option<Self> {
        let heaviest = mix.parts.iter().map(|part| part.weight).fold(f64::MIN_POSITIVE, f64::max);
        let share = |weight: f64| (weight / heaviest * LARGEST_SHARE).round().max(1.0) as u128;
        let bounded = mix.stop != MixStop::Restart;
        let part = |(part, &rows): (&crate::pipeline::MixPart, &u64)| Part {
            share: share(part.weight),
            rows,
            bound: if bounded { rows } else { u64::MAX },
        };
        let mut mixer = Self {
            parts: mix.parts.iter().zip(rows).map(part).collect(),
            pass_rows: 0,
            rounds: 1,
            part_rounds: Vec::new(),
        };
        // What ends a pass: the last row of the part that is through first, or last.
        let ends = mixer.parts.iter().enumerate().filter(|(_, part)| part.rows > 0);
        let mut ends: Vec<(u128, usize)> =
            ends.map(|(place, part)| (part.due(part.rows - 1), place)).collect();
        ends.sort_unstable();
        let end = if mix.stop == MixStop::First { ends.first() } else { ends.last() };
        let Some(&(time, part)) = end else { return Some(mixer) };
        let counts = mixer.counts_at(time, part + 1);
        mixer.pass_rows = counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count))?;
        let rounds =
            counts.iter().zip(&mixer.parts).map(|(count, part)| count.div_ceil(part.rows.max(1)).max(1));
        mixer.part_rounds = rounds.map(|rounds| u32::try_from(rounds).ok()).collect::<Option<_>>()?;
        mixer.rounds = mixer.part_rounds.iter().copied().max().unwrap_or(1);
        Some(mixer)
    }

    /// Rows of a pass.
    pub fn pass_rows(&self) -> u64 {
        self.pass_rows
    }

    /// How often the dataset that is gone over most often is begun in a pass: 1 unless short ones are begun again.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// How often a dataset is begun in a pass.
    pub fn rounds_of(&self, part: usize) -> u32 {
        self.part_rounds.get(part).copied().unwrap_or(1)
    }

    /// Rows of each part that come before the row due at `time` in the part `before`.
    fn counts_at(&self, time: u128, before: usize) -> Vec<u64> {
        let count = |(place, part): (usize, &Part)| match place < before {
            true => part.count(time),
            false => part.count_before(time),
        };
        self.parts.iter().enumerate().map(count).collect()
    }

    /// The rows at these places of a pass, in order. O(parts) for each, and for the first the logarithm of all.
    pub fn rows(&self, places: Range<u64>) -> Vec<MixedRow> {
        let mut rows = Vec::with_capacity((places.end - places.start) as usize);
        if places.is_empty() {
            return rows;
        }
        let mut counts = self.counts_before(places.start);
        for _ in places {
            let open = self.parts.iter().enumerate().filter(|(place, part)| counts[*place] < part.bound);
            let Some((_, part)) = open.map(|(place, part)| (part.due(counts[place]), place)).min() else {
                break;
            };
            rows.push(MixedRow { part, row: counts[part] });
            counts[part] += 1;
        }
        rows
    }

    /// Rows of each part before a place.
    fn counts_before(&self, place: u64) -> Vec<u64> {
        let total = |time: u128| -> u128 { self.parts.iter().map(|part| u128::from(part.count(time))).sum() };
        let (mut low, mut high) = (0_u128, 1_u128);
        while total(high) <= u128::from(place) && high < u128::MAX / (4 * LARGEST_SHARE as u128) {
            high *= 2;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if total(middle) > u128::from(place) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        // Of the rows due at this time some may lie before the place.
        let mut counts = self.counts_at(low, 0);
        let mut left = place - counts.iter().sum::<u64>();
        for (count, part) in counts.iter_mut().zip(&self.parts) {
            if left > 0 && part.count(low) > *count {
                *count += 1;
                left -= 1;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::{MixPart, Source};

    fn mix(weights: &[f64], stop: MixStop) -> Mix {
        let part = |weight: &f64| MixPart { weight: *weight, source: Source::text("x") };
        Mix { parts: weights.iter().map(part).collect(), stop }
    }

    /// What comes in the order of the times when rows are due, by sorting all of them.
    fn sorted(mixer: &Mixer, most: u64) -> Vec<MixedRow> {
        let mut all: Vec<(u128, MixedRow)> = Vec::new();
        for (place, part) in mixer.parts.iter().enumerate() {
            let rows = (0..part.bound.min(most)).map(|row| (part.due(row), MixedRow { part: place, row }));
            all.extend(rows);
        }
        all.sort_unstable();
        all.into_iter().map(|(_, row)| row).take(mixer.pass_rows as usize).collect()
    }

    fn stops() -> impl Strategy<Value = MixStop> {
        prop_oneof![Just(MixStop::All), Just(MixStop::First), Just(MixStop::Restart)]
    }

    proptest! {
        #[test]
        fn a_pass_is_what_sorting_gives_and_any_range_is_that_part_of_it(
            parts in prop::collection::vec((0.01f64..10.0, 1u64..40), 1..5), stop in stops(), cut: u64,
        ) {
            let (weights, rows): (Vec<f64>, Vec<u64>) = parts.into_iter().unzip();
            let mixer = Mixer::new(&mix(&weights, stop), &rows).expect("few rows");
            let whole = mixer.rows(0..mixer.pass_rows());
            prop_assert_eq!(&whole, &sorted(&mixer, mixer.pass_rows()));
            let cut = cut % mixer.pass_rows();
            prop_assert_eq!(&mixer.rows(cut..mixer.pass_rows())[..], &whole[cut as usize..]);
        }

        #[test]
        fn passes_end_where_they_should(
            parts in prop::collection::vec((0.01f64..10.0, 1u64..40), 1..5), stop in stops(),
        ) {
            let (weights, rows): (Vec<f64>, Vec<u64>) = parts.into_iter().unzip();
            let mixer = Mixer::new(&mix(&weights, stop), &rows).expect("few rows");
            let whole = mixer.rows(0..mixer.pass_rows());
            let had = |part: usize| whole.iter().filter(|row| row.part == part).count() as u64;
            let through = rows.iter().enumerate().filter(|(part, rows)| had(*part) >= **rows).count();
            let last = whole.last().expect("there are rows");
            match stop {
                MixStop::All => prop_assert_eq!(whole.len() as u64, rows.iter().sum::<u64>()),
                // The last row is the last of its part, and no other part was through before.
                MixStop::First => prop_assert!(through >= 1 && last.row + 1 == rows[last.part]),
                MixStop::Restart => {
                    prop_assert_eq!(through, rows.len());
                    prop_assert_eq!(last.row + 1, rows[last.part]);
                    let rounds = whole.iter().map(|row| row.row / rows[row.part] + 1).max();
                    prop_assert_eq!(rounds, Some(u64::from(mixer.rounds())));
                }
            }
        }

        #[test]
        fn shares_hold_to_a_row_at_every_place(weights in prop::collection::vec(0.05f64..1.0, 2..5)) {
            let mixer = Mixer::new(&mix(&weights, MixStop::First), &vec![200; weights.len()]).expect("few rows");
            let total: f64 = weights.iter().sum();
            let mut had = vec![0_u64; weights.len()];
            for (place, row) in mixer.rows(0..mixer.pass_rows()).iter().enumerate() {
                had[row.part] += 1;
                for (count, weight) in had.iter().zip(&weights) {
                    let due = (place + 1) as f64 * weight / total;
                    // Half a row for the place of a part in its own steps, and half for that of the place among others.
                    prop_assert!((*count as f64 - due).abs() <= 1.0 + weights.len() as f64 / 2.0, "{} of {}", count, due);
                }
            }
        }
    }

    #[test]
    fn three_to_one() {
        let mixer = Mixer::new(&mix(&[3.0, 1.0], MixStop::First), &[6, 5]).unwrap();
        let parts: Vec<usize> = mixer.rows(0..mixer.pass_rows()).iter().map(|row| row.part).collect();
        assert_eq!(parts, [0, 0, 1, 0, 0, 0, 1, 0]);
        let mixer = Mixer::new(&mix(&[1.0, 1.0], MixStop::Restart), &[2, 5]).unwrap();
        assert_eq!((mixer.pass_rows(), mixer.rounds()), (10, 3));
    }

    #[test]
    fn large_numbers_are_counted() {
        let mixer = Mixer::new(&mix(&[1.0, 1e-6], MixStop::All), &[1 << 50, 1 << 20]).unwrap();
        assert_eq!(mixer.pass_rows(), (1 << 50) + (1 << 20));
        assert_eq!(mixer.rows(mixer.pass_rows() - 2..mixer.pass_rows()).len(), 2);
        assert!(Mixer::new(&mix(&[1.0, 1.0], MixStop::All), &[u64::MAX, u64::MAX]).is_none());
    }
}
