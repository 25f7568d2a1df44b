//! The highest common level at which jobs fit a quota of cores, by visiting the levels at which single jobs are fed.

use super::costs::ratio;

#[cfg(test)]
mod tests;

/// The demand of a job within a quota.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct QuotaDemand {
    /// The fed fraction of the job is its weight times the level, up to `most_fed`.
    pub(super) weight: f64,
    /// The largest fed fraction of the job.
    pub(super) most_fed: f64,
    /// The cores of the job at a fed fraction of 1.
    pub(super) cores: f64,
}

impl QuotaDemand {
    /// The level at which the job reaches its largest fed fraction.
    fn saturation_level(&self) -> f64 {
        self.most_fed / self.weight
    }
}

/// The highest level up to `most` at which the jobs fit the quota, except for rounding.
pub(super) fn highest_level(mut demands: Vec<QuotaDemand>, quota: f64, most: f64) -> f64 {
    demands.sort_by(|a, b| a.saturation_level().total_cmp(&b.saturation_level()));
    // Cores per level of each job and all later ones. The values are summed up, since differences would have rounding
    // errors.
    let mut rising: Vec<f64> = demands.iter().map(|demand| demand.weight * demand.cores).collect();
    for place in (1..rising.len()).rev() {
        rising[place - 1] += rising[place];
    }
    let (mut taken, mut reached) = (0.0, 0.0);
    for (demand, rising) in demands.iter().zip(rising) {
        let level = ratio(quota - taken, rising);
        if level < demand.saturation_level() {
            return level.max(reached).min(most);
        }
        taken += demand.most_fed * demand.cores;
        reached = demand.saturation_level();
    }
    most
}
