//! Predicts the rate of a job if it receives more of a resource. The predicted rate is the smallest bound with the
//! changed resources.

use feedline_data::pipeline::CacheEncoding;
use feedline_data::view::{BottleneckKind, ResourceBound};
use serde::{Deserialize, Serialize};

use super::bound::{CacheUse, JobResources, bottleneck, bounds};
use super::job::{CachePointModel, JobModel, OperatorModel};
use super::text::{format_bytes, format_count};

#[cfg(test)]
mod tests;

/// A change in resources that would increase the rate of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Remedy {
    /// The change, as text for users.
    pub action: String,
    /// The predicted rate in rows per second.
    pub predicted_rows_per_s: f64,
    /// Whether the change helps only from the second pass over the dataset onwards.
    #[serde(default)]
    pub from_second_pass: bool,
}

/// Capacity and read costs of one cache tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheCapacity {
    /// The name of the tier in pipeline files.
    pub tier: String,
    /// Free bytes, over all workers.
    pub bytes: f64,
    /// Read bandwidth of the tier in bytes per second, over all workers; infinity if unknown.
    pub read_bytes_per_s: f64,
    /// CPU seconds to read one byte.
    pub read_cpu_s_per_byte: f64,
    /// Whether the tier is the object store.
    pub is_in_store: bool,
}

/// Maximum factor by which a remedy increases the number of requests in flight.
const MAX_READ_FACTOR: f64 = 32.0;

/// Returns the remedies that would increase the rate by more than 1 %, best first. Caches are last, because they help
/// only from the second pass onwards and the planner chooses them anyway. The order of equally good remedies is:
/// operator limits, read concurrency, cores, workers.
pub fn remedies(model: &JobModel, resources: &JobResources, capacities: &[CacheCapacity]) -> Vec<Remedy> {
    let Some(now) = bottleneck(model, resources) else { return Vec::new() };
    let mut candidates: Vec<(String, JobResources)> = Vec::new();
    candidates.extend(raise_operator_limits(model, resources));
    candidates.extend(raise_read_concurrency(model, resources));
    candidates.push(double_cores(resources));
    candidates.push(double_workers(resources));
    if now.kind == BottleneckKind::Memory {
        let memory_bytes = 2.0 * resources.memory_bytes;
        let action = format!("give the job {} of memory", format_bytes(memory_bytes));
        candidates.push((action, JobResources { memory_bytes, ..resources.clone() }));
    }
    let mut found = Vec::new();
    candidates.extend(cache_remedies(model, resources, capacities));
    for (action, changed) in candidates {
        let wide =
            JobModel { operators: operators_with_raised_limits(model, resources, &changed), ..model.clone() };
        let Some(ResourceBound { rows_per_s, .. }) = bottleneck(&wide, &changed) else { continue };
        if rows_per_s > 1.01 * now.rows_per_s {
            let from_second_pass = changed.cache != resources.cache;
            found.push(Remedy { action, predicted_rows_per_s: rows_per_s, from_second_pass });
        }
    }
    found.sort_by(|a, b| {
        let better = b.predicted_rows_per_s.total_cmp(&a.predicted_rows_per_s);
        a.from_second_pass.cmp(&b.from_second_pass).then(better)
    });
    found
}

/// Returns the operators with the changed limits. A raised limit replaces a pinned limit, but the engine cannot start
/// more executions than before.
fn operators_with_raised_limits(
    model: &JobModel,
    before: &JobResources,
    after: &JobResources,
) -> Vec<OperatorModel> {
    let mut operators = model.operators.clone();
    for operator in &mut operators {
        let raised = after.operator_limits.get(&operator.name);
        if raised.is_some() && raised != before.operator_limits.get(&operator.name) {
            operator.parallelism = None;
            operator.in_flight = reachable_executions(operator, before);
        }
    }
    operators
}

/// Returns the largest number of concurrent executions that a worker can reach: the running executions plus the
/// executions that wait for a permit. Returns `None` if unknown.
fn reachable_executions(operator: &OperatorModel, resources: &JobResources) -> Option<f64> {
    let workers = resources.worker_count();
    let known = operator.mean_waiting > 0.0 && workers > 0;
    known.then(|| (operator.mean_active + operator.mean_waiting) / f64::from(workers))
}

/// Raises the limit of each limited operator until another resource becomes the bottleneck. Returns one remedy per
/// operator.
fn raise_operator_limits(model: &JobModel, resources: &JobResources) -> Vec<(String, JobResources)> {
    let all = bounds(model, resources);
    let mut candidates = Vec::new();
    for bound in &all {
        let limited = matches!(bound.kind, BottleneckKind::Sequential | BottleneckKind::Latency);
        let operator =
            model.operators.iter().find(|operator| Some(&operator.name) == bound.operator.as_ref());
        let Some(operator) = operator.filter(|_| limited) else { continue };
        let engine_limit = resources.operator_limits.get(&operator.name).copied();
        let Some(limit) = operator.parallelism.into_iter().chain(engine_limit).min() else { continue };
        let others = all.iter().filter(|other| other.operator != bound.operator || other.kind != bound.kind);
        let next = others.map(|other| other.rows_per_s).fold(f64::INFINITY, f64::min);
        let wanted = (f64::from(limit) * next / bound.rows_per_s).ceil();
        let wanted = if wanted.is_finite() { (wanted as u32).min(4096) } else { limit.saturating_mul(2) };
        let reached =
            reachable_executions(operator, resources).map_or(u32::MAX, |executions| executions.ceil() as u32);
        let wanted = wanted.min(reached);
        if wanted > limit {
            let mut changed = resources.clone();
            changed.operator_limits.insert(operator.name.clone(), wanted);
            candidates
                .push((format!("allow {wanted} concurrent executions of `{}`", operator.name), changed));
        }
    }
    candidates
}

/// Raises the number of requests in flight until another resource becomes the bottleneck or the store is saturated.
fn raise_read_concurrency(model: &JobModel, resources: &JobResources) -> Option<(String, JobResources)> {
    let limit = resources.read_concurrency;
    if limit <= 0.0 || model.store_bytes_per_row <= 0.0 {
        return None;
    }
    let unlimited = JobResources { read_concurrency: MAX_READ_FACTOR * limit, ..resources.clone() };
    let reachable = bottleneck(model, &unlimited)?.rows_per_s;
    let wanted = model.bandwidth.concurrency_for(reachable * model.store_bytes_per_row);
    let wanted = wanted.unwrap_or(MAX_READ_FACTOR * limit).ceil().min(MAX_READ_FACTOR * limit);
    let changed = JobResources { read_concurrency: wanted, ..resources.clone() };
    (wanted > limit)
        .then(|| (format!("allow {} in flight to the store", format_count(wanted, "request")), changed))
}

/// Returns one remedy for each cache point and each tier with enough capacity.
fn cache_remedies(
    model: &JobModel,
    resources: &JobResources,
    capacities: &[CacheCapacity],
) -> Vec<(String, JobResources)> {
    let mut candidates = Vec::new();
    for capacity in capacities {
        let fits = |point: &&CachePointModel| {
            point.encoding == CacheEncoding::AsIs
                && point.is_cacheable
                && point.bytes > 0.0
                && point.bytes <= capacity.bytes
        };
        for point in model.cache_points.iter().filter(fits) {
            let cache = CacheUse {
                operator_index: point.operator_index,
                read_bytes_per_s: capacity.read_bytes_per_s,
                read_cpu_s_per_byte: capacity.read_cpu_s_per_byte,
                is_in_store: capacity.is_in_store,
            };
            let action = format!(
                "cache the output of `{}` {} ({})",
                point.operator,
                tier_location(&capacity.tier),
                format_bytes(point.bytes)
            );
            candidates.push((action, JobResources { cache: Some(cache), ..resources.clone() }));
        }
    }
    candidates
}

fn tier_location(tier: &str) -> &str {
    match tier {
        "memory" => "in memory",
        "disk" => "on disk",
        _ => "in the store",
    }
}

fn double_cores(resources: &JobResources) -> (String, JobResources) {
    let mut changed = resources.clone();
    changed.workers.iter_mut().for_each(|share| share.cores *= 2.0);
    let cores = changed.sum_over_workers(|share| share.cores);
    (format!("give the job {}", format_count(cores, "core")), changed)
}

/// Doubles the workers, their memory and their requests in flight.
fn double_workers(resources: &JobResources) -> (String, JobResources) {
    let mut changed = resources.clone();
    changed.workers.iter_mut().for_each(|share| share.count *= 2);
    changed.memory_bytes *= 2.0;
    changed.read_concurrency *= 2.0;
    (format!("give the job {}", format_count(f64::from(changed.worker_count()), "worker")), changed)
}
