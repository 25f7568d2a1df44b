//! The highest common level at which jobs keep to a quota of cores, by walking through the levels at which jobs have enough.

use super::costs::per;

#[cfg(test)]
mod tests;

/// What a job asks of a quota.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct QuotaDemand {
    /// Its fed fraction is its weight times the level, until it has enough.
    pub(super) weight: f64,
    /// The fed fraction beyond which it takes nothing more.
    pub(super) most_fed: f64,
    /// Cores that it takes where it is fed fully.
    pub(super) cores: f64,
}

impl QuotaDemand {
    /// The level from which on it takes nothing more.
    fn enough(&self) -> f64 {
        self.most_fed / self.weight
    }
}

/// The highest level up to `most` at which these claims take no more than the quota, but for rounding.
pub(super) fn highest(mut claims: Vec<QuotaDemand>, quota: f64, most: f64) -> f64 {
    claims.sort_by(|a, b| a.enough().total_cmp(&b.enough()));
    // Cores per level of each claim and those after it: added up, since what is subtracted leaves its rounding behind.
    let mut rising: Vec<f64> = claims.iter().map(|claim| claim.weight * claim.cores).collect();
    for place in (1..rising.len()).rev() {
        rising[place - 1] += rising[place];
    }
    let (mut taken, mut reached) = (0.0, 0.0);
    for (claim, rising) in claims.iter().zip(rising) {
        let level = per(quota - taken, rising);
        if level < claim.enough() {
            return level.max(reached).min(most);
        }
        taken += claim.most_fed * claim.cores;
        reached = claim.enough();
    }
    most
}
