//! Tests of the steps of a round. The results are compared with the results of simpler, slower algorithms.

use proptest::prelude::*;

use super::*;

fn all_rows(steps: &[CoordinatedStep]) -> Vec<u32> {
    let mut rows: Vec<u32> = steps.iter().flat_map(|step| step.streams.iter().flatten().copied()).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn a_bucket_takes_rows_up_to_its_boundary() {
    assert_eq!([0, 4, 5, 8, 9].map(|length| bucket_of(&[4, 8], length)), [0, 0, 1, 1, 2]);
}

#[test]
fn a_bucket_with_a_batch_for_each_stream_makes_a_step() {
    // Buckets of lengths up to 4 and up to 8, two streams, batches of 2 and 1 rows.
    let steps = deal_buckets(&[1, 8, 2, 3, 7, 4, 2], &[4, 8], &[2, 1], 2);
    let dealt: Vec<_> = steps.iter().map(|step| (step.bucket, step.streams.clone())).collect();
    assert_eq!(
        dealt,
        [(1, vec![vec![1], vec![4]]), (0, vec![vec![0, 2], vec![3, 5]]), (0, vec![vec![6], vec![]]),]
    );
}

#[test]
fn few_remaining_rows_join_the_next_longer_bucket() {
    let steps = deal_buckets(&[1, 6, 7, 8], &[4, 8], &[4, 4], 1);
    assert_eq!(steps, [CoordinatedStep { bucket: 1, streams: vec![vec![0, 1, 2, 3]] }]);
    let steps = deal_buckets(&[1, 2, 8, 8, 8], &[4, 8], &[4, 4], 1);
    assert_eq!(steps.len(), 2, "half of a step becomes a step");
}

#[test]
fn a_packed_row_takes_the_first_row_that_fits() {
    assert_eq!(pack_rows(&[5, 4, 3, 6, 2], 1, 8), [vec![0, 2], vec![1, 4], vec![3]]);
    // With two columns, both columns must have enough space.
    assert_eq!(pack_rows(&[1, 8, 1, 1, 1, 7], 2, 8), [vec![0], vec![1, 2]]);
}

/// First fit that searches all open packed rows for each row, and closes them only at the limit.
fn first_fit(lengths: &[u32], length: u32) -> Vec<Vec<u32>> {
    let mut packed: Vec<(Vec<u32>, u32)> = Vec::new();
    for (row, &needed) in (0..).zip(lengths) {
        match packed.iter_mut().find(|(_, used)| *used < length && used + needed <= length) {
            Some((rows, used)) => {
                rows.push(row);
                *used += needed;
            }
            None => packed.push((vec![row], needed)),
        }
    }
    packed.into_iter().map(|(rows, _)| rows).collect()
}

proptest! {
    #[test]
    fn every_row_comes_once_in_steps_of_its_bucket_and_streams_differ_by_a_row_at_most(
        lengths in prop::collection::vec(0u32..40, 0..300),
        sizes in prop::collection::vec(1u32..7, 4),
        streams in 1u32..6,
    ) {
        let boundaries = [8, 16, 24];
        let steps = deal_buckets(&lengths, &boundaries, &sizes, streams);
        prop_assert_eq!(all_rows(&steps), (0..lengths.len() as u32).collect::<Vec<_>>());
        let mut fulls = [0; 4];
        for step in &steps {
            prop_assert_eq!(step.streams.len(), streams as usize);
            let most = step.streams.iter().map(Vec::len).max().unwrap_or(0);
            let least = step.streams.iter().map(Vec::len).min().unwrap_or(0);
            prop_assert!(most > 0 && most - least <= 1 && most <= sizes[step.bucket] as usize);
            for row in step.streams.iter().flatten() {
                prop_assert!(bucket_of(&boundaries, lengths[*row as usize]) <= step.bucket);
            }
            fulls[step.bucket] += usize::from(step.rows() == sizes[step.bucket] * streams);
        }
        for (bucket, &full) in fulls.iter().enumerate() {
            let own = lengths.iter().filter(|&&length| bucket_of(&boundaries, length) == bucket).count();
            prop_assert!(full >= own / (sizes[bucket] * streams) as usize);
        }
        prop_assert!(steps.len() <= fulls.iter().sum::<usize>() + 4, "at most one smaller step for each bucket");
    }

    #[test]
    fn packing_is_first_fit_and_never_overflows(lengths in prop::collection::vec(1u32..=16, 0..200)) {
        let packed = pack_rows(&lengths, 1, 16);
        prop_assert_eq!(&packed, &first_fit(&lengths, 16));
        for rows in &packed {
            prop_assert!(rows.iter().map(|&row| lengths[row as usize]).sum::<u32>() <= 16);
        }
    }

    #[test]
    fn packing_two_columns_keeps_both_within_the_length_and_every_row(
        lengths in prop::collection::vec((0u32..=12, 0u32..=12), 0..700),
    ) {
        let flat: Vec<u32> = lengths.iter().flat_map(|&(left, right)| [left, right]).collect();
        let packed = pack_rows(&flat, 2, 12);
        let mut seen: Vec<u32> = packed.iter().flatten().copied().collect();
        for rows in &packed {
            prop_assert!(!rows.is_empty() && rows.is_sorted());
            prop_assert!(rows.iter().map(|&row| lengths[row as usize].0).sum::<u32>() <= 12);
            prop_assert!(rows.iter().map(|&row| lengths[row as usize].1).sum::<u32>() <= 12);
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..lengths.len() as u32).collect::<Vec<_>>());
    }

    #[test]
    fn rows_are_dealt_into_full_steps_and_one_smaller(rows in 0u32..500, batch in 1u32..9, streams in 1u32..6) {
        let steps = deal_evenly(rows, batch, streams);
        prop_assert_eq!(all_rows(&steps), (0..rows).collect::<Vec<_>>());
        prop_assert_eq!(steps.len() as u32, rows.div_ceil(batch * streams));
        let full = steps.iter().filter(|step| step.streams.iter().all(|rows| rows.len() as u32 == batch)).count();
        prop_assert_eq!(full as u32, rows / (batch * streams));
    }
}
