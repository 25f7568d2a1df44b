//! From rates on worker types to cores of single workers.
//!
//! Jobs keep the workers they had as far as they still need them. What is then left is filled worker by worker, so that
//! a job shares at most its first and last worker with others; jobs whose operators limit what one worker gives go
//! first, and are spread. Jobs divide a worker's cores by weight, so parts of a core are well possible.

mod mix;
mod steady;

use std::collections::BTreeMap;

use feedline_data::ids::WorkerId;

use super::costs::{CORES, Costs, ExecutionOption, RESOURCES, ResourceAmounts};

#[cfg(test)]
mod tests;

/// A worker's part in a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct JobShare {
    /// Place in the problem's list of workers.
    pub(super) worker: usize,
    pub(super) cores: f64,
    pub(super) rows_per_s: f64,
}

/// A way of choosing neighbours on a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Attempt {
    /// Each job the same on each worker.
    Even,
    /// From both ends of the ratio of two resources; first so much of each need, so that none is left for the end.
    Mixed(f64),
}

const ATTEMPTS: [Attempt; 4] =
    [Attempt::Mixed(1.0), Attempt::Even, Attempt::Mixed(0.97), Attempt::Mixed(0.9)];

impl Attempt {
    /// What may be lacking already so that this one is not tried.
    fn good_enough(self) -> f64 {
        match self {
            Self::Even => ENOUGH,
            Self::Mixed(share) => (2.0 * (1.0 - share)).max(ENOUGH),
        }
    }
}

/// Workers as the assignment fills them.
struct Filling<'a> {
    costs: &'a Costs,
    /// Type of each worker.
    types: &'a [usize],
    left: Vec<ResourceAmounts>,
    /// Rows per second of each job by worker.
    given: Vec<BTreeMap<usize, f64>>,
}

/// Parts smaller than this share of what a job needs from a type are not worth a worker.
const CRUMB: f64 = 1e-6;
/// A job that lacks no larger share of what it should get from a type has enough.
const ENOUGH: f64 = 1e-3;
/// Jobs are spread over all workers, which always works, where that makes at most so many parts.
const MOST_EVEN_PARTS: usize = 20_000;

/// Gives each job `rows[j][w]` rows per second on workers of each type, if it fits; never more than a worker has.
/// `before` has the workers of each job in the previous plan with their cores.
pub(super) fn assign(
    costs: &Costs,
    ways: &[&ExecutionOption],
    rows: &[Vec<f64>],
    types: &[usize],
    before: &[Vec<(usize, f64)>],
    headroom: f64,
) -> Vec<Vec<JobShare>> {
    let left = types.iter().map(|w| costs.has[*w]).collect();
    let mut filling = Filling { costs, types, left, given: vec![BTreeMap::new(); ways.len()] };
    let mut needs: Vec<Vec<f64>> = spare(costs, ways, rows, headroom);
    steady::keep(costs, ways, rows, &steady::had(costs, ways, types, before), &mut needs);
    for (j, workers) in before.iter().enumerate() {
        for (worker, cores) in workers {
            let w = types[*worker];
            let had = cores / ways[j].per_row[w][CORES];
            let wanted = needs[j][w].min(if had.is_finite() { had } else { 0.0 });
            needs[j][w] -= filling.put(j, ways[j], *worker, wanted);
        }
    }
    let mut by_type: Vec<Vec<usize>> = vec![Vec::new(); costs.types()];
    for (worker, w) in types.iter().enumerate() {
        by_type[*w].push(worker);
    }
    for (w, workers) in by_type.iter().enumerate() {
        filling.fill_type(ways, &mut needs, rows, w, workers);
    }
    filling.parts(ways)
}

/// Needs with headroom, as far as the type's resources, the store, tenants' quotas and the job's limits allow.
fn spare(costs: &Costs, ways: &[&ExecutionOption], rows: &[Vec<f64>], headroom: f64) -> Vec<Vec<f64>> {
    let rate = |by_type: &Vec<f64>| by_type.iter().sum::<f64>();
    let read = |(way, by_type): (&&ExecutionOption, &Vec<f64>)| (way.store, way.store_bytes * rate(by_type));
    let fullest = costs.store_loads(ways.iter().zip(rows).map(read)).into_iter().fold(0.0, f64::max);
    let most = headroom.min(super::costs::per(1.0, fullest)).max(1.0);
    let mut scale = vec![most; costs.types()];
    for (w, scale) in scale.iter_mut().enumerate() {
        for resource in 0..RESOURCES {
            let used: f64 =
                ways.iter().zip(rows).map(|(way, by_type)| by_type[w] * way.per_row[w][resource]).sum();
            let there = costs.counts[w] * costs.has[w][resource];
            if used > 0.0 {
                *scale = scale.min((there / used).max(1.0));
            }
        }
    }
    let cores = ways.iter().zip(rows).map(|(way, by_type)| costs.cores_of(way, by_type));
    let spare_of = |load: f64| super::costs::per(1.0, load).max(1.0);
    let of_tenants: Vec<f64> = costs.tenant_loads(cores.enumerate()).into_iter().map(spare_of).collect();
    let of_job = |(j, (way, by_type)): (usize, (&&ExecutionOption, &Vec<f64>))| -> Vec<f64> {
        let of_tenant = costs.tenants[j].map_or(f64::INFINITY, |tenant| of_tenants[tenant]);
        let need = |(w, rate): (usize, &f64)| {
            (rate * scale[w].min(of_tenant)).min(costs.counts[w] * way.most_per_worker[w])
        };
        by_type.iter().enumerate().map(need).collect()
    };
    ways.iter().zip(rows).enumerate().map(of_job).collect()
}

impl Filling<'_> {
    /// Gives a job up to so many rows per second on a worker; returns how many.
    fn put(&mut self, job: usize, way: &ExecutionOption, worker: usize, wanted: f64) -> f64 {
        let w = self.types[worker];
        let has = self.given[job].get(&worker).copied().unwrap_or(0.0);
        let mut rate = wanted.min(way.most_per_worker[w] - has);
        for (left, takes) in self.left[worker].iter().zip(&way.per_row[w]) {
            rate = rate.min(super::costs::per(*left, *takes));
        }
        if rate.is_nan() || rate <= 0.0 || rate < CRUMB * wanted {
            return 0.0;
        }
        for (left, takes) in self.left[worker].iter_mut().zip(&way.per_row[w]) {
            *left = (*left - rate * takes).max(0.0);
        }
        *self.given[job].entry(worker).or_default() += rate;
        rate
    }

    fn fill_type(
        &mut self,
        ways: &[&ExecutionOption],
        needs: &mut [Vec<f64>],
        rows: &[Vec<f64>],
        w: usize,
        workers: &[usize],
    ) {
        // Workers that a job needs at least: those that need the most come first.
        let workers_needed = |j: &usize| {
            let way = ways[*j];
            needs[*j][w] / self.costs.on_one(way, w).max(f64::MIN_POSITIVE)
        };
        let needed: BTreeMap<usize, f64> = (0..ways.len())
            .filter(|j| needs[*j][w] > CRUMB * rows[*j][w])
            .map(|j| (j, workers_needed(&j)))
            .collect();
        let costs = self.costs;
        let is_limited = |j: usize| is_limited(costs, ways[j], w);
        let mut order: Vec<usize> = needed.keys().copied().collect();
        order.sort_by(|a, b| {
            is_limited(*b).cmp(&is_limited(*a)).then(needed[b].total_cmp(&needed[a])).then(a.cmp(b))
        });
        let second = self.second_short(ways, needs, w, workers);
        let start = (self.left.clone(), self.given.clone(), needs.to_vec());
        self.fill_in_turn(ways, needs, rows, (w, workers), &order);
        let Some(second) = second.filter(|_| unmet(needs, rows, w) > ENOUGH) else { return };
        // Neighbours on a worker must be chosen: whichever way leaves the least undone is taken.
        let mut best = (self.left.clone(), self.given.clone(), needs.to_vec());
        let (limited, free): (Vec<usize>, Vec<usize>) = order.iter().partition(|j| is_limited(**j));
        for attempt in ATTEMPTS {
            let lacks = unmet(&best.2, rows, w);
            let is_too_large = attempt == Attempt::Even && order.len() * workers.len() > MOST_EVEN_PARTS;
            if lacks <= attempt.good_enough() || is_too_large {
                continue;
            }
            (self.left, self.given) = (start.0.clone(), start.1.clone());
            needs.clone_from_slice(&start.2);
            match attempt {
                Attempt::Even => self.fill_evenly(ways, needs, &order, w, workers),
                Attempt::Mixed(share) => {
                    let scale =
                        |needs: &mut [Vec<f64>], by: f64| needs.iter_mut().for_each(|need| need[w] *= by);
                    scale(needs, share);
                    self.fill_in_turn(ways, needs, rows, (w, workers), &limited);
                    self.mix(ways, needs, &free, (w, second), workers);
                    self.fill_in_turn(ways, needs, rows, (w, workers), &order);
                    for (need, wanted) in needs.iter_mut().zip(&start.2) {
                        need[w] += (1.0 - share) * wanted[w];
                    }
                }
            }
            self.fill_in_turn(ways, needs, rows, (w, workers), &order);
            if unmet(needs, rows, w) < lacks {
                best = (self.left.clone(), self.given.clone(), needs.to_vec());
            }
        }
        (self.left, self.given) = (best.0, best.1);
        needs.clone_from_slice(&best.2);
    }

    /// Job after job, each on the first workers with room; limited ones go round.
    fn fill_in_turn(
        &mut self,
        ways: &[&ExecutionOption],
        needs: &mut [Vec<f64>],
        rows: &[Vec<f64>],
        (w, workers): (usize, &[usize]),
        order: &[usize],
    ) {
        let mut ring = 0;
        let mut full = 0;
        for j in order.iter().copied() {
            let limited = is_limited(self.costs, ways[j], w);
            let start = if limited { ring } else { full };
            let lap = if limited { workers.len() } else { workers.len() - full };
            for step in 0..lap {
                if needs[j][w] <= CRUMB * rows[j][w] {
                    break;
                }
                let place = (start + step) % workers.len();
                needs[j][w] -= self.put(j, ways[j], workers[place], needs[j][w]);
                ring = if limited { place + 1 } else { ring };
            }
            while full < workers.len() && self.left[workers[full]][CORES] <= CRUMB * self.costs.has[w][CORES]
            {
                full += 1;
            }
        }
    }

    fn parts(self, ways: &[&ExecutionOption]) -> Vec<Vec<JobShare>> {
        let part = |way: &ExecutionOption, worker: usize, rate: f64| {
            let cpu_s = way.per_row[self.types[worker]][CORES];
            let cores = rate * cpu_s;
            // From cores the rate is reckoned when the plan is looked at again, so it shall be the same to the last bit.
            JobShare { worker, cores, rows_per_s: if cores > 0.0 { cores / cpu_s } else { rate } }
        };
        let of_job = |(given, way): (&BTreeMap<usize, f64>, &&ExecutionOption)| {
            given.iter().map(|(worker, rate)| part(way, *worker, *rate)).collect()
        };
        self.given.iter().zip(ways).map(of_job).collect()
    }
}

/// The largest share that a job lacks of what it should get from a type.
fn unmet(needs: &[Vec<f64>], rows: &[Vec<f64>], w: usize) -> f64 {
    let share = |(needs, rows): (&Vec<f64>, &Vec<f64>)| if rows[w] > 0.0 { needs[w] / rows[w] } else { 0.0 };
    needs.iter().zip(rows).map(share).fold(0.0, f64::max)
}

/// Whether the job cannot use all of a worker's cores, since its operators may not.
fn is_limited(costs: &Costs, way: &ExecutionOption, w: usize) -> bool {
    way.most_per_worker[w] < costs.has[w][CORES] / way.per_row[w][CORES]
}

/// Where each worker is in the problem's list.
pub(super) fn places(workers: &[super::problem::WorkerSlot]) -> BTreeMap<WorkerId, usize> {
    workers.iter().enumerate().map(|(place, worker)| (worker.id, place)).collect()
}
