//! The linear problem: with chosen caches, the rows per second of each job on each worker type.
//!
//! Variables are `g[j][w]`, the share of job j's demand that workers of type w serve. All operators of a job run on
//! the same worker and share its cores, so one variable for each job and type is enough: 1,000 jobs on 4 types have
//! 4,000 variables. Everything is scaled so that capacities and demands are 1.
//!
//! If possible, all jobs are fed at the smallest cost. Otherwise, the smallest weighted fed fraction t is maximised.
//! Jobs that cannot reach t even alone are fixed at their own maximum, and t is maximised for the others. Then the
//! weighted sum is maximised, minus a cost that is so small that it decides only between equal sums.

use good_lp::{
    Constraint, Expression, ProblemVariables, ResolutionError, Solution, SolverModel, Variable, clarabel,
    variable,
};

use super::costs::{CORES, Costs, ExecutionOption, RESOURCES};
use super::deadline::Deadline;
use super::level::{QuotaDemand, highest_level};
use super::solution::Objective;

#[cfg(test)]
mod tests;

/// Rates on worker types, before they are assigned to single workers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FractionalPlan {
    /// Rows per second of each job on each type.
    pub(super) rows: Vec<Vec<f64>>,
    /// The fed fraction of each job.
    pub(super) fed: Vec<f64>,
    /// The objective, with the cost of cores only.
    pub(super) objective: Objective,
}

/// The largest number of rounds in which jobs are fixed at their own maximum.
const ROUNDS: usize = 4;
/// A type that serves a smaller share of a job is set to 0, since the value may be noise of the solver.
const NOISE: f64 = 1e-4;
/// The largest share by which the cost may change the weighted sum.
const COST_WEIGHT: f64 = 1e-3;

/// The share by which lower bounds are reduced, so that an interior-point solver has room inside the constraints.
const SLACK: f64 = 1e-6;

/// The best rates with these options; `None` if the solver fails, or the deadline passes before the first result. If
/// the deadline passes later, the smallest fed fraction may not be maximal.
pub(super) fn solve_selection(
    costs: &Costs,
    chosen: &[usize],
    deadline: &dyn Deadline,
) -> Option<FractionalPlan> {
    let options: Vec<&ExecutionOption> =
        chosen.iter().enumerate().map(|(j, option)| &costs.options[j][*option]).collect();
    solve_options(costs, &options, deadline)
}

/// Like [`solve_selection`], for options that need not belong to the jobs.
pub(super) fn solve_options(
    costs: &Costs,
    options: &[&ExecutionOption],
    deadline: &dyn Deadline,
) -> Option<FractionalPlan> {
    let alone: Vec<f64> =
        options.iter().enumerate().map(|(j, option)| costs.fed_fraction_alone(j, option)).collect();
    if options.is_empty() || alone.iter().all(|fed| *fed <= 0.0) {
        return Some(evaluate_rates(costs, options, vec![vec![0.0; costs.types()]; options.len()]));
    }
    let problem = LinearProblem::new(costs, options);
    let all = if costs.is_short { None } else { problem.feed_all(&alone) };
    let parts = match all {
        Some(parts) => parts,
        None => {
            let floors = problem.level(&problem.reach_alone(&alone, deadline)?, deadline)?;
            problem.maximise_sum(&floors)?
        }
    };
    Some(evaluate_rates(costs, options, problem.rows(&parts)))
}

/// The objective of the given rates.
pub(super) fn evaluate_rates(
    costs: &Costs,
    options: &[&ExecutionOption],
    rows: Vec<Vec<f64>>,
) -> FractionalPlan {
    let mut objective = Objective { smallest_fed: 1.0, ..Objective::default() };
    let mut fed = Vec::with_capacity(options.len());
    for (j, by_type) in rows.iter().enumerate() {
        let rate: f64 = by_type.iter().sum();
        let part = fed_fraction(rate, costs.demand[j]);
        objective.smallest_fed = objective.smallest_fed.min(part / costs.weights[j]);
        objective.total_fed += part * costs.weights[j];
        let price = |w: usize| by_type[w] * options[j].per_row[w][CORES] * costs.core_hour[w];
        objective.cost_per_hour += (0..costs.types()).map(price).sum::<f64>();
        fed.push(part);
    }
    FractionalPlan { rows, fed, objective }
}

/// The rate over the demand. A rate within the solver's tolerance of the demand counts as 1.
pub(super) fn fed_fraction(rate: f64, demand: f64) -> f64 {
    if rate >= demand * (1.0 - 1e-5) { 1.0 } else { rate / demand }
}

/// The largest used share of any capacity; at most 1 if the rates are feasible.
pub(super) fn largest_load(costs: &Costs, options: &[&ExecutionOption], rows: &[Vec<f64>]) -> f64 {
    let mut largest: f64 = 0.0;
    let mut used = vec![[0.0; RESOURCES]; costs.types()];
    for (option, by_type) in options.iter().zip(rows) {
        for (w, rate) in by_type.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
            for (used, needed) in used[w].iter_mut().zip(&option.per_row[w]) {
                *used += rate * needed;
            }
            largest = largest.max(rate / (costs.counts[w] * option.max_per_worker[w]));
        }
    }
    for (w, amounts) in used.iter().enumerate() {
        for (resource, amount) in amounts.iter().enumerate().filter(|(_, amount)| **amount > 0.0) {
            largest = largest.max(amount / (costs.counts[w] * costs.capacity[w][resource]));
        }
    }
    let cores = options.iter().zip(rows).map(|(option, by_type)| costs.needed_cores(option, by_type));
    largest = costs.tenant_loads(cores.enumerate()).into_iter().fold(largest, f64::max);
    let read = |(option, by_type): (&&ExecutionOption, &Vec<f64>)| {
        (option.store, option.store_bytes * by_type.iter().sum::<f64>())
    };
    costs.store_loads(options.iter().zip(rows).map(read)).into_iter().fold(largest, f64::max)
}

/// Shares of demands: `parts[j][w]`.
type Parts = Vec<Vec<f64>>;

struct LinearProblem<'a> {
    costs: &'a Costs,
    options: &'a [&'a ExecutionOption],
    /// The jobs of each tenant.
    tenants: Vec<Vec<usize>>,
}

/// The variables of one linear problem; `None` where a worker type cannot serve a job.
struct Variables {
    all: ProblemVariables,
    parts: Vec<Vec<Option<Variable>>>,
}

impl<'a> LinearProblem<'a> {
    fn new(costs: &'a Costs, options: &'a [&'a ExecutionOption]) -> Self {
        Self { costs, options, tenants: costs.jobs_of_tenants() }
    }

    fn variables(&self) -> Variables {
        self.variables_of(|_| true)
    }

    /// The variables of the jobs for which `is_included` holds.
    fn variables_of(&self, is_included: impl Fn(usize) -> bool) -> Variables {
        let mut all = ProblemVariables::new();
        let parts = (0..self.options.len()).map(|j| {
            let usable = |w: usize| {
                is_included(j)
                    && self.costs.demand[j] > 0.0
                    && self.costs.counts[w] > 0.0
                    && self.costs.rate_on_one_worker(self.options[j], w) > 0.0
            };
            (0..self.costs.types()).map(|w| usable(w).then(|| all.add(variable().min(0.0)))).collect()
        });
        let parts = parts.collect();
        Variables { all, parts }
    }

    /// The constraints of all capacities.
    fn capacities(&self, variables: &Variables) -> Vec<Constraint> {
        let (costs, mut rows) = (self.costs, Vec::new());
        for w in 0..costs.types() {
            for resource in 0..RESOURCES {
                let capacity = costs.counts[w] * costs.capacity[w][resource];
                let needed = |j: usize, at: usize| {
                    if at == w {
                        self.options[j].per_row[w][resource] * costs.demand[j] / capacity
                    } else {
                        0.0
                    }
                };
                if capacity > 0.0 && capacity.is_finite() {
                    rows.extend(at_most_one(variables, 0..self.options.len(), needed));
                }
            }
        }
        for (own, quota) in self.tenants.iter().zip(&costs.quotas).filter(|(_, quota)| quota.is_finite()) {
            let needed = |j: usize, w: usize| self.options[j].per_row[w][CORES] * costs.demand[j] / quota;
            rows.extend(at_most_one(variables, own.iter().copied(), needed));
        }
        for (store, bandwidth) in
            costs.stores.iter().enumerate().filter(|(_, bandwidth)| bandwidth.is_finite())
        {
            let reads =
                |j: usize| if self.options[j].store == store { self.options[j].store_bytes } else { 0.0 };
            let needed = |j: usize, _: usize| reads(j) * costs.demand[j] / bandwidth;
            rows.extend(at_most_one(variables, 0..self.options.len(), needed));
        }
        for (j, parts) in variables.parts.iter().enumerate() {
            for (w, part) in parts.iter().enumerate() {
                let most = costs.counts[w] * self.options[j].max_per_worker[w] / costs.demand[j];
                if let Some(part) = part.filter(|_| most < 1.0) {
                    rows.push((1.0 * part).leq(most));
                }
            }
        }
        rows
    }

    /// Feeds each job as well as if it were alone, at the smallest cost; `None` if that is infeasible.
    fn feed_all(&self, alone: &[f64]) -> Option<Parts> {
        let variables = self.variables();
        let mut rows = self.capacities(&variables);
        for (j, fed) in alone.iter().enumerate().filter(|(_, fed)| **fed > 0.0) {
            // Slightly less, so that a job that fills a resource alone does not make the problem infeasible by
            // rounding.
            rows.push(total(&variables, j).eq(fed * (1.0 - 1e-7)));
        }
        let objective = self.cost(&variables);
        self.solve(variables, -objective, rows)
    }

    /// The fed fraction of each job if its tenant were alone in the cluster: jobs that fill a quota together reach
    /// less than each of them alone, and must not limit the jobs of other tenants.
    fn reach_alone(&self, alone: &[f64], deadline: &dyn Deadline) -> Option<Vec<f64>> {
        let mut reach = alone.to_vec();
        for (tenant, jobs) in self.tenants.iter().enumerate() {
            let own: Vec<usize> = jobs.iter().copied().filter(|j| alone[*j] > 0.0).collect();
            if self.costs.quotas[tenant].is_infinite() || own.len() < 2 {
                continue;
            }
            if deadline.is_over() {
                return None;
            }
            let costs = self.costs.for_tenant(tenant, &own, self.options);
            let options: Vec<&ExecutionOption> = costs.options.iter().map(|options| &options[0]).collect();
            let alone: Vec<f64> = own.iter().map(|j| alone[*j]).collect();
            let level = match within_quota(&costs, &options, &alone) {
                Some(level) => level,
                None => LinearProblem::new(&costs, &options).level(&alone, deadline)?,
            };
            for ((j, level), alone) in own.into_iter().zip(level).zip(alone) {
                reach[j] = level.min(alone);
            }
        }
        Some(reach)
    }

    /// The fed fraction of each job when the smallest weighted one is maximal, or as large as it was when the
    /// deadline passed.
    fn level(&self, alone: &[f64], deadline: &dyn Deadline) -> Option<Vec<f64>> {
        let weights = &self.costs.weights;
        let mut fixed_at: Vec<Option<f64>> = alone.iter().map(|fed| (*fed <= 0.0).then_some(0.0)).collect();
        let mut level = 0.0;
        // Each tenant may have a maximum of its own, which needed one more round.
        for round in 0..ROUNDS + self.costs.quotas.len().min(2 * ROUNDS) {
            if fixed_at.iter().all(Option::is_some) || (round > 0 && deadline.is_over()) {
                break;
            }
            level = self.maximise_smallest(&fixed_at)?;
            let mut found = false;
            for j in 0..alone.len() {
                if fixed_at[j].is_none() && alone[j] <= level * weights[j] * (1.0 + 1e-5) {
                    fixed_at[j] = Some(alone[j]);
                    found = true;
                }
            }
            if !found {
                break;
            }
        }
        let floor = |j: usize| (1.0 - SLACK) * fixed_at[j].unwrap_or(level * weights[j]);
        Some((0..alone.len()).map(floor).collect())
    }

    fn maximise_smallest(&self, fixed_at: &[Option<f64>]) -> Option<f64> {
        // A job without rows uses no resources.
        let mut variables = self.variables_of(|j| fixed_at[j].is_none_or(|fixed| fixed > 0.0));
        let level = variables.all.add(variable().min(0.0).max(1.0));
        let mut rows = self.capacities(&variables);
        for (j, apart) in fixed_at.iter().enumerate() {
            let fed = total(&variables, j);
            match apart {
                Some(fixed) if *fixed > 0.0 => rows.push(fed.geq(fixed * (1.0 - 1e-6))),
                Some(_) => {}
                None => rows.push((fed - self.costs.weights[j] * level).geq(0.0)),
            }
        }
        let solved = run(variables.all, level.into(), rows).ok()?;
        Some(solved.value(level).clamp(0.0, 1.0))
    }

    /// Maximises the weighted sum above the given lower bounds.
    fn maximise_sum(&self, floors: &[f64]) -> Option<Parts> {
        let variables = self.variables();
        let mut rows = self.capacities(&variables);
        let mut objective = -self.cost(&variables);
        for (j, floor) in floors.iter().enumerate() {
            if variables.parts[j].iter().any(Option::is_some) {
                rows.push(total(&variables, j).leq(1.0));
                rows.push(total(&variables, j).geq(floor * (1.0 - 1e-6)));
                objective += self.costs.weights[j] * total(&variables, j);
            }
        }
        self.solve(variables, objective, rows)
    }

    /// The cost of cores, scaled so that feeding any job is worth far more than its cost.
    fn cost(&self, variables: &Variables) -> Expression {
        let price = |j: usize, w: usize| {
            let cores = self.costs.demand[j] * self.options[j].per_row[w][CORES];
            cores * self.costs.core_hour[w]
        };
        let cost_of = |j: usize| {
            (0..self.costs.types()).map(|w| price(j, w)).fold(0.0, f64::max) / self.costs.weights[j]
        };
        let largest_cost = (0..self.options.len()).map(cost_of).fold(f64::MIN_POSITIVE, f64::max);
        let mut cost = Expression::with_capacity(self.options.len() * self.costs.types());
        for (j, parts) in variables.parts.iter().enumerate() {
            for (w, part) in parts.iter().enumerate() {
                if let Some(part) = part {
                    cost.add_mul(COST_WEIGHT * price(j, w) / largest_cost, *part);
                }
            }
        }
        cost
    }

    /// Maximises the objective, and reduces rates that exceed a capacity by the solver's tolerance.
    fn solve(&self, variables: Variables, objective: Expression, rows: Vec<Constraint>) -> Option<Parts> {
        let Variables { all, parts } = variables;
        let solved = run(all, objective, rows).ok()?;
        let value = |part: &Option<Variable>| part.map_or(0.0, |part| solved.value(part)).clamp(0.0, 1.0);
        let clean = |by_type: &Vec<Option<Variable>>| -> Vec<f64> {
            let values: Vec<f64> = by_type.iter().map(value).collect();
            let sum: f64 = values.iter().sum();
            let kept: Vec<f64> =
                values.into_iter().map(|part| if part < NOISE * sum { 0.0 } else { part }).collect();
            let scale = if sum > 0.0 { sum.min(1.0) / kept.iter().sum::<f64>() } else { 1.0 };
            kept.into_iter().map(|part| part * scale).collect()
        };
        let parts: Parts = parts.iter().map(clean).collect();
        let load = largest_load(self.costs, self.options, &self.rows(&parts));
        // A larger excess means that the solver has failed.
        if !load.is_finite() || load > 1.01 {
            return None;
        }
        let scale = 1.0 / load.max(1.0);
        Some(
            parts.into_iter().map(|by_type| by_type.into_iter().map(|part| part * scale).collect()).collect(),
        )
    }

    fn rows(&self, parts: &Parts) -> Vec<Vec<f64>> {
        let of_job = |(j, by_type): (usize, &Vec<f64>)| {
            by_type.iter().map(|part| part * self.costs.demand[j]).collect()
        };
        parts.iter().enumerate().map(of_job).collect()
    }
}

/// The fed fraction of each job of one tenant, if only the tenant's quota binds, which is the usual case: each job
/// runs on the type on which a row needs the fewest cores, so no other rates reach a higher level. `None` if another
/// constraint binds as well.
fn within_quota(costs: &Costs, options: &[&ExecutionOption], alone: &[f64]) -> Option<Vec<f64>> {
    let cores = |j: usize, w: usize| options[j].per_row[w][CORES] * costs.demand[j];
    let is_usable =
        |j: usize, w: &usize| costs.counts[*w] > 0.0 && costs.rate_on_one_worker(options[j], *w) > 0.0;
    let sparing = |j: usize| {
        let usable = (0..costs.types()).filter(|w| is_usable(j, w));
        usable.min_by(|a, b| cores(j, *a).total_cmp(&cores(j, *b)))
    };
    let types: Vec<usize> = (0..options.len()).map(sparing).collect::<Option<_>>()?;
    let claim =
        |j: usize| QuotaDemand { weight: costs.weights[j], most_fed: alone[j], cores: cores(j, types[j]) };
    let level = highest_level((0..options.len()).map(claim).collect(), costs.quotas[0], 1.0);
    let fed: Vec<f64> = (0..options.len()).map(|j| (level * costs.weights[j]).min(alone[j])).collect();
    let rows: Vec<Vec<f64>> = (0..options.len())
        .map(|j| {
            (0..costs.types()).map(|w| if w == types[j] { fed[j] * costs.demand[j] } else { 0.0 }).collect()
        })
        .collect();
    let fits = largest_load(costs, options, &rows) <= 1.0 + 1e-9;
    fits.then(|| fed.into_iter().map(|fed| (1.0 - SLACK) * fed).collect())
}

/// Runs the solver.
pub(super) fn run(
    variables: ProblemVariables,
    objective: Expression,
    rows: Vec<Constraint>,
) -> Result<impl Solution, ResolutionError> {
    // The solver requires variables and constraints.
    if variables.is_empty() || rows.is_empty() {
        return Err(ResolutionError::Other("nothing to solve"));
    }
    let mut model = variables.maximise(objective).using(clarabel);
    // The solver converges within 30 iterations, or not at all.
    model.settings().max_iter(100);
    for row in rows {
        model.add_constraint(row);
    }
    model.solve()
}

fn total(variables: &Variables, job: usize) -> Expression {
    let mut sum = Expression::with_capacity(variables.parts[job].len());
    for part in variables.parts[job].iter().flatten() {
        sum.add_mul(1.0, *part);
    }
    sum
}

/// The constraint of a capacity of which each job uses a share on type w; `None` if no job uses it.
fn at_most_one(
    variables: &Variables,
    jobs: impl ExactSizeIterator<Item = usize>,
    needed: impl Fn(usize, usize) -> f64,
) -> Option<Constraint> {
    let mut sum = Expression::with_capacity(jobs.len());
    let mut is_used = false;
    for j in jobs {
        for (w, part) in variables.parts[j].iter().enumerate() {
            let amount = needed(j, w);
            if let Some(part) = part.filter(|_| amount > 0.0) {
                sum.add_mul(amount, part);
                is_used = true;
            }
        }
    }
    is_used.then(|| sum.leq(1.0))
}
