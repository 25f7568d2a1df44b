//! Converts rates on worker types into cores on individual workers.
//!
//! Jobs keep the workers of the previous plan that they still need. The remaining needs fill the workers one by one, so
//! that a job shares at most its first and last worker with other jobs. Jobs with operator limits are placed first and
//! spread over several workers. A job may receive a fraction of a core.

mod mix;
mod steady;

use std::collections::BTreeMap;

use feedline_data::ids::WorkerId;

use super::costs::{CORES, Costs, ExecutionOption, RESOURCES, ResourceAmounts};

#[cfg(test)]
mod tests;

/// The rate of a job on one worker, and the cores for that rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct JobPlacement {
    /// The index in the problem's list of workers.
    pub(super) worker: usize,
    pub(super) cores: f64,
    pub(super) rows_per_s: f64,
}

/// A strategy for choosing the jobs that share a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
enum FillStrategy {
    /// Each job runs at the same rate on every worker.
    Even,
    /// Combines jobs that mainly need one resource with jobs that mainly need the other. Places this share of each need
    /// first, so that the rest can fill the gaps.
    Mixed(f64),
}

const FILL_STRATEGIES: [FillStrategy; 4] =
    [FillStrategy::Mixed(1.0), FillStrategy::Even, FillStrategy::Mixed(0.97), FillStrategy::Mixed(0.9)];

impl FillStrategy {
    /// Returns the unmet share that is small enough to skip this strategy.
    fn acceptable_unmet_share(self) -> f64 {
        match self {
            Self::Even => ACCEPTABLE_UNMET_SHARE,
            Self::Mixed(share) => (2.0 * (1.0 - share)).max(ACCEPTABLE_UNMET_SHARE),
        }
    }
}

/// The state of the workers while jobs are placed on them.
struct WorkerFilling<'a> {
    costs: &'a Costs,
    /// The type of each worker.
    worker_types: &'a [usize],
    /// The unused resources of each worker.
    free_resources: Vec<ResourceAmounts>,
    /// Rows per second of each job on each worker.
    rates: Vec<BTreeMap<usize, f64>>,
}

/// Placements that cover less than this share of a job's need are skipped.
const MIN_PLACED_SHARE: f64 = 1e-6;
/// A need is considered met if its unmet share is below this value.
const ACCEPTABLE_UNMET_SHARE: f64 = 1e-3;
/// Maximum number of placements for which [`FillStrategy::Even`] is tried.
const MAX_EVEN_PLACEMENTS: usize = 20_000;

/// The workers that each job should keep, as indexes in the problem's list of workers.
#[derive(Clone, Copy)]
pub(super) struct PreviousWorkers<'a> {
    /// The workers and cores of each job in the previous plan.
    pub(super) cores: &'a [Vec<(usize, f64)>],
    /// The workers that hold the graph of each job.
    pub(super) graph_holders: &'a [Vec<usize>],
}

/// Places `rows[j][w]` rows per second of each job `j` on workers of type `w`, as far as the capacity of the workers
/// allows.
pub(super) fn assign(
    costs: &Costs,
    options: &[&ExecutionOption],
    rows: &[Vec<f64>],
    types: &[usize],
    previous: PreviousWorkers<'_>,
    headroom: f64,
) -> Vec<Vec<JobPlacement>> {
    let before = previous.cores;
    let free = types.iter().map(|w| costs.worker_capacity[*w]).collect();
    let rates = vec![BTreeMap::new(); options.len()];
    let mut filling = WorkerFilling { costs, worker_types: types, free_resources: free, rates };
    let mut needs: Vec<Vec<f64>> = needs_with_headroom(costs, options, rows, headroom);
    steady::keep_previous_rates(
        costs,
        options,
        rows,
        &steady::previous_rates(costs, options, types, before),
        &mut needs,
    );
    for (j, workers) in before.iter().enumerate() {
        for (worker, cores) in workers {
            let w = types[*worker];
            let previous = cores / options[j].resources_per_row[w][CORES];
            let wanted = needs[j][w].min(if previous.is_finite() { previous } else { 0.0 });
            needs[j][w] -= filling.place_on_worker(j, options[j], *worker, wanted);
        }
    }
    // Another worker would have to load the graph first.
    for (j, workers) in previous.graph_holders.iter().enumerate() {
        for worker in workers {
            let w = types[*worker];
            needs[j][w] -= filling.place_on_worker(j, options[j], *worker, needs[j][w]);
        }
    }
    let mut by_type: Vec<Vec<usize>> = vec![Vec::new(); costs.type_count()];
    for (worker, w) in types.iter().enumerate() {
        by_type[*w].push(worker);
    }
    for (w, workers) in by_type.iter().enumerate() {
        filling.fill_type(options, &mut needs, rows, w, workers);
    }
    filling.placements(options)
}

/// Returns the needs with headroom, but at most what worker types, stores, tenant quotas and operator limits allow.
fn needs_with_headroom(
    costs: &Costs,
    options: &[&ExecutionOption],
    rows: &[Vec<f64>],
    headroom: f64,
) -> Vec<Vec<f64>> {
    let rate = |by_type: &Vec<f64>| by_type.iter().sum::<f64>();
    let read = |(option, by_type): (&&ExecutionOption, &Vec<f64>)| {
        (option.store, option.store_bytes_per_row * rate(by_type))
    };
    let fullest = costs.store_loads(options.iter().zip(rows).map(read)).into_iter().fold(0.0, f64::max);
    let max_headroom = headroom.min(super::costs::ratio(1.0, fullest)).max(1.0);
    let mut scale = vec![max_headroom; costs.type_count()];
    for (w, scale) in scale.iter_mut().enumerate() {
        for resource in 0..RESOURCES {
            let used: f64 = options
                .iter()
                .zip(rows)
                .map(|(option, by_type)| by_type[w] * option.resources_per_row[w][resource])
                .sum();
            let capacity = costs.worker_counts[w] * costs.worker_capacity[w][resource];
            if used > 0.0 {
                *scale = scale.min((capacity / used).max(1.0));
            }
        }
    }
    let cores = options.iter().zip(rows).map(|(option, by_type)| costs.needed_cores(option, by_type));
    let headroom_of = |load: f64| super::costs::ratio(1.0, load).max(1.0);
    let tenant_headroom: Vec<f64> =
        costs.tenant_loads(cores.enumerate()).into_iter().map(headroom_of).collect();
    let of_job = |(j, (option, by_type)): (usize, (&&ExecutionOption, &Vec<f64>))| -> Vec<f64> {
        let of_tenant = costs.job_tenants[j].map_or(f64::INFINITY, |tenant| tenant_headroom[tenant]);
        let need = |(w, rate): (usize, &f64)| {
            (rate * scale[w].min(of_tenant)).min(costs.worker_counts[w] * option.max_rate_per_worker[w])
        };
        by_type.iter().enumerate().map(need).collect()
    };
    options.iter().zip(rows).enumerate().map(of_job).collect()
}

impl WorkerFilling<'_> {
    /// Places up to `wanted` rows per second of a job on a worker. Returns the placed rate.
    fn place_on_worker(&mut self, job: usize, option: &ExecutionOption, worker: usize, wanted: f64) -> f64 {
        let w = self.worker_types[worker];
        let present = self.rates[job].get(&worker).copied().unwrap_or(0.0);
        let mut rate = wanted.min(option.max_rate_per_worker[w] - present);
        for (free, needed) in self.free_resources[worker].iter().zip(&option.resources_per_row[w]) {
            rate = rate.min(super::costs::ratio(*free, *needed));
        }
        if rate.is_nan() || rate <= 0.0 || rate < MIN_PLACED_SHARE * wanted {
            return 0.0;
        }
        for (free, needed) in self.free_resources[worker].iter_mut().zip(&option.resources_per_row[w]) {
            *free = (*free - rate * needed).max(0.0);
        }
        *self.rates[job].entry(worker).or_default() += rate;
        rate
    }

    fn fill_type(
        &mut self,
        options: &[&ExecutionOption],
        needs: &mut [Vec<f64>],
        rows: &[Vec<f64>],
        w: usize,
        workers: &[usize],
    ) {
        // Jobs that need the most workers come first.
        let workers_needed = |j: &usize| {
            let option = options[*j];
            needs[*j][w] / self.costs.rate_on_one_worker(option, w).max(f64::MIN_POSITIVE)
        };
        let needed: BTreeMap<usize, f64> = (0..options.len())
            .filter(|j| needs[*j][w] > MIN_PLACED_SHARE * rows[*j][w])
            .map(|j| (j, workers_needed(&j)))
            .collect();
        let costs = self.costs;
        let is_limited = |j: usize| is_operator_limited(costs, options[j], w);
        let mut order: Vec<usize> = needed.keys().copied().collect();
        order.sort_by(|a, b| {
            is_limited(*b).cmp(&is_limited(*a)).then(needed[b].total_cmp(&needed[a])).then(a.cmp(b))
        });
        let second = self.second_scarce_resource(options, needs, w, workers);
        let start = (self.free_resources.clone(), self.rates.clone(), needs.to_vec());
        self.fill_in_turn(options, needs, rows, (w, workers), &order);
        let Some(second) = second.filter(|_| largest_unmet_share(needs, rows, w) > ACCEPTABLE_UNMET_SHARE)
        else {
            return;
        };
        // Try strategies that combine jobs on a worker, and use the result with the smallest unmet need.
        let mut best = (self.free_resources.clone(), self.rates.clone(), needs.to_vec());
        let (limited, unlimited): (Vec<usize>, Vec<usize>) = order.iter().partition(|j| is_limited(**j));
        for strategy in FILL_STRATEGIES {
            let unmet = largest_unmet_share(&best.2, rows, w);
            let is_too_large =
                strategy == FillStrategy::Even && order.len() * workers.len() > MAX_EVEN_PLACEMENTS;
            if unmet <= strategy.acceptable_unmet_share() || is_too_large {
                continue;
            }
            (self.free_resources, self.rates) = (start.0.clone(), start.1.clone());
            needs.clone_from_slice(&start.2);
            match strategy {
                FillStrategy::Even => self.fill_evenly(options, needs, &order, w, workers),
                FillStrategy::Mixed(share) => {
                    let scale =
                        |needs: &mut [Vec<f64>], by: f64| needs.iter_mut().for_each(|need| need[w] *= by);
                    scale(needs, share);
                    self.fill_in_turn(options, needs, rows, (w, workers), &limited);
                    self.fill_combined(options, needs, &unlimited, (w, second), workers);
                    self.fill_in_turn(options, needs, rows, (w, workers), &order);
                    for (need, wanted) in needs.iter_mut().zip(&start.2) {
                        need[w] += (1.0 - share) * wanted[w];
                    }
                }
            }
            self.fill_in_turn(options, needs, rows, (w, workers), &order);
            if largest_unmet_share(needs, rows, w) < unmet {
                best = (self.free_resources.clone(), self.rates.clone(), needs.to_vec());
            }
        }
        (self.free_resources, self.rates) = (best.0, best.1);
        needs.clone_from_slice(&best.2);
    }

    /// Fills the workers one job at a time. Jobs with operator limits are distributed round-robin over the workers.
    fn fill_in_turn(
        &mut self,
        options: &[&ExecutionOption],
        needs: &mut [Vec<f64>],
        rows: &[Vec<f64>],
        (w, workers): (usize, &[usize]),
        order: &[usize],
    ) {
        let mut ring = 0;
        let mut full = 0;
        for j in order.iter().copied() {
            let limited = is_operator_limited(self.costs, options[j], w);
            let start = if limited { ring } else { full };
            let steps = if limited { workers.len() } else { workers.len() - full };
            for step in 0..steps {
                if needs[j][w] <= MIN_PLACED_SHARE * rows[j][w] {
                    break;
                }
                let place = (start + step) % workers.len();
                needs[j][w] -= self.place_on_worker(j, options[j], workers[place], needs[j][w]);
                ring = if limited { place + 1 } else { ring };
            }
            while full < workers.len()
                && self.free_resources[workers[full]][CORES]
                    <= MIN_PLACED_SHARE * self.costs.worker_capacity[w][CORES]
            {
                full += 1;
            }
        }
    }

    fn placements(self, options: &[&ExecutionOption]) -> Vec<Vec<JobPlacement>> {
        let part = |option: &ExecutionOption, worker: usize, rate: f64| {
            let cpu_s = option.resources_per_row[self.worker_types[worker]][CORES];
            let cores = rate * cpu_s;
            // The next plan computes the rate from the cores, and both rates must be bitwise equal.
            JobPlacement { worker, cores, rows_per_s: if cores > 0.0 { cores / cpu_s } else { rate } }
        };
        let of_job = |(rates, option): (&BTreeMap<usize, f64>, &&ExecutionOption)| {
            rates.iter().map(|(worker, rate)| part(option, *worker, *rate)).collect()
        };
        self.rates.iter().zip(options).map(of_job).collect()
    }
}

/// Returns the largest unmet share of any job on worker type `w`.
fn largest_unmet_share(needs: &[Vec<f64>], rows: &[Vec<f64>], w: usize) -> f64 {
    let share = |(needs, rows): (&Vec<f64>, &Vec<f64>)| if rows[w] > 0.0 { needs[w] / rows[w] } else { 0.0 };
    needs.iter().zip(rows).map(share).fold(0.0, f64::max)
}

/// Whether operator limits prevent the job from using all cores of a worker of type `w`.
fn is_operator_limited(costs: &Costs, option: &ExecutionOption, w: usize) -> bool {
    option.max_rate_per_worker[w] < costs.worker_capacity[w][CORES] / option.resources_per_row[w][CORES]
}

/// Returns the index of each worker in the problem's list of workers.
pub(super) fn worker_indexes(workers: &[super::problem::WorkerSlot]) -> BTreeMap<WorkerId, usize> {
    workers.iter().enumerate().map(|(place, worker)| (worker.id, place)).collect()
}
