//! How rows of several datasets are mixed: which dataset the row at any place of a pass comes from, and the how-manieth of it that is. Pure
//! arithmetic on weights and numbers of rows, computable at any place.
//!
//! The `k`-th row of a part with share `s` is due at the time `(k + 1/2) / s`; rows come in the order of these times, and of parts where
//! two are the same. So at every place each part has had its share of the rows before it to less than one row. Where the weights change,
//! the rows that are left are dealt anew from there on.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::pipeline::{Mix, MixStop};

mod passes;

/// Units of time for one row of a part with share 1, in halves: the precision in which rows are compared.
const UNIT: u128 = 1 << 40;
/// Share of the part with the largest weight.
const LARGEST_SHARE: f64 = (1 << 20) as f64;

/// Weights that hold from a place on, in place of those that held before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MixChange {
    /// The pass, counted over all epochs.
    pub pass: u32,
    /// The first place of the pass for which they hold; they hold for all later passes as well.
    pub place: u64,
    /// One for each dataset.
    pub weights: Vec<f64>,
}

/// Weights are numbers.
impl Eq for MixChange {}

impl MixChange {
    /// Checks weights for a mix of so many datasets.
    ///
    /// # Errors
    /// One clause.
    pub fn check(weights: &[f64], datasets: usize) -> Result<(), String> {
        if weights.len() != datasets {
            return Err(format!("{} weights are given for {datasets} datasets", weights.len()));
        }
        match weights.iter().find(|weight| !(weight.is_finite() && **weight > 0.0)) {
            Some(weight) => Err(format!("weight {weight} is not a number above 0")),
            None => Ok(()),
        }
    }

    /// Of changes in their order those that tell what comes from the beginning of `pass` on.
    pub fn from_pass(changes: &[Self], pass: u32) -> &[Self] {
        let later = changes.partition_point(|change| change.pass < pass);
        // At its beginning the last one before it holds, unless there is one right there.
        let begins_anew = changes.get(later).is_some_and(|change| change.pass == pass && change.place == 0);
        &changes[if begins_anew { later } else { later.saturating_sub(1) }..]
    }
}

/// The mix of one pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixer {
    /// The first begins at place 0.
    phases: Vec<Phase>,
    /// Rows of each dataset.
    rows: Vec<u64>,
    pass_rows: u64,
    rounds: u32,
    /// How often each dataset is begun in a pass.
    part_rounds: Vec<u32>,
}

/// Places over which the weights stay as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Phase {
    start: u64,
    /// Rows of each part before it.
    done: Vec<u64>,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    share: u128,
    /// Rows of it that the phase may have at most.
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

/// Shares in whole numbers: the heaviest has the largest.
fn shares(weights: impl Iterator<Item = f64> + Clone) -> Vec<u128> {
    let heaviest = weights.clone().fold(f64::MIN_POSITIVE, f64::max);
    weights.map(|weight| (weight / heaviest * LARGEST_SHARE).round().max(1.0) as u128).collect()
}

impl Phase {
    /// Rows of each part before the one due at `time` in the part `before`, counted from the phase's start.
    fn counts_at(&self, time: u128, before: usize) -> Vec<u64> {
        let count = |(place, part): (usize, &Part)| match place < before {
            true => part.count(time),
            false => part.count_before(time),
        };
        self.parts.iter().enumerate().map(count).collect()
    }

    /// Rows of each part before a place, both counted from the phase's start.
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

    /// Rows of each part of the pass before this place of it.
    fn done_before(&self, place: u64) -> Vec<u64> {
        let counts = self.counts_before(place - self.start);
        self.done.iter().zip(counts).map(|(done, count)| done + count).collect()
    }

    fn reweigh(&mut self, weights: &[f64]) {
        for (part, share) in self.parts.iter_mut().zip(shares(weights.iter().copied())) {
            part.share = share;
        }
    }

    /// Adds the rows at these places of the pass.
    fn add_rows(&self, places: Range<u64>, rows: &mut Vec<MixedRow>) {
        let mut counts = self.counts_before(places.start - self.start);
        for _ in places {
            let open = self.parts.iter().enumerate().filter(|(place, part)| counts[*place] < part.bound);
            let Some((_, part)) = open.map(|(place, part)| (part.due(counts[place]), place)).min() else {
                return;
            };
            rows.push(MixedRow { part, row: self.done[part] + counts[part] });
            counts[part] += 1;
        }
    }
}

impl Mixer {
    /// The mix of datasets with so many rows. `None` where a pass would have more rows than can be counted.
    pub fn new(mix: &Mix, rows: &[u64]) -> Option<Self> {
        let bounded = mix.stop != MixStop::Restart;
        let shares = shares(mix.parts.iter().map(|part| part.weight));
        let part =
            |(&rows, share): (&u64, u128)| Part { share, bound: if bounded { rows } else { u64::MAX } };
        let phase =
            Phase { start: 0, done: vec![0; rows.len()], parts: rows.iter().zip(shares).map(part).collect() };
        let mut mixer = Self {
            phases: vec![phase],
            rows: rows.to_vec(),
            pass_rows: 0,
            rounds: 1,
            part_rounds: Vec::new(),
        };
        // What ends a pass: the last row of the part that is through first, or last.
        let phase = &mixer.phases[0];
        let ends = phase.parts.iter().zip(rows).enumerate().filter(|(_, (_, rows))| **rows > 0);
        let mut ends: Vec<(u128, usize)> =
            ends.map(|(place, (part, rows))| (part.due(rows - 1), place)).collect();
        ends.sort_unstable();
        let end = if mix.stop == MixStop::First { ends.first() } else { ends.last() };
        let Some(&(time, part)) = end else { return Some(mixer) };
        let counts = phase.counts_at(time, part + 1);
        mixer.pass_rows = counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count))?;
        mixer.part_rounds = mixer.rounds_for(&counts)?;
        mixer.rounds = mixer.part_rounds.iter().copied().max().unwrap_or(1);
        Some(mixer)
    }

    /// The mix of a pass that begins with other weights, where `weights` says so, and has further ones from places of it on. It has as many
    /// rows as it would have without.
    pub fn changed<'a>(
        &self,
        weights: Option<&[f64]>,
        changes: impl IntoIterator<Item = (u64, &'a [f64])>,
    ) -> Self {
        let mut mixer = self.clone();
        if let Some(weights) = weights {
            mixer.phases[0].reweigh(weights);
        }
        for (place, weights) in changes.into_iter().filter(|(place, _)| *place < self.pass_rows) {
            let last = mixer.last_phase();
            let mut phase = last.clone();
            if place > last.start {
                phase.done = last.done_before(place);
                phase.start = place;
                for ((part, now), before) in phase.parts.iter_mut().zip(&phase.done).zip(&last.done) {
                    part.bound = part.bound.saturating_sub(now - before);
                }
                phase.reweigh(weights);
                mixer.phases.push(phase);
            } else if let Some(last) = mixer.phases.last_mut() {
                last.reweigh(weights);
            }
        }
        let counts = mixer.last_phase().done_before(self.pass_rows);
        mixer.part_rounds = mixer.rounds_for(&counts).unwrap_or_default();
        mixer
    }

    fn last_phase(&self) -> &Phase {
        &self.phases[self.phases.len() - 1]
    }

    /// How often each dataset is begun where a pass has so many rows of each.
    fn rounds_for(&self, counts: &[u64]) -> Option<Vec<u32>> {
        let rounds = counts.iter().zip(&self.rows).map(|(count, rows)| count.div_ceil((*rows).max(1)).max(1));
        rounds.map(|rounds| u32::try_from(rounds).ok()).collect()
    }

    /// Rows of a pass.
    pub fn pass_rows(&self) -> u64 {
        self.pass_rows
    }

    /// How often the dataset that is gone over most often is begun in a pass, as the job's weights at its start have it: 1 unless
    /// short ones are begun again.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// How often a dataset is begun in a pass.
    pub fn rounds_of(&self, part: usize) -> u32 {
        self.part_rounds.get(part).copied().unwrap_or(1)
    }

    /// The rows at these places of a pass, in order. O(parts) for each, and for the first the logarithm of all.
    pub fn rows(&self, places: Range<u64>) -> Vec<MixedRow> {
        let mut rows = Vec::with_capacity((places.end - places.start) as usize);
        let first = self.phases.partition_point(|phase| phase.start <= places.start).saturating_sub(1);
        let ends = self.phases.iter().skip(first + 1).map(|phase| phase.start).chain([places.end]);
        let mut start = places.start;
        for (phase, end) in self.phases[first..].iter().zip(ends) {
            let end = end.min(places.end);
            if start < end {
                phase.add_rows(start..end, &mut rows);
                start = end;
            }
        }
        rows
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
        for (place, part) in mixer.phases[0].parts.iter().enumerate() {
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
        fn changed_weights_deal_the_rows_that_are_left_anew(
            parts in prop::collection::vec((0.01f64..10.0, 1u64..40), 1..5), restart: bool, first: bool,
            changes in prop::collection::vec((0u64..200, prop::collection::vec(0.01f64..10.0, 5)), 0..4), cut: u64,
        ) {
            let (weights, rows): (Vec<f64>, Vec<u64>) = parts.into_iter().unzip();
            let stop = if restart { MixStop::Restart } else { MixStop::All };
            let base = Mixer::new(&mix(&weights, stop), &rows).expect("few rows");
            let mut changes: Vec<(u64, &[f64])> =
                changes.iter().map(|(place, weights)| (*place, &weights[..rows.len()])).collect();
            changes.sort_by_key(|(place, _)| *place);
            let begins = first.then(|| vec![1.0; rows.len()]);
            let mixer = base.changed(begins.as_deref(), changes.iter().copied());
            let whole = mixer.rows(0..mixer.pass_rows());
            prop_assert_eq!(whole.len() as u64, base.pass_rows(), "a pass keeps its length");
            // One after the other, by a mixer of what is left.
            let mut had = vec![0_u64; rows.len()];
            let (mut present, mut since) = (begins.unwrap_or(weights), 0);
            let mut expected = Vec::new();
            for end in changes.iter().map(|(place, _)| *place).chain([base.pass_rows()]) {
                let end = end.min(base.pass_rows());
                let left: Vec<u64> = rows.iter().zip(&had).map(|(rows, had)| rows.saturating_sub(*had)).collect();
                let mut due: Vec<(u128, usize, u64)> = Vec::new();
                for (part, share) in shares(present.iter().copied()).into_iter().enumerate() {
                    let part_left = if restart { end - since } else { left[part] };
                    due.extend((0..part_left).map(|row| (Part { share, bound: u64::MAX }.due(row), part, row)));
                }
                due.sort_unstable();
                for (_, part, _) in due.into_iter().take((end - since) as usize) {
                    expected.push(MixedRow { part, row: had[part] });
                    had[part] += 1;
                }
                since = end;
                if let Some((_, weights)) = changes.iter().rev().find(|(place, _)| *place == end) {
                    present = weights.to_vec();
                }
            }
            prop_assert_eq!(&whole, &expected);
            let cut = cut % mixer.pass_rows();
            prop_assert_eq!(&mixer.rows(cut..mixer.pass_rows())[..], &whole[cut as usize..]);
            for (part, rows) in rows.iter().enumerate() {
                let most = whole.iter().filter(|row| row.part == part).map(|row| row.row / rows + 1).max();
                prop_assert_eq!(mixer.rounds_of(part), most.unwrap_or(1) as u32);
            }
        }

        #[test]
        fn what_comes_before_a_change_stays_as_it_is(place in 0u64..60, weight in 0.1f64..9.0, restart: bool) {
            let stop = if restart { MixStop::Restart } else { MixStop::All };
            let base = Mixer::new(&mix(&[3.0, 1.0], stop), &[40, 20]).expect("few rows");
            let other = [weight, 1.0];
            let changed = base.changed(None, [(place, &other[..])]);
            prop_assert_eq!(base.rows(0..place), changed.rows(0..place));
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
    fn of_many_changes_those_that_still_matter_are_told() {
        let change = |pass, place| MixChange { pass, place, weights: vec![1.0] };
        let all = [change(0, 5), change(1, 0), change(1, 7), change(4, 2)];
        assert_eq!(MixChange::from_pass(&all, 0), &all[..]);
        assert_eq!(
            MixChange::from_pass(&all, 1),
            &all[1..],
            "the change at the pass's beginning displaces the one before"
        );
        assert_eq!(MixChange::from_pass(&all, 2), &all[2..]);
        assert_eq!(MixChange::from_pass(&all, 4), &all[2..]);
        assert_eq!(MixChange::from_pass(&all, 9), &all[3..]);
        assert_eq!(MixChange::from_pass(&[], 9), &[]);
    }

    #[test]
    fn weights_are_checked() {
        assert_eq!(MixChange::check(&[0.5, 2.0], 2), Ok(()));
        assert_eq!(MixChange::check(&[0.5], 2), Err("1 weights are given for 2 datasets".to_owned()));
        assert_eq!(
            MixChange::check(&[0.5, f64::NAN], 2),
            Err("weight NaN is not a number above 0".to_owned())
        );
        assert_eq!(MixChange::check(&[0.0], 1), Err("weight 0 is not a number above 0".to_owned()));
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
