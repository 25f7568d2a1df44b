//! Computes the highest common level at which the jobs of a tenant fit within a core quota. The fed fraction of a job
//! is its weight times the level, up to a maximum, so the search visits the levels at which individual jobs reach their
//! maximum.

use super::costs::ratio;

#[cfg(test)]
mod tests;

/// The demand of a job within a quota.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct QuotaDemand {
    /// Weight of the job. Its fed fraction is the weight times the level, up to `max_fed_fraction`.
    pub(super) weight: f64,
    /// The largest fed fraction of the job.
    pub(super) max_fed_fraction: f64,
    /// The cores that the job needs at a fed fraction of 1.
    pub(super) cores: f64,
}

impl QuotaDemand {
    /// Returns the level at which the job reaches its largest fed fraction.
    fn saturation_level(&self) -> f64 {
        self.max_fed_fraction / self.weight
    }
}

/// Returns the highest level up to `max_level` at which the jobs fit within the quota, up to rounding errors.
pub(super) fn highest_level(mut demands: Vec<QuotaDemand>, quota: f64, max_level: f64) -> f64 {
    demands.sort_by(|a, b| a.saturation_level().total_cmp(&b.saturation_level()));
    // Cores per level of each job and all later jobs. Suffix sums avoid the rounding errors of differences.
    let mut rising: Vec<f64> = demands.iter().map(|demand| demand.weight * demand.cores).collect();
    for place in (1..rising.len()).rev() {
        rising[place - 1] += rising[place];
    }
    let (mut taken, mut reached) = (0.0, 0.0);
    for (demand, rising) in demands.iter().zip(rising) {
        let level = ratio(quota - taken, rising);
        if level < demand.saturation_level() {
            return level.max(reached).min(max_level);
        }
        taken += demand.max_fed_fraction * demand.cores;
        reached = demand.saturation_level();
    }
    max_level
}
