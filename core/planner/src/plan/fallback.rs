//! Computes plans without a solver. Each job receives the same share of every worker type. The fed fraction of a job is
//! its weight times a common level, which a binary search maximises. A result always exists. The computation time is
//! proportional to the numbers of jobs and types. The result is never better than the solution of the linear problem.

use super::costs::{Costs, ExecutionOption};
use super::level::{self, QuotaDemand};
use super::linear::{FractionalPlan, evaluate_rates, largest_load};

#[cfg(test)]
mod tests;

/// The number of steps of the binary search. The error is below 1e-9.
const SEARCH_STEPS: u32 = 30;
/// Fraction by which quotas are reduced, so that rounding errors do not exceed them.
const QUOTA_SLACK: f64 = 1e-9;

/// Returns the rates at the highest feasible common level.
pub(super) fn even_rates(costs: &Costs, chosen: &[usize]) -> FractionalPlan {
    let options: Vec<&ExecutionOption> =
        chosen.iter().enumerate().map(|(j, option)| &costs.options[j][*option]).collect();
    let alone: Vec<f64> =
        options.iter().enumerate().map(|(j, option)| costs.fed_fraction_alone(j, option)).collect();
    // At this level, even the job with the smallest weight is fully fed, so higher levels do not change the rates.
    let max_level = 1.0 / costs.weights.iter().copied().fold(1.0, f64::min);
    // Jobs that use up their tenant's quota must not limit other jobs.
    let demand = |j: usize| {
        let cores = costs.needed_cores(options[j], &divide_among_types(costs, options[j], costs.demands[j]));
        // A job without costs has an infinite rate and uses no cores.
        QuotaDemand { weight: costs.weights[j], max_fed_fraction: alone[j], cores: cores.max(0.0) }
    };
    let level_of = |(own, quota): (&Vec<usize>, &f64)| {
        if quota.is_infinite() {
            max_level
        } else {
            level::highest_level(
                own.iter().map(|j| demand(*j)).collect(),
                quota * (1.0 - QUOTA_SLACK),
                max_level,
            )
        }
    };
    let levels: Vec<f64> = costs.jobs_of_tenants().iter().zip(&costs.core_quotas).map(level_of).collect();
    let at_level = |level: f64| -> Vec<Vec<f64>> {
        let of_job = |(j, option): (usize, &&ExecutionOption)| {
            let level = costs.job_tenants[j].map_or(level, |tenant| level.min(levels[tenant]));
            let fed = (level * costs.weights[j]).min(alone[j]);
            divide_among_types(costs, option, fed * costs.demands[j])
        };
        options.iter().enumerate().map(of_job).collect()
    };
    let level = highest_level(max_level, |level| largest_load(costs, &options, &at_level(level)));
    evaluate_rates(costs, &options, at_level(level))
}

/// Returns the highest level up to `max_level` with a load of at most 1.
fn highest_level(max_level: f64, load: impl Fn(f64) -> f64) -> f64 {
    if load(max_level) <= 1.0 {
        return max_level;
    }
    let (mut low, mut high) = (0.0, max_level);
    for _ in 0..SEARCH_STEPS {
        let middle = (low + high) / 2.0;
        if load(middle) <= 1.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Divides a rate among worker types in proportion to the rate that each type could reach.
fn divide_among_types(costs: &Costs, option: &ExecutionOption, rate: f64) -> Vec<f64> {
    let reachable = |w: usize| {
        if costs.worker_counts[w] > 0.0 {
            costs.worker_counts[w] * costs.rate_on_one_worker(option, w)
        } else {
            0.0
        }
    };
    let all: Vec<f64> = (0..costs.type_count()).map(reachable).collect();
    let sum: f64 = all.iter().sum();
    all.into_iter().map(|part| if sum > 0.0 && part > 0.0 { rate * part / sum } else { 0.0 }).collect()
}
