//! Which cuts are kept, and in which tier: search over choices, each of which the linear problem values.
//!
//! A choice gives each job one of its ways. What is kept is paid for once, however many jobs read it. Few combinations
//! are all tried. Of many, a greedy choice by saved value per share of the tier is improved move by move: a job changes
//! its way; what no longer fits is dropped, the least valuable first. A joint mixed-integer problem would be exact, but
//! of 200 jobs none of four solvers solves it within 30 s.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::pipeline::CacheTier;

use super::costs::{CORES, Costs, CutPlacement, DISK_READ, ExecutionOption, MEMORY_READ, NIC, RESOURCES};
use super::linear::{FractionalPlan, share, share_ways};
use super::problem::PlannerSettings;
use super::solution::Objective;
use super::solve::Deadline;

#[cfg(test)]
mod tests;

/// Ways of all jobs, and what they reach.
#[derive(Debug, Clone)]
pub(super) struct CacheSelection {
    pub(super) ways: Vec<usize>,
    pub(super) fluid: FractionalPlan,
    /// Cost of cores and of what is kept.
    pub(super) objective: Objective,
}

/// A search solves problems of at most so many variables together: a fraction of a second.
const SEARCHED_VARIABLES: usize = 6_000;
/// Fewer moves are not worth beginning with.
const FEWEST_MOVES: usize = 10;
/// Exchanges of two jobs' ways are tried for at most so many pairs.
const PAIRS: usize = 1_000;
/// Being short of a resource weighs so many times its price.
const SHORT: f64 = 1000.0;

/// The best choice found; `None` where the solver fails or time ends before the first solution.
pub(super) fn choose(
    costs: &Costs,
    settings: &PlannerSettings,
    before: Option<&[usize]>,
    deadline: &dyn Deadline,
) -> Option<CacheSelection> {
    let combinations =
        costs.ways.iter().try_fold(1u64, |product, ways| product.checked_mul(ways.len() as u64));
    let mut search = Search { costs, deadline, best: None, solves_left: settings.search_solves };
    if combinations.is_some_and(|count| count <= settings.enumerate_at_most.max(1)) {
        search.solves_left = u32::MAX;
        search.try_all();
        return search.best;
    }
    if let Some(before) = before {
        search.consider(before);
    }
    search.consider(&greedy(costs, &first(costs), SHORT));
    // What is cheapest matters where all are fed.
    let is_short = search.best.as_ref().is_some_and(|best| best.fluid.fed.iter().any(|fed| *fed < 0.999));
    if !is_short || costs.jobs() * costs.types() <= SEARCHED_VARIABLES / 10 {
        search.consider(&greedy(costs, &first(costs), 0.0));
    }
    // A handful of moves among thousands would find nothing.
    let affordable = SEARCHED_VARIABLES / (costs.jobs() * costs.types()).max(1);
    if affordable < FEWEST_MOVES {
        return search.best;
    }
    search.solves_left = settings.search_solves.min(affordable as u32);
    search.improve();
    search.best
}

/// What no choice exceeds: each job takes of each resource what its most sparing way takes, and room is counted for each by
/// itself only.
pub(super) fn bound(costs: &Costs, deadline: &dyn Deadline) -> Option<Objective> {
    let sparing: Vec<ExecutionOption> = (0..costs.jobs()).map(|j| most_sparing(costs, j)).collect();
    let ways: Vec<&ExecutionOption> = sparing.iter().collect();
    share_ways(costs, &ways, deadline).map(|fluid| fluid.objective)
}

fn most_sparing(costs: &Costs, job: usize) -> ExecutionOption {
    let ways = &costs.ways[job];
    let mut best = ways[0].clone();
    let quota = costs.tenants[job].map_or(f64::INFINITY, |tenant| costs.tenant_room[tenant]);
    let fits = |way: &&ExecutionOption| {
        way.kept.is_none_or(|cut| {
            cut.bytes <= costs.room[cut.tier as usize] && costs.bytes_of(cut.tier, cut.bytes) <= quota
        })
    };
    for way in ways[1..].iter().filter(fits) {
        for w in 0..best.per_row.len() {
            for resource in 0..RESOURCES {
                best.per_row[w][resource] = best.per_row[w][resource].min(way.per_row[w][resource]);
            }
            best.most_per_worker[w] = best.most_per_worker[w].max(way.most_per_worker[w]);
        }
        best.store_bytes = best.store_bytes.min(way.store_bytes);
    }
    best
}

/// The first way of each job.
fn first(costs: &Costs) -> Vec<usize> {
    vec![0; costs.jobs()]
}

/// What these ways keep: each key in each tier once.
pub(super) fn kept(costs: &Costs, ways: &[usize]) -> BTreeMap<(CacheTier, u64), f64> {
    let mut kept: BTreeMap<(CacheTier, u64), f64> = BTreeMap::new();
    for (j, way) in ways.iter().enumerate() {
        if let Some(cut) = costs.ways[j][*way].kept {
            let bytes = kept.entry((cut.tier, cut.key)).or_default();
            // Jobs may have estimated it differently.
            *bytes = bytes.max(cut.bytes);
        }
    }
    kept
}

/// Bytes that these ways keep for each tenant. What jobs of several tenants read counts for each of them.
fn kept_for(costs: &Costs, ways: &[usize]) -> Vec<f64> {
    let kept = kept(costs, ways);
    let read = |(j, way): (usize, &usize)| {
        let cut = costs.ways[j][*way].kept?;
        Some((costs.tenants[j]?, cut.tier, cut.key))
    };
    let read: BTreeSet<(usize, CacheTier, u64)> = ways.iter().enumerate().filter_map(read).collect();
    let mut bytes = vec![0.0; costs.tenant_room.len()];
    for (tenant, tier, key) in read {
        bytes[tenant] += costs.bytes_of(tier, kept[&(tier, key)]);
    }
    bytes
}

/// A tenant for whom these ways keep more than its quota, of those that could keep less.
fn over_quota(costs: &Costs, ways: &[usize]) -> Option<usize> {
    if costs.tenant_room.iter().all(|room| room.is_infinite()) {
        return None;
    }
    let kept = kept_for(costs, ways);
    let is_over = |tenant: usize| kept[tenant] > costs.tenant_room[tenant] * (1.0 + 1e-9);
    let chosen = ways
        .iter()
        .enumerate()
        .filter(|(j, way)| costs.ways[*j].len() > 1 && costs.ways[*j][**way].kept.is_some());
    chosen.filter_map(|(j, _)| costs.tenants[j]).find(|tenant| is_over(*tenant))
}

/// Whether what these ways keep has room, in the tiers and in the quotas of tenants. What the user had kept is there whether
/// it fits or not.
pub(super) fn fits(costs: &Costs, ways: &[usize]) -> bool {
    has_room(costs, ways) && over_quota(costs, ways).is_none()
}

fn has_room(costs: &Costs, ways: &[usize]) -> bool {
    let mut used = [0.0; 3];
    let kept = kept(costs, ways);
    for ((tier, _), bytes) in &kept {
        used[*tier as usize] += bytes;
    }
    let is_free = |j: usize| costs.ways[j].len() > 1;
    let fits = |tier: CacheTier| used[tier as usize] <= costs.room[tier as usize] * (1.0 + 1e-9);
    let chosen = ways.iter().enumerate().filter(|(j, _)| is_free(*j));
    chosen.filter_map(|(j, way)| costs.ways[j][*way].kept).all(|cut| fits(cut.tier))
}

/// Price of what is kept, per hour.
fn price(costs: &Costs, ways: &[usize]) -> f64 {
    kept(costs, ways).iter().map(|((tier, _), bytes)| bytes * costs.byte_hour[*tier as usize]).sum()
}

/// What these ways reach; `None` where they do not fit, the solver fails, or time ends before there is a solution.
pub(super) fn value(costs: &Costs, ways: &[usize], deadline: &dyn Deadline) -> Option<CacheSelection> {
    if !fits(costs, ways) {
        return None;
    }
    let fluid = share(costs, ways, deadline)?;
    Some(with_price(costs, ways.to_vec(), fluid))
}

/// Adds the price of what is kept.
pub(super) fn with_price(costs: &Costs, ways: Vec<usize>, fluid: FractionalPlan) -> CacheSelection {
    let mut objective = fluid.objective;
    objective.cost_per_hour += price(costs, &ways);
    CacheSelection { ways, fluid, objective }
}

struct Search<'a> {
    costs: &'a Costs,
    deadline: &'a dyn Deadline,
    best: Option<CacheSelection>,
    solves_left: u32,
}

impl Search<'_> {
    /// Values a choice; whether it is the best so far.
    fn consider(&mut self, ways: &[usize]) -> bool {
        if self.is_over() || self.best.as_ref().is_some_and(|best| best.ways == ways) {
            return false;
        }
        self.solves_left = self.solves_left.saturating_sub(1);
        let Some(found) = value(self.costs, ways, self.deadline) else { return false };
        let is_better =
            self.best.as_ref().is_none_or(|best| found.objective.is_better(&best.objective, 1e-5));
        if is_better {
            self.best = Some(found);
        }
        is_better
    }

    fn is_over(&self) -> bool {
        self.solves_left == 0 || self.deadline.is_over()
    }

    /// Counts through all combinations.
    fn try_all(&mut self) {
        let mut ways = first(self.costs);
        loop {
            self.consider(&ways);
            let Some(place) = (0..ways.len()).find(|j| ways[*j] + 1 < self.costs.ways[*j].len()) else {
                return;
            };
            ways[..place].fill(0);
            ways[place] += 1;
            if self.is_over() {
                return;
            }
        }
    }

    /// Changes one job's way, or two jobs' at once, as long as it helps.
    fn improve(&mut self) {
        let mut tried: BTreeSet<Vec<usize>> = BTreeSet::new();
        loop {
            let Some(start) = self.best.as_ref().map(|best| best.ways.clone()) else { return };
            let moves = single_moves(self.costs, &start).into_iter().chain(double_moves(self.costs, &start));
            let mut improved = false;
            for moved in moves {
                if self.is_over() {
                    return;
                }
                let ways = moved.apply(self.costs, &start);
                if tried.insert(ways.clone()) && self.consider(&ways) {
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

/// One or two jobs go other ways, and others make room.
struct Move {
    first: (usize, usize),
    second: Option<(usize, usize)>,
    /// Whether jobs that can read what the first one keeps do so.
    is_joint: bool,
}

impl Move {
    fn apply(&self, costs: &Costs, start: &[usize]) -> Vec<usize> {
        let mut ways = start.to_vec();
        for (job, way) in [Some(self.first), self.second].into_iter().flatten() {
            ways[job] = way;
        }
        if self.is_joint {
            ways = joined(costs, ways, self.first.0);
        }
        make_room(costs, ways, self.first.0)
    }
}

/// One job goes another way; what promises the most comes first.
fn single_moves(costs: &Costs, start: &[usize]) -> Vec<Move> {
    let mut moves = Vec::new();
    for (j, now) in start.iter().enumerate() {
        for way in (0..costs.ways[j].len()).filter(|way| way != now) {
            let gain = worth(costs, j, way, SHORT) - worth(costs, j, *now, SHORT);
            moves.push((gain, (j, way)));
        }
    }
    moves.sort_by(|a, b| b.0.total_cmp(&a.0));
    let alone_and_joint = |(_, first)| [true, false].map(|is_joint| Move { first, second: None, is_joint });
    moves.into_iter().flat_map(alone_and_joint).collect()
}

/// Two jobs go other ways: an exchange of room.
fn double_moves<'a>(costs: &'a Costs, start: &'a [usize]) -> impl Iterator<Item = Move> + 'a {
    let others = move |j: usize| (0..costs.ways[j].len()).filter(move |way| *way != start[j]);
    let jobs = (0..start.len()).flat_map(move |a| (a + 1..start.len()).map(move |b| (a, b)));
    let pairs = jobs.flat_map(move |(a, b)| {
        others(a).flat_map(move |way| others(b).map(move |second| ((a, way), (b, second))))
    });
    pairs.take(PAIRS).map(|(first, second)| Move { first, second: Some(second), is_joint: false })
}

/// Others that can read what a job keeps do so.
fn joined(costs: &Costs, mut ways: Vec<usize>, job: usize) -> Vec<usize> {
    let Some(cut) = costs.ways[job][ways[job]].kept else { return ways };
    for (j, chosen) in ways.iter_mut().enumerate() {
        let same =
            |way: &ExecutionOption| way.kept.is_some_and(|kept| (kept.tier, kept.key) == (cut.tier, cut.key));
        if let Some(way) = costs.ways[j].iter().position(same) {
            *chosen = way;
        }
    }
    ways
}

/// Drops what others keep, the least dense first, until it fits; the job itself stays. Where a tenant has too much, its own
/// jobs make room.
fn make_room(costs: &Costs, mut ways: Vec<usize>, job: usize) -> Vec<usize> {
    loop {
        let over = over_quota(costs, &ways);
        if over.is_none() && has_room(costs, &ways) {
            return ways;
        }
        let stays = costs.ways[job][ways[job]].kept;
        let others = (0..ways.len()).filter(|j| costs.ways[*j].len() > 1);
        let kept = others.filter_map(|j| costs.ways[j][ways[j]].kept.map(|cut| (j, cut)));
        let makes_room = |j: usize, cut: &CutPlacement| match over {
            Some(tenant) => j != job && costs.tenants[j] == Some(tenant),
            None => stays.is_none_or(|stays| stays.tier == cut.tier && stays.key != cut.key),
        };
        let droppable = kept.filter(|(j, cut)| makes_room(*j, cut));
        let density = |j: usize, bytes: f64| worth(costs, j, ways[j], SHORT) / bytes.max(1.0);
        let least = droppable.min_by(|(a, x), (b, y)| density(*a, x.bytes).total_cmp(&density(*b, y.bytes)));
        let Some((_, dropped)) = least else { return ways };
        for (j, way) in ways.iter_mut().enumerate() {
            let cut = costs.ways[j][*way].kept;
            let is_dropped = cut.is_some_and(|cut| (cut.tier, cut.key) == (dropped.tier, dropped.key));
            if is_dropped && over.is_none_or(|tenant| j != job && costs.tenants[j] == Some(tenant)) {
                *way = 0;
            }
        }
    }
}

/// What a job's way saves over keeping nothing: shares of resources at the job's whole demand, by price, and where they
/// are short by `short` times as much.
fn worth(costs: &Costs, job: usize, way: usize, short: f64) -> f64 {
    let (none, kept) = (&costs.ways[job][0], &costs.ways[job][way]);
    let demand = costs.demand[job];
    let mut worth = 0.0;
    for w in (0..costs.types()).filter(|w| costs.counts[*w] > 0.0) {
        let saved = |resource: usize| none.per_row[w][resource] - kept.per_row[w][resource];
        worth += saved(CORES) * demand * costs.core_hour[w] / costs.types() as f64;
        for resource in [CORES, NIC, MEMORY_READ, DISK_READ] {
            let share = saved(resource) * demand / (costs.counts[w] * costs.has[w][resource]);
            worth += short * costs.weights[job] * share / costs.types() as f64;
        }
    }
    let store = (none.store_bytes - kept.store_bytes) * demand / costs.store_of(none);
    let reach = costs.fed_alone(job, kept) - costs.fed_alone(job, none);
    worth + short * costs.weights[job] * (store + reach)
}

/// Jobs that could read something if it were kept, with the way in which they do.
type Readers = Vec<(usize, usize)>;

/// Keeps the most valuable per share of its tier's room, as long as there is room; jobs then read the best that is kept.
fn greedy(costs: &Costs, start: &[usize], short: f64) -> Vec<usize> {
    let mut readers: BTreeMap<(CacheTier, u64), Readers> = BTreeMap::new();
    for (j, ways) in costs.ways.iter().enumerate().filter(|(_, ways)| ways.len() > 1) {
        for (way, cut) in ways.iter().enumerate().filter_map(|(way, found)| Some((way, found.kept?))) {
            readers.entry((cut.tier, cut.key)).or_default().push((j, way));
        }
    }
    let size = |readers: &[(usize, usize)]| {
        let bytes = readers.iter().filter_map(|(j, way)| costs.ways[*j][*way].kept.map(|cut| cut.bytes));
        bytes.fold(0.0, f64::max)
    };
    let gain = |readers: &[(usize, usize)]| -> f64 {
        readers.iter().map(|(j, way)| worth(costs, *j, *way, short).max(0.0)).sum()
    };
    let density = |tier: CacheTier, readers: &[(usize, usize)]| {
        let bytes = size(readers);
        let net = gain(readers) - bytes * costs.byte_hour[tier as usize];
        net / (bytes / costs.room[tier as usize] + 1e-3)
    };
    let mut order: Vec<(f64, CacheTier, &Readers)> = readers
        .iter()
        .map(|((tier, _), readers)| (density(*tier, readers), *tier, readers))
        .filter(|(density, ..)| *density > 0.0)
        .collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut ways = start.to_vec();
    let mut free = costs.room;
    let mut free_of: Vec<f64> =
        costs.tenant_room.iter().zip(kept_for(costs, start)).map(|(room, kept)| room - kept).collect();
    for ((tier, _), bytes) in kept(costs, start) {
        free[tier as usize] -= bytes;
    }
    for (_, tier, readers) in order {
        let bytes = size(readers);
        let for_tenant = costs.bytes_of(tier, bytes);
        let better = |(j, way): &&(usize, usize)| {
            let may = costs.tenants[*j].is_none_or(|tenant| for_tenant <= free_of[tenant]);
            may && worth(costs, *j, *way, short) > worth(costs, *j, ways[*j], short) + 1e-12
        };
        let takers: Readers = readers.iter().filter(better).copied().collect();
        let gained: f64 = takers
            .iter()
            .map(|(j, way)| worth(costs, *j, *way, short) - worth(costs, *j, ways[*j], short))
            .sum();
        if bytes <= free[tier as usize] && gained > bytes * costs.byte_hour[tier as usize] {
            free[tier as usize] -= bytes;
            let tenants: BTreeSet<usize> = takers.iter().filter_map(|(j, _)| costs.tenants[*j]).collect();
            tenants.into_iter().for_each(|tenant| free_of[tenant] -= for_tenant);
            for (j, way) in takers {
                ways[j] = way;
            }
        }
    }
    ways
}
