//! Properties of placements: balance, minimal movement, and the division of rows.

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use super::*;

const FEATURE: GraphHash = GraphHash(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

fn workers(ids: impl IntoIterator<Item = u64>) -> Vec<WorkerId> {
    ids.into_iter().map(WorkerId).collect()
}

fn owners(placement: &FeaturePlacement) -> Vec<WorkerId> {
    (0..placement.slices()).map(|slice| placement.owner_of(slice).unwrap()).collect()
}

#[test]
fn each_worker_holds_about_the_same_number_of_rows() {
    const ROWS: u32 = 1 << 20;
    for count in [1, 2, 3, 4, 8, 16] {
        // Ids that differ in few bits must not share slices.
        let workers = workers(1..=count);
        let placement = FeaturePlacement::new(FEATURE, ROWS, &workers);
        assert_eq!(placement.slices(), SLICES);
        let held: Vec<u64> = workers.iter().map(|worker| placement.rows_on(*worker)).collect();
        assert_eq!(held.iter().sum::<u64>(), u64::from(ROWS));
        let mean = f64::from(ROWS) / count as f64;
        // Five standard deviations of a binomial distribution of slices.
        let tolerance = 5.0 * (mean * f64::from(ROWS / SLICES)).sqrt();
        for rows in &held {
            assert!((*rows as f64 - mean).abs() <= tolerance, "{count} workers hold {held:?}");
        }
    }
}

#[test]
fn features_have_different_placements() {
    let workers = workers(1..=4);
    let one = FeaturePlacement::new(FEATURE, 5_000, &workers);
    let two = FeaturePlacement::new(GraphHash(FEATURE.0 ^ 1), 5_000, &workers);
    assert_ne!(owners(&one), owners(&two));
}

#[test]
fn without_workers_no_row_has_an_owner() {
    let placement = FeaturePlacement::new(FEATURE, 100, &[]);
    assert_eq!((placement.slices(), placement.owner_of(0)), (100, None));
    assert!(placement.divide(&[0, 7, 99]).is_empty());
    let empty = FeaturePlacement::new(FEATURE, 0, &workers([1]));
    assert_eq!((empty.slices(), empty.owner_of(0), empty.rows_on(WorkerId(1))), (0, None, 0));
}

/// The placement is part of the protocol between workers of different releases.
#[test]
fn the_owners_are_the_same_in_all_releases() {
    let placement = FeaturePlacement::new(FEATURE, 8, &workers([1, 2, 3]));
    let again = FeaturePlacement::new(FEATURE, 8, &workers([3, 1, 2]));
    assert_eq!(placement, again, "the order of the workers does not matter");
    assert_eq!(owners(&placement), workers([3, 1, 3, 3, 2, 1, 3, 2]));
}

proptest! {
    #[test]
    fn a_worker_that_joins_or_leaves_moves_only_its_own_slices(
        rows in 1_u32..10_000,
        ids in btree_set(any::<u64>(), 1..12),
        other in any::<u64>(),
    ) {
        prop_assume!(!ids.contains(&other));
        let few = FeaturePlacement::new(FEATURE, rows, &workers(ids.iter().copied()));
        let many = FeaturePlacement::new(FEATURE, rows, &workers(ids.iter().copied().chain([other])));
        for (before, after) in owners(&few).into_iter().zip(owners(&many)) {
            prop_assert!(after == before || after == WorkerId(other));
        }
    }

    #[test]
    fn the_slices_cover_all_rows_once(rows in 0..u32::MAX) {
        let placement = FeaturePlacement::new(FEATURE, rows, &[]);
        prop_assert!(placement.slices() <= SLICES);
        let mut next = 0;
        for slice in 0..placement.slices() {
            let range = placement.rows_of(slice);
            prop_assert_eq!(range.start, next);
            prop_assert!(!range.is_empty());
            prop_assert_eq!(placement.slice_of(range.start), slice);
            prop_assert_eq!(placement.slice_of(range.end - 1), slice);
            next = range.end;
        }
        prop_assert_eq!(next, rows);
        prop_assert!(placement.rows_of(placement.slices()).is_empty());
    }

    #[test]
    fn each_row_belongs_to_the_owner_of_its_slice(
        mut rows in vec(0_u32..5_000, 0..200),
        ids in btree_set(any::<u64>(), 1..5),
    ) {
        rows.sort_unstable();
        let placement = FeaturePlacement::new(FEATURE, 5_000, &workers(ids));
        let divided = placement.divide(&rows);
        let mut indexes: Vec<usize> = divided.values().flatten().copied().collect();
        indexes.sort_unstable();
        prop_assert_eq!(indexes, (0..rows.len()).collect::<Vec<_>>());
        for (worker, indexes) in divided {
            prop_assert!(indexes.is_sorted());
            for index in indexes {
                prop_assert_eq!(placement.owner_of(placement.slice_of(rows[index])), Some(worker));
            }
        }
    }
}
