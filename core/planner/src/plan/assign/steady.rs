//! Jobs keep what they had where that is about what they need: demands are measured, and each change of a job's workers
//! costs the splits that are on them.

use super::super::costs::{CORES, Costs, ExecutionOption, RESOURCES};

/// A job keeps up to so many times what it needs with headroom.
const SLACK: f64 = 1.25;
/// Of what there is, so much may be kept.
const FULL: f64 = 0.98;

/// Takes for needs what jobs had on each type, where that is at least `rows`, not much above the need, and there for all.
pub(super) fn keep(
    costs: &Costs,
    ways: &[&ExecutionOption],
    rows: &[Vec<f64>],
    had: &[Vec<f64>],
    needs: &mut [Vec<f64>],
) {
    // Where not all can be fed, what one keeps another lacks.
    if costs.is_short {
        return;
    }
    for w in 0..costs.types() {
        let kept = |j: usize| {
            let is_enough = rows[j][w] > 0.0 && had[j][w] >= rows[j][w] && had[j][w] <= SLACK * needs[j][w];
            if is_enough { had[j][w] } else { needs[j][w] }
        };
        let fits = (0..RESOURCES).all(|resource| {
            let takes = |(j, way): (usize, &&ExecutionOption)| kept(j) * way.per_row[w][resource];
            let taken: f64 = ways.iter().enumerate().map(takes).sum();
            taken <= FULL * costs.counts[w] * costs.has[w][resource]
        });
        if fits && is_within_quotas(costs, ways, needs, w, kept) {
            let kept: Vec<f64> = (0..ways.len()).map(kept).collect();
            for (need, kept) in needs.iter_mut().zip(kept) {
                need[w] = kept;
            }
        }
    }
}

/// Whether no tenant has more than its quota where jobs keep so many rows per second of a type.
fn is_within_quotas(
    costs: &Costs,
    ways: &[&ExecutionOption],
    needs: &[Vec<f64>],
    w: usize,
    kept: impl Fn(usize) -> f64,
) -> bool {
    let cores = |(j, way): (usize, &&ExecutionOption)| {
        let before = costs.cores_of(way, &needs[j]);
        (j, before + (kept(j) - needs[j][w]) * way.per_row[w][CORES])
    };
    costs.tenant_loads(ways.iter().enumerate().map(cores)).into_iter().all(|load| load <= 1.0 + 1e-9)
}

/// Rows per second that jobs had on each type, from their cores on workers.
pub(super) fn had(
    costs: &Costs,
    ways: &[&ExecutionOption],
    types: &[usize],
    before: &[Vec<(usize, f64)>],
) -> Vec<Vec<f64>> {
    let of_job = |(way, workers): (&&ExecutionOption, &Vec<(usize, f64)>)| {
        let mut by_type = vec![0.0; costs.types()];
        for (worker, cores) in workers {
            let rate = cores / way.per_row[types[*worker]][CORES];
            by_type[types[*worker]] += if rate.is_finite() { rate } else { 0.0 };
        }
        by_type
    };
    ways.iter().zip(before).map(of_job).collect()
}
