//! The number of workers of each type that would feed all jobs at the smallest cost, as far as consumers and stores
//! allow.
//!
//! This is the linear problem with variable numbers of workers. Existing workers cost a little less than new ones, so
//! that equal fleets are not exchanged. Operator limits and the network count as in the plan, with headroom: a job
//! that only more workers can feed gets them, and a job that more workers cannot feed does not.

use feedline_data::view::WantedWorkers;
use good_lp::{Constraint, Expression, ProblemVariables, Solution, Variable, variable};

use super::costs::{CORES, Costs, ExecutionOption, RESOURCES, ratio};
use super::linear::run;
use super::problem::Problem;

use super::deadline::Deadline;

#[cfg(test)]
mod tests;

/// The cost of an existing worker over the cost of a new one.
const EXISTING_COST: f64 = 0.9;
/// The weight of the cost of all workers, which is small compared with the value of feeding any job.
const COST_WEIGHT: f64 = 1e-3;

/// The wanted number of workers by type; the present number if the solver fails or the deadline has passed.
pub(super) fn wanted_workers(
    problem: &Problem,
    costs: &Costs,
    options: &[&ExecutionOption],
    deadline: &dyn Deadline,
) -> Vec<WantedWorkers> {
    let present = problem.counts();
    let counts = if options.is_empty() {
        vec![0.0; costs.types()]
    } else {
        let found = if deadline.is_over() { None } else { solve_counts(problem, costs, options) };
        found.unwrap_or_else(|| costs.counts.clone())
    };
    let of_type = |(w, count): (usize, f64)| WantedWorkers {
        worker_type: problem.worker_types[w].name.clone(),
        live: present[w],
        wanted: (count - 1e-3).ceil().max(0.0) as u32,
    };
    counts.into_iter().enumerate().map(of_type).collect()
}

struct Fleet {
    /// Existing workers that stay.
    kept: Variable,
    /// New workers.
    added: Variable,
}

fn solve_counts(problem: &Problem, costs: &Costs, options: &[&ExecutionOption]) -> Option<Vec<f64>> {
    let mut all = ProblemVariables::new();
    let fleets: Vec<Fleet> = (0..costs.types())
        .map(|w| {
            let most = f64::from(problem.worker_types[w].max_workers);
            let added = (most - costs.counts[w]).max(0.0);
            Fleet {
                kept: all.add(variable().min(0.0).max(costs.counts[w])),
                added: all.add(variable().min(0.0).max(added)),
            }
        })
        .collect();
    let parts: Vec<Vec<Variable>> = (0..options.len())
        .map(|_| (0..costs.types()).map(|_| all.add(variable().min(0.0))).collect())
        .collect();
    let rows = constraints(problem, costs, options, &fleets, &parts);
    let objective = objective(problem, costs, options, &fleets, &parts);
    let solved = run(all, objective, rows).ok()?;
    Some(fleets.iter().map(|fleet| solved.value(fleet.kept) + solved.value(fleet.added)).collect())
}

fn constraints(
    problem: &Problem,
    costs: &Costs,
    options: &[&ExecutionOption],
    fleets: &[Fleet],
    parts: &[Vec<Variable>],
) -> Vec<Constraint> {
    let mut rows = Vec::new();
    let used = problem.settings.target_utilisation.clamp(0.1, 1.0);
    for (w, fleet) in fleets.iter().enumerate() {
        for resource in (0..RESOURCES).filter(|resource| costs.capacity[w][*resource].is_finite()) {
            let capacity = costs.capacity[w][resource] * used;
            let mut sum = Expression::with_capacity(options.len() + 2);
            for (j, option) in options.iter().enumerate().filter(|_| capacity > 0.0) {
                sum.add_mul(costs.demand[j] * option.per_row[w][resource] / capacity, parts[j][w]);
            }
            rows.push((sum - fleet.kept - fleet.added).leq(0.0));
        }
        for (j, option) in options.iter().enumerate() {
            // Operator limits have the same headroom as cores.
            let one = used * option.max_per_worker[w] / costs.demand[j].max(f64::MIN_POSITIVE);
            if one.is_finite() && one < 1e6 {
                rows.push((parts[j][w] - one * fleet.kept - one * fleet.added).leq(0.0));
            }
        }
    }
    for (own, quota) in
        costs.jobs_of_tenants().iter().zip(&costs.quotas).filter(|(_, quota)| quota.is_finite())
    {
        let mut sum = Expression::with_capacity(own.len() * costs.types());
        for j in own {
            for (w, part) in parts[*j].iter().enumerate() {
                sum.add_mul(costs.demand[*j] * options[*j].per_row[w][CORES] / quota, *part);
            }
        }
        rows.push(sum.leq(1.0));
    }
    for by_type in parts {
        rows.push(by_type.iter().copied().sum::<Expression>().leq(1.0));
    }
    for (store, bandwidth) in costs.stores.iter().enumerate().filter(|(_, bandwidth)| bandwidth.is_finite()) {
        let mut sum = Expression::with_capacity(options.len() * costs.types());
        for (j, by_type) in parts.iter().enumerate().filter(|(j, _)| options[*j].store == store) {
            for part in by_type {
                sum.add_mul(ratio(costs.demand[j] * options[j].store_bytes, *bandwidth), *part);
            }
        }
        rows.push(sum.leq(1.0));
    }
    rows
}

/// Weighted fed fractions, minus the cost of workers on a scale on which every job is worth its cost.
fn objective(
    problem: &Problem,
    costs: &Costs,
    options: &[&ExecutionOption],
    fleets: &[Fleet],
    parts: &[Vec<Variable>],
) -> Expression {
    let price = |w: usize| costs.core_hour[w] * costs.worker_cores(problem, w);
    let cost = |j: usize| {
        let on_type = |w: usize| {
            let workers = costs.demand[j] / costs.rate_on_one_worker(options[j], w).max(f64::MIN_POSITIVE);
            workers * price(w)
        };
        (0..costs.types()).map(on_type).filter(|cost| cost.is_finite()).fold(0.0, f64::max) / costs.weights[j]
    };
    let largest_cost = (0..options.len()).map(cost).fold(f64::MIN_POSITIVE, f64::max);
    let mut objective = Expression::with_capacity(2 * fleets.len() + options.len() * costs.types());
    for (w, fleet) in fleets.iter().enumerate() {
        let cost = COST_WEIGHT * price(w) / largest_cost;
        objective.add_mul(-EXISTING_COST * cost, fleet.kept);
        objective.add_mul(-cost, fleet.added);
    }
    for (j, by_type) in parts.iter().enumerate() {
        let has_cost = options[j].per_row.iter().any(|amounts| amounts[CORES].is_finite());
        for part in by_type.iter().filter(|_| has_cost && costs.demand[j] > 0.0) {
            objective.add_mul(costs.weights[j], *part);
        }
    }
    objective
}

impl Costs {
    fn worker_cores(&self, problem: &Problem, worker_type: usize) -> f64 {
        problem.worker_types[worker_type].cores.max(f64::MIN_POSITIVE)
    }
}
