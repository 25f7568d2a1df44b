//! Chooses cache points and tiers by searching over selections. The linear problem evaluates each selection.
//!
//! A selection contains one option per job. Rows that several jobs read use capacity only once. If there are few
//! combinations, the search tries all of them. Otherwise, it starts with a greedy selection and improves it step by
//! step: one job changes its option, and the least valuable caches that do not fit are dropped. A mixed-integer program
//! would be exact, but none of four tested solvers solved it for 200 jobs within 30 s.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::pipeline::CacheTier;

use super::costs::{CORES, CachePlacement, Costs, DISK_READ, ExecutionOption, MEMORY_READ, NIC, RESOURCES};
use super::deadline::Deadline;
use super::linear::{FractionalPlan, solve_options, solve_selection};
use super::problem::PlannerSettings;
use super::solution::Objective;

#[cfg(test)]
mod tests;

/// One option per job, with the resulting rates and objective.
#[derive(Debug, Clone)]
pub(super) struct CacheSelection {
    pub(super) options: Vec<usize>,
    pub(super) fractional: FractionalPlan,
    /// The objective, including the cost of cores and of cached bytes.
    pub(super) objective: Objective,
}

/// Maximum total number of variables in all linear problems of one search. Solving them takes a fraction of a second.
const MAX_SEARCH_VARIABLES: usize = 6_000;
/// Minimum number of moves that the search must be able to try. Otherwise, the search is skipped.
const MIN_SEARCH_MOVES: usize = 10;
/// Maximum number of moves per step that change the options of two jobs.
const MAX_JOB_PAIRS: usize = 1_000;
/// Weight of the saved share of a resource, relative to the price of the saved resources.
const SHORTAGE_WEIGHT: f64 = 1000.0;

/// Returns the best selection, or `None` if the solver fails or the deadline passes before the first solution.
pub(super) fn choose_caches(
    costs: &Costs,
    settings: &PlannerSettings,
    before: Option<&[usize]>,
    deadline: &dyn Deadline,
) -> Option<CacheSelection> {
    let combinations =
        costs.options.iter().try_fold(1u64, |product, options| product.checked_mul(options.len() as u64));
    let mut search =
        SelectionSearch { costs, deadline, best: None, remaining_solves: settings.max_search_solves };
    if combinations.is_some_and(|count| count <= settings.max_exhaustive_combinations.max(1)) {
        search.remaining_solves = u32::MAX;
        search.try_all_selections();
        return search.best;
    }
    if let Some(before) = before {
        search.try_selection(before);
    }
    search.try_selection(&greedy_selection(costs, &first_options(costs), SHORTAGE_WEIGHT));
    // If all jobs are fully fed, only the cost matters.
    let is_overloaded =
        search.best.as_ref().is_some_and(|best| best.fractional.fed_fractions.iter().any(|fed| *fed < 0.999));
    if !is_overloaded || costs.job_count() * costs.type_count() <= MAX_SEARCH_VARIABLES / 10 {
        search.try_selection(&greedy_selection(costs, &first_options(costs), 0.0));
    }
    // A search that can try only a few of thousands of moves is unlikely to find an improvement.
    let affordable = MAX_SEARCH_VARIABLES / (costs.job_count() * costs.type_count()).max(1);
    if affordable < MIN_SEARCH_MOVES {
        return search.best;
    }
    search.remaining_solves = settings.max_search_solves.min(affordable as u32);
    search.improve_best();
    search.best
}

/// Returns an upper bound on the objective of all selections: each job needs the smallest amount of each resource among
/// its options, and each cache has the whole capacity.
pub(super) fn upper_bound(costs: &Costs, deadline: &dyn Deadline) -> Option<Objective> {
    let cheapest: Vec<ExecutionOption> =
        (0..costs.job_count()).map(|j| cheapest_resources(costs, j)).collect();
    let options: Vec<&ExecutionOption> = cheapest.iter().collect();
    solve_options(costs, &options, deadline).map(|fractional| fractional.objective)
}

fn cheapest_resources(costs: &Costs, job: usize) -> ExecutionOption {
    let options = &costs.options[job];
    let mut best = options[0].clone();
    let quota = costs.job_tenants[job].map_or(f64::INFINITY, |tenant| costs.tenant_cache_bytes[tenant]);
    let fits = |option: &&ExecutionOption| {
        option.cache.is_none_or(|cache| {
            cache.bytes <= costs.tier_bytes[cache.tier as usize]
                && costs.stored_bytes(cache.tier, cache.bytes) <= quota
        })
    };
    for option in options[1..].iter().filter(fits) {
        for w in 0..best.resources_per_row.len() {
            for resource in 0..RESOURCES {
                best.resources_per_row[w][resource] =
                    best.resources_per_row[w][resource].min(option.resources_per_row[w][resource]);
            }
            best.max_rate_per_worker[w] = best.max_rate_per_worker[w].max(option.max_rate_per_worker[w]);
        }
        best.store_bytes_per_row = best.store_bytes_per_row.min(option.store_bytes_per_row);
    }
    best
}

/// Returns the first option of each job.
fn first_options(costs: &Costs) -> Vec<usize> {
    vec![0; costs.job_count()]
}

/// Returns the cached bytes of these options, by tier and key.
pub(super) fn cached_bytes(costs: &Costs, options: &[usize]) -> BTreeMap<(CacheTier, u64), f64> {
    let mut cached: BTreeMap<(CacheTier, u64), f64> = BTreeMap::new();
    for (j, option) in options.iter().enumerate() {
        if let Some(cache) = costs.options[j][*option].cache {
            let bytes = cached.entry((cache.tier, cache.key)).or_default();
            // Jobs may estimate different sizes for the same rows.
            *bytes = bytes.max(cache.bytes);
        }
    }
    cached
}

/// Returns the cached bytes of each tenant. Rows that jobs of several tenants read are counted for each of these tenants.
fn cached_bytes_by_tenant(costs: &Costs, options: &[usize]) -> Vec<f64> {
    let cached = cached_bytes(costs, options);
    let read = |(j, option): (usize, &usize)| {
        let cache = costs.options[j][*option].cache?;
        Some((costs.job_tenants[j]?, cache.tier, cache.key))
    };
    let read: BTreeSet<(usize, CacheTier, u64)> = options.iter().enumerate().filter_map(read).collect();
    let mut bytes = vec![0.0; costs.tenant_cache_bytes.len()];
    for (tenant, tier, key) in read {
        bytes[tenant] += costs.stored_bytes(tier, cached[&(tier, key)]);
    }
    bytes
}

/// Returns a tenant that exceeds its quota of cached bytes and whose jobs could cache less.
fn tenant_over_quota(costs: &Costs, options: &[usize]) -> Option<usize> {
    if costs.tenant_cache_bytes.iter().all(|room| room.is_infinite()) {
        return None;
    }
    let cached = cached_bytes_by_tenant(costs, options);
    let is_over = |tenant: usize| cached[tenant] > costs.tenant_cache_bytes[tenant] * (1.0 + 1e-9);
    let chosen = options
        .iter()
        .enumerate()
        .filter(|(j, option)| costs.options[*j].len() > 1 && costs.options[*j][**option].cache.is_some());
    chosen.filter_map(|(j, _)| costs.job_tenants[j]).find(|tenant| is_over(*tenant))
}

/// Whether the caches of these options fit into the tiers and the tenant quotas. Caches that a user has pinned always
/// fit.
pub(super) fn fits_capacity(costs: &Costs, options: &[usize]) -> bool {
    fits_tiers(costs, options) && tenant_over_quota(costs, options).is_none()
}

fn fits_tiers(costs: &Costs, options: &[usize]) -> bool {
    let mut used = [0.0; 3];
    let cached = cached_bytes(costs, options);
    for ((tier, _), bytes) in &cached {
        used[*tier as usize] += bytes;
    }
    let is_free = |j: usize| costs.options[j].len() > 1;
    let fits = |tier: CacheTier| used[tier as usize] <= costs.tier_bytes[tier as usize] * (1.0 + 1e-9);
    let chosen = options.iter().enumerate().filter(|(j, _)| is_free(*j));
    chosen.filter_map(|(j, option)| costs.options[j][*option].cache).all(|cache| fits(cache.tier))
}

/// Returns the price per hour of the cached bytes.
fn cache_price(costs: &Costs, options: &[usize]) -> f64 {
    cached_bytes(costs, options)
        .iter()
        .map(|((tier, _), bytes)| bytes * costs.byte_hour_prices[*tier as usize])
        .sum()
}

/// Evaluates these options. Returns `None` if their caches do not fit, the solver fails, or the deadline passes before
/// the first solution.
pub(super) fn evaluate_options(
    costs: &Costs,
    options: &[usize],
    deadline: &dyn Deadline,
) -> Option<CacheSelection> {
    if !fits_capacity(costs, options) {
        return None;
    }
    let fractional = solve_selection(costs, options, deadline)?;
    Some(with_price(costs, options.to_vec(), fractional))
}

/// Adds the price of cached bytes to the objective.
pub(super) fn with_price(costs: &Costs, options: Vec<usize>, fractional: FractionalPlan) -> CacheSelection {
    let mut objective = fractional.objective;
    objective.cost_per_hour += cache_price(costs, &options);
    CacheSelection { options, fractional, objective }
}

struct SelectionSearch<'a> {
    costs: &'a Costs,
    deadline: &'a dyn Deadline,
    best: Option<CacheSelection>,
    remaining_solves: u32,
}

impl SelectionSearch<'_> {
    /// Evaluates a selection. Returns whether it is the best selection so far.
    fn try_selection(&mut self, options: &[usize]) -> bool {
        if self.is_finished() || self.best.as_ref().is_some_and(|best| best.options == options) {
            return false;
        }
        self.remaining_solves = self.remaining_solves.saturating_sub(1);
        let Some(found) = evaluate_options(self.costs, options, self.deadline) else { return false };
        let is_better =
            self.best.as_ref().is_none_or(|best| found.objective.is_better(&best.objective, 1e-5));
        if is_better {
            self.best = Some(found);
        }
        is_better
    }

    fn is_finished(&self) -> bool {
        self.remaining_solves == 0 || self.deadline.is_over()
    }

    /// Tries all combinations of options.
    fn try_all_selections(&mut self) {
        let mut options = first_options(self.costs);
        loop {
            self.try_selection(&options);
            let Some(place) = (0..options.len()).find(|j| options[*j] + 1 < self.costs.options[*j].len())
            else {
                return;
            };
            options[..place].fill(0);
            options[place] += 1;
            if self.is_finished() {
                return;
            }
        }
    }

    /// Repeatedly changes the options of one or two jobs while this improves the objective.
    fn improve_best(&mut self) {
        let mut tried: BTreeSet<Vec<usize>> = BTreeSet::new();
        loop {
            let Some(start) = self.best.as_ref().map(|best| best.options.clone()) else { return };
            let moves = single_moves(self.costs, &start).into_iter().chain(double_moves(self.costs, &start));
            let mut improved = false;
            for moved in moves {
                if self.is_finished() {
                    return;
                }
                let options = moved.apply(self.costs, &start);
                if tried.insert(options.clone()) && self.try_selection(&options) {
                    improved = true;
                    break;
                }
            }
            if !improved {
                return;
            }
        }
    }
}

/// A change to the options of one or two jobs. Other jobs drop caches if necessary.
struct SelectionMove {
    first: (usize, usize),
    second: Option<(usize, usize)>,
    /// Whether all other jobs that can read the cached rows of the first job also do so.
    is_joint: bool,
}

impl SelectionMove {
    fn apply(&self, costs: &Costs, start: &[usize]) -> Vec<usize> {
        let mut options = start.to_vec();
        for (job, option) in [Some(self.first), self.second].into_iter().flatten() {
            options[job] = option;
        }
        if self.is_joint {
            options = share_cached_rows(costs, options, self.first.0);
        }
        drop_caches_until_fit(costs, options, self.first.0)
    }
}

/// Returns all moves that change one job, the most promising first.
fn single_moves(costs: &Costs, start: &[usize]) -> Vec<SelectionMove> {
    let mut moves = Vec::new();
    for (j, now) in start.iter().enumerate() {
        for option in (0..costs.options[j].len()).filter(|option| option != now) {
            let gain = savings_value(costs, j, option, SHORTAGE_WEIGHT)
                - savings_value(costs, j, *now, SHORTAGE_WEIGHT);
            moves.push((gain, (j, option)));
        }
    }
    moves.sort_by(|a, b| b.0.total_cmp(&a.0));
    let alone_and_joint =
        |(_, first)| [true, false].map(|is_joint| SelectionMove { first, second: None, is_joint });
    moves.into_iter().flat_map(alone_and_joint).collect()
}

/// Returns moves that change two jobs, so that one job can free capacity for the other.
fn double_moves<'a>(costs: &'a Costs, start: &'a [usize]) -> impl Iterator<Item = SelectionMove> + 'a {
    let others = move |j: usize| (0..costs.options[j].len()).filter(move |option| *option != start[j]);
    let jobs = (0..start.len()).flat_map(move |a| (a + 1..start.len()).map(move |b| (a, b)));
    let pairs = jobs.flat_map(move |(a, b)| {
        others(a).flat_map(move |option| others(b).map(move |second| ((a, option), (b, second))))
    });
    pairs.take(MAX_JOB_PAIRS).map(|(first, second)| SelectionMove {
        first,
        second: Some(second),
        is_joint: false,
    })
}

/// Makes all other jobs that can read the cached rows of a job also select them.
fn share_cached_rows(costs: &Costs, mut options: Vec<usize>, job: usize) -> Vec<usize> {
    let Some(cache) = costs.options[job][options[job]].cache else { return options };
    for (j, chosen) in options.iter_mut().enumerate() {
        let same = |option: &ExecutionOption| {
            option.cache.is_some_and(|cached| (cached.tier, cached.key) == (cache.tier, cache.key))
        };
        if let Some(option) = costs.options[j].iter().position(same) {
            *chosen = option;
        }
    }
    options
}

/// Drops caches of other jobs until the selection fits, starting with the smallest value per byte. If a tenant exceeds
/// its quota, drops only caches of its own jobs.
fn drop_caches_until_fit(costs: &Costs, mut options: Vec<usize>, job: usize) -> Vec<usize> {
    loop {
        let over = tenant_over_quota(costs, &options);
        if over.is_none() && fits_tiers(costs, &options) {
            return options;
        }
        let stays = costs.options[job][options[job]].cache;
        let others = (0..options.len()).filter(|j| costs.options[*j].len() > 1);
        let cached = others.filter_map(|j| costs.options[j][options[j]].cache.map(|cache| (j, cache)));
        let makes_room = |j: usize, cache: &CachePlacement| match over {
            Some(tenant) => j != job && costs.job_tenants[j] == Some(tenant),
            None => stays.is_none_or(|stays| stays.tier == cache.tier && stays.key != cache.key),
        };
        let droppable = cached.filter(|(j, cache)| makes_room(*j, cache));
        let density =
            |j: usize, bytes: f64| savings_value(costs, j, options[j], SHORTAGE_WEIGHT) / bytes.max(1.0);
        let least = droppable.min_by(|(a, x), (b, y)| density(*a, x.bytes).total_cmp(&density(*b, y.bytes)));
        let Some((_, dropped)) = least else { return options };
        for (j, option) in options.iter_mut().enumerate() {
            let cache = costs.options[j][*option].cache;
            let is_dropped =
                cache.is_some_and(|cache| (cache.tier, cache.key) == (dropped.tier, dropped.key));
            if is_dropped && over.is_none_or(|tenant| j != job && costs.job_tenants[j] == Some(tenant)) {
                *option = 0;
            }
        }
    }
}

/// Returns the value of an option compared to no cache: the price of the resources that it saves at the full demand of
/// the job, plus `shortage_weight` times the saved shares of resources.
fn savings_value(costs: &Costs, job: usize, option: usize, shortage_weight: f64) -> f64 {
    let (none, cached) = (&costs.options[job][0], &costs.options[job][option]);
    let demand = costs.demands[job];
    let mut worth = 0.0;
    for w in (0..costs.type_count()).filter(|w| costs.worker_counts[*w] > 0.0) {
        let saved =
            |resource: usize| none.resources_per_row[w][resource] - cached.resources_per_row[w][resource];
        worth += saved(CORES) * demand * costs.core_hour_prices[w] / costs.type_count() as f64;
        for resource in [CORES, NIC, MEMORY_READ, DISK_READ] {
            let share =
                saved(resource) * demand / (costs.worker_counts[w] * costs.worker_capacity[w][resource]);
            worth += shortage_weight * costs.weights[job] * share / costs.type_count() as f64;
        }
    }
    let store =
        (none.store_bytes_per_row - cached.store_bytes_per_row) * demand / costs.store_bandwidth(none);
    let reach = costs.fed_fraction_alone(job, cached) - costs.fed_fraction_alone(job, none);
    worth + shortage_weight * costs.weights[job] * (store + reach)
}

/// The jobs that could read the same cached rows, each with the index of its option.
type CacheReaders = Vec<(usize, usize)>;

/// Returns the greedy selection. It caches the rows with the highest value per share of the tier's capacity until the
/// capacity is used up. Each job then reads the best cache that contains its rows.
fn greedy_selection(costs: &Costs, start: &[usize], shortage_weight: f64) -> Vec<usize> {
    let mut readers: BTreeMap<(CacheTier, u64), CacheReaders> = BTreeMap::new();
    for (j, options) in costs.options.iter().enumerate().filter(|(_, options)| options.len() > 1) {
        for (option, cache) in
            options.iter().enumerate().filter_map(|(option, found)| Some((option, found.cache?)))
        {
            readers.entry((cache.tier, cache.key)).or_default().push((j, option));
        }
    }
    let size = |readers: &[(usize, usize)]| {
        let bytes = readers
            .iter()
            .filter_map(|(j, option)| costs.options[*j][*option].cache.map(|cache| cache.bytes));
        bytes.fold(0.0, f64::max)
    };
    let gain = |readers: &[(usize, usize)]| -> f64 {
        readers.iter().map(|(j, option)| savings_value(costs, *j, *option, shortage_weight).max(0.0)).sum()
    };
    let density = |tier: CacheTier, readers: &[(usize, usize)]| {
        let bytes = size(readers);
        let net = gain(readers) - bytes * costs.byte_hour_prices[tier as usize];
        net / (bytes / costs.tier_bytes[tier as usize] + 1e-3)
    };
    let mut order: Vec<(f64, CacheTier, &CacheReaders)> = readers
        .iter()
        .map(|((tier, _), readers)| (density(*tier, readers), *tier, readers))
        .filter(|(density, ..)| *density > 0.0)
        .collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut options = start.to_vec();
    let mut free = costs.tier_bytes;
    let mut free_of: Vec<f64> = costs
        .tenant_cache_bytes
        .iter()
        .zip(cached_bytes_by_tenant(costs, start))
        .map(|(room, cached)| room - cached)
        .collect();
    for ((tier, _), bytes) in cached_bytes(costs, start) {
        free[tier as usize] -= bytes;
    }
    for (_, tier, readers) in order {
        let bytes = size(readers);
        let for_tenant = costs.stored_bytes(tier, bytes);
        let better = |(j, option): &&(usize, usize)| {
            let may = costs.job_tenants[*j].is_none_or(|tenant| for_tenant <= free_of[tenant]);
            may && savings_value(costs, *j, *option, shortage_weight)
                > savings_value(costs, *j, options[*j], shortage_weight) + 1e-12
        };
        let new_readers: CacheReaders = readers.iter().filter(better).copied().collect();
        let gained: f64 = new_readers
            .iter()
            .map(|(j, option)| {
                savings_value(costs, *j, *option, shortage_weight)
                    - savings_value(costs, *j, options[*j], shortage_weight)
            })
            .sum();
        if bytes <= free[tier as usize] && gained > bytes * costs.byte_hour_prices[tier as usize] {
            free[tier as usize] -= bytes;
            let tenants: BTreeSet<usize> =
                new_readers.iter().filter_map(|(j, _)| costs.job_tenants[*j]).collect();
            tenants.into_iter().for_each(|tenant| free_of[tenant] -= for_tenant);
            for (j, option) in new_readers {
                options[j] = option;
            }
        }
    }
    options
}
