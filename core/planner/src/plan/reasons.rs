//! Sentences that explain a plan.

use feedline_data::pipeline::CacheTier;

use super::costs::{Costs, ExecutionOption};
use super::problem::Problem;
use super::solution::Plan;
use crate::model::number;

/// The largest number of sentences of each kind. Further sentences are counted.
const MAX_SENTENCES: usize = 10;

/// The resource that bounds a job in a plan, as text for users.
pub(super) fn job_bound(
    problem: &Problem,
    costs: &Costs,
    j: usize,
    option: &ExecutionOption,
    rate: f64,
    tenant_loads: &[f64],
) -> String {
    let demand = costs.demand[j];
    let given = &problem.jobs[j];
    if rate >= 0.999 * demand {
        return match given.demand_rows_per_s {
            Some(_) => format!("its consumers take at most {} rows/s", number(demand)),
            None => format!("the cluster can compute at most {} rows/s of it", number(demand)),
        };
    }
    let from_store = costs.store_bandwidth(option) / option.store_bytes;
    if option.store_bytes > 0.0 && rate >= 0.999 * from_store {
        return format!("the store delivers at most {} rows/s", number(from_store));
    }
    if let Some(tenant) = costs.tenants[j].filter(|tenant| tenant_loads[*tenant] >= 0.999) {
        return format!(
            "the jobs of its tenant, {}, use all {} cores of the quota",
            tenant_name(&problem.tenants[tenant].name),
            number(costs.quotas[tenant])
        );
    }
    if rate < 0.999 * costs.rate_alone(option) {
        return format!(
            "it gets {} of the {} rows/s that it could have alone, since it shares workers with other jobs",
            number(rate),
            number(costs.rate_alone(option).min(demand))
        );
    }
    match binding_operator(problem, costs, j, option) {
        Some((operator, limit)) => format!(
            "`{operator}` has at most {limit} concurrent executions on each worker, which gives {} rows/s on {}",
            number(rate),
            workers(costs.counts.iter().sum::<f64>())
        ),
        None => {
            format!(
                "all {} together compute {} rows/s",
                workers(costs.counts.iter().sum::<f64>()),
                number(rate)
            )
        }
    }
}

fn tenant_name(tenant: &str) -> String {
    if tenant.is_empty() { "the default tenant".to_owned() } else { format!("`{tenant}`") }
}

/// The operator with the limit that binds on a worker type.
fn binding_operator(
    problem: &Problem,
    costs: &Costs,
    j: usize,
    option: &ExecutionOption,
) -> Option<(String, u32)> {
    let binds = |w: usize| costs.rate_on_one_worker(option, w) >= 0.999 * option.max_per_worker[w];
    let w = (0..costs.types()).find(|w| costs.counts[*w] > 0.0 && binds(*w))?;
    let job = &problem.jobs[j];
    let first = option.cache.map_or(0, |cache| job.cache_points[cache.point].after + 1);
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

/// Sentences about the decisions of a plan, for all jobs.
pub(super) fn plan_reasons(
    problem: &Problem,
    plan: &Plan,
    previous: Option<&Plan>,
    kept: bool,
) -> Vec<String> {
    let mut reasons = Vec::new();
    let (reached, bound) = (&plan.objective, &plan.bound);
    reasons.push(format!(
        "the smallest fed fraction by weight is {} %; no plan can exceed {} %",
        number(100.0 * reached.smallest_fed),
        number(100.0 * bound.smallest_fed)
    ));
    if plan.is_fallback {
        reasons.push(
            "the deadline passed before the linear problem was solved, so each job gets the same share of each worker".into(),
        );
    }
    if let Some(previous) = previous {
        let share = number(100.0 * problem.settings.gain_to_change);
        reasons.push(match kept {
            true => format!("the previous plan is kept: a new one would gain less than {share} %"),
            false => format!(
                "the plan changes: the smallest fed fraction by weight was {} % and is {} %, and the cost is {} per hour instead of {}",
                number(100.0 * previous.objective.smallest_fed),
                number(100.0 * reached.smallest_fed),
                number(reached.cost_per_hour),
                number(previous.objective.cost_per_hour)
            ),
        });
    }
    reasons.extend(shortened(plan.caches.iter().map(|cache| cache_reason(problem, cache)), "caches"));
    let short = plan.jobs.iter().filter(|job| job.fed_fraction < 0.999);
    reasons.extend(shortened(short.map(|job| format!("job `{}`: {}", job.name, job.why)), "jobs"));
    reasons
}

fn cache_reason(problem: &Problem, cache: &super::solution::CachePlan) -> String {
    let job = problem.jobs.iter().find(|job| job.cache_points.iter().any(|point| point.key == cache.key));
    let operator = job.and_then(|job| {
        let point = job.cache_points.iter().find(|point| point.key == cache.key)?;
        job.operators.get(point.after).map(|operator| operator.name.clone())
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
        "the output of `{}` would be cached in {tier}: {} GB, and {readers}",
        operator.unwrap_or_default(),
        number(cache.bytes / 1e9)
    )
}

/// The first sentences, and the number of further ones.
fn shortened(sentences: impl Iterator<Item = String>, noun: &str) -> Vec<String> {
    let mut all: Vec<String> = sentences.collect();
    let rest = all.len().saturating_sub(MAX_SENTENCES);
    if rest > 0 {
        all.truncate(MAX_SENTENCES);
        all.push(format!("and {rest} more {noun}"));
    }
    all
}
