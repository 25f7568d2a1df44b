//! The linear problem: the rows per second of each job on each worker type, for given caches.
//!
//! The variable `g[j][w]` is the share of job j's demand that workers of type w serve. All operators of a job run on
//! the same worker and share its cores, so one variable per job and worker type is enough: 1,000 jobs on 4 types need
//! 4,000 variables. All values are scaled so that capacities and demands equal 1.
//!
//! If possible, all jobs are fed at the lowest cost. Otherwise, the smallest weighted fed fraction t is maximised. Jobs
//! that cannot reach t even alone are fixed at their own maximum, and t is maximised for the other jobs. Then the
//! weighted sum of fed fractions is maximised. The weight of the cost is so small that the cost only breaks ties
//! between equal sums.

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

/// Rates on worker types, which are not yet assigned to individual workers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FractionalPlan {
    /// Rows per second of each job on each type.
    pub(super) rows_per_s: Vec<Vec<f64>>,
    /// The fed fraction of each job.
    pub(super) fed_fractions: Vec<f64>,
    /// The objective. Its cost includes cores, but not cached bytes.
    pub(super) objective: Objective,
}

/// Maximum number of rounds in which jobs are fixed at their own maximum.
const MAX_LEVEL_ROUNDS: usize = 4;
/// Shares of a job on a worker type that are smaller than this value are set to 0, because they may be numerical noise
/// of the solver.
const SOLVER_NOISE_SHARE: f64 = 1e-4;
/// Weight of the cost relative to the weighted sum of fed fractions.
const COST_WEIGHT: f64 = 1e-3;

/// Tolerance of the objective, absolute and relative, which is the default of the solver.
pub(super) const OBJECTIVE_TOLERANCE: f64 = 1e-8;
/// Fraction by which lower bounds are reduced, because an interior-point solver needs a feasible region with a
/// non-empty interior.
const LOWER_BOUND_SLACK: f64 = 1e-6;

/// Returns the best rates for these options, or `None` if the solver fails or the deadline passes before the first result.
/// If the deadline passes later, the smallest fed fraction may not be maximal.
pub(super) fn solve_selection(
    costs: &Costs,
    chosen: &[usize],
    deadline: &dyn Deadline,
) -> Option<FractionalPlan> {
    let options: Vec<&ExecutionOption> =
        chosen.iter().enumerate().map(|(j, option)| &costs.options[j][*option]).collect();
    solve_options(costs, &options, deadline)
}

/// Like [`solve_selection`], but for arbitrary options, which need not be among the options of the jobs.
pub(super) fn solve_options(
    costs: &Costs,
    options: &[&ExecutionOption],
    deadline: &dyn Deadline,
) -> Option<FractionalPlan> {
    let alone: Vec<f64> =
        options.iter().enumerate().map(|(j, option)| costs.fed_fraction_alone(j, option)).collect();
    if options.is_empty() || alone.iter().all(|fed| *fed <= 0.0) {
        return Some(evaluate_rates(costs, options, vec![vec![0.0; costs.type_count()]; options.len()]));
    }
    let problem = LinearProblem::new(costs, options);
    let all = if costs.is_overloaded { None } else { problem.feed_all(&alone) };
    let shares = match all {
        Some(shares) => shares,
        None => {
            let floors = problem
                .max_min_fed_fractions(&problem.fed_fractions_of_lone_tenants(&alone, deadline)?, deadline)?;
            problem.maximise_sum(&floors)?
        }
    };
    Some(evaluate_rates(costs, options, problem.rows_per_s(&shares)))
}

/// Computes the fed fractions and the objective of the given rates.
pub(super) fn evaluate_rates(
    costs: &Costs,
    options: &[&ExecutionOption],
    rows: Vec<Vec<f64>>,
) -> FractionalPlan {
    let mut objective = Objective { smallest_fed: 1.0, ..Objective::default() };
    let mut fed = Vec::with_capacity(options.len());
    for (j, by_type) in rows.iter().enumerate() {
        let rate: f64 = by_type.iter().sum();
        let part = fed_fraction(rate, costs.demands[j]);
        objective.smallest_fed = objective.smallest_fed.min(part / costs.weights[j]);
        objective.total_fed += part * costs.weights[j];
        let price =
            |w: usize| by_type[w] * options[j].resources_per_row[w][CORES] * costs.core_hour_prices[w];
        objective.cost_per_hour += (0..costs.type_count()).map(price).sum::<f64>();
        fed.push(part);
    }
    FractionalPlan { rows_per_s: rows, fed_fractions: fed, objective }
}

/// Returns the rate divided by the demand. Returns 1 if the rate is within the solver's tolerance of the demand.
pub(super) fn fed_fraction(rate: f64, demand: f64) -> f64 {
    if rate >= demand * (1.0 - 1e-5) { 1.0 } else { rate / demand }
}

/// Returns the largest used share of any capacity. It is at most 1 if the rates are feasible.
pub(super) fn largest_load(costs: &Costs, options: &[&ExecutionOption], rows: &[Vec<f64>]) -> f64 {
    let mut largest: f64 = 0.0;
    let mut used = vec![[0.0; RESOURCES]; costs.type_count()];
    for (option, by_type) in options.iter().zip(rows) {
        for (w, rate) in by_type.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
            for (used, needed) in used[w].iter_mut().zip(&option.resources_per_row[w]) {
                *used += rate * needed;
            }
            largest = largest.max(rate / (costs.worker_counts[w] * option.max_rate_per_worker[w]));
        }
    }
    for (w, amounts) in used.iter().enumerate() {
        for (resource, amount) in amounts.iter().enumerate().filter(|(_, amount)| **amount > 0.0) {
            largest = largest.max(amount / (costs.worker_counts[w] * costs.worker_capacity[w][resource]));
        }
    }
    let cores = options.iter().zip(rows).map(|(option, by_type)| costs.needed_cores(option, by_type));
    largest = costs.tenant_loads(cores.enumerate()).into_iter().fold(largest, f64::max);
    let read = |(option, by_type): (&&ExecutionOption, &Vec<f64>)| {
        (option.store, option.store_bytes_per_row * by_type.iter().sum::<f64>())
    };
    costs.store_loads(options.iter().zip(rows).map(read)).into_iter().fold(largest, f64::max)
}

/// The share of each job's demand that each worker type serves, indexed by job and worker type.
type DemandShares = Vec<Vec<f64>>;

struct LinearProblem<'a> {
    costs: &'a Costs,
    options: &'a [&'a ExecutionOption],
    /// The jobs of each tenant.
    tenant_jobs: Vec<Vec<usize>>,
}

/// The variables of one linear problem. A share is `None` if the worker type cannot serve the job.
struct Variables {
    all: ProblemVariables,
    shares: Vec<Vec<Option<Variable>>>,
}

impl<'a> LinearProblem<'a> {
    fn new(costs: &'a Costs, options: &'a [&'a ExecutionOption]) -> Self {
        Self { costs, options, tenant_jobs: costs.jobs_of_tenants() }
    }

    fn variables(&self) -> Variables {
        self.variables_of(|_| true)
    }

    /// Creates variables for the jobs for which `is_included` returns true.
    fn variables_of(&self, is_included: impl Fn(usize) -> bool) -> Variables {
        let mut all = ProblemVariables::new();
        let shares = (0..self.options.len()).map(|j| {
            let usable = |w: usize| {
                is_included(j)
                    && self.costs.demands[j] > 0.0
                    && self.costs.worker_counts[w] > 0.0
                    && self.costs.rate_on_one_worker(self.options[j], w) > 0.0
            };
            (0..self.costs.type_count()).map(|w| usable(w).then(|| all.add(variable().min(0.0)))).collect()
        });
        let shares = shares.collect();
        Variables { all, shares }
    }

    /// Returns the constraints of all capacities.
    fn capacity_constraints(&self, variables: &Variables) -> Vec<Constraint> {
        let (costs, mut rows) = (self.costs, Vec::new());
        for w in 0..costs.type_count() {
            for resource in 0..RESOURCES {
                let capacity = costs.worker_counts[w] * costs.worker_capacity[w][resource];
                let needed = |j: usize, at: usize| {
                    if at == w {
                        self.options[j].resources_per_row[w][resource] * costs.demands[j] / capacity
                    } else {
                        0.0
                    }
                };
                if capacity > 0.0 && capacity.is_finite() {
                    rows.extend(capacity_constraint(variables, 0..self.options.len(), needed));
                }
            }
        }
        for (own, quota) in
            self.tenant_jobs.iter().zip(&costs.core_quotas).filter(|(_, quota)| quota.is_finite())
        {
            let needed =
                |j: usize, w: usize| self.options[j].resources_per_row[w][CORES] * costs.demands[j] / quota;
            rows.extend(capacity_constraint(variables, own.iter().copied(), needed));
        }
        for (store, bandwidth) in
            costs.store_bandwidths.iter().enumerate().filter(|(_, bandwidth)| bandwidth.is_finite())
        {
            let reads = |j: usize| {
                if self.options[j].store == store { self.options[j].store_bytes_per_row } else { 0.0 }
            };
            let needed = |j: usize, _: usize| reads(j) * costs.demands[j] / bandwidth;
            rows.extend(capacity_constraint(variables, 0..self.options.len(), needed));
        }
        for (j, shares) in variables.shares.iter().enumerate() {
            for (w, part) in shares.iter().enumerate() {
                let most = costs.worker_counts[w] * self.options[j].max_rate_per_worker[w] / costs.demands[j];
                if let Some(part) = part.filter(|_| most < 1.0) {
                    rows.push((1.0 * part).leq(most));
                }
            }
        }
        rows
    }

    /// Feeds each job as well as if it were alone in the cluster, at the lowest cost. Returns `None` if this is infeasible.
    fn feed_all(&self, alone: &[f64]) -> Option<DemandShares> {
        let variables = self.variables();
        let mut rows = self.capacity_constraints(&variables);
        for (j, fed) in alone.iter().enumerate().filter(|(_, fed)| **fed > 0.0) {
            // Require slightly less, because rounding could make the problem infeasible if one job uses up a resource.
            rows.push(job_sum(&variables, j).eq(fed * (1.0 - 1e-7)));
        }
        let objective = self.cost(&variables);
        self.solve(variables, -objective, rows)
    }

    /// Returns the fed fraction of each job if its tenant were alone in the cluster. Jobs that share a quota reach
    /// lower fed fractions together than alone, and must not limit the jobs of other tenants.
    fn fed_fractions_of_lone_tenants(&self, alone: &[f64], deadline: &dyn Deadline) -> Option<Vec<f64>> {
        let mut reach = alone.to_vec();
        for (tenant, jobs) in self.tenant_jobs.iter().enumerate() {
            let own: Vec<usize> = jobs.iter().copied().filter(|j| alone[*j] > 0.0).collect();
            if self.costs.core_quotas[tenant].is_infinite() || own.len() < 2 {
                continue;
            }
            if deadline.is_over() {
                return None;
            }
            let costs = self.costs.for_tenant(tenant, &own, self.options);
            let options: Vec<&ExecutionOption> = costs.options.iter().map(|options| &options[0]).collect();
            let alone: Vec<f64> = own.iter().map(|j| alone[*j]).collect();
            let level = match fed_fractions_within_quota(&costs, &options, &alone) {
                Some(level) => level,
                None => LinearProblem::new(&costs, &options).max_min_fed_fractions(&alone, deadline)?,
            };
            for ((j, level), alone) in own.into_iter().zip(level).zip(alone) {
                reach[j] = level.min(alone);
            }
        }
        Some(reach)
    }

    /// Returns lower bounds on the fed fractions. They maximise the smallest weighted fed fraction, as far as the
    /// deadline allows.
    fn max_min_fed_fractions(&self, alone: &[f64], deadline: &dyn Deadline) -> Option<Vec<f64>> {
        let weights = &self.costs.weights;
        let mut fixed_at: Vec<Option<f64>> = alone.iter().map(|fed| (*fed <= 0.0).then_some(0.0)).collect();
        let mut level = 0.0;
        // Each tenant may have its own maximum, which requires one more round.
        for round in 0..MAX_LEVEL_ROUNDS + self.costs.core_quotas.len().min(2 * MAX_LEVEL_ROUNDS) {
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
        let floor = |j: usize| (1.0 - LOWER_BOUND_SLACK) * fixed_at[j].unwrap_or(level * weights[j]);
        Some((0..alone.len()).map(floor).collect())
    }

    fn maximise_smallest(&self, fixed_at: &[Option<f64>]) -> Option<f64> {
        // Jobs that are fixed at 0 use no resources.
        let mut variables = self.variables_of(|j| fixed_at[j].is_none_or(|fixed| fixed > 0.0));
        let level = variables.all.add(variable().min(0.0).max(1.0));
        let mut rows = self.capacity_constraints(&variables);
        for (j, apart) in fixed_at.iter().enumerate() {
            let fed = job_sum(&variables, j);
            match apart {
                Some(fixed) if *fixed > 0.0 => rows.push(fed.geq(fixed * (1.0 - 1e-6))),
                Some(_) => {}
                None => rows.push((fed - self.costs.weights[j] * level).geq(0.0)),
            }
        }
        let solved = run_solver(variables.all, level.into(), rows).ok()?;
        Some(solved.value(level).clamp(0.0, 1.0))
    }

    /// Maximises the weighted sum of fed fractions with the given lower bounds.
    fn maximise_sum(&self, floors: &[f64]) -> Option<DemandShares> {
        let variables = self.variables();
        let mut rows = self.capacity_constraints(&variables);
        let mut objective = -self.cost(&variables);
        for (j, floor) in floors.iter().enumerate() {
            if variables.shares[j].iter().any(Option::is_some) {
                rows.push(job_sum(&variables, j).leq(1.0));
                rows.push(job_sum(&variables, j).geq(floor * (1.0 - 1e-6)));
                objective += self.costs.weights[j] * job_sum(&variables, j);
            }
        }
        self.solve(variables, objective, rows)
    }

    /// Returns the cost of cores, scaled so that feeding any job is always worth far more than its cost.
    fn cost(&self, variables: &Variables) -> Expression {
        let price = |j: usize, w: usize| {
            let cores = self.costs.demands[j] * self.options[j].resources_per_row[w][CORES];
            cores * self.costs.core_hour_prices[w]
        };
        let cost_of = |j: usize| {
            (0..self.costs.type_count()).map(|w| price(j, w)).fold(0.0, f64::max) / self.costs.weights[j]
        };
        let largest_cost = (0..self.options.len()).map(cost_of).fold(f64::MIN_POSITIVE, f64::max);
        let mut cost = Expression::with_capacity(self.options.len() * self.costs.type_count());
        for (j, shares) in variables.shares.iter().enumerate() {
            for (w, part) in shares.iter().enumerate() {
                if let Some(part) = part {
                    cost.add_mul(COST_WEIGHT * price(j, w) / largest_cost, *part);
                }
            }
        }
        cost
    }

    /// Maximises the objective. Scales down rates that exceed a capacity within the solver's tolerance.
    fn solve(
        &self,
        variables: Variables,
        objective: Expression,
        rows: Vec<Constraint>,
    ) -> Option<DemandShares> {
        let Variables { all, shares } = variables;
        let solved = run_solver(all, objective, rows).ok()?;
        let value = |part: &Option<Variable>| part.map_or(0.0, |part| solved.value(part)).clamp(0.0, 1.0);
        let clean = |by_type: &Vec<Option<Variable>>| -> Vec<f64> {
            let values: Vec<f64> = by_type.iter().map(value).collect();
            let sum: f64 = values.iter().sum();
            let kept: Vec<f64> = values
                .into_iter()
                .map(|part| if part < SOLVER_NOISE_SHARE * sum { 0.0 } else { part })
                .collect();
            let scale = if sum > 0.0 { sum.min(1.0) / kept.iter().sum::<f64>() } else { 1.0 };
            kept.into_iter().map(|part| part * scale).collect()
        };
        let shares: DemandShares = shares.iter().map(clean).collect();
        let load = largest_load(self.costs, self.options, &self.rows_per_s(&shares));
        // A larger excess means that the solver failed.
        if !load.is_finite() || load > 1.01 {
            return None;
        }
        let scale = 1.0 / load.max(1.0);
        Some(
            shares
                .into_iter()
                .map(|by_type| by_type.into_iter().map(|part| part * scale).collect())
                .collect(),
        )
    }

    fn rows_per_s(&self, shares: &DemandShares) -> Vec<Vec<f64>> {
        let of_job = |(j, by_type): (usize, &Vec<f64>)| {
            by_type.iter().map(|part| part * self.costs.demands[j]).collect()
        };
        shares.iter().enumerate().map(of_job).collect()
    }
}

/// Returns the fed fraction of each job of one tenant if only the tenant's quota limits the jobs, which is the usual
/// case. Each job runs on the worker type on which a row needs the fewest cores, which is optimal. Returns `None` if
/// this violates another constraint.
fn fed_fractions_within_quota(
    costs: &Costs,
    options: &[&ExecutionOption],
    alone: &[f64],
) -> Option<Vec<f64>> {
    let cores = |j: usize, w: usize| options[j].resources_per_row[w][CORES] * costs.demands[j];
    let is_usable =
        |j: usize, w: &usize| costs.worker_counts[*w] > 0.0 && costs.rate_on_one_worker(options[j], *w) > 0.0;
    let sparing = |j: usize| {
        let usable = (0..costs.type_count()).filter(|w| is_usable(j, w));
        usable.min_by(|a, b| cores(j, *a).total_cmp(&cores(j, *b)))
    };
    let types: Vec<usize> = (0..options.len()).map(sparing).collect::<Option<_>>()?;
    let claim = |j: usize| QuotaDemand {
        weight: costs.weights[j],
        max_fed_fraction: alone[j],
        cores: cores(j, types[j]),
    };
    let level = highest_level((0..options.len()).map(claim).collect(), costs.core_quotas[0], 1.0);
    let fed: Vec<f64> = (0..options.len()).map(|j| (level * costs.weights[j]).min(alone[j])).collect();
    let rows: Vec<Vec<f64>> = (0..options.len())
        .map(|j| {
            (0..costs.type_count())
                .map(|w| if w == types[j] { fed[j] * costs.demands[j] } else { 0.0 })
                .collect()
        })
        .collect();
    let fits = largest_load(costs, options, &rows) <= 1.0 + 1e-9;
    fits.then(|| fed.into_iter().map(|fed| (1.0 - LOWER_BOUND_SLACK) * fed).collect())
}

/// Maximises the objective under the constraints `rows`.
pub(super) fn run_solver(
    variables: ProblemVariables,
    objective: Expression,
    rows: Vec<Constraint>,
) -> Result<impl Solution, ResolutionError> {
    run_solver_within(variables, objective, rows, OBJECTIVE_TOLERANCE)
}

/// Like [`run_solver`], with a given tolerance of the objective.
pub(super) fn run_solver_within(
    variables: ProblemVariables,
    objective: Expression,
    rows: Vec<Constraint>,
    tolerance: f64,
) -> Result<impl Solution, ResolutionError> {
    // The solver requires at least one variable and one constraint.
    if variables.is_empty() || rows.is_empty() {
        return Err(ResolutionError::Other("nothing to solve"));
    }
    let mut model = variables.maximise(objective).using(clarabel);
    // The solver converges within 30 iterations, or not at all.
    model.settings().max_iter(100).tol_gap_abs(tolerance).tol_gap_rel(tolerance);
    for row in rows {
        model.add_constraint(row);
    }
    model.solve()
}

fn job_sum(variables: &Variables, job: usize) -> Expression {
    let mut sum = Expression::with_capacity(variables.shares[job].len());
    for part in variables.shares[job].iter().flatten() {
        sum.add_mul(1.0, *part);
    }
    sum
}

/// Returns the constraint that the used shares of a capacity add up to at most 1, or `None` if no job uses it. `needed`
/// returns the share that a job would use if worker type `w` served its whole demand.
fn capacity_constraint(
    variables: &Variables,
    jobs: impl ExactSizeIterator<Item = usize>,
    needed: impl Fn(usize, usize) -> f64,
) -> Option<Constraint> {
    let mut sum = Expression::with_capacity(jobs.len());
    let mut is_used = false;
    for j in jobs {
        for (w, part) in variables.shares[j].iter().enumerate() {
            let amount = needed(j, w);
            if let Some(part) = part.filter(|_| amount > 0.0) {
                sum.add_mul(amount, part);
                is_used = true;
            }
        }
    }
    is_used.then(|| sum.leq(1.0))
}
