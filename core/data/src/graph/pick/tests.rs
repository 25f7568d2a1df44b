//! Compares picks with the algorithms in their simplest form, on the same draws.

use proptest::prelude::*;

use super::*;
use crate::random::mix64;

fn draws(key: u64) -> DrawStream {
    DrawStream::new([key as u32, (key >> 32) as u32], 5, 2, 1)
}

fn pick(population: &Population<'_>, limit: u32, rule: PickRule, key: u64) -> Vec<u64> {
    let mut positions = vec![7];
    let mut picker = NeighborPicker::default();
    picker.pick(population, Fanout::Limit(limit), rule, || draws(key), &mut positions);
    assert_eq!(positions.remove(0), 7, "earlier positions remain");
    positions
}

/// Floyd's algorithm with a list of the chosen numbers.
fn floyd(size: u32, count: u32, key: u64) -> Vec<u32> {
    let mut draws = draws(key);
    let mut chosen = Vec::new();
    for last in size - count..size {
        let number = draws.below(last + 1);
        chosen.push(if chosen.contains(&number) { last } else { number });
    }
    chosen
}

/// Successive sampling by a walk over the remaining edges. Returns positions.
fn successive(weights: &[(u64, u32)], count: u32, repeated: bool, key: u64) -> Vec<u64> {
    let mut draws = draws(key);
    let mut left = weights.to_vec();
    let mut chosen = Vec::new();
    for _ in 0..count {
        let mass: u32 = left.iter().map(|(_, weight)| weight).sum();
        if mass == 0 {
            break;
        }
        let mut point = draws.below(mass);
        let index = left.iter().position(|(_, weight)| {
            let is_inside = point < *weight;
            point = point.saturating_sub(*weight);
            is_inside
        });
        let index = index.expect("the point is below the mass");
        chosen.push(left[index].0);
        if !repeated {
            left.remove(index);
        }
    }
    chosen
}

proptest! {
    /// The sizes cover the bit set, the filter and the table.
    #[test]
    fn uniform_picks_are_those_of_floyd(
        size in prop_oneof![2u32..40, 500u32..530, 530u32..3_000], count in prop_oneof![1u32..30, 50u32..400], key: u64,
    ) {
        let count = count.min(size - 1);
        let population = Population { edges: 100..100 + u64::from(size), excluded: &[], weights: None };
        let expected: Vec<u64> = floyd(size, count, key).into_iter().map(|index| 100 + u64::from(index)).collect();
        let mut distinct = expected.clone();
        distinct.sort_unstable();
        distinct.dedup();
        prop_assert_eq!(distinct.len(), count as usize);
        prop_assert_eq!(pick(&population, count, PickRule::Distinct, key), expected);
    }

    #[test]
    fn excluded_edges_are_not_part_of_the_population(
        edges in 1u64..40, excluded in prop::collection::btree_set(0u64..40, 0..40), limit in 0u32..45, key: u64,
    ) {
        let excluded: Vec<u64> =
            excluded.into_iter().filter(|index| *index < edges).map(|index| 1_000 + index).collect();
        let population = Population { edges: 1_000..1_000 + edges, excluded: &excluded, weights: None };
        let rest: Vec<u64> = population.edges.clone().filter(|position| !excluded.contains(position)).collect();
        let size = rest.len() as u32;
        let all_or = |indexes: Vec<u32>| match limit < size {
            true => indexes.into_iter().map(|index| rest[index as usize]).collect(),
            false => rest.clone(),
        };
        let count = limit.min(size);
        let expected = all_or(if limit < size { floyd(size, count, key) } else { Vec::new() });
        prop_assert_eq!(pick(&population, limit, PickRule::Distinct, key), expected);
        let last = all_or((size - count..size).collect());
        prop_assert_eq!(pick(&population, limit, PickRule::Last, key), last);
        let mut stream = draws(key);
        let repeated: Vec<u64> =
            (0..if size > 0 { limit } else { 0 }).map(|_| rest[stream.below(size) as usize]).collect();
        prop_assert_eq!(pick(&population, limit, PickRule::Repeated, key), repeated);
    }

    #[test]
    fn weighted_picks_are_those_of_successive_sampling(
        weights in prop::collection::vec(prop_oneof![Just(0u32), 1u32..5, 1u32..100_000_000], 1..40),
        before in 0usize..4, edges_start in 0usize..40, edges_end in 0usize..40,
        excluded in prop::collection::btree_set(0u64..44, 0..10), limit in 0u32..45, repeated: bool, key: u64,
    ) {
        // The row begins after the edges of another node. The edges are a part of the row, as in temporal sampling.
        let mut sums = vec![3_u32; before];
        sums.extend(weights.iter().scan(0_u32, |sum, weight| {
            *sum += weight;
            Some(*sum)
        }));
        let (start, end) = (edges_start.min(edges_end).min(weights.len()), edges_start.max(edges_end).min(weights.len()));
        let row_start = before as u64;
        let edges = row_start + start as u64..row_start + end as u64;
        let excluded: Vec<u64> = excluded.into_iter().filter(|position| edges.contains(position)).collect();
        let row_weights = Some(RowWeights { sums: &sums, row_start });
        let population = Population { edges: edges.clone(), excluded: &excluded, weights: row_weights };
        let weight = |position: u64| weights[position as usize - before];
        let rest: Vec<(u64, u32)> = edges
            .filter(|position| !excluded.contains(position))
            .map(|position| (position, weight(position)))
            .collect();
        let rule = if repeated { PickRule::Repeated } else { PickRule::Distinct };
        let expected = if repeated || (limit as usize) < rest.len() {
            successive(&rest, limit, repeated, key)
        } else {
            rest.iter().filter(|(_, weight)| *weight > 0).map(|(position, _)| *position).collect()
        };
        prop_assert_eq!(pick(&population, limit, rule, key), expected);
    }

    #[test]
    fn invalid_sums_do_not_cause_a_panic(
        sums in prop::collection::vec(any::<u32>(), 1..30), excluded in prop::collection::btree_set(0u64..30, 0..10),
        row_start in 0u64..30, limit in 0u32..30, repeated: bool, key: u64,
    ) {
        let edges = row_start.min(sums.len() as u64 - 1)..sums.len() as u64;
        let excluded: Vec<u64> = excluded.into_iter().filter(|position| edges.contains(position)).collect();
        let weights = Some(RowWeights { sums: &sums, row_start: edges.start });
        let population = Population { edges: edges.clone(), excluded: &excluded, weights };
        let rule = if repeated { PickRule::Repeated } else { PickRule::Distinct };
        prop_assert!(pick(&population, limit, rule, key).iter().all(|position| edges.contains(position)));
    }
}

#[test]
fn all_neighbors_are_picked_in_their_order() {
    let sums = [2, 2, 5, 9];
    let pick_all = |excluded: &[u64], weights: Option<RowWeights<'_>>| {
        let mut positions = Vec::new();
        let population = Population { edges: 0..4, excluded, weights };
        let rule = PickRule::Distinct;
        NeighborPicker::default().pick(&population, Fanout::All, rule, || draws(1), &mut positions);
        positions
    };
    assert_eq!(pick_all(&[], None), [0, 1, 2, 3]);
    assert_eq!(pick_all(&[0, 3], None), [1, 2]);
    let weights = Some(RowWeights { sums: &sums, row_start: 0 });
    assert_eq!(pick_all(&[], weights), [0, 2, 3], "edge 1 has the weight 0");
    assert_eq!(pick_all(&[2], weights), [0, 3]);
}

/// The words of a stream are the blocks of Philox in order. A word is rejected if it would make a number more likely.
#[test]
fn draws_are_exact() {
    let bound = 3_u32 << 30;
    let mut stream = draws(mix64(3));
    let key = mix64(3);
    let words = (0..100).flat_map(|block| {
        crate::random::philox4x32([5, 0, 1 << 16 | 2, block], [key as u32, (key >> 32) as u32])
    });
    let products = words.map(|word| u64::from(word) * u64::from(bound));
    let expected: Vec<u64> = products
        .filter(|product| *product & 0xFFFF_FFFF >= (1 << 32) % u64::from(bound))
        .map(|product| product >> 32)
        .collect();
    assert!(expected.len() < 350, "a quarter of the words is rejected");
    let drawn: Vec<u64> = (0..expected.len()).map(|_| u64::from(stream.below(bound))).collect();
    assert_eq!(drawn, expected);
}
