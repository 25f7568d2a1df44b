//! Levels against a binary search.

use super::super::testing::TestRandom;
use super::*;

fn cores(demands: &[QuotaDemand], level: f64) -> f64 {
    demands.iter().map(|demand| (level * demand.weight).min(demand.max_fed_fraction) * demand.cores).sum()
}

/// A binary search to the precision of the numbers.
fn brute(demands: &[QuotaDemand], quota: f64, most: f64) -> f64 {
    if cores(demands, most) <= quota {
        return most;
    }
    let (mut low, mut high) = (0.0, most);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if cores(demands, middle) <= quota { low = middle } else { high = middle }
    }
    low
}

#[test]
fn levels_match_a_binary_search() {
    let mut bound = 0;
    for seed in 0..500 {
        let mut random = TestRandom::new(seed);
        let mut demand = || QuotaDemand {
            weight: random.log_uniform(0.01, 1.0),
            max_fed_fraction: if random.below(3) == 0 { 1.0 } else { random.log_uniform(0.001, 1.0) },
            cores: if random.below(8) == 0 { 0.0 } else { random.log_uniform(0.01, 1000.0) },
        };
        let demands: Vec<QuotaDemand> = (0..1 + seed % 40).map(|_| demand()).collect();
        let quota = random.log_uniform(0.01, 1000.0);
        let most = [1.0, 100.0][seed as usize % 2];
        let (found, halved) = (highest_level(demands.clone(), quota, most), brute(&demands, quota, most));
        bound += u32::from(halved < most);
        // Jobs without cores have no unique level, so the used cores are compared.
        let (taken, expected) = (cores(&demands, found), cores(&demands, halved));
        assert!(taken <= quota * (1.0 + 1e-12), "seed {seed}: {taken} of {quota} cores");
        assert!((taken - expected).abs() <= 1e-9 * quota, "seed {seed}: level {found}, not {halved}");
    }
    assert!(bound > 100, "quotas bind in only {bound} problems");
}

#[test]
fn a_quota_without_jobs_does_not_bind() {
    assert_eq!(highest_level(Vec::new(), 1.0, 7.0), 7.0);
}
