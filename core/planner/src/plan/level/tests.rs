//! Levels against halving.

use super::super::testing::Dice;
use super::*;

fn cores(claims: &[QuotaDemand], level: f64) -> f64 {
    claims.iter().map(|claim| (level * claim.weight).min(claim.most_fed) * claim.cores).sum()
}

/// By halving, as often as numbers can be halved.
fn brute(claims: &[QuotaDemand], quota: f64, most: f64) -> f64 {
    if cores(claims, most) <= quota {
        return most;
    }
    let (mut low, mut high) = (0.0, most);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if cores(claims, middle) <= quota { low = middle } else { high = middle }
    }
    low
}

#[test]
fn levels_are_those_that_halving_finds() {
    let mut bound = 0;
    for seed in 0..500 {
        let mut dice = Dice::new(seed);
        let mut claim = || QuotaDemand {
            weight: dice.about(0.01, 1.0),
            most_fed: if dice.below(3) == 0 { 1.0 } else { dice.about(0.001, 1.0) },
            cores: if dice.below(8) == 0 { 0.0 } else { dice.about(0.01, 1000.0) },
        };
        let claims: Vec<QuotaDemand> = (0..1 + seed % 40).map(|_| claim()).collect();
        let quota = dice.about(0.01, 1000.0);
        let most = [1.0, 100.0][seed as usize % 2];
        let (found, halved) = (highest(claims.clone(), quota, most), brute(&claims, quota, most));
        bound += u32::from(halved < most);
        // Where jobs that take no cores are all that rise, levels differ and nothing else.
        let (taken, expected) = (cores(&claims, found), cores(&claims, halved));
        assert!(taken <= quota * (1.0 + 1e-12), "seed {seed}: {taken} of {quota} cores");
        assert!((taken - expected).abs() <= 1e-9 * quota, "seed {seed}: level {found}, not {halved}");
    }
    assert!(bound > 100, "quotas bind in {bound} problems only");
}

#[test]
fn without_claims_nothing_binds() {
    assert_eq!(highest(Vec::new(), 1.0, 7.0), 7.0);
}
