//! Builds the sentences that explain a plan.

use feedline_data::pipeline::CacheTier;

use super::costs::{Costs, ExecutionOption};
use super::problem::Problem;
use super::solution::Plan;
use crate::model::{format_count, format_number};

/// Maximum number of sentences of each kind. The number of omitted sentences is reported instead.
const MAX_SENTENCES: usize = 10;

/// Describes the resource that limits a job in a plan, as text for users.
pub(super) fn job_limit_text(
    problem: &Problem,
    costs: &Costs,
    j: usize,
    option: &ExecutionOption,
    rate: f64,
    tenant_loads: &[f64],
) -> String {
    let demand = costs.demands[j];
    let job = &problem.jobs[j];
    if rate >= 0.999 * demand {
        if job.useful_rows_per_s.is_some_and(|useful| useful <= demand) {
            return "at this rate, the job ends before another worker has loaded its graph".to_owned();
        }
        return match job.demand_rows_per_s {
            Some(_) => format!("its demand is {} rows/s", format_number(demand)),
            None => format!("the cluster can compute at most {} rows/s for this job", format_number(demand)),
        };
    }
    let from_store = costs.store_bandwidth(option) / option.store_bytes_per_row;
    if option.store_bytes_per_row > 0.0 && rate >= 0.999 * from_store {
        return format!("the store delivers at most {} rows/s", format_number(from_store));
    }
    if let Some(tenant) = costs.job_tenants[j].filter(|tenant| tenant_loads[*tenant] >= 0.999) {
        return format!(
            "the jobs of {} use its entire quota of {}",
            tenant_name(&problem.tenants[tenant].name),
            format_count(costs.core_quotas[tenant], "core")
        );
    }
    if rate < 0.999 * costs.rate_alone(option) {
        return format!(
            "{} rows/s instead of {} rows/s, because the job shares workers with other jobs",
            format_number(rate),
            format_number(costs.rate_alone(option).min(demand))
        );
    }
    match binding_operator(problem, costs, j, option) {
        Some((operator, limit)) => format!(
            "`{operator}` is limited to {} at a time on each worker: {} rows/s on {}",
            format_count(f64::from(limit), "execution"),
            format_number(rate),
            format_count(costs.worker_counts.iter().sum::<f64>(), "worker")
        ),
        None => {
            format!(
                "all {} combined compute {} rows/s",
                format_count(costs.worker_counts.iter().sum::<f64>(), "worker"),
                format_number(rate)
            )
        }
    }
}

fn tenant_name(tenant: &str) -> String {
    if tenant.is_empty() { "the default tenant".to_owned() } else { format!("tenant `{tenant}`") }
}

/// Returns the operator whose limit bounds the rate on a worker type, and the limit.
fn binding_operator(
    problem: &Problem,
    costs: &Costs,
    j: usize,
    option: &ExecutionOption,
) -> Option<(String, u32)> {
    let binds = |w: usize| costs.rate_on_one_worker(option, w) >= 0.999 * option.max_rate_per_worker[w];
    let w = (0..costs.type_count()).find(|w| costs.worker_counts[*w] > 0.0 && binds(*w))?;
    let job = &problem.jobs[j];
    let first = option.cache.map_or(0, |cache| job.cache_points[cache.cache_point].operator_index + 1);
    let limited = job.operators.iter().skip(first).filter_map(|operator| {
        let limit = operator.limit?;
        Some((f64::from(limit) / (operator.cpu_s[w] + operator.latency_s), operator, limit))
    });
    let (_, operator, limit) = limited.min_by(|a, b| a.0.total_cmp(&b.0))?;
    Some((operator.name.clone(), limit))
}

/// Returns sentences about the decisions of a plan for all jobs.
pub(super) fn plan_reasons(
    problem: &Problem,
    plan: &Plan,
    previous: Option<&Plan>,
    is_kept: bool,
) -> Vec<String> {
    let mut reasons = Vec::new();
    let (reached, bound) = (&plan.objective, &plan.objective_bound);
    reasons.push(format!(
        "the smallest weighted fed fraction is {} %; the upper bound for any plan is {} %",
        format_number(100.0 * reached.smallest_fed),
        format_number(100.0 * bound.smallest_fed)
    ));
    if plan.is_fallback {
        reasons
            .push("the planner ran out of time, so each job receives an equal share of every worker".into());
    }
    if let Some(previous) = previous {
        let share = format_number(100.0 * problem.settings.min_gain_to_change);
        reasons.push(match is_kept {
            true => format!("the previous plan is kept: a new plan would improve it by less than {share} %"),
            false => format!(
                "the plan changes: smallest weighted fed fraction {} % -> {} %, cost per hour {} -> {}",
                format_number(100.0 * previous.objective.smallest_fed),
                format_number(100.0 * reached.smallest_fed),
                format_number(previous.objective.cost_per_hour),
                format_number(reached.cost_per_hour)
            ),
        });
    }
    reasons
        .extend(truncate_sentences(plan.caches.iter().map(|cache| cache_reason(problem, cache)), "caches"));
    let short = plan.jobs.iter().filter(|job| job.fed_fraction < 0.999);
    reasons.extend(truncate_sentences(
        short.map(|job| format!("job `{}`: {}", job.name, job.explanation)),
        "jobs",
    ));
    reasons
}

fn cache_reason(problem: &Problem, cache: &super::solution::CachePlan) -> String {
    let job = problem.jobs.iter().find(|job| job.cache_points.iter().any(|point| point.key == cache.key));
    let operator = job.and_then(|job| {
        let point = job.cache_points.iter().find(|point| point.key == cache.key)?;
        job.operators.get(point.operator_index).map(|operator| operator.name.clone())
    });
    let tier = match cache.tier {
        CacheTier::Memory => "the workers' memory",
        CacheTier::Disk => "the workers' disks",
        CacheTier::Store => "the object store",
    };
    let readers = match cache.jobs.len() {
        1 => "read by 1 job".to_owned(),
        count => format!("read by {count} jobs"),
    };
    format!(
        "cache the output of `{}` in {tier}: {} GB, {readers}",
        operator.unwrap_or_default(),
        format_number(cache.bytes / 1e9)
    )
}

/// Returns the first [`MAX_SENTENCES`] sentences, and a line with the number of omitted sentences, if any.
fn truncate_sentences(sentences: impl Iterator<Item = String>, noun: &str) -> Vec<String> {
    let mut all: Vec<String> = sentences.collect();
    let rest = all.len().saturating_sub(MAX_SENTENCES);
    if rest > 0 {
        all.truncate(MAX_SENTENCES);
        all.push(format!("and {rest} more {noun}"));
    }
    all
}
