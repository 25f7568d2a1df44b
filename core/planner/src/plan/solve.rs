//! From a problem and the previous plan to a plan: idempotent, stable, bounded in work.

use std::collections::BTreeMap;

use super::assign::{JobShare, assign, places};
use super::caches::{self, CacheSelection, kept, with_price};
use super::costs::{CORES, Costs, ExecutionOption, RESOURCES, per};
use super::fallback;
use super::linear::{FractionalPlan, fed_fraction, measure};
use super::problem::{Problem, WorkerSlot};
use super::reasons;
use super::solution::{CachePlan, JobPlan, Objective, Plan, PlannedCachePoint};
use super::tune;
use super::wanted::wanted;

#[cfg(test)]
mod tests;

/// When the planner must come to an end. It is asked between linear problems, of which one of 1,000 jobs on 4 types takes a
/// few hundredths of a second, and between tenants.
pub trait Deadline {
    /// Whether time is up.
    fn is_over(&self) -> bool;
}

/// As much time as it takes.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDeadline;

impl Deadline for NoDeadline {
    fn is_over(&self) -> bool {
        false
    }
}

/// Time is up once it was asked so many times: the same on each machine.
#[derive(Debug)]
pub struct CheckLimit(std::cell::Cell<u32>);

impl CheckLimit {
    /// Answers no so many times.
    pub fn new(checks: u32) -> Self {
        Self(std::cell::Cell::new(checks))
    }
}

impl Deadline for CheckLimit {
    fn is_over(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left == 0
    }
}

impl<F: Fn() -> bool> Deadline for F {
    fn is_over(&self) -> bool {
        self()
    }
}

/// A plan for the problem. The previous one is given back where it answers the same problem; its decisions are kept
/// where nothing would gain [`super::Settings::gain_to_change`]; and workers stay with their jobs in any case, as far as
/// rates allow.
///
/// # Errors
///
/// One sentence where the problem contradicts itself: [`Problem::check`].
pub fn solve(problem: &Problem, previous: Option<&Plan>, deadline: &dyn Deadline) -> Result<Plan, String> {
    problem.check()?;
    let fingerprint = problem.fingerprint();
    if let Some(previous) = previous.filter(|plan| plan.fingerprint == fingerprint && !plan.is_fallback) {
        return Ok(previous.clone());
    }
    let mut costs = Costs::new(problem);
    let bound = bound(&costs, deadline);
    costs.is_short = bound.total_fed < 0.999 * costs.weights.iter().sum::<f64>();
    let types: Vec<usize> = problem.workers.iter().map(|slot| slot.worker_type).collect();
    let before = previous.map(|plan| Before::new(problem, &costs, plan));
    let old = before
        .as_ref()
        .filter(|before| before.is_complete)
        .map(|before| before.draft(&costs, &types))
        .filter(|old| is_feasible(&costs, old, &types));
    let gain = problem.settings.gain_to_change;
    let (draft, is_fallback, is_kept) = match old {
        // Nothing could gain enough.
        Some(old) if !bound.is_better(&old.objective, gain) => (old, false, true),
        old => {
            let (new, is_fallback) = anew(problem, &costs, &types, before.as_ref(), deadline);
            match old.filter(|old| !new.objective.is_better(&old.objective, gain)) {
                Some(old) => (old, false, true),
                None => (new, is_fallback, false),
            }
        }
    };
    let mut plan = write(problem, &costs, draft, bound, deadline);
    plan.fingerprint = fingerprint;
    plan.is_fallback = is_fallback;
    plan.reasons = reasons::all(problem, &plan, previous, is_kept);
    Ok(plan)
}

/// A plan from the beginning, but for the workers of each job; and whether there was no time for it.
fn anew(
    problem: &Problem,
    costs: &Costs,
    types: &[usize],
    before: Option<&Before>,
    deadline: &dyn Deadline,
) -> (Draft, bool) {
    let known = before.map(|before| before.ways.as_slice()).filter(|ways| caches::fits(costs, ways));
    let chosen = match deadline.is_over() {
        true => None,
        false => caches::choose(costs, &problem.settings, known, deadline),
    };
    let is_fallback = chosen.is_none();
    let chosen = chosen.unwrap_or_else(|| by_hand(costs, known));
    let cores = before.map_or_else(|| vec![Vec::new(); costs.jobs()], Before::cores);
    let ways = ways_of(costs, &chosen.ways);
    let parts = assign(costs, &ways, &chosen.fluid.rows, types, &cores, problem.settings.headroom);
    (Draft::new(costs, chosen.ways.clone(), parts, types), is_fallback)
}

/// What no plan exceeds; where there is no time to find out, that all are fed for nothing.
fn bound(costs: &Costs, deadline: &dyn Deadline) -> Objective {
    let found = match deadline.is_over() {
        true => None,
        false => caches::bound(costs, deadline),
    };
    found.unwrap_or(Objective {
        smallest_fed: 1.0,
        total_fed: costs.weights.iter().sum(),
        cost_per_hour: 0.0,
    })
}

/// Without a solver: what was kept stays kept.
fn by_hand(costs: &Costs, known: Option<&[usize]>) -> CacheSelection {
    let ways = known.map_or_else(|| vec![0; costs.jobs()], <[usize]>::to_vec);
    let fluid = fallback::fill(costs, &ways);
    with_price(costs, ways, fluid)
}

fn ways_of<'a>(costs: &'a Costs, ways: &[usize]) -> Vec<&'a ExecutionOption> {
    ways.iter().enumerate().map(|(j, way)| &costs.ways[j][*way]).collect()
}

/// Decisions down to single workers, and what they reach.
struct Draft {
    ways: Vec<usize>,
    parts: Vec<Vec<JobShare>>,
    rates: Vec<f64>,
    objective: Objective,
}

impl Draft {
    /// Jobs give what their parts give, at most what is wanted; where that is too much for a store, all that read it
    /// give less. [`assign()`] makes no such parts, but costs may have changed since a previous plan.
    fn new(costs: &Costs, ways: Vec<usize>, parts: Vec<Vec<JobShare>>, types: &[usize]) -> Self {
        let used = ways_of(costs, &ways);
        let mut rates: Vec<f64> = costs.demand.clone();
        for (rate, parts) in rates.iter_mut().zip(&parts) {
            *rate = rate.min(parts.iter().map(|part| part.rows_per_s).sum());
        }
        let loads =
            costs.store_loads(rates.iter().zip(&used).map(|(rate, way)| (way.store, rate * way.store_bytes)));
        let scale = |way: &ExecutionOption| loads.get(way.store).map_or(1.0, |load| per(1.0, *load).min(1.0));
        let mut rows = vec![vec![0.0; costs.types()]; parts.len()];
        for (j, parts) in parts.iter().enumerate() {
            rates[j] *= if used[j].store_bytes > 0.0 { scale(used[j]) } else { 1.0 };
            let sum: f64 = parts.iter().map(|part| part.rows_per_s).sum();
            for part in parts {
                rows[j][types[part.worker]] += rates[j] * part.rows_per_s / sum;
            }
        }
        let fluid: FractionalPlan = measure(costs, &used, rows);
        let CacheSelection { ways, objective, .. } = with_price(costs, ways, fluid);
        Self { ways, parts, rates, objective }
    }
}

impl Draft {
    /// What jobs have of their tenants' quotas, as a share.
    fn tenant_loads(&self, costs: &Costs) -> Vec<f64> {
        let cores = self.parts.iter().map(|parts| parts.iter().map(|part| part.cores).sum::<f64>());
        costs.tenant_loads(cores.enumerate())
    }
}

/// The previous plan in the terms of this problem.
struct Before {
    ways: Vec<usize>,
    parts: Vec<Vec<JobShare>>,
    /// Whether it knew all jobs of the problem, and their workers are all there.
    is_complete: bool,
}

impl Before {
    fn new(problem: &Problem, costs: &Costs, plan: &Plan) -> Self {
        let places = places(&problem.workers);
        let jobs: BTreeMap<_, &JobPlan> = plan.jobs.iter().map(|job| (job.job, job)).collect();
        let mut before = Self { ways: Vec::new(), parts: Vec::new(), is_complete: true };
        for (j, job) in problem.jobs.iter().enumerate() {
            let known = jobs.get(&job.id);
            let cut = known.and_then(|known| known.kept);
            let same = |way: &ExecutionOption| {
                way.kept.map(|kept| (kept.tier, kept.key)) == cut.map(|cut| (cut.tier, cut.key))
            };
            let way = costs.ways[j].iter().position(same);
            let parts = known.map_or(&[][..], |known| &known.assignments);
            let here: Vec<JobShare> = parts
                .iter()
                .filter_map(|part| {
                    let worker = *places.get(&part.worker)?;
                    Some(JobShare { worker, cores: part.cores, rows_per_s: part.rows_per_s })
                })
                .collect();
            before.is_complete &= known.is_some() && way.is_some() && here.len() == parts.len();
            before.ways.push(way.unwrap_or(0));
            before.parts.push(here);
        }
        before
    }

    fn cores(&self) -> Vec<Vec<(usize, f64)>> {
        let of_job = |parts: &Vec<JobShare>| parts.iter().map(|part| (part.worker, part.cores)).collect();
        self.parts.iter().map(of_job).collect()
    }

    /// Its decisions at today's costs: each worker's cores give today's rates.
    fn draft(&self, costs: &Costs, types: &[usize]) -> Draft {
        let mut parts = self.parts.clone();
        for (parts, way) in parts.iter_mut().zip(ways_of(costs, &self.ways)) {
            for part in parts {
                let w = types[part.worker];
                let by_cores = per(part.cores, way.per_row[w][CORES]);
                let rate = if by_cores.is_finite() { by_cores } else { part.rows_per_s };
                part.rows_per_s = rate.min(way.most_per_worker[w]);
            }
        }
        Draft::new(costs, self.ways.clone(), parts, types)
    }
}

/// Whether no worker is asked for more than it has, no tenant has more than its quota, and what is kept has room.
fn is_feasible(costs: &Costs, draft: &Draft, types: &[usize]) -> bool {
    let mut taken = vec![[0.0; RESOURCES]; types.len()];
    for (parts, way) in draft.parts.iter().zip(ways_of(costs, &draft.ways)) {
        for part in parts {
            for (taken, takes) in taken[part.worker].iter_mut().zip(way.per_row[types[part.worker]]) {
                *taken += part.rows_per_s * takes;
            }
        }
    }
    let fits = |(taken, has): (&f64, &f64)| *taken <= has * (1.0 + 1e-6);
    let all_fit = taken.iter().zip(types).all(|(taken, w)| taken.iter().zip(&costs.has[*w]).all(fits));
    let are_within = draft.tenant_loads(costs).into_iter().all(|load| load <= 1.0 + 1e-6);
    all_fit && are_within && caches::fits(costs, &draft.ways)
}

fn write(problem: &Problem, costs: &Costs, draft: Draft, bound: Objective, deadline: &dyn Deadline) -> Plan {
    let ways = ways_of(costs, &draft.ways);
    let tenant_loads = draft.tenant_loads(costs);
    let mut jobs = Vec::with_capacity(ways.len());
    for (j, (job, way)) in problem.jobs.iter().zip(&ways).enumerate() {
        let parts = &draft.parts[j];
        let slot = |part: &JobShare| -> &WorkerSlot { &problem.workers[part.worker] };
        let assigned = |part: &JobShare| tune::assignment(job, way.store_bytes, slot(part), part);
        let mut cores_by_type = vec![0.0; costs.types()];
        for part in parts {
            cores_by_type[slot(part).worker_type] += part.cores;
        }
        let demand = costs.demand[j];
        jobs.push(JobPlan {
            job: job.id,
            name: job.name.clone(),
            rows_per_s: draft.rates[j],
            demand_rows_per_s: demand,
            fed_fraction: fed_fraction(draft.rates[j], demand),
            cores_by_type,
            assignments: parts.iter().map(assigned).collect(),
            limits: tune::limits(job, &problem.workers, parts),
            kept: way.kept.map(|kept| PlannedCachePoint {
                after: job.cuts[kept.cut].after,
                tier: kept.tier,
                form: job.cuts[kept.cut].form,
                key: kept.key,
            }),
            why: reasons::job(problem, costs, j, way, draft.rates[j], &tenant_loads),
        });
    }
    Plan {
        fingerprint: 0,
        caches: cache_plans(problem, costs, &draft.ways),
        wanted: wanted(problem, costs, &ways, deadline),
        gap: gap(&draft.objective, &bound),
        objective: draft.objective,
        bound,
        is_fallback: false,
        reasons: Vec::new(),
        jobs,
    }
}

fn cache_plans(problem: &Problem, costs: &Costs, ways: &[usize]) -> Vec<CachePlan> {
    let reads = |tier, key| {
        let of_job = move |(j, way): (usize, &usize)| {
            let kept = costs.ways[j][*way].kept?;
            ((kept.tier, kept.key) == (tier, key)).then(|| problem.jobs[j].id)
        };
        ways.iter().enumerate().filter_map(of_job).collect()
    };
    let plan = |((tier, key), bytes)| CachePlan { key, tier, bytes, jobs: reads(tier, key) };
    kept(costs, ways).into_iter().map(plan).collect()
}

/// How far the first value that differs is from the bound's, as a share.
fn gap(reached: &Objective, bound: &Objective) -> f64 {
    let below = |mine: f64, best: f64| if best > 0.0 { ((best - mine) / best).max(0.0) } else { 0.0 };
    let smallest = below(reached.smallest_fed, bound.smallest_fed);
    if smallest > 1e-4 { smallest } else { below(reached.total_fed, bound.total_fed) }
}
