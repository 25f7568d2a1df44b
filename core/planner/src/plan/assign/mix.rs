//! Fills workers when two resources are scarce, by combining jobs that mainly need one resource with jobs that mainly
//! need the other.
//!
//! Filling the workers one job at a time may use up the cores of a worker while its network is idle. Therefore, jobs
//! are sorted by the ratio of the second resource to cores. Each worker receives jobs from both ends of this order, in
//! amounts that use both resources in proportion to the remaining needs.

use std::collections::VecDeque;

use super::{MIN_PLACED_SHARE, WorkerFilling};
use crate::plan::costs::{CORES, ExecutionOption, RESOURCES};

impl WorkerFilling<'_> {
    /// Returns the most loaded resource other than cores, if placing one job at a time could leave some of this
    /// resource unused. This is possible if the largest resource shares of the jobs add up to more than the capacity.
    pub(super) fn second_scarce_resource(
        &self,
        options: &[&ExecutionOption],
        needs: &[Vec<f64>],
        w: usize,
        workers: &[usize],
    ) -> Option<usize> {
        let mut pool = [0.0; RESOURCES];
        for worker in workers {
            for (pool, free) in pool.iter_mut().zip(&self.free_resources[*worker]) {
                *pool += free;
            }
        }
        let mut loads = [0.0; RESOURCES];
        let mut largest_shares = 0.0;
        for (option, need) in options.iter().zip(needs) {
            let share = |resource: usize| {
                let needed = need[w] * option.resources_per_row[w][resource];
                if needed > 0.0 { needed / pool[resource] } else { 0.0 }
            };
            for (resource, load) in loads.iter_mut().enumerate() {
                *load += share(resource);
            }
            largest_shares += (0..RESOURCES).map(share).fold(0.0, f64::max);
        }
        let second = (1..RESOURCES).max_by(|a, b| loads[*a].total_cmp(&loads[*b]))?;
        (largest_shares > 0.95 && loads[second] > 0.05).then_some(second)
    }

    /// Places each job at the same rate on each worker.
    pub(super) fn fill_evenly(
        &mut self,
        options: &[&ExecutionOption],
        needs: &mut [Vec<f64>],
        jobs: &[usize],
        w: usize,
        workers: &[usize],
    ) {
        for (done, worker) in workers.iter().enumerate() {
            let workers_left = (workers.len() - done) as f64;
            for j in jobs.iter().copied() {
                needs[j][w] -= self.place_on_worker(j, options[j], *worker, needs[j][w] / workers_left);
            }
        }
    }

    /// Fills workers with combinations of these jobs that use both cores and the second resource.
    pub(super) fn fill_combined(
        &mut self,
        options: &[&ExecutionOption],
        needs: &mut [Vec<f64>],
        jobs: &[usize],
        (w, second): (usize, usize),
        workers: &[usize],
    ) {
        let needed =
            |j: usize| [options[j].resources_per_row[w][CORES], options[j].resources_per_row[w][second]];
        let ratio = |j: usize| needed(j)[1] / needed(j)[0].max(f64::MIN_POSITIVE);
        let mut sorted: Vec<usize> = jobs.to_vec();
        sorted.sort_by(|a, b| ratio(*a).total_cmp(&ratio(*b)).then(a.cmp(b)));
        let mut queue: VecDeque<usize> = sorted.into();
        for worker in workers {
            let free = [self.free_resources[*worker][CORES], self.free_resources[*worker][second]];
            let wanted = queue.iter().fold([0.0; 2], |sum: [f64; 2], j| {
                let [cores, other] = needed(*j);
                [sum[0] + needs[*j][w] * cores, sum[1] + needs[*j][w] * other]
            });
            // Use both resources in proportion to the remaining needs, scaled down to the free resources of the worker.
            let fits = (free[0] / wanted[0]).min(free[1] / wanted[1]).min(1.0);
            let mut target = wanted.map(|wanted| wanted * fits);
            while let (Some(front), Some(back)) = (queue.front().copied(), queue.back().copied()) {
                let amounts = solve_two_rates(needed(front), needed(back), target);
                let mut is_done = true;
                for (j, amount) in [(front, amounts[0]), (back, amounts[1])] {
                    let placed = self.place_on_worker(j, options[j], *worker, amount.min(needs[j][w]));
                    needs[j][w] -= placed;
                    for (target, needed) in target.iter_mut().zip(needed(j)) {
                        *target = (*target - placed * needed).max(0.0);
                    }
                    if needs[j][w] <= MIN_PLACED_SHARE * (placed + amount) {
                        queue.retain(|other| *other != j);
                        is_done = false;
                    }
                }
                if is_done {
                    break;
                }
            }
        }
    }
}

/// Returns the rates of jobs a and b that use exactly the target amounts of both resources. If no solution exists, only
/// the job that fits better has a rate.
fn solve_two_rates(a: [f64; 2], b: [f64; 2], target: [f64; 2]) -> [f64; 2] {
    let determinant = a[0] * b[1] - a[1] * b[0];
    let x = (target[0] * b[1] - target[1] * b[0]) / determinant;
    let y = (a[0] * target[1] - a[1] * target[0]) / determinant;
    if x.is_finite() && y.is_finite() && x >= 0.0 && y >= 0.0 {
        return [x, y];
    }
    let alone = |needed: [f64; 2]| (target[0] / needed[0]).min(target[1] / needed[1]).max(0.0);
    // A negative rate means that this job would exhaust the other resource first.
    if y < 0.0 || !determinant.is_normal() { [alone(a), 0.0] } else { [0.0, alone(b)] }
}
