//! Filling workers when two resources are short: jobs that take much of one go beside jobs that take much of the other.
//!
//! Filled one job after the other, a worker whose cores are taken has network left that nobody can use. So jobs are sorted
//! by what they take of the second resource over cores, and each worker gets jobs from both ends, in amounts that fill
//! both resources as the whole of the remaining needs would.

use std::collections::VecDeque;

use super::{CRUMB, Filling};
use crate::plan::costs::{CORES, ExecutionOption, RESOURCES};

impl Filling<'_> {
    /// The resource beside cores that is the most loaded, if filling job by job could leave some of it unusable: when
    /// the largest shares that jobs take of any resource add up to more than there is.
    pub(super) fn second_short(
        &self,
        ways: &[&ExecutionOption],
        needs: &[Vec<f64>],
        w: usize,
        workers: &[usize],
    ) -> Option<usize> {
        let mut pool = [0.0; RESOURCES];
        for worker in workers {
            for (pool, left) in pool.iter_mut().zip(&self.left[*worker]) {
                *pool += left;
            }
        }
        let mut loads = [0.0; RESOURCES];
        let mut largest_shares = 0.0;
        for (way, need) in ways.iter().zip(needs) {
            let share = |resource: usize| {
                let takes = need[w] * way.per_row[w][resource];
                if takes > 0.0 { takes / pool[resource] } else { 0.0 }
            };
            for (resource, load) in loads.iter_mut().enumerate() {
                *load += share(resource);
            }
            largest_shares += (0..RESOURCES).map(share).fold(0.0, f64::max);
        }
        let second = (1..RESOURCES).max_by(|a, b| loads[*a].total_cmp(&loads[*b]))?;
        (largest_shares > 0.95 && loads[second] > 0.05).then_some(second)
    }

    /// Gives each job the same on each worker.
    pub(super) fn fill_evenly(
        &mut self,
        ways: &[&ExecutionOption],
        needs: &mut [Vec<f64>],
        jobs: &[usize],
        w: usize,
        workers: &[usize],
    ) {
        for (done, worker) in workers.iter().enumerate() {
            let workers_left = (workers.len() - done) as f64;
            for j in jobs.iter().copied() {
                needs[j][w] -= self.put(j, ways[j], *worker, needs[j][w] / workers_left);
            }
        }
    }

    /// Fills workers with these jobs, mixing them by cores and the second resource.
    pub(super) fn mix(
        &mut self,
        ways: &[&ExecutionOption],
        needs: &mut [Vec<f64>],
        jobs: &[usize],
        (w, second): (usize, usize),
        workers: &[usize],
    ) {
        let takes = |j: usize| [ways[j].per_row[w][CORES], ways[j].per_row[w][second]];
        let ratio = |j: usize| takes(j)[1] / takes(j)[0].max(f64::MIN_POSITIVE);
        let mut sorted: Vec<usize> = jobs.to_vec();
        sorted.sort_by(|a, b| ratio(*a).total_cmp(&ratio(*b)).then(a.cmp(b)));
        let mut queue: VecDeque<usize> = sorted.into();
        for worker in workers {
            let left = [self.left[*worker][CORES], self.left[*worker][second]];
            let wanted = queue.iter().fold([0.0; 2], |sum: [f64; 2], j| {
                let [cores, other] = takes(*j);
                [sum[0] + needs[*j][w] * cores, sum[1] + needs[*j][w] * other]
            });
            // The needs' own mix, as much of it as the worker has room for.
            let fits = (left[0] / wanted[0]).min(left[1] / wanted[1]).min(1.0);
            let mut target = wanted.map(|wanted| wanted * fits);
            while let (Some(front), Some(back)) = (queue.front().copied(), queue.back().copied()) {
                let amounts = two_amounts(takes(front), takes(back), target);
                let mut is_done = true;
                for (j, amount) in [(front, amounts[0]), (back, amounts[1])] {
                    let given = self.put(j, ways[j], *worker, amount.min(needs[j][w]));
                    needs[j][w] -= given;
                    for (target, takes) in target.iter_mut().zip(takes(j)) {
                        *target = (*target - given * takes).max(0.0);
                    }
                    if needs[j][w] <= CRUMB * (given + amount) {
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

/// Rows per second of a and b that take just the target of both resources; where none do, of the one that fits better.
fn two_amounts(a: [f64; 2], b: [f64; 2], target: [f64; 2]) -> [f64; 2] {
    let determinant = a[0] * b[1] - a[1] * b[0];
    let x = (target[0] * b[1] - target[1] * b[0]) / determinant;
    let y = (a[0] * target[1] - a[1] * target[0]) / determinant;
    if x.is_finite() && y.is_finite() && x >= 0.0 && y >= 0.0 {
        return [x, y];
    }
    let alone = |takes: [f64; 2]| (target[0] / takes[0]).min(target[1] / takes[1]).max(0.0);
    // Below zero means that there is too much of the other kind already.
    if y < 0.0 || !determinant.is_normal() { [alone(a), 0.0] } else { [0.0, alone(b)] }
}
