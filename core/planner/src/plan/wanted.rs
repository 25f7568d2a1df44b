//! How many workers of each type would feed all jobs, as far as consumers and store allow, at least cost.
//!
//! The linear problem once more, with the number of workers unknown: workers at hand are a little cheaper than new ones,
//! so that a fleet is not exchanged for an equal one. Operators that limit what one worker gives, and the network, count
//! as they do in the plan, with headroom; so a job that only more workers can feed gets them, and one that they cannot help does not.

use feedline_data::view::WantedWorkers;
use good_lp::{Constraint, Expression, ProblemVariables, Solution, Variable, variable};

use super::costs::{CORES, Costs, ExecutionOption, RESOURCES, per};
use super::linear::run;
use super::problem::Problem;

use super::solve::Deadline;

#[cfg(test)]
mod tests;

/// What a worker at hand costs of a new one's price.
const AT_HAND: f64 = 0.9;
/// What all workers together cost, beside which feeding any job weighs more.
const COST_WEIGHT: f64 = 1e-3;

/// Workers wanted by type; those at hand where the solver fails or there is no time for it.
pub(super) fn wanted(
    problem: &Problem,
    costs: &Costs,
    ways: &[&ExecutionOption],
    deadline: &dyn Deadline,
) -> Vec<WantedWorkers> {
    let present = problem.counts();
    let counts = if ways.is_empty() {
        vec![0.0; costs.types()]
    } else {
        let found = if deadline.is_over() { None } else { count(problem, costs, ways) };
        found.unwrap_or_else(|| costs.counts.clone())
    };
    let of_type = |(w, count): (usize, f64)| WantedWorkers {
        worker_type: problem.worker_types[w].name.clone(),
        present: present[w],
        wanted: (count - 1e-3).ceil().max(0.0) as u32,
    };
    counts.into_iter().enumerate().map(of_type).collect()
}

struct Fleet {
    /// Of those at hand.
    kept: Variable,
    /// New.
    added: Variable,
}

fn count(problem: &Problem, costs: &Costs, ways: &[&ExecutionOption]) -> Option<Vec<f64>> {
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
    let parts: Vec<Vec<Variable>> =
        (0..ways.len()).map(|_| (0..costs.types()).map(|_| all.add(variable().min(0.0))).collect()).collect();
    let rows = constraints(problem, costs, ways, &fleets, &parts);
    let objective = objective(problem, costs, ways, &fleets, &parts);
    let solved = run(all, objective, rows).ok()?;
    Some(fleets.iter().map(|fleet| solved.value(fleet.kept) + solved.value(fleet.added)).collect())
}

fn constraints(
    problem: &Problem,
    costs: &Costs,
    ways: &[&ExecutionOption],
    fleets: &[Fleet],
    parts: &[Vec<Variable>],
) -> Vec<Constraint> {
    let mut rows = Vec::new();
    let used = problem.settings.target_utilisation.clamp(0.1, 1.0);
    for (w, fleet) in fleets.iter().enumerate() {
        for resource in (0..RESOURCES).filter(|resource| costs.has[w][*resource].is_finite()) {
            let has = costs.has[w][resource] * used;
            let mut sum = Expression::with_capacity(ways.len() + 2);
            for (j, way) in ways.iter().enumerate().filter(|_| has > 0.0) {
                sum.add_mul(costs.demand[j] * way.per_row[w][resource] / has, parts[j][w]);
            }
            rows.push((sum - fleet.kept - fleet.added).leq(0.0));
        }
        for (j, way) in ways.iter().enumerate() {
            // No more of what limits a worker is counted on than of its cores.
            let one = used * way.most_per_worker[w] / costs.demand[j].max(f64::MIN_POSITIVE);
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
                sum.add_mul(costs.demand[*j] * ways[*j].per_row[w][CORES] / quota, *part);
            }
        }
        rows.push(sum.leq(1.0));
    }
    for by_type in parts {
        rows.push(by_type.iter().copied().sum::<Expression>().leq(1.0));
    }
    for (store, gives) in costs.stores.iter().enumerate().filter(|(_, gives)| gives.is_finite()) {
        let mut sum = Expression::with_capacity(ways.len() * costs.types());
        for (j, by_type) in parts.iter().enumerate().filter(|(j, _)| ways[*j].store == store) {
            for part in by_type {
                sum.add_mul(per(costs.demand[j] * ways[j].store_bytes, *gives), *part);
            }
        }
        rows.push(sum.leq(1.0));
    }
    rows
}

/// Weighted fed fractions, less the cost of workers on a scale on which no job is too dear to feed.
fn objective(
    problem: &Problem,
    costs: &Costs,
    ways: &[&ExecutionOption],
    fleets: &[Fleet],
    parts: &[Vec<Variable>],
) -> Expression {
    let price = |w: usize| costs.core_hour[w] * costs.worker_cores(problem, w);
    let dear = |j: usize| {
        let on_type = |w: usize| {
            let workers = costs.demand[j] / costs.on_one(ways[j], w).max(f64::MIN_POSITIVE);
            workers * price(w)
        };
        (0..costs.types()).map(on_type).filter(|cost| cost.is_finite()).fold(0.0, f64::max) / costs.weights[j]
    };
    let dearest = (0..ways.len()).map(dear).fold(f64::MIN_POSITIVE, f64::max);
    let mut objective = Expression::with_capacity(2 * fleets.len() + ways.len() * costs.types());
    for (w, fleet) in fleets.iter().enumerate() {
        let cost = COST_WEIGHT * price(w) / dearest;
        objective.add_mul(-AT_HAND * cost, fleet.kept);
        objective.add_mul(-cost, fleet.added);
    }
    for (j, by_type) in parts.iter().enumerate() {
        let gives = ways[j].per_row.iter().any(|amounts| amounts[CORES].is_finite());
        for part in by_type.iter().filter(|_| gives && costs.demand[j] > 0.0) {
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
