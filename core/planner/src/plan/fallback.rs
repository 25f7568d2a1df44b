//! Sharing without a solver: each job gets the same share of every worker type, all at one weighted level that is found
//! by halving. It always exists, takes time in proportion to jobs and types, whoever's they are, and is never better than the
//! linear plan.

use super::costs::{Costs, ExecutionOption};
use super::level::{self, QuotaDemand};
use super::linear::{FractionalPlan, load, measure};

#[cfg(test)]
mod tests;

/// Halvings of the level: its error is below a billionth.
const HALVINGS: u32 = 30;
/// Tenants get less than their quotas by this share, so that rounding puts none over.
const HAIR: f64 = 1e-9;

/// The highest common level at which proportional shares fit.
pub(super) fn fill(costs: &Costs, chosen: &[usize]) -> FractionalPlan {
    let ways: Vec<&ExecutionOption> =
        chosen.iter().enumerate().map(|(j, way)| &costs.ways[j][*way]).collect();
    let alone: Vec<f64> = ways.iter().enumerate().map(|(j, way)| costs.fed_alone(j, way)).collect();
    // Beyond the level at which the lightest job is fed nothing changes.
    let most = 1.0 / costs.weights.iter().copied().fold(1.0, f64::min);
    // The jobs of a tenant that fill its quota hold up no other.
    let claim = |j: usize| {
        let cores = costs.cores_of(ways[j], &spread(costs, ways[j], costs.demand[j]));
        // What takes nothing of anything has no place and no cores.
        QuotaDemand { weight: costs.weights[j], most_fed: alone[j], cores: cores.max(0.0) }
    };
    let level_of = |(own, quota): (&Vec<usize>, &f64)| {
        if quota.is_infinite() {
            most
        } else {
            level::highest(own.iter().map(|j| claim(*j)).collect(), quota * (1.0 - HAIR), most)
        }
    };
    let levels: Vec<f64> = costs.jobs_of_tenants().iter().zip(&costs.quotas).map(level_of).collect();
    let at_level = |level: f64| -> Vec<Vec<f64>> {
        let of_job = |(j, way): (usize, &&ExecutionOption)| {
            let level = costs.tenants[j].map_or(level, |tenant| level.min(levels[tenant]));
            let fed = (level * costs.weights[j]).min(alone[j]);
            spread(costs, way, fed * costs.demand[j])
        };
        ways.iter().enumerate().map(of_job).collect()
    };
    let level = highest(most, |level| load(costs, &ways, &at_level(level)));
    measure(costs, &ways, at_level(level))
}

/// The highest level up to `most` at which the load is no more than 1.
fn highest(most: f64, load: impl Fn(f64) -> f64) -> f64 {
    if load(most) <= 1.0 {
        return most;
    }
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if load(middle) <= 1.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// A rate over types in proportion to what each could give.
fn spread(costs: &Costs, way: &ExecutionOption, rate: f64) -> Vec<f64> {
    let gives = |w: usize| if costs.counts[w] > 0.0 { costs.counts[w] * costs.on_one(way, w) } else { 0.0 };
    let all: Vec<f64> = (0..costs.types()).map(gives).collect();
    let sum: f64 = all.iter().sum();
    all.into_iter().map(|part| if sum > 0.0 && part > 0.0 { rate * part / sum } else { 0.0 }).collect()
}
