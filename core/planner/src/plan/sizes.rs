//! The variable numbers of workers of each type, with their limits and costs, in the linear problem of `plan/wanted.rs`.
//!
//! In the objective, existing workers cost slightly less than new workers, so that the solution does not replace workers
//! with equivalent new workers.
//!
//! If a scaler sets the sizes of pools, the maximum of each pool is a constraint, so that demand beyond it moves to other
//! pools. Demand beyond all maximums is added to the wanted number of one pool at a high cost, so that users see how many
//! workers would feed all jobs. The workers of a pool's minimum run in any case, so that they cost nearly nothing. Workers
//! of other pools cannot be added or removed, and cost nearly nothing.
//!
//! The variables are multiples of a unit, so that the solver's values are near 1, which makes them more precise.

use good_lp::{Constraint, Expression, ProblemVariables, Variable, variable};

use super::costs::Costs;
use super::problem::{PoolProblem, Problem, WorkerType};

#[cfg(test)]
mod tests;

/// The cost of an existing worker, relative to the cost of a new worker.
const EXISTING_WORKER_COST_FACTOR: f64 = 0.9;
/// The cost of a worker beyond the maximum of its pool, relative to the cost of a new worker. It is larger than the ratio
/// of the prices of two pools, so that other pools come first.
const EXCESS_COST_FACTOR: f64 = 100.0;
/// The cost of a worker that runs in any case, relative to the cost of another existing worker.
const UNAVOIDABLE_COST_FACTOR: f64 = 0.02;
/// The difference between the relative costs of workers of the first and the last type, if no worker type has a price. It
/// is less than the difference between an existing and a new worker.
const PREFERENCE: f64 = 0.08;
/// The same difference if a worker type has a price. It decides only between equal prices.
const PREFERENCE_WITH_PRICES: f64 = 0.002;

/// The numbers of workers of one type, in units.
pub(super) struct FleetVariables {
    /// The number of existing workers that stay.
    kept_workers: Variable,
    /// The number of new workers.
    added_workers: Variable,
    /// The number of workers beyond the maximum of the pool; `None` without a maximum.
    excess_workers: Option<Variable>,
}

impl FleetVariables {
    /// The number of workers within the limits of the pool.
    fn within_limits(&self) -> Expression {
        self.kept_workers + self.added_workers
    }

    /// The number of workers.
    pub(super) fn total(&self) -> Expression {
        self.within_limits() + self.excess_workers
    }
}

/// The limits of a pool with at least one worker type, in units.
struct PoolVariables {
    max_workers: f64,
    /// The indexes of the worker types of the pool.
    types: Vec<usize>,
    /// The number of workers, up to the minimum of the pool; `None` without a minimum.
    minimum_workers: Option<Variable>,
}

/// The numbers of workers of all types and pools.
pub(super) struct SizeVariables {
    /// The number of workers of one unit.
    pub(super) unit: f64,
    /// By worker type.
    pub(super) fleets: Vec<FleetVariables>,
    pools: Vec<PoolVariables>,
}

impl SizeVariables {
    /// Adds the variables of a problem to `all`.
    pub(super) fn new(problem: &Problem, costs: &Costs, unit: f64, all: &mut ProblemVariables) -> Self {
        let mut add_up_to = |workers: f64| all.add(variable().min(0.0).max(workers / unit));
        let mut fleets = Vec::with_capacity(costs.type_count());
        for (kind, present) in problem.worker_types.iter().zip(&costs.worker_counts) {
            let growth = GrowthLimits::new(problem, kind, *present);
            fleets.push(FleetVariables {
                kept_workers: add_up_to(*present),
                added_workers: add_up_to(growth.added_workers),
                excess_workers: growth.excess_workers.map(&mut add_up_to),
            });
        }
        let mut pools = Vec::with_capacity(problem.pools.len());
        for PoolProblem { name, min_workers, max_workers } in &problem.pools {
            let is_own = |w: &usize| problem.worker_types[*w].pool == *name;
            let types: Vec<usize> = (0..costs.type_count()).filter(is_own).collect();
            if !types.is_empty() {
                let minimum_workers = (*min_workers > 0).then(|| add_up_to(f64::from(*min_workers)));
                pools.push(PoolVariables {
                    max_workers: f64::from(*max_workers) / unit,
                    types,
                    minimum_workers,
                });
            }
        }
        Self { unit, fleets, pools }
    }

    /// The number of workers of a pool within its limits.
    fn within_limits(&self, pool: &PoolVariables) -> Expression {
        pool.types.iter().map(|w| self.fleets[*w].within_limits()).sum()
    }

    /// Returns the limits of the pools.
    pub(super) fn constraints(&self) -> Vec<Constraint> {
        let mut rows = Vec::with_capacity(2 * self.pools.len());
        for pool in &self.pools {
            rows.push(self.within_limits(pool).leq(pool.max_workers));
            if let Some(minimum_workers) = pool.minimum_workers {
                rows.push((minimum_workers - self.within_limits(pool)).leq(0.0));
            }
        }
        rows
    }

    /// Returns the cost of all workers. `type_costs` contains the cost of one unit of new workers of each type.
    pub(super) fn cost(&self, problem: &Problem, costs: &Costs, type_costs: &[f64]) -> Expression {
        let preferences = preference_costs(problem, costs);
        let mut cost = Expression::with_capacity(3 * self.fleets.len() + self.pools.len());
        for (w, fleet) in self.fleets.iter().enumerate() {
            let new = (1.0 + preferences[w]) * type_costs[w];
            let is_fixed = !problem.pools.is_empty() && pool_of(problem, &problem.worker_types[w]).is_none();
            let unavoidable = if is_fixed { UNAVOIDABLE_COST_FACTOR } else { 1.0 };
            cost.add_mul(unavoidable * EXISTING_WORKER_COST_FACTOR * new, fleet.kept_workers);
            cost.add_mul(new, fleet.added_workers);
            cost.add_mul(EXCESS_COST_FACTOR * new, fleet.excess_workers);
        }
        for pool in &self.pools {
            let least = pool.types.iter().map(|w| type_costs[*w]).fold(f64::INFINITY, f64::min);
            let refund = (1.0 - UNAVOIDABLE_COST_FACTOR) * EXISTING_WORKER_COST_FACTOR * least;
            cost.add_mul(-refund, pool.minimum_workers);
        }
        cost
    }
}

fn pool_of<'a>(problem: &'a Problem, kind: &WorkerType) -> Option<&'a PoolProblem> {
    problem.pools.iter().find(|pool| pool.name == kind.pool)
}

/// Maximum numbers of new workers of one type.
struct GrowthLimits {
    /// Workers within the maximum of the pool.
    added_workers: f64,
    /// Workers beyond the maximum of the pool; `None` without a maximum.
    excess_workers: Option<f64>,
}

impl GrowthLimits {
    /// Returns the limits of a type with `present` workers.
    fn new(problem: &Problem, kind: &WorkerType, present: f64) -> Self {
        let missing = |most: u32| (f64::from(most) - present).max(0.0);
        let all = missing(kind.max_workers);
        if problem.pools.is_empty() {
            return Self { added_workers: all, excess_workers: None };
        }
        match pool_of(problem, kind) {
            Some(pool) if pool.max_workers > 0 => {
                Self { added_workers: all.min(missing(pool.max_workers)), excess_workers: Some(all) }
            }
            _ => Self { added_workers: 0.0, excess_workers: None },
        }
    }
}

/// Returns an additional relative cost of each type, which decides between types of equal cost: first the types of pools
/// with workers, then the order of the pools.
fn preference_costs(problem: &Problem, costs: &Costs) -> Vec<f64> {
    let types = &problem.worker_types;
    let mut preferences = vec![0.0; types.len()];
    if problem.pools.is_empty() || types.len() < 2 {
        return preferences;
    }
    let has_workers = |pool: &str| {
        let mut counts = types.iter().zip(&costs.worker_counts);
        counts.any(|(kind, count)| kind.pool == pool && *count > 0.0)
    };
    let mut order: Vec<usize> = (0..types.len()).collect();
    order.sort_by_key(|w| {
        let index = problem.pools.iter().position(|pool| pool.name == types[*w].pool);
        (index.is_none(), !has_workers(&types[*w].pool), index, *w)
    });
    let has_prices = types.iter().any(|kind| kind.core_hour > 0.0);
    let span = if has_prices { PREFERENCE_WITH_PRICES } else { PREFERENCE };
    for (rank, w) in order.into_iter().enumerate() {
        preferences[w] = span * rank as f64 / (types.len() - 1) as f64;
    }
    preferences
}
