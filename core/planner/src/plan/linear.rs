//! The linear problem: with caches chosen, how many rows per second each job gets from each worker type.
//!
//! Variables are `g[j][w]`, the part of job j's demand that workers of type w serve. A job's operators run on one worker
//! and share its cores, so one variable for each job and type is enough: 1,000 jobs on 4 types are 4,000 variables.
//! Everything is scaled so that capacities and demands are 1.
//!
//! Values are compared from the first to the last. First all is fed at least cost, if it can be. If not: the smallest
//! weighted fed fraction t is raised; jobs that cannot reach t even alone are held at what they reach and t is raised
//! for the others; then the weighted sum is raised, less a cost so small that it decides between equals only.

use good_lp::{
    Constraint, Expression, ProblemVariables, ResolutionError, Solution, SolverModel, Variable, clarabel,
    variable,
};

use super::costs::{CORES, Costs, ExecutionOption, RESOURCES};
use super::level::{QuotaDemand, highest};
use super::solution::Objective;
use super::solve::Deadline;

#[cfg(test)]
mod tests;

/// Rates before they are given to single workers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FractionalPlan {
    /// Rows per second of each job on each type.
    pub(super) rows: Vec<Vec<f64>>,
    /// Fed fraction of each job.
    pub(super) fed: Vec<f64>,
    /// What it reaches; its cost is that of cores alone.
    pub(super) objective: Objective,
}

/// Rounds in which jobs that cannot reach the others' level are set apart.
const ROUNDS: usize = 4;
/// A type that serves a smaller part of what a job gets is left to the others: noise of the solver, or not worth it.
const NOISE: f64 = 1e-4;
/// Cost may change the weighted sum by this share at most.
const COST_WEIGHT: f64 = 1e-3;

/// Floors are lower by this share than what can be reached, so that the next problem has room inside for an interior-point
/// solver.
const HAIR: f64 = 1e-6;

/// The best rates with these ways; `None` when the solver fails, or time ends before there are any. Where it ends later, the
/// smallest fed fraction may be below the largest.
pub(super) fn share(costs: &Costs, chosen: &[usize], deadline: &dyn Deadline) -> Option<FractionalPlan> {
    let ways: Vec<&ExecutionOption> =
        chosen.iter().enumerate().map(|(j, way)| &costs.ways[j][*way]).collect();
    share_ways(costs, &ways, deadline)
}

/// The same for ways that need not be among those of the jobs.
pub(super) fn share_ways(
    costs: &Costs,
    ways: &[&ExecutionOption],
    deadline: &dyn Deadline,
) -> Option<FractionalPlan> {
    let alone: Vec<f64> = ways.iter().enumerate().map(|(j, way)| costs.fed_alone(j, way)).collect();
    if ways.is_empty() || alone.iter().all(|fed| *fed <= 0.0) {
        return Some(measure(costs, ways, vec![vec![0.0; costs.types()]; ways.len()]));
    }
    let served = Served::new(costs, ways);
    let all = if costs.is_short { None } else { served.feed_all(&alone) };
    let parts = match all {
        Some(parts) => parts,
        None => {
            let floors = served.level(&served.reach(&alone, deadline)?, deadline)?;
            served.most(&floors)?
        }
    };
    Some(measure(costs, ways, served.rows(&parts)))
}

/// What rates reach.
pub(super) fn measure(costs: &Costs, ways: &[&ExecutionOption], rows: Vec<Vec<f64>>) -> FractionalPlan {
    let mut objective = Objective { smallest_fed: 1.0, ..Objective::default() };
    let mut fed = Vec::with_capacity(ways.len());
    for (j, by_type) in rows.iter().enumerate() {
        let rate: f64 = by_type.iter().sum();
        let part = fed_fraction(rate, costs.demand[j]);
        objective.smallest_fed = objective.smallest_fed.min(part / costs.weights[j]);
        objective.total_fed += part * costs.weights[j];
        let price = |w: usize| by_type[w] * ways[j].per_row[w][CORES] * costs.core_hour[w];
        objective.cost_per_hour += (0..costs.types()).map(price).sum::<f64>();
        fed.push(part);
    }
    FractionalPlan { rows, fed, objective }
}

/// Rate over demand; what only the solver's tolerance is missing to 1 counts as 1.
pub(super) fn fed_fraction(rate: f64, demand: f64) -> f64 {
    if rate >= demand * (1.0 - 1e-5) { 1.0 } else { rate / demand }
}

/// The largest share of any capacity that these rates take; at most 1 where they are feasible.
pub(super) fn load(costs: &Costs, ways: &[&ExecutionOption], rows: &[Vec<f64>]) -> f64 {
    let mut worst: f64 = 0.0;
    let mut taken = vec![[0.0; RESOURCES]; costs.types()];
    for (way, by_type) in ways.iter().zip(rows) {
        for (w, rate) in by_type.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
            for (taken, takes) in taken[w].iter_mut().zip(&way.per_row[w]) {
                *taken += rate * takes;
            }
            worst = worst.max(rate / (costs.counts[w] * way.most_per_worker[w]));
        }
    }
    for (w, amounts) in taken.iter().enumerate() {
        for (resource, amount) in amounts.iter().enumerate().filter(|(_, amount)| **amount > 0.0) {
            worst = worst.max(amount / (costs.counts[w] * costs.has[w][resource]));
        }
    }
    let cores = ways.iter().zip(rows).map(|(way, by_type)| costs.cores_of(way, by_type));
    worst = costs.tenant_loads(cores.enumerate()).into_iter().fold(worst, f64::max);
    let read = |(way, by_type): (&&ExecutionOption, &Vec<f64>)| {
        (way.store, way.store_bytes * by_type.iter().sum::<f64>())
    };
    costs.store_loads(ways.iter().zip(rows).map(read)).into_iter().fold(worst, f64::max)
}

/// Parts of demands: `parts[j][w]`.
type Parts = Vec<Vec<f64>>;

struct Served<'a> {
    costs: &'a Costs,
    ways: &'a [&'a ExecutionOption],
    /// The jobs of each tenant.
    tenants: Vec<Vec<usize>>,
}

/// The variables of one linear problem; `None` where a job can get nothing from a type.
struct Unknowns {
    all: ProblemVariables,
    parts: Vec<Vec<Option<Variable>>>,
}

impl<'a> Served<'a> {
    fn new(costs: &'a Costs, ways: &'a [&'a ExecutionOption]) -> Self {
        Self { costs, ways, tenants: costs.jobs_of_tenants() }
    }

    fn unknowns(&self) -> Unknowns {
        self.unknowns_of(|_| true)
    }

    /// Those of some jobs only.
    fn unknowns_of(&self, is_asked: impl Fn(usize) -> bool) -> Unknowns {
        let mut all = ProblemVariables::new();
        let parts = (0..self.ways.len()).map(|j| {
            let usable = |w: usize| {
                is_asked(j)
                    && self.costs.demand[j] > 0.0
                    && self.costs.counts[w] > 0.0
                    && self.costs.on_one(self.ways[j], w) > 0.0
            };
            (0..self.costs.types()).map(|w| usable(w).then(|| all.add(variable().min(0.0)))).collect()
        });
        let parts = parts.collect();
        Unknowns { all, parts }
    }

    /// What all rates together must keep to.
    fn capacities(&self, unknowns: &Unknowns) -> Vec<Constraint> {
        let (costs, mut rows) = (self.costs, Vec::new());
        for w in 0..costs.types() {
            for resource in 0..RESOURCES {
                let there = costs.counts[w] * costs.has[w][resource];
                let takes = |j: usize, at: usize| {
                    if at == w { self.ways[j].per_row[w][resource] * costs.demand[j] / there } else { 0.0 }
                };
                if there > 0.0 && there.is_finite() {
                    rows.extend(at_most_one(unknowns, 0..self.ways.len(), takes));
                }
            }
        }
        for (own, quota) in self.tenants.iter().zip(&costs.quotas).filter(|(_, quota)| quota.is_finite()) {
            let takes = |j: usize, w: usize| self.ways[j].per_row[w][CORES] * costs.demand[j] / quota;
            rows.extend(at_most_one(unknowns, own.iter().copied(), takes));
        }
        for (store, gives) in costs.stores.iter().enumerate().filter(|(_, gives)| gives.is_finite()) {
            let reads = |j: usize| if self.ways[j].store == store { self.ways[j].store_bytes } else { 0.0 };
            let takes = |j: usize, _: usize| reads(j) * costs.demand[j] / gives;
            rows.extend(at_most_one(unknowns, 0..self.ways.len(), takes));
        }
        for (j, parts) in unknowns.parts.iter().enumerate() {
            for (w, part) in parts.iter().enumerate() {
                let most = costs.counts[w] * self.ways[j].most_per_worker[w] / costs.demand[j];
                if let Some(part) = part.filter(|_| most < 1.0) {
                    rows.push((1.0 * part).leq(most));
                }
            }
        }
        rows
    }

    /// Feeds each job as well as it could be alone, at least cost; `None` where that cannot be.
    fn feed_all(&self, alone: &[f64]) -> Option<Parts> {
        let unknowns = self.unknowns();
        let mut rows = self.capacities(&unknowns);
        for (j, fed) in alone.iter().enumerate().filter(|(_, fed)| **fed > 0.0) {
            // A hair less, so that a job that fills a resource alone does not make this infeasible by rounding.
            rows.push(total(&unknowns, j).eq(fed * (1.0 - 1e-7)));
        }
        let objective = self.cost(&unknowns);
        self.solve(unknowns, -objective, rows)
    }

    /// Fed fractions that jobs reach if their tenant has the cluster for itself: jobs that fill a quota together reach less
    /// than each would alone, and are to hold up nobody else.
    fn reach(&self, alone: &[f64], deadline: &dyn Deadline) -> Option<Vec<f64>> {
        let mut reach = alone.to_vec();
        for (tenant, jobs) in self.tenants.iter().enumerate() {
            let own: Vec<usize> = jobs.iter().copied().filter(|j| alone[*j] > 0.0).collect();
            if self.costs.quotas[tenant].is_infinite() || own.len() < 2 {
                continue;
            }
            if deadline.is_over() {
                return None;
            }
            let costs = self.costs.of_tenant(tenant, &own, self.ways);
            let ways: Vec<&ExecutionOption> = costs.ways.iter().map(|ways| &ways[0]).collect();
            let alone: Vec<f64> = own.iter().map(|j| alone[*j]).collect();
            let level = match within_quota(&costs, &ways, &alone) {
                Some(level) => level,
                None => Served::new(&costs, &ways).level(&alone, deadline)?,
            };
            for ((j, level), alone) in own.into_iter().zip(level).zip(alone) {
                reach[j] = level.min(alone);
            }
        }
        Some(reach)
    }

    /// The level of each job when the smallest weighted fed fraction is as large as can be; where time ends, as large as it
    /// was found to be until then.
    fn level(&self, alone: &[f64], deadline: &dyn Deadline) -> Option<Vec<f64>> {
        let weights = &self.costs.weights;
        let mut set_apart: Vec<Option<f64>> = alone.iter().map(|fed| (*fed <= 0.0).then_some(0.0)).collect();
        let mut level = 0.0;
        // Each tenant may be held at a level of its own.
        for round in 0..ROUNDS + self.costs.quotas.len().min(2 * ROUNDS) {
            if set_apart.iter().all(Option::is_some) || (round > 0 && deadline.is_over()) {
                break;
            }
            level = self.raise(&set_apart)?;
            let mut found = false;
            for j in 0..alone.len() {
                if set_apart[j].is_none() && alone[j] <= level * weights[j] * (1.0 + 1e-5) {
                    set_apart[j] = Some(alone[j]);
                    found = true;
                }
            }
            if !found {
                break;
            }
        }
        let floor = |j: usize| (1.0 - HAIR) * set_apart[j].unwrap_or(level * weights[j]);
        Some((0..alone.len()).map(floor).collect())
    }

    fn raise(&self, set_apart: &[Option<f64>]) -> Option<f64> {
        // Who gets nothing takes nothing.
        let mut unknowns = self.unknowns_of(|j| set_apart[j].is_none_or(|fixed| fixed > 0.0));
        let level = unknowns.all.add(variable().min(0.0).max(1.0));
        let mut rows = self.capacities(&unknowns);
        for (j, apart) in set_apart.iter().enumerate() {
            let fed = total(&unknowns, j);
            match apart {
                Some(fixed) if *fixed > 0.0 => rows.push(fed.geq(fixed * (1.0 - 1e-6))),
                Some(_) => {}
                None => rows.push((fed - self.costs.weights[j] * level).geq(0.0)),
            }
        }
        let solved = run(unknowns.all, level.into(), rows).ok()?;
        Some(solved.value(level).clamp(0.0, 1.0))
    }

    /// The largest weighted sum over these floors.
    fn most(&self, floors: &[f64]) -> Option<Parts> {
        let unknowns = self.unknowns();
        let mut rows = self.capacities(&unknowns);
        let mut objective = -self.cost(&unknowns);
        for (j, floor) in floors.iter().enumerate() {
            if unknowns.parts[j].iter().any(Option::is_some) {
                rows.push(total(&unknowns, j).leq(1.0));
                rows.push(total(&unknowns, j).geq(floor * (1.0 - 1e-6)));
                objective += self.costs.weights[j] * total(&unknowns, j);
            }
        }
        self.solve(unknowns, objective, rows)
    }

    /// Cost of the cores, scaled so that feeding any job is worth far more than its own cost.
    fn cost(&self, unknowns: &Unknowns) -> Expression {
        let price = |j: usize, w: usize| {
            let cores = self.costs.demand[j] * self.ways[j].per_row[w][CORES];
            cores * self.costs.core_hour[w]
        };
        let dear = |j: usize| {
            (0..self.costs.types()).map(|w| price(j, w)).fold(0.0, f64::max) / self.costs.weights[j]
        };
        let dearest = (0..self.ways.len()).map(dear).fold(f64::MIN_POSITIVE, f64::max);
        let mut cost = Expression::with_capacity(self.ways.len() * self.costs.types());
        for (j, parts) in unknowns.parts.iter().enumerate() {
            for (w, part) in parts.iter().enumerate() {
                if let Some(part) = part {
                    cost.add_mul(COST_WEIGHT * price(j, w) / dearest, *part);
                }
            }
        }
        cost
    }

    /// Maximises, and cuts off what a solver's tolerance puts over a capacity.
    fn solve(&self, unknowns: Unknowns, objective: Expression, rows: Vec<Constraint>) -> Option<Parts> {
        let Unknowns { all, parts } = unknowns;
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
        let load = load(self.costs, self.ways, &self.rows(&parts));
        // A solver that is this far off has not solved it.
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

/// The level of each job of one tenant where its quota is all that binds, as it mostly is: with each job on the type where a row
/// takes the fewest cores no level takes fewer, so that no rates reach a higher one. `None` where something else binds too.
fn within_quota(costs: &Costs, ways: &[&ExecutionOption], alone: &[f64]) -> Option<Vec<f64>> {
    let cores = |j: usize, w: usize| ways[j].per_row[w][CORES] * costs.demand[j];
    let is_usable = |j: usize, w: &usize| costs.counts[*w] > 0.0 && costs.on_one(ways[j], *w) > 0.0;
    let sparing = |j: usize| {
        let usable = (0..costs.types()).filter(|w| is_usable(j, w));
        usable.min_by(|a, b| cores(j, *a).total_cmp(&cores(j, *b)))
    };
    let types: Vec<usize> = (0..ways.len()).map(sparing).collect::<Option<_>>()?;
    let claim =
        |j: usize| QuotaDemand { weight: costs.weights[j], most_fed: alone[j], cores: cores(j, types[j]) };
    let level = highest((0..ways.len()).map(claim).collect(), costs.quotas[0], 1.0);
    let fed: Vec<f64> = (0..ways.len()).map(|j| (level * costs.weights[j]).min(alone[j])).collect();
    let rows: Vec<Vec<f64>> = (0..ways.len())
        .map(|j| {
            (0..costs.types()).map(|w| if w == types[j] { fed[j] * costs.demand[j] } else { 0.0 }).collect()
        })
        .collect();
    let fits = load(costs, ways, &rows) <= 1.0 + 1e-9;
    fits.then(|| fed.into_iter().map(|fed| (1.0 - HAIR) * fed).collect())
}

/// Runs the solver.
pub(super) fn run(
    variables: ProblemVariables,
    objective: Expression,
    rows: Vec<Constraint>,
) -> Result<impl Solution, ResolutionError> {
    // The solver cannot do without either.
    if variables.is_empty() || rows.is_empty() {
        return Err(ResolutionError::Other("nothing to solve"));
    }
    let mut model = variables.maximise(objective).using(clarabel);
    // It converges within 20 or 30 steps, or not at all.
    model.settings().max_iter(100);
    for row in rows {
        model.add_constraint(row);
    }
    model.solve()
}

fn total(unknowns: &Unknowns, job: usize) -> Expression {
    let mut sum = Expression::with_capacity(unknowns.parts[job].len());
    for part in unknowns.parts[job].iter().flatten() {
        sum.add_mul(1.0, *part);
    }
    sum
}

/// The row of a capacity, of which each of these jobs takes a share on type w; `None` where nobody takes of it.
fn at_most_one(
    unknowns: &Unknowns,
    jobs: impl ExactSizeIterator<Item = usize>,
    takes: impl Fn(usize, usize) -> f64,
) -> Option<Constraint> {
    let mut sum = Expression::with_capacity(jobs.len());
    let mut is_used = false;
    for j in jobs {
        for (w, part) in unknowns.parts[j].iter().enumerate() {
            let amount = takes(j, w);
            if let Some(part) = part.filter(|_| amount > 0.0) {
                sum.add_mul(amount, part);
                is_used = true;
            }
        }
    }
    is_used.then(|| sum.leq(1.0))
}
