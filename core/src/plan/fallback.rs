//! Sharing without a solver: each job gets the same share of every worker type, all at one weighted level that is found
//! by halving. It always exists, takes time in proportion to jobs and types, and is never better than the linear plan.

use super::costs::{Costs, Way};
use super::linear::{Fluid, load, measure};

#[cfg(test)]
mod tests;

/// Halvings of the level: its error is below a billionth.
const HALVINGS: u32 = 30;

/// The highest common level at which proportional shares fit.
pub(super) fn fill(costs: &Costs, chosen: &[usize]) -> Fluid {
    let ways: Vec<&Way> = chosen.iter().enumerate().map(|(j, way)| &costs.ways[j][*way]).collect();
    let at_level = |level: f64| -> Vec<Vec<f64>> {
        let of_job = |(j, way): (usize, &&Way)| {
            let fed = (level * costs.weights[j]).min(costs.fed_alone(j, way));
            spread(costs, way, fed * costs.demand[j])
        };
        ways.iter().enumerate().map(of_job).collect()
    };
    // Beyond the level at which the lightest job is fed nothing changes.
    let lightest = costs.weights.iter().copied().fold(1.0, f64::min);
    let (mut low, mut high) = (0.0, 1.0 / lightest);
    if load(costs, &ways, &at_level(high)) <= 1.0 {
        return measure(costs, &ways, at_level(high));
    }
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if load(costs, &ways, &at_level(middle)) <= 1.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    measure(costs, &ways, at_level(low))
}

/// A rate over types in proportion to what each could give.
fn spread(costs: &Costs, way: &Way, rate: f64) -> Vec<f64> {
    let gives = |w: usize| if costs.counts[w] > 0.0 { costs.counts[w] * costs.on_one(way, w) } else { 0.0 };
    let all: Vec<f64> = (0..costs.types()).map(gives).collect();
    let sum: f64 = all.iter().sum();
    all.into_iter().map(|part| if sum > 0.0 && part > 0.0 { rate * part / sum } else { 0.0 }).collect()
}
