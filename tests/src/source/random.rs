//! Choices by seed: a counter-based generator (SplitMix64), so that a sample depends only on the seed and on the items
//! to choose from.

use std::collections::BTreeMap;

/// Chooses `count` of the numbers below `of` without repetition, in random order. Chooses all of them if there are fewer.
pub fn choose(seed: u64, stream: u64, count: usize, of: usize) -> Vec<usize> {
    // Fisher-Yates shuffle that stores only the swapped numbers.
    let mut swapped: BTreeMap<usize, usize> = BTreeMap::new();
    let mut chosen = Vec::new();
    for at in 0..count.min(of) {
        let other = at + below(mix(mix(mix(seed) ^ stream) ^ at as u64), of - at);
        let value =
            |index: usize, swapped: &BTreeMap<usize, usize>| swapped.get(&index).copied().unwrap_or(index);
        chosen.push(value(other, &swapped));
        let moved = value(at, &swapped);
        swapped.insert(other, moved);
    }
    chosen
}

fn below(random: u64, bound: usize) -> usize {
    ((u128::from(random) * bound as u128) >> 64) as usize
}

fn mix(counter: u64) -> u64 {
    let mut bits = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_repeat_by_seed_and_have_no_number_twice() {
        let chosen = choose(7, 1, 40, 1000);
        assert_eq!(chosen, choose(7, 1, 40, 1000));
        assert_ne!(chosen, choose(8, 1, 40, 1000));
        assert_ne!(chosen, choose(7, 2, 40, 1000));
        let mut all = choose(3, 0, 100, 60);
        all.sort_unstable();
        assert_eq!(all, (0..60).collect::<Vec<_>>());
    }
}
