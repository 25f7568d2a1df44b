//! Tests of the order of rows in a mix, against an order that is sorted by due time.

use proptest::prelude::*;

use super::*;
use crate::pipeline::{MixPart, Source};

fn mix(weights: &[f64], stop: MixStop) -> Mix {
    let part = |weight: &f64| MixPart { weight: *weight, source: Source::text("x") };
    Mix { parts: weights.iter().map(part).collect(), stop }
}

/// The rows of a pass, computed by sorting all rows by their due times.
fn sorted(mixer: &Mixer, most: u64) -> Vec<MixedRow> {
    let mut all: Vec<(u128, MixedRow)> = Vec::new();
    for (place, part) in mixer.phases[0].parts.iter().enumerate() {
        let rows = (0..part.max_rows.min(most)).map(|row| (part.due(row), MixedRow { part: place, row }));
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
    fn rows_of_a_range_equal_the_same_range_of_all_rows_sorted_by_due_time(
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
    fn passes_end_as_the_stop_mode_requires(
        parts in prop::collection::vec((0.01f64..10.0, 1u64..40), 1..5), stop in stops(),
    ) {
        let (weights, rows): (Vec<f64>, Vec<u64>) = parts.into_iter().unzip();
        let mixer = Mixer::new(&mix(&weights, stop), &rows).expect("few rows");
        let whole = mixer.rows(0..mixer.pass_rows());
        let count = |part: usize| whole.iter().filter(|row| row.part == part).count() as u64;
        let exhausted = rows.iter().enumerate().filter(|(part, rows)| count(*part) >= **rows).count();
        let last = whole.last().expect("there are rows");
        match stop {
            MixStop::All => prop_assert_eq!(whole.len() as u64, rows.iter().sum::<u64>()),
            MixStop::First => prop_assert!(exhausted >= 1 && last.row + 1 == rows[last.part]),
            MixStop::Restart => {
                prop_assert_eq!(exhausted, rows.len());
                prop_assert_eq!(last.row + 1, rows[last.part]);
                let repeats = whole.iter().map(|row| row.row / rows[row.part] + 1).max();
                prop_assert_eq!(repeats, Some(u64::from(mixer.max_part_repeats())));
            }
        }
    }

    #[test]
    fn changed_weights_apply_to_the_remaining_rows(
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
        let mixer = base.with_changes(begins.as_deref(), changes.iter().copied());
        let whole = mixer.rows(0..mixer.pass_rows());
        prop_assert_eq!(whole.len() as u64, base.pass_rows(), "a pass keeps its length");
        // The expected order: sort the remaining rows of each range between two changes by due time.
        let mut taken = vec![0_u64; rows.len()];
        let (mut present, mut since) = (begins.unwrap_or(weights), 0);
        let mut expected = Vec::new();
        for end in changes.iter().map(|(place, _)| *place).chain([base.pass_rows()]) {
            let end = end.min(base.pass_rows());
            let left: Vec<u64> = rows.iter().zip(&taken).map(|(rows, taken)| rows.saturating_sub(*taken)).collect();
            let mut due: Vec<(u128, usize, u64)> = Vec::new();
            for (part, share) in shares(present.iter().copied()).into_iter().enumerate() {
                let part_left = if restart { end - since } else { left[part] };
                due.extend((0..part_left).map(|row| (MixerPart { share, max_rows: u64::MAX }.due(row), part, row)));
            }
            due.sort_unstable();
            for (_, part, _) in due.into_iter().take((end - since) as usize) {
                expected.push(MixedRow { part, row: taken[part] });
                taken[part] += 1;
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
            prop_assert_eq!(mixer.part_repeats(part), most.unwrap_or(1) as u32);
        }
    }

    #[test]
    fn rows_before_a_change_do_not_change(place in 0u64..60, weight in 0.1f64..9.0, restart: bool) {
        let stop = if restart { MixStop::Restart } else { MixStop::All };
        let base = Mixer::new(&mix(&[3.0, 1.0], stop), &[40, 20]).expect("few rows");
        let other = [weight, 1.0];
        let changed = base.with_changes(None, [(place, &other[..])]);
        prop_assert_eq!(base.rows(0..place), changed.rows(0..place));
    }

    #[test]
    fn the_row_count_of_each_part_follows_its_share_at_every_offset(weights in prop::collection::vec(0.05f64..1.0, 2..5)) {
        let mixer = Mixer::new(&mix(&weights, MixStop::First), &vec![200; weights.len()]).expect("few rows");
        let total: f64 = weights.iter().sum();
        let mut counts = vec![0_u64; weights.len()];
        for (offset, row) in mixer.rows(0..mixer.pass_rows()).iter().enumerate() {
            counts[row.part] += 1;
            for (count, weight) in counts.iter().zip(&weights) {
                let due = (offset + 1) as f64 * weight / total;
                // The due times of the rows of each part, and of all rows together, are rounded to half a row.
                prop_assert!((*count as f64 - due).abs() <= 1.0 + weights.len() as f64 / 2.0, "{} of {}", count, due);
            }
        }
    }
}

#[test]
fn from_pass_returns_the_changes_that_affect_the_pass() {
    let change = |pass, place| MixChange { pass, offset: place, weights: vec![1.0] };
    let all = [change(0, 5), change(1, 0), change(1, 7), change(4, 2)];
    assert_eq!(MixChange::changes_from_pass(&all, 0), &all[..]);
    assert_eq!(
        MixChange::changes_from_pass(&all, 1),
        &all[1..],
        "the change at the start of the pass replaces the previous one"
    );
    assert_eq!(MixChange::changes_from_pass(&all, 2), &all[2..]);
    assert_eq!(MixChange::changes_from_pass(&all, 4), &all[2..]);
    assert_eq!(MixChange::changes_from_pass(&all, 9), &all[3..]);
    assert_eq!(MixChange::changes_from_pass(&[], 9), &[]);
}

#[test]
fn weights_are_checked() {
    assert_eq!(MixChange::check(&[0.5, 2.0], 2), Ok(()));
    assert_eq!(
        MixChange::check(&[0.5], 2),
        Err("expected 2 weights, one per dataset of the mix, got 1".to_owned())
    );
    assert_eq!(
        MixChange::check(&[0.5, f64::NAN], 2),
        Err("invalid weight NaN: expected a finite number above 0".to_owned())
    );
    assert_eq!(
        MixChange::check(&[0.0], 1),
        Err("invalid weight 0: expected a finite number above 0".to_owned())
    );
}

#[test]
fn rows_are_interleaved_by_weight() {
    let mixer = Mixer::new(&mix(&[3.0, 1.0], MixStop::First), &[6, 5]).unwrap();
    let parts: Vec<usize> = mixer.rows(0..mixer.pass_rows()).iter().map(|row| row.part).collect();
    assert_eq!(parts, [0, 0, 1, 0, 0, 0, 1, 0]);
    let mixer = Mixer::new(&mix(&[1.0, 1.0], MixStop::Restart), &[2, 5]).unwrap();
    assert_eq!((mixer.pass_rows(), mixer.max_part_repeats()), (10, 3));
}

#[test]
fn large_row_counts_do_not_overflow() {
    let mixer = Mixer::new(&mix(&[1.0, 1e-6], MixStop::All), &[1 << 50, 1 << 20]).unwrap();
    assert_eq!(mixer.pass_rows(), (1 << 50) + (1 << 20));
    assert_eq!(mixer.rows(mixer.pass_rows() - 2..mixer.pass_rows()).len(), 2);
    assert!(Mixer::new(&mix(&[1.0, 1.0], MixStop::All), &[u64::MAX, u64::MAX]).is_none());
}
