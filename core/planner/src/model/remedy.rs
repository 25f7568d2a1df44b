//! What a job's rate would be with more of something: each remedy is the bound of a changed allocation.

use feedline_data::pipeline::CacheEncoding;
use feedline_data::view::{BottleneckKind, ResourceBound};
use serde::{Deserialize, Serialize};

use super::bound::{CacheUse, JobResources, bottleneck, bounds};
use super::job::{CachePointModel, JobModel, OperatorModel};
use super::text::{bytes, count};

#[cfg(test)]
mod tests;

/// Something to change, and the rate it should give.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Remedy {
    /// What to do: a few words.
    pub action: String,
    /// Rows per second that it should give.
    pub predicted_rows_per_s: f64,
    /// Whether it helps from the second pass over the data on only.
    #[serde(default)]
    pub from_second_pass: bool,
}

/// Room for a cache in one tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheRoom {
    /// The tier's name in pipeline files.
    pub tier: String,
    /// Free bytes, over all workers.
    pub bytes: f64,
    /// Bytes per second that it gives, over all workers; infinite where it is not known.
    pub read_bytes_per_s: f64,
    /// CPU seconds that reading a byte takes.
    pub read_cpu_s_per_byte: f64,
    /// Whether it lies in the object store.
    pub is_in_store: bool,
}

/// Requests in flight are not raised beyond this many times what they are.
const MOST_MORE_READS: f64 = 32.0;

/// Remedies that would help by more than one percent: those that help at once before caches, which help jobs of several passes
/// and are kept where there is room without being asked for; in both the best first. Equal ones are in the order given here:
/// operator limits, read concurrency, cores, workers.
pub fn remedies(model: &JobModel, allocation: &JobResources, rooms: &[CacheRoom]) -> Vec<Remedy> {
    let Some(now) = bottleneck(model, allocation) else { return Vec::new() };
    let mut tried: Vec<(String, JobResources)> = Vec::new();
    tried.extend(wider_operators(model, allocation));
    tried.extend(more_reads(model, allocation));
    tried.push((more_cores_text(allocation), more_cores(allocation)));
    tried.push((more_workers_text(allocation), more_workers(allocation)));
    if now.kind == BottleneckKind::Memory {
        let memory_bytes = 2.0 * allocation.memory_bytes;
        let action = format!("give it {} of memory", bytes(memory_bytes));
        tried.push((action, JobResources { memory_bytes, ..allocation.clone() }));
    }
    let mut found = Vec::new();
    tried.extend(caches(model, allocation, rooms));
    for (action, changed) in tried {
        let wide = JobModel { operators: unpinned(model, allocation, &changed), ..model.clone() };
        let Some(ResourceBound { rows_per_s, .. }) = bottleneck(&wide, &changed) else { continue };
        if rows_per_s > 1.01 * now.rows_per_s {
            let from_second_pass = changed.cache != allocation.cache;
            found.push(Remedy { action, predicted_rows_per_s: rows_per_s, from_second_pass });
        }
    }
    found.sort_by(|a, b| {
        let better = b.predicted_rows_per_s.total_cmp(&a.predicted_rows_per_s);
        a.from_second_pass.cmp(&b.from_second_pass).then(better)
    });
    found
}

/// A remedy that raises a limit raises it over what the user wrote, too, but not over what is under way.
fn unpinned(model: &JobModel, before: &JobResources, after: &JobResources) -> Vec<OperatorModel> {
    let mut operators = model.operators.clone();
    for operator in &mut operators {
        let raised = after.limits.get(&operator.name);
        if raised.is_some() && raised != before.limits.get(&operator.name) {
            operator.parallelism = None;
            operator.under_way = reach(operator, before);
        }
    }
    operators
}

/// Executions on each worker that could go on at once: those that do and those that wait for their turn. No others are
/// there, since the engine has only so much under way. `None` where it is not known.
fn reach(operator: &OperatorModel, allocation: &JobResources) -> Option<f64> {
    let workers: u32 = allocation.workers.iter().map(|share| share.count).sum();
    let known = operator.mean_waiting > 0.0 && workers > 0;
    known.then(|| (operator.mean_active + operator.mean_waiting) / f64::from(workers))
}

/// For each operator that a limit holds back: the limit at which something else is the bound.
fn wider_operators(model: &JobModel, allocation: &JobResources) -> Vec<(String, JobResources)> {
    let all = bounds(model, allocation);
    let mut tried = Vec::new();
    for bound in &all {
        let limited = matches!(bound.kind, BottleneckKind::Sequential | BottleneckKind::Latency);
        let operator =
            model.operators.iter().find(|operator| Some(&operator.name) == bound.operator.as_ref());
        let Some(operator) = operator.filter(|operator| limited && !operator.is_sequential) else { continue };
        let held = allocation.limits.get(&operator.name).copied();
        let Some(limit) = operator.parallelism.into_iter().chain(held).min() else { continue };
        let others = all.iter().filter(|other| other.operator != bound.operator || other.kind != bound.kind);
        let next = others.map(|other| other.rows_per_s).fold(f64::INFINITY, f64::min);
        let wanted = (f64::from(limit) * next / bound.rows_per_s).ceil();
        let wanted = if wanted.is_finite() { (wanted as u32).min(4096) } else { limit.saturating_mul(2) };
        let reached = reach(operator, allocation).map_or(u32::MAX, |reach| reach.ceil() as u32);
        let wanted = wanted.min(reached);
        if wanted > limit {
            let mut changed = allocation.clone();
            changed.limits.insert(operator.name.clone(), wanted);
            tried.push((format!("let `{}` run {wanted} at a time", operator.name), changed));
        }
    }
    tried
}

/// Requests in flight at which something else is the bound, or that fill the store.
fn more_reads(model: &JobModel, allocation: &JobResources) -> Option<(String, JobResources)> {
    let limit = allocation.read_concurrency;
    if limit <= 0.0 || model.store_bytes <= 0.0 {
        return None;
    }
    let unlimited = JobResources { read_concurrency: MOST_MORE_READS * limit, ..allocation.clone() };
    let reachable = bottleneck(model, &unlimited)?.rows_per_s;
    let wanted = model.bandwidth.concurrency_for(reachable * model.store_bytes);
    let wanted = wanted.unwrap_or(MOST_MORE_READS * limit).ceil().min(MOST_MORE_READS * limit);
    let changed = JobResources { read_concurrency: wanted, ..allocation.clone() };
    (wanted > limit).then(|| (format!("read with {} in flight", count(wanted, "request")), changed))
}

/// Each cut in each tier that has room for it.
fn caches(model: &JobModel, allocation: &JobResources, rooms: &[CacheRoom]) -> Vec<(String, JobResources)> {
    let mut tried = Vec::new();
    for room in rooms {
        let fits = |cut: &&CachePointModel| {
            cut.form == CacheEncoding::AsIs && cut.is_cacheable && cut.bytes > 0.0 && cut.bytes <= room.bytes
        };
        for cut in model.cuts.iter().filter(fits) {
            let cache = CacheUse {
                after: cut.after,
                read_bytes_per_s: room.read_bytes_per_s,
                read_cpu_s_per_byte: room.read_cpu_s_per_byte,
                is_in_store: room.is_in_store,
            };
            let action =
                format!("keep the output of `{}` {} ({})", cut.operator, place(&room.tier), bytes(cut.bytes));
            tried.push((action, JobResources { cache: Some(cache), ..allocation.clone() }));
        }
    }
    tried
}

fn place(tier: &str) -> &str {
    match tier {
        "memory" => "in memory",
        "disk" => "on disk",
        _ => "in the store",
    }
}

fn more_cores(allocation: &JobResources) -> JobResources {
    let mut changed = allocation.clone();
    for share in &mut changed.workers {
        share.cores *= 2.0;
    }
    changed
}

fn more_cores_text(allocation: &JobResources) -> String {
    let cores: f64 = allocation.workers.iter().map(|share| f64::from(share.count) * share.cores).sum();
    format!("give it {}", count(2.0 * cores, "core"))
}

/// Twice the workers bring twice of everything that is theirs.
fn more_workers(allocation: &JobResources) -> JobResources {
    let mut changed = allocation.clone();
    for share in &mut changed.workers {
        share.count *= 2;
    }
    changed.memory_bytes *= 2.0;
    changed.read_concurrency *= 2.0;
    changed
}

fn more_workers_text(allocation: &JobResources) -> String {
    let workers: u32 = allocation.workers.iter().map(|share| share.count).sum();
    format!("give it {}", count(f64::from(2 * workers), "worker"))
}
