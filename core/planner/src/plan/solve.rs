//! Computes a plan from a problem and the previous plan. Solving the same problem twice returns the same plan. Small
//! changes to the problem do not change decisions.

use std::collections::BTreeMap;

use super::assign::{JobPlacement, PreviousWorkers, assign, worker_indexes};
use super::caches::{self, CacheSelection, cached_bytes, with_price};
use super::costs::{CORES, Costs, ExecutionOption, RESOURCES, ratio};
use super::deadline::Deadline;
use super::fallback;
use super::linear::{FractionalPlan, evaluate_rates, fed_fraction};
use super::problem::{JobProblem, Problem, WorkerSlot};
use super::reasons;
use super::solution::{CachePlan, JobPlan, Objective, Plan, PlannedCachePoint};
use super::tune;
use super::wanted::wanted_workers;

#[cfg(test)]
mod tests;

/// Solves a problem. Returns the previous plan if the problem is unchanged. Keeps the decisions of the previous plan
/// unless a new plan improves the objective by [`min_gain_to_change`](super::PlannerSettings::min_gain_to_change). Jobs
/// stay on their workers as far as possible.
///
/// # Errors
///
/// Returns a message if the problem is inconsistent: see [`Problem::check`].
pub fn solve(problem: &Problem, previous: Option<&Plan>, deadline: &dyn Deadline) -> Result<Plan, String> {
    problem.check()?;
    let fingerprint = problem.fingerprint();
    if let Some(previous) = previous.filter(|plan| plan.fingerprint == fingerprint && !plan.is_fallback) {
        return Ok(previous.clone());
    }
    let mut costs = Costs::new(problem);
    let bound = upper_bound(&costs, deadline);
    costs.is_overloaded = bound.total_fed < 0.999 * costs.weights.iter().sum::<f64>();
    let types: Vec<usize> = problem.workers.iter().map(|slot| slot.worker_type).collect();
    let before = previous.map(|plan| PreviousPlan::new(problem, &costs, plan));
    let old = before
        .as_ref()
        .filter(|before| before.is_complete)
        .map(|before| before.draft(&costs, &types))
        .filter(|old| is_feasible(&costs, old, &types));
    let gain = problem.settings.min_gain_to_change;
    let (draft, is_fallback, is_kept) = match old {
        // No plan can improve the objective by the minimum gain.
        Some(old) if !bound.is_better(&old.objective, gain) => (old, false, true),
        old => {
            let (new, is_fallback) = new_draft(problem, &costs, &types, before.as_ref(), deadline);
            match old.filter(|old| !new.objective.is_better(&old.objective, gain)) {
                Some(old) => (old, false, true),
                None => (new, is_fallback, false),
            }
        }
    };
    let mut plan = build_plan(problem, &costs, draft, bound, deadline);
    plan.fingerprint = fingerprint;
    plan.is_fallback = is_fallback;
    plan.reasons = reasons::plan_reasons(problem, &plan, previous, is_kept);
    Ok(plan)
}

/// Returns a new draft, and whether it is a fallback plan. The draft keeps only the placements of the previous plan.
fn new_draft(
    problem: &Problem,
    costs: &Costs,
    types: &[usize],
    before: Option<&PreviousPlan>,
    deadline: &dyn Deadline,
) -> (PlanDraft, bool) {
    let known = before
        .map(|before| before.options.as_slice())
        .filter(|options| caches::fits_capacity(costs, options));
    let chosen = match deadline.is_over() {
        true => None,
        false => caches::choose_caches(costs, &problem.settings, known, deadline),
    };
    let is_fallback = chosen.is_none();
    let chosen = chosen.unwrap_or_else(|| fallback_selection(costs, known));
    let cores = before.map_or_else(|| vec![Vec::new(); costs.job_count()], PreviousPlan::cores);
    let options = chosen_options(costs, &chosen.options);
    let previous = PreviousWorkers { cores: &cores, graph_holders: &graph_holders(problem) };
    let placements =
        assign(costs, &options, &chosen.fractional.rows_per_s, types, previous, problem.settings.headroom);
    (PlanDraft::new(costs, chosen.options.clone(), placements, types), is_fallback)
}

/// Returns the workers that hold the graph of each job, as indexes in the problem's list of workers.
fn graph_holders(problem: &Problem) -> Vec<Vec<usize>> {
    if problem.jobs.iter().all(|job| job.graph_holders.is_empty()) {
        return vec![Vec::new(); problem.jobs.len()];
    }
    let indexes = worker_indexes(&problem.workers);
    let of_job =
        |job: &JobProblem| job.graph_holders.iter().filter_map(|id| indexes.get(id).copied()).collect();
    problem.jobs.iter().map(of_job).collect()
}

/// Returns the upper bound on the objective. If the deadline has passed, assumes that all jobs are fully fed at no
/// cost.
fn upper_bound(costs: &Costs, deadline: &dyn Deadline) -> Objective {
    let found = match deadline.is_over() {
        true => None,
        false => caches::upper_bound(costs, deadline),
    };
    found.unwrap_or(Objective {
        smallest_fed: 1.0,
        total_fed: costs.weights.iter().sum(),
        cost_per_hour: 0.0,
    })
}

/// Returns a selection with the previous caches, computed without the solver.
fn fallback_selection(costs: &Costs, known: Option<&[usize]>) -> CacheSelection {
    let options = known.map_or_else(|| vec![0; costs.job_count()], <[usize]>::to_vec);
    let fractional = fallback::even_rates(costs, &options);
    with_price(costs, options, fractional)
}

fn chosen_options<'a>(costs: &'a Costs, options: &[usize]) -> Vec<&'a ExecutionOption> {
    options.iter().enumerate().map(|(j, option)| &costs.options[j][*option]).collect()
}

/// Decisions for individual workers, with the resulting rates and objective.
struct PlanDraft {
    options: Vec<usize>,
    placements: Vec<Vec<JobPlacement>>,
    rates: Vec<f64>,
    objective: Objective,
}

impl PlanDraft {
    /// Computes the rate of each job: the sum over its workers, at most its demand. If the jobs that read a store
    /// exceed its bandwidth, their rates are reduced. This occurs only for previous plans, because costs may have
    /// changed.
    fn new(costs: &Costs, options: Vec<usize>, placements: Vec<Vec<JobPlacement>>, types: &[usize]) -> Self {
        let used = chosen_options(costs, &options);
        let mut rates: Vec<f64> = costs.demands.clone();
        for (rate, placements) in rates.iter_mut().zip(&placements) {
            *rate = rate.min(placements.iter().map(|placement| placement.rows_per_s).sum());
        }
        let loads = costs.store_loads(
            rates.iter().zip(&used).map(|(rate, option)| (option.store, rate * option.store_bytes_per_row)),
        );
        let scale =
            |option: &ExecutionOption| loads.get(option.store).map_or(1.0, |load| ratio(1.0, *load).min(1.0));
        let mut rows = vec![vec![0.0; costs.type_count()]; placements.len()];
        for (j, placements) in placements.iter().enumerate() {
            rates[j] *= if used[j].store_bytes_per_row > 0.0 { scale(used[j]) } else { 1.0 };
            let sum: f64 = placements.iter().map(|placement| placement.rows_per_s).sum();
            for placement in placements {
                rows[j][types[placement.worker]] += rates[j] * placement.rows_per_s / sum;
            }
        }
        let fractional: FractionalPlan = evaluate_rates(costs, &used, rows);
        let CacheSelection { options, objective, .. } = with_price(costs, options, fractional);
        Self { options, placements, rates, objective }
    }

    /// Returns the used share of each tenant's core quota.
    fn tenant_loads(&self, costs: &Costs) -> Vec<f64> {
        let cores = self
            .placements
            .iter()
            .map(|placements| placements.iter().map(|placement| placement.cores).sum::<f64>());
        costs.tenant_loads(cores.enumerate())
    }
}

/// The previous plan, converted to the indexes of the current problem.
struct PreviousPlan {
    options: Vec<usize>,
    placements: Vec<Vec<JobPlacement>>,
    /// Whether the previous plan contains all jobs, and all its workers still exist.
    is_complete: bool,
}

impl PreviousPlan {
    fn new(problem: &Problem, costs: &Costs, plan: &Plan) -> Self {
        let indexes = worker_indexes(&problem.workers);
        let jobs: BTreeMap<_, &JobPlan> = plan.jobs.iter().map(|job| (job.job, job)).collect();
        let mut before = Self { options: Vec::new(), placements: Vec::new(), is_complete: true };
        for (j, job) in problem.jobs.iter().enumerate() {
            let known = jobs.get(&job.id);
            let cache = known.and_then(|known| known.cache);
            let same = |option: &ExecutionOption| {
                option.cache.map(|own| (own.tier, own.key)) == cache.map(|cache| (cache.tier, cache.key))
            };
            let option = costs.options[j].iter().position(same);
            let count = known.map_or(0, |known| known.allocations.len());
            // `draft` computes rates from cores. Assume that a job without cores has the same rate on each of its
            // workers.
            let even_rate = known.map_or(0.0, |known| known.rows_per_s) / count.max(1) as f64;
            let allocations = known.iter().flat_map(|known| &known.allocations);
            let placements: Vec<JobPlacement> = allocations
                .filter_map(|(worker, allocation)| {
                    let worker = *indexes.get(worker)?;
                    Some(JobPlacement { worker, cores: allocation.cores, rows_per_s: even_rate })
                })
                .collect();
            before.is_complete &= known.is_some() && option.is_some() && placements.len() == count;
            before.options.push(option.unwrap_or(0));
            before.placements.push(placements);
        }
        before
    }

    fn cores(&self) -> Vec<Vec<(usize, f64)>> {
        let of_job = |placements: &Vec<JobPlacement>| {
            placements.iter().map(|placement| (placement.worker, placement.cores)).collect()
        };
        self.placements.iter().map(of_job).collect()
    }

    /// Returns the previous decisions at current costs. Cores are unchanged, and rates are computed from cores.
    fn draft(&self, costs: &Costs, types: &[usize]) -> PlanDraft {
        let mut placements = self.placements.clone();
        for (placements, option) in placements.iter_mut().zip(chosen_options(costs, &self.options)) {
            for placement in placements {
                let w = types[placement.worker];
                let by_cores = ratio(placement.cores, option.resources_per_row[w][CORES]);
                let rate = if by_cores.is_finite() { by_cores } else { placement.rows_per_s };
                placement.rows_per_s = rate.min(option.max_rate_per_worker[w]);
            }
        }
        PlanDraft::new(costs, self.options.clone(), placements, types)
    }
}

/// Whether all workers, quotas and cache tiers have enough capacity.
fn is_feasible(costs: &Costs, draft: &PlanDraft, types: &[usize]) -> bool {
    let mut used = vec![[0.0; RESOURCES]; types.len()];
    for (placements, option) in draft.placements.iter().zip(chosen_options(costs, &draft.options)) {
        for placement in placements {
            for (used, needed) in
                used[placement.worker].iter_mut().zip(option.resources_per_row[types[placement.worker]])
            {
                *used += placement.rows_per_s * needed;
            }
        }
    }
    let fits = |(used, capacity): (&f64, &f64)| *used <= capacity * (1.0 + 1e-6);
    let all_fit =
        used.iter().zip(types).all(|(used, w)| used.iter().zip(&costs.worker_capacity[*w]).all(fits));
    let quotas_hold = draft.tenant_loads(costs).into_iter().all(|load| load <= 1.0 + 1e-6);
    all_fit && quotas_hold && caches::fits_capacity(costs, &draft.options)
}

fn build_plan(
    problem: &Problem,
    costs: &Costs,
    draft: PlanDraft,
    bound: Objective,
    deadline: &dyn Deadline,
) -> Plan {
    let options = chosen_options(costs, &draft.options);
    let tenant_loads = draft.tenant_loads(costs);
    let mut jobs = Vec::with_capacity(options.len());
    for (j, (job, option)) in problem.jobs.iter().zip(&options).enumerate() {
        let placements = &draft.placements[j];
        let limits = tune::limits(job, &problem.workers, placements);
        let slot = |placement: &JobPlacement| -> &WorkerSlot { &problem.workers[placement.worker] };
        let allocated = |placement: &JobPlacement| {
            (slot(placement).id, tune::allocation(job, option.store_bytes_per_row, placement, &limits))
        };
        let mut cores_by_type = vec![0.0; costs.type_count()];
        for placement in placements {
            cores_by_type[slot(placement).worker_type] += placement.cores;
        }
        let demand = costs.demands[j];
        jobs.push(JobPlan {
            job: job.id,
            name: job.name.clone(),
            rows_per_s: draft.rates[j],
            demand_rows_per_s: demand,
            fed_fraction: fed_fraction(draft.rates[j], demand),
            cores_by_type,
            allocations: placements.iter().map(allocated).collect(),
            operator_limits: limits,
            cache: option.cache.map(|cache| PlannedCachePoint {
                operator_index: job.cache_points[cache.cache_point].operator_index,
                tier: cache.tier,
                encoding: job.cache_points[cache.cache_point].encoding,
                key: cache.key,
            }),
            explanation: reasons::job_limit_text(problem, costs, j, option, draft.rates[j], &tenant_loads),
        });
    }
    Plan {
        fingerprint: 0,
        caches: cache_plans(problem, costs, &draft.options),
        wanted_workers: wanted_workers(problem, costs, &options, deadline),
        gap: gap(&draft.objective, &bound),
        objective: draft.objective,
        objective_bound: bound,
        is_fallback: false,
        reasons: Vec::new(),
        jobs,
    }
}

fn cache_plans(problem: &Problem, costs: &Costs, options: &[usize]) -> Vec<CachePlan> {
    let reads = |tier, key| {
        let of_job = move |(j, option): (usize, &usize)| {
            let cache = costs.options[j][*option].cache?;
            ((cache.tier, cache.key) == (tier, key)).then(|| problem.jobs[j].id)
        };
        options.iter().enumerate().filter_map(of_job).collect()
    };
    let plan = |((tier, key), bytes)| CachePlan { key, tier, bytes, jobs: reads(tier, key) };
    cached_bytes(costs, options).into_iter().map(plan).collect()
}

/// Returns the relative distance of an objective from its bound, in the first value that differs.
fn gap(objective: &Objective, bound: &Objective) -> f64 {
    let below = |mine: f64, best: f64| if best > 0.0 { ((best - mine) / best).max(0.0) } else { 0.0 };
    let smallest = below(objective.smallest_fed, bound.smallest_fed);
    if smallest > 1e-4 { smallest } else { below(objective.total_fed, bound.total_fed) }
}
