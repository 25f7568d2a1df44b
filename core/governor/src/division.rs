//! Divides the budget of a store: first among tenants, then among the jobs of a tenant, then among the workers of a job.
//!
//! Each level is max-min fair with weights: nobody receives more than it asks for, and what one does not need is divided among
//! the others. The rest that nobody asks for is added as headroom, since demands change between two plans.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use feedline_data::ids::{JobId, WorkerId};

/// What one job asks for on one worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The tenant of the job.
    pub tenant: String,
    /// The job.
    pub job: JobId,
    /// The weight of the job. The weight of a tenant is the mean weight of its jobs.
    pub weight: f64,
    /// The worker.
    pub worker: WorkerId,
    /// The demand in the unit of the budget; infinity if requests wait.
    pub demand: f64,
}

/// Divides `budget`. Returns the part of each claim, in the order of the claims.
pub fn divide(budget: f64, claims: &[Claim]) -> Vec<f64> {
    let mut tenants: BTreeMap<&str, BTreeMap<JobId, Vec<usize>>> = BTreeMap::new();
    for (index, claim) in claims.iter().enumerate() {
        tenants.entry(&claim.tenant).or_default().entry(claim.job).or_default().push(index);
    }
    let job_weight = |indexes: &Vec<usize>| claims[indexes[0]].weight.max(f64::MIN_POSITIVE);
    let job_demand = |indexes: &Vec<usize>| indexes.iter().map(|index| claims[*index].demand).sum::<f64>();
    let of_tenants: Vec<(f64, f64)> = tenants
        .values()
        .map(|jobs| {
            let weight = jobs.values().map(job_weight).sum::<f64>() / jobs.len() as f64;
            (weight, jobs.values().map(job_demand).sum())
        })
        .collect();
    let mut parts = vec![0.0; claims.len()];
    for (jobs, tenant_part) in tenants.values().zip(share_out(budget, &of_tenants)) {
        let of_jobs: Vec<(f64, f64)> =
            jobs.values().map(|indexes| (job_weight(indexes), job_demand(indexes))).collect();
        for (indexes, job_part) in jobs.values().zip(share_out(tenant_part, &of_jobs)) {
            let of_workers: Vec<(f64, f64)> =
                indexes.iter().map(|index| (1.0, claims[*index].demand)).collect();
            for (index, part) in indexes.iter().zip(share_out(job_part, &of_workers)) {
                parts[*index] = part;
            }
        }
    }
    parts
}

/// Rounds parts to whole numbers of at least 1. Those with the largest remainders are rounded up, so that the sum remains the same
/// if possible, and a small change of the sum changes few parts.
pub fn round_parts(parts: &[f64]) -> Vec<u32> {
    let mut rounded: Vec<u32> = parts.iter().map(|part| (*part as u32).max(1)).collect();
    let missing = parts.iter().sum::<f64>().round() - rounded.iter().copied().map(f64::from).sum::<f64>();
    // Parts that differ only by rounding errors keep their order.
    let remainder = |index: &usize| (1e6 * (parts[*index] - f64::from(rounded[*index]))).round() as i64;
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|index| Reverse(remainder(index)));
    for index in order.into_iter().take(missing.max(0.0) as usize) {
        rounded[index] += 1;
    }
    rounded
}

/// Divides `total` among claims of (weight, demand), and adds what no claim needs in proportion to the weights.
fn share_out(total: f64, claims: &[(f64, f64)]) -> Vec<f64> {
    let mut parts = water_fill(total, claims);
    let rest = (total - parts.iter().sum::<f64>()).max(0.0);
    let weights: f64 = claims.iter().map(|(weight, _)| weight).sum();
    for (part, (weight, _)) in parts.iter_mut().zip(claims) {
        *part += rest * weight / weights;
    }
    parts
}

/// The weighted max-min fair division of `total`.
fn water_fill(total: f64, claims: &[(f64, f64)]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    let level = |index: &usize| claims[*index].1 / claims[*index].0;
    order.sort_by(|a, b| level(a).total_cmp(&level(b)));
    let mut weights: f64 = claims.iter().map(|(weight, _)| weight).sum();
    let mut left = total;
    let mut parts = vec![0.0; claims.len()];
    for index in order {
        let (weight, demand) = claims[index];
        let part = demand.min(left * weight / weights.max(weight)).max(0.0);
        parts[index] = part;
        left -= part;
        weights -= weight;
    }
    parts
}

#[cfg(test)]
mod tests;
