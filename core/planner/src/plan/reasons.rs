//! Sentences on what a plan decided and why.

use feedline_data::pipeline::CacheTier;

use super::costs::{Costs, ExecutionOption};
use super::problem::Problem;
use super::solution::Plan;
use crate::model::number;

/// Sentences about a plan are at most so many of each kind; the rest is counted.
const MOST_OF_A_KIND: usize = 10;

/// What bounds a job in a plan.
pub(super) fn job(
    problem: &Problem,
    costs: &Costs,
    j: usize,
    way: &ExecutionOption,
    rate: f64,
    tenant_loads: &[f64],
) -> String {
    let demand = costs.demand[j];
    let given = &problem.jobs[j];
    if rate >= 0.999 * demand {
        return match given.demand_rows_per_s {
            Some(_) => format!("its consumers take {} rows/s and no more", number(demand)),
            None => format!("all that the cluster can make of it are {} rows/s", number(demand)),
        };
    }
    let from_store = costs.store_of(way) / way.store_bytes;
    if way.store_bytes > 0.0 && rate >= 0.999 * from_store {
        return format!("the store gives {} rows/s and no more", number(from_store));
    }
    if let Some(tenant) = costs.tenants[j].filter(|tenant| tenant_loads[*tenant] >= 0.999) {
        return format!(
            "its tenant, {}, may have {} cores, and its jobs have them",
            quoted(&problem.tenants[tenant].name),
            number(costs.quotas[tenant])
        );
    }
    if rate < 0.999 * costs.alone(way) {
        return format!(
            "it gets {} of the {} rows/s that it could have alone, since others have a claim as well",
            number(rate),
            number(costs.alone(way).min(demand))
        );
    }
    match narrowest(problem, costs, j, way) {
        Some((operator, limit)) => format!(
            "`{operator}` runs {limit} at a time on each worker, which gives {} rows/s on {}",
            number(rate),
            workers(costs.counts.iter().sum::<f64>())
        ),
        None => {
            format!("all {} together give {} rows/s", workers(costs.counts.iter().sum::<f64>()), number(rate))
        }
    }
}

fn quoted(tenant: &str) -> String {
    if tenant.is_empty() { "that of callers without one".to_owned() } else { format!("`{tenant}`") }
}

/// The operator whose limit binds on every worker type.
fn narrowest(problem: &Problem, costs: &Costs, j: usize, way: &ExecutionOption) -> Option<(String, u32)> {
    let binds = |w: usize| costs.on_one(way, w) >= 0.999 * way.most_per_worker[w];
    let w = (0..costs.types()).find(|w| costs.counts[*w] > 0.0 && binds(*w))?;
    let job = &problem.jobs[j];
    let first = way.kept.map_or(0, |kept| job.cuts[kept.cut].after + 1);
    let limited = job.operators.iter().skip(first).filter_map(|operator| {
        let limit = operator.limit?;
        Some((f64::from(limit) / (operator.cpu_s[w] + operator.latency_s), operator, limit))
    });
    let (_, operator, limit) = limited.min_by(|a, b| a.0.total_cmp(&b.0))?;
    Some((operator.name.clone(), limit))
}

fn workers(count: f64) -> String {
    if count == 1.0 { "1 worker".into() } else { format!("{} workers", number(count)) }
}

/// What a plan decided, over all jobs.
pub(super) fn all(problem: &Problem, plan: &Plan, previous: Option<&Plan>, kept: bool) -> Vec<String> {
    let mut reasons = Vec::new();
    let (reached, bound) = (&plan.objective, &plan.bound);
    reasons.push(format!(
        "the least fed job gets {} % of what it could take by its weight; no plan can give more than {} %",
        number(100.0 * reached.smallest_fed),
        number(100.0 * bound.smallest_fed)
    ));
    if plan.is_fallback {
        reasons.push(
            "there was no time for the linear problem, so each job gets the same share of each worker".into(),
        );
    }
    if let Some(previous) = previous {
        let share = number(100.0 * problem.settings.gain_to_change);
        reasons.push(match kept {
            true => format!("the previous plan is kept: a new one would gain less than {share} %"),
            false => format!(
                "the plan changes: the least fed job had {} % and gets {} %, and the cost is {} per hour instead of {}",
                number(100.0 * previous.objective.smallest_fed),
                number(100.0 * reached.smallest_fed),
                number(reached.cost_per_hour),
                number(previous.objective.cost_per_hour)
            ),
        });
    }
    reasons.extend(shortened(plan.caches.iter().map(|cache| cache_reason(problem, cache)), "caches"));
    let hungry = plan.jobs.iter().filter(|job| job.fed_fraction < 0.999);
    reasons.extend(shortened(hungry.map(|job| format!("job `{}`: {}", job.name, job.why)), "jobs"));
    reasons
}

fn cache_reason(problem: &Problem, cache: &super::solution::CachePlan) -> String {
    let job = problem.jobs.iter().find(|job| job.cuts.iter().any(|cut| cut.key == cache.key));
    let operator = job.and_then(|job| {
        let cut = job.cuts.iter().find(|cut| cut.key == cache.key)?;
        job.operators.get(cut.after).map(|operator| operator.name.clone())
    });
    let tier = match cache.tier {
        CacheTier::Memory => "the workers' memory",
        CacheTier::Disk => "the workers' disks",
        CacheTier::Store => "the object store",
    };
    let readers = match cache.jobs.len() {
        1 => "1 job reads it".to_owned(),
        count => format!("{count} jobs read it"),
    };
    format!(
        "the output of `{}` would be kept in {tier}: {} GB, and {readers}",
        operator.unwrap_or_default(),
        number(cache.bytes / 1e9)
    )
}

/// The first few, and how many there are besides.
fn shortened(sentences: impl Iterator<Item = String>, noun: &str) -> Vec<String> {
    let mut all: Vec<String> = sentences.collect();
    let rest = all.len().saturating_sub(MOST_OF_A_KIND);
    if rest > 0 {
        all.truncate(MOST_OF_A_KIND);
        all.push(format!("and so for {rest} more {noun}"));
    }
    all
}
