//! Tests of the assignment of slots: it equals brute force and is stable.

use feedline_data::random::mix64;

use super::*;

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = mix64(self.0.wrapping_add(0x9E37_79B9));
        self.0 % end
    }
}

fn ranks(seconds: &[f64]) -> Vec<SlotRank> {
    (0..).zip(seconds).map(|(rank, slot_seconds)| SlotRank { rank, slot_seconds: *slot_seconds }).collect()
}

fn counts(dealt: &[Option<u32>], ranks: usize) -> Vec<usize> {
    (0..ranks as u32).map(|rank| dealt.iter().filter(|owner| **owner == Some(rank)).count()).collect()
}

/// Returns the time of the slowest rank and the number of moved slots; `None` if a rank has no slot although there are enough.
fn cost(ranks: &[SlotRank], present: &[Option<u32>], dealt: &[Option<u32>]) -> Option<(f64, usize)> {
    let mut slowest: f64 = 0.0;
    for rank in ranks {
        let count = dealt.iter().filter(|owner| **owner == Some(rank.rank)).count();
        if count == 0 && dealt.len() >= ranks.len() {
            return None;
        }
        slowest = slowest.max(count as f64 * rank.slot_seconds);
    }
    Some((slowest, present.iter().zip(dealt).filter(|(before, after)| before != after).count()))
}

/// Returns the minimum cost of all assignments.
fn brute_force(ranks: &[SlotRank], present: &[Option<u32>]) -> (f64, usize) {
    let ways = ranks.len().pow(present.len() as u32);
    let way = |mut number: usize| {
        let mut dealt = Vec::new();
        for _ in present {
            dealt.push(Some(ranks[number % ranks.len()].rank));
            number /= ranks.len();
        }
        dealt
    };
    let costs = (0..ways).filter_map(|number| cost(ranks, present, &way(number)));
    costs.min_by(|a, b| a.partial_cmp(b).expect("times are numbers")).expect("at least one assignment")
}

fn instance(seed: u64) -> (Vec<SlotRank>, Vec<Option<u32>>) {
    let mut dice = Dice(seed);
    let slots = 1 + dice.below(6) as usize;
    let count = 1 + dice.below(4);
    let ranks = (0..count)
        .map(|place| SlotRank { rank: place as u32 * 3 + 1, slot_seconds: (1 + dice.below(9)) as f64 / 4.0 })
        .collect::<Vec<_>>();
    let present = (0..slots)
        .map(|_| match dice.below(5) {
            0 => None,
            1 => Some(99),
            _ => Some(ranks[dice.below(count) as usize].rank),
        })
        .collect();
    (ranks, present)
}

#[test]
fn deal_slots_finds_the_best_assignment() {
    let mut moved = 0;
    for seed in 0..400 {
        let (ranks, present) = instance(seed);
        let problem = AssignmentProblem::new(&ranks, &present);
        let dealt = problem
            .assign(&present, &problem.nearest_counts(problem.slowest_seconds(&problem.fastest_counts())));
        let found = cost(&ranks, &present, &dealt).unwrap_or_else(|| panic!("seed {seed}: {dealt:?}"));
        assert!(dealt.iter().all(Option::is_some), "seed {seed}: {dealt:?}");
        assert_eq!(found, brute_force(&ranks, &present), "seed {seed}: {ranks:?} {present:?} {dealt:?}");
        moved += found.1;
    }
    assert!(moved > 200, "the instances must move slots");
}

#[test]
fn a_second_assignment_has_no_effect() {
    for seed in 0..400 {
        let (ranks, present) = instance(seed);
        let once = deal_slots(&ranks, &present);
        assert_eq!(deal_slots(&ranks, &once), once, "seed {seed}");
        let (least, _) = brute_force(&ranks, &present);
        let (slowest, _) = cost(&ranks, &present, &once).expect("all have slots");
        assert!(slowest <= 1.1 * least, "seed {seed}: {slowest} {least}");
    }
}

#[test]
fn small_differences_move_no_slots() {
    let even = deal_slots(&ranks(&[1.0, 1.0]), &[None; 8]);
    assert_eq!(counts(&even, 2), [4, 4]);
    assert_eq!(deal_slots(&ranks(&[1.0, 1.2]), &even), even, "another assignment gains too little");
    let skewed = deal_slots(&ranks(&[1.0, 3.0]), &even);
    assert_eq!(counts(&skewed, 2), [6, 2]);
    assert_eq!(skewed.iter().zip(&even).filter(|(a, b)| a != b).count(), 2);
}

#[test]
fn joining_ranks_get_slots_and_leaving_ranks_lose_them() {
    let two = deal_slots(&ranks(&[0.0, 0.0]), &[None; 10]);
    let five = deal_slots(&ranks(&[0.0; 5]), &two);
    assert_eq!(counts(&five, 5), [2, 2, 2, 2, 2]);
    assert_eq!(five.iter().zip(&two).filter(|(a, b)| a != b).count(), 6);
    let three = deal_slots(&ranks(&[0.0; 3]), &five);
    let mut found = counts(&three, 3);
    found.sort_unstable();
    assert_eq!(found, [3, 3, 4]);
    assert_eq!(three.iter().zip(&five).filter(|(a, b)| a != b).count(), 4);
    assert_eq!(counts(&deal_slots(&ranks(&[0.0]), &three), 1), [10]);
}

#[test]
fn surplus_ranks_get_no_slots() {
    let dealt = deal_slots(&ranks(&[2.0, 1.0, 1.0]), &[None, None]);
    assert_eq!(counts(&dealt, 3), [0, 1, 1]);
    assert_eq!(deal_slots(&ranks(&[2.0, 1.0, 1.0, 1.0]), &dealt), dealt, "another move gains nothing");
}

#[test]
fn a_rank_with_unknown_speed_counts_as_average() {
    let dealt = deal_slots(&ranks(&[1.0, 3.0, 0.0]), &[None; 11]);
    assert_eq!(counts(&dealt, 3), [6, 2, 3]);
}

#[test]
fn without_ranks_no_slot_has_an_owner() {
    assert_eq!(deal_slots(&[], &[Some(1), None]), [None, None]);
}
