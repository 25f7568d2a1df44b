//! Computes the number of workers of each type that would feed all jobs at the lowest cost, as far as consumers and stores
//! allow.
//!
//! This is the linear problem with variable numbers of workers, which `plan/sizes.rs` defines. As in the plan, operator
//! limits and the network are constraints, with headroom. Workers are added for a job only if they would increase its
//! rate.

use feedline_data::view::WantedWorkers;
use good_lp::{Constraint, Expression, ProblemVariables, Solution, Variable, variable};

use super::costs::{CORES, Costs, ExecutionOption, RESOURCES, ratio};
use super::linear::{OBJECTIVE_TOLERANCE, run_solver_within};
use super::problem::Problem;
use super::sizes::SizeVariables;

use super::deadline::Deadline;

#[cfg(test)]
mod tests;

/// Weight of the cost of workers in the objective. It is small compared to the value of feeding any job.
const COST_WEIGHT: f64 = 1e-3;
/// With pools, a part of a worker below this share of all workers may be numerical noise of the solver.
const SOLVER_NOISE_SHARE: f64 = 5e-5;
/// Maximum size of this part.
const MAX_SOLVER_NOISE: f64 = 0.2;
/// Tolerance of the objective with pools. The cost of one worker of a large cluster, which decides between pools, is a
/// small part of the objective.
const POOLS_TOLERANCE: f64 = 1e-10;

/// Returns the wanted number of workers by type, or the current number if the solver fails or the deadline has passed. Jobs
/// need at least one worker, unless no type can compute their rows.
pub(super) fn wanted_workers(
    problem: &Problem,
    costs: &Costs,
    options: &[&ExecutionOption],
    deadline: &dyn Deadline,
) -> Vec<WantedWorkers> {
    let present = problem.worker_counts();
    let counts = if options.is_empty() {
        vec![0.0; costs.type_count()]
    } else {
        let found = if deadline.is_over() { None } else { solve_counts(problem, costs, options) };
        found.unwrap_or_else(|| costs.worker_counts.clone())
    };
    let share = if problem.pools.is_empty() { 0.0 } else { SOLVER_NOISE_SHARE };
    let noise = (share * counts.iter().sum::<f64>()).min(MAX_SOLVER_NOISE);
    let of_type = |(w, count): (usize, f64)| WantedWorkers {
        worker_type: problem.worker_types[w].name.clone(),
        live: present[w],
        wanted: (count - 1e-3 - noise).ceil().max(0.0) as u32,
    };
    let mut wanted: Vec<WantedWorkers> = counts.iter().copied().enumerate().map(of_type).collect();
    keep_one_worker(&counts, &mut wanted);
    wanted
}

/// Sets a wanted number to 1 if the jobs need so little of one worker that all numbers were rounded to 0.
fn keep_one_worker(counts: &[f64], wanted: &mut [WantedWorkers]) {
    let most = (0..counts.len()).max_by(|a, b| counts[*a].total_cmp(&counts[*b]));
    if let Some(most) = most.filter(|most| counts[*most] > 0.0)
        && wanted.iter().all(|kind| kind.wanted == 0)
    {
        wanted[most].wanted = 1;
    }
}

fn solve_counts(problem: &Problem, costs: &Costs, options: &[&ExecutionOption]) -> Option<Vec<f64>> {
    let mut all = ProblemVariables::new();
    let unit = if problem.pools.is_empty() { 1.0 } else { needed_workers(problem, costs, options) };
    let sizes = SizeVariables::new(problem, costs, unit, &mut all);
    let shares: Vec<Vec<Variable>> = (0..options.len())
        .map(|_| (0..costs.type_count()).map(|_| all.add(variable().min(0.0))).collect())
        .collect();
    let mut rows = constraints(problem, costs, options, &sizes, &shares);
    rows.extend(sizes.constraints());
    let objective = objective(problem, costs, options, &sizes, &shares);
    let tolerance = if problem.pools.is_empty() { OBJECTIVE_TOLERANCE } else { POOLS_TOLERANCE };
    let solved = run_solver_within(all, objective, rows, tolerance).ok()?;
    Some(sizes.fleets.iter().map(|fleet| unit * solved.eval(fleet.total())).collect())
}

/// Returns approximately the number of workers that would feed all jobs, at least 1.
fn needed_workers(problem: &Problem, costs: &Costs, options: &[&ExecutionOption]) -> f64 {
    let used = problem.settings.target_utilisation.clamp(0.1, 1.0);
    let workers = |(option, demand): (&&ExecutionOption, &f64)| {
        let rates = (0..costs.type_count()).map(|w| used * costs.rate_on_one_worker(option, w));
        ratio(*demand, rates.fold(0.0, f64::max))
    };
    let each = options.iter().zip(&costs.demands).map(workers);
    each.filter(|workers| workers.is_finite()).sum::<f64>().max(1.0)
}

fn constraints(
    problem: &Problem,
    costs: &Costs,
    options: &[&ExecutionOption],
    sizes: &SizeVariables,
    shares: &[Vec<Variable>],
) -> Vec<Constraint> {
    let mut rows = Vec::new();
    let used = problem.settings.target_utilisation.clamp(0.1, 1.0);
    for (w, fleet) in sizes.fleets.iter().enumerate() {
        for resource in (0..RESOURCES).filter(|resource| costs.worker_capacity[w][*resource].is_finite()) {
            let capacity = costs.worker_capacity[w][resource] * used * sizes.unit;
            let mut sum = Expression::with_capacity(options.len() + 2);
            for (j, option) in options.iter().enumerate().filter(|_| capacity > 0.0) {
                sum.add_mul(
                    costs.demands[j] * option.resources_per_row[w][resource] / capacity,
                    shares[j][w],
                );
            }
            rows.push((sum - fleet.total()).leq(0.0));
        }
        for (j, option) in options.iter().enumerate() {
            // Apply the same headroom to operator limits as to cores.
            let one = used * option.max_rate_per_worker[w] / costs.demands[j].max(f64::MIN_POSITIVE);
            if one.is_finite() && one < 1e6 {
                rows.push((shares[j][w] - one * sizes.unit * fleet.total()).leq(0.0));
            }
        }
    }
    for (own, quota) in
        costs.jobs_of_tenants().iter().zip(&costs.core_quotas).filter(|(_, quota)| quota.is_finite())
    {
        let mut sum = Expression::with_capacity(own.len() * costs.type_count());
        for j in own {
            for (w, part) in shares[*j].iter().enumerate() {
                sum.add_mul(costs.demands[*j] * options[*j].resources_per_row[w][CORES] / quota, *part);
            }
        }
        rows.push(sum.leq(1.0));
    }
    for by_type in shares {
        rows.push(by_type.iter().copied().sum::<Expression>().leq(1.0));
    }
    for (store, bandwidth) in
        costs.store_bandwidths.iter().enumerate().filter(|(_, bandwidth)| bandwidth.is_finite())
    {
        let mut sum = Expression::with_capacity(options.len() * costs.type_count());
        for (j, by_type) in shares.iter().enumerate().filter(|(j, _)| options[*j].store == store) {
            for part in by_type {
                sum.add_mul(ratio(costs.demands[j] * options[j].store_bytes_per_row, *bandwidth), *part);
            }
        }
        rows.push(sum.leq(1.0));
    }
    rows
}

/// Returns the sum of weighted fed fractions minus the cost of workers. The cost is scaled so that feeding any job is worth
/// more than its workers.
fn objective(
    problem: &Problem,
    costs: &Costs,
    options: &[&ExecutionOption],
    sizes: &SizeVariables,
    shares: &[Vec<Variable>],
) -> Expression {
    let price = |w: usize| costs.core_hour_prices[w] * costs.worker_cores(problem, w);
    let cost = |j: usize| {
        let on_type = |w: usize| {
            let workers = costs.demands[j] / costs.rate_on_one_worker(options[j], w).max(f64::MIN_POSITIVE);
            workers * price(w)
        };
        (0..costs.type_count()).map(on_type).filter(|cost| cost.is_finite()).fold(0.0, f64::max)
            / costs.weights[j]
    };
    let largest_cost = (0..options.len()).map(cost).fold(f64::MIN_POSITIVE, f64::max);
    let cost = |w: usize| COST_WEIGHT * price(w) * sizes.unit / largest_cost;
    let type_costs: Vec<f64> = (0..costs.type_count()).map(cost).collect();
    let mut objective = Expression::with_capacity(options.len() * costs.type_count());
    objective -= sizes.cost(problem, costs, &type_costs);
    for (j, by_type) in shares.iter().enumerate() {
        let has_cost = options[j].resources_per_row.iter().any(|amounts| amounts[CORES].is_finite());
        for part in by_type.iter().filter(|_| has_cost && costs.demands[j] > 0.0) {
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
