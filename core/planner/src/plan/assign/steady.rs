//! Keeps the previous rates of jobs if they are close to the needs. Measured demands vary, and a job that moves to
//! other workers must recompute its splits.

use super::super::costs::{CORES, Costs, ExecutionOption, RESOURCES};

/// A job keeps its previous rate if the rate is at most this multiple of its need with headroom.
const MAX_KEPT_OVER_NEED: f64 = 1.25;
/// Maximum utilisation of each resource when jobs keep their rates.
const MAX_USED_SHARE: f64 = 0.98;

/// Sets the need of each job on each worker type to its previous rate, if this rate is at least `rows`, not much above
/// the need, and feasible together with the rates of all other jobs.
pub(super) fn keep_previous_rates(
    costs: &Costs,
    options: &[&ExecutionOption],
    rows: &[Vec<f64>],
    previous: &[Vec<f64>],
    needs: &mut [Vec<f64>],
) {
    // If the cluster is too small for all jobs, a kept rate would take resources from another job.
    if costs.is_overloaded {
        return;
    }
    for w in 0..costs.type_count() {
        let kept_rate = |j: usize| {
            let is_enough = rows[j][w] > 0.0
                && previous[j][w] >= rows[j][w]
                && previous[j][w] <= MAX_KEPT_OVER_NEED * needs[j][w];
            if is_enough { previous[j][w] } else { needs[j][w] }
        };
        let fits = (0..RESOURCES).all(|resource| {
            let needed = |(j, option): (usize, &&ExecutionOption)| {
                kept_rate(j) * option.resources_per_row[w][resource]
            };
            let used: f64 = options.iter().enumerate().map(needed).sum();
            used <= MAX_USED_SHARE * costs.worker_counts[w] * costs.worker_capacity[w][resource]
        });
        if fits && is_within_quotas(costs, options, needs, w, kept_rate) {
            let rates: Vec<f64> = (0..options.len()).map(kept_rate).collect();
            for (need, rate) in needs.iter_mut().zip(rates) {
                need[w] = rate;
            }
        }
    }
}

/// Whether the jobs stay within all tenant quotas if they keep these rates on worker type `w`.
fn is_within_quotas(
    costs: &Costs,
    options: &[&ExecutionOption],
    needs: &[Vec<f64>],
    w: usize,
    kept_rate: impl Fn(usize) -> f64,
) -> bool {
    let cores = |(j, option): (usize, &&ExecutionOption)| {
        let before = costs.needed_cores(option, &needs[j]);
        (j, before + (kept_rate(j) - needs[j][w]) * option.resources_per_row[w][CORES])
    };
    costs.tenant_loads(options.iter().enumerate().map(cores)).into_iter().all(|load| load <= 1.0 + 1e-9)
}

/// Returns the previous rate of each job on each worker type in rows per second, computed from its cores.
pub(super) fn previous_rates(
    costs: &Costs,
    options: &[&ExecutionOption],
    types: &[usize],
    before: &[Vec<(usize, f64)>],
) -> Vec<Vec<f64>> {
    let of_job = |(option, workers): (&&ExecutionOption, &Vec<(usize, f64)>)| {
        let mut by_type = vec![0.0; costs.type_count()];
        for (worker, cores) in workers {
            let rate = cores / option.resources_per_row[types[*worker]][CORES];
            by_type[types[*worker]] += if rate.is_finite() { rate } else { 0.0 };
        }
        by_type
    };
    options.iter().zip(before).map(of_job).collect()
}
