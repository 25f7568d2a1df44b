//! The maximum rate that each resource allows for a job on given workers. The smallest of these rates bounds the job,
//! and the resource with the smallest rate is the bottleneck (asymptotic bounds of operational analysis; Plumber,
//! section 4.2).

use std::collections::BTreeMap;

use feedline_data::view::{Bottleneck, BottleneckKind, ResourceBound};
use serde::{Deserialize, Serialize};

use super::job::{JobModel, OperatorModel};
use super::text::{format_bytes, format_count, format_number, format_seconds};

#[cfg(test)]
pub(super) mod tests;

/// The resources of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobResources {
    /// Workers, by type.
    pub workers: Vec<WorkerTypeResources>,
    /// Maximum number of concurrent executions on each worker that the engine allows, by operator name. Limits in the
    /// pipeline also apply.
    #[serde(rename = "limits")]
    pub operator_limits: BTreeMap<String, u32>,
    /// Maximum number of store requests in flight, over all workers; 0 for no limit.
    pub read_concurrency: f64,
    /// Memory for rows in flight, over all workers, in bytes; 0 if unknown.
    pub memory_bytes: f64,
    /// The cache that the job reads, if any. It contains all rows of the dataset.
    pub cache: Option<CacheUse>,
    /// The share of the traffic that does not use the workers' network.
    pub locality: Locality,
}

impl JobResources {
    /// Returns the number of workers.
    pub(super) fn worker_count(&self) -> u32 {
        self.workers.iter().map(|share| share.count).sum()
    }

    /// Returns the sum of a value over all workers.
    pub(super) fn sum_over_workers(&self, value: impl Fn(&WorkerTypeResources) -> f64) -> f64 {
        self.workers.iter().map(|share| f64::from(share.count) * value(share)).sum()
    }
}

/// The share of a job's traffic that stays on the hosts of its workers. By default, all traffic uses the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Locality {
    /// Whether workers read the dataset from their own disks.
    pub store_is_local: bool,
    /// The share of delivered bytes, from 0 to 1, that goes to consumers on the same host as the worker.
    pub consumers_share: f64,
}

impl Locality {
    /// Returns the bytes per row in the busier direction of a worker's network: the bytes that the worker reads, or the
    /// share of `delivered_bytes_per_row` that it sends to other hosts. Reads of rows cached in the object store always
    /// use the network.
    pub fn network_bytes(
        &self,
        from_dataset: f64,
        from_cache_store: f64,
        delivered_bytes_per_row: f64,
    ) -> f64 {
        let from_dataset = if self.store_is_local { 0.0 } else { from_dataset };
        let sent = delivered_bytes_per_row * (1.0 - self.consumers_share.clamp(0.0, 1.0));
        sent.max(from_dataset + from_cache_store)
    }
}

/// The resources of a job on the workers of one type.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerTypeResources {
    /// The worker type.
    pub worker_type: String,
    /// The number of workers.
    pub count: u32,
    /// Cores that the job may use on each worker.
    pub cores: f64,
    /// Network bandwidth that the job may use on each worker, in bytes per second in each direction; 0 if unknown.
    pub nic_bytes_per_s: f64,
}

/// A cache from which a job reads rows instead of computing them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheUse {
    /// The index of the operator whose output is cached.
    #[serde(rename = "after")]
    pub operator_index: usize,
    /// Read bandwidth of the cache tier in bytes per second, over all workers; infinity if unknown.
    pub read_bytes_per_s: f64,
    /// CPU seconds to read one byte.
    pub read_cpu_s_per_byte: f64,
    /// Whether the cache is in the object store.
    pub is_in_store: bool,
}

/// Returns the smallest bound, which is the predicted rate of the job; `None` if no bound is known.
pub fn bottleneck(model: &JobModel, resources: &JobResources) -> Option<Bottleneck> {
    bounds(model, resources).into_iter().next()
}

/// Returns all bounds in ascending order.
pub fn bounds(model: &JobModel, resources: &JobResources) -> Vec<ResourceBound> {
    let mut bounds = Vec::new();
    bounds.extend(cpu_bound(model, resources));
    bounds.extend(operator_limit_bounds(model, resources));
    bounds.extend(in_flight_bounds(model, resources));
    bounds.extend(store_bound(model, resources));
    bounds.extend(cache_tier_bound(model, resources));
    bounds.extend(network_bound(model, resources));
    bounds.extend(memory_bound(model, resources));
    bounds.extend(consumer_bound(model));
    bounds.retain(|bound| bound.rows_per_s.is_finite());
    // The consumer bound precedes equal bounds, because more of another resource would not help.
    bounds.sort_by(|a, b| {
        let consumers_first = |bound: &ResourceBound| bound.kind != BottleneckKind::Consumer;
        a.rows_per_s.total_cmp(&b.rows_per_s).then(consumers_first(a).cmp(&consumers_first(b)))
    });
    bounds
}

/// Returns the index of the first operator after the cache, or 0 without a cache.
fn first_uncached_operator(resources: &JobResources) -> usize {
    resources.cache.as_ref().map_or(0, |cache| cache.operator_index + 1)
}

/// Returns the CPU seconds per row on a worker type, including reads from the cache.
pub(super) fn cpu_s_per_row(model: &JobModel, resources: &JobResources, worker_type: &str) -> f64 {
    let reading = resources.cache.as_ref().map_or(0.0, |cache| {
        cache.read_cpu_s_per_byte
            * model.operators.get(cache.operator_index).map_or(0.0, |point| point.bytes_out)
    });
    reading + model.cpu_s_from(first_uncached_operator(resources), worker_type)
}

/// Builds a bound. Its explanation consists of the limit and the rate.
fn resource_bound(
    kind: BottleneckKind,
    operator: Option<&OperatorModel>,
    rows_per_s: f64,
    limit: &str,
) -> ResourceBound {
    let explanation = format!("{limit}: {} rows/s", format_number(rows_per_s));
    ResourceBound { kind, operator: operator.map(|operator| operator.name.clone()), rows_per_s, explanation }
}

/// Utilisation law: the bound is the number of cores divided by the CPU seconds per row, summed over worker types.
fn cpu_bound(model: &JobModel, resources: &JobResources) -> Option<ResourceBound> {
    let cores = resources.sum_over_workers(|share| share.cores);
    let rows_per_s =
        resources.sum_over_workers(|share| share.cores / cpu_s_per_row(model, resources, &share.worker_type));
    let running = model.operators.iter().skip(first_uncached_operator(resources));
    let costliest = running.max_by(|a, b| a.cpu_share.total_cmp(&b.cpu_share))?;
    let explanation = format!(
        "{} compute {} rows/s at {} of CPU time per row, mostly in `{}`",
        format_count(cores, "core"),
        format_number(rows_per_s),
        format_seconds(cores / rows_per_s),
        costliest.name
    );
    let operator = Some(costliest.name.clone());
    Some(ResourceBound { kind: BottleneckKind::Cpu, operator, rows_per_s, explanation })
}

/// Little's law: the bound is the allowed number of concurrent executions divided by the seconds per row, summed over
/// workers.
fn operator_limit_bounds(model: &JobModel, resources: &JobResources) -> Vec<ResourceBound> {
    let limited = |operator: &OperatorModel| -> Option<ResourceBound> {
        let engine_limit = resources.operator_limits.get(&operator.name).copied();
        let limit = operator.limit().into_iter().chain(engine_limit).min()?;
        let rows_per_s =
            resources.sum_over_workers(|share| f64::from(limit) / operator.service_s_on(&share.worker_type));
        let workers = resources.worker_count();
        let service_s = f64::from(workers) * f64::from(limit) / rows_per_s;
        let waits = operator.latency_s > 0.5 * service_s;
        let kind = if waits { BottleneckKind::Latency } else { BottleneckKind::Sequential };
        let is_pinned = operator.parallelism.is_some_and(|pinned| pinned == limit);
        let explanation = format!(
            "`{}` is limited to {} at a time on {}{}, and each row {} {}",
            operator.name,
            format_count(f64::from(limit), "execution"),
            if workers == 1 { "one worker".to_owned() } else { format!("each of {workers} workers") },
            if is_pinned { " (`parallelism` in the pipeline file)" } else { "" },
            if waits { "waits" } else { "takes" },
            format_seconds(service_s)
        );
        Some(resource_bound(kind, Some(operator), rows_per_s, &explanation))
    };
    model.operators.iter().skip(first_uncached_operator(resources)).filter_map(limited).collect()
}

/// Little's law: the bound is the number of executions in flight divided by the seconds per row. The bound applies only
/// if the engine cannot start more executions.
fn in_flight_bounds(model: &JobModel, resources: &JobResources) -> Vec<ResourceBound> {
    let bound = |operator: &OperatorModel| -> Option<ResourceBound> {
        // `operator_limit_bounds` covers pinned operators.
        let each = operator.in_flight.filter(|_| operator.parallelism.is_none())?;
        let rows_per_s = resources.sum_over_workers(|share| each / operator.service_s_on(&share.worker_type));
        let executions = f64::from(resources.worker_count()) * each;
        let limit = format!(
            "{} of `{}` are in flight, and each row takes {}",
            format_count(executions, "execution"),
            operator.name,
            format_seconds(executions / rows_per_s)
        );
        Some(resource_bound(BottleneckKind::Latency, Some(operator), rows_per_s, &limit))
    };
    model.operators.iter().skip(first_uncached_operator(resources)).filter_map(bound).collect()
}

/// The bound is the store's bandwidth at the allowed number of requests, divided by the bytes per row.
fn store_bound(model: &JobModel, resources: &JobResources) -> Option<ResourceBound> {
    let bytes_per_row = match &resources.cache {
        None => model.store_bytes_per_row,
        Some(cache) if cache.is_in_store => model.operators.get(cache.operator_index)?.bytes_out,
        Some(_) => return None,
    };
    let limit = resources.read_concurrency;
    let bandwidth =
        if limit > 0.0 { model.bandwidth.bytes_per_s_at(limit) } else { model.bandwidth.cap()? };
    if bytes_per_row <= 0.0 {
        return None;
    }
    let (kind, reads) = if limit <= 0.0 || model.bandwidth.is_saturated(limit) {
        (BottleneckKind::Store, "the store delivers at most".to_owned())
    } else {
        (
            BottleneckKind::Latency,
            format!("with {} in flight, the store delivers", format_count(limit, "request")),
        )
    };
    let limit = format!(
        "{reads} {}/s, and each row requires {}",
        format_bytes(bandwidth),
        format_bytes(bytes_per_row)
    );
    Some(resource_bound(kind, model.operators.first(), bandwidth / bytes_per_row, &limit))
}

/// The bound is the bandwidth of the cache tier, divided by the bytes per row.
fn cache_tier_bound(model: &JobModel, resources: &JobResources) -> Option<ResourceBound> {
    let cache = resources.cache.as_ref().filter(|cache| cache.read_bytes_per_s > 0.0)?;
    let point = model.operators.get(cache.operator_index)?;
    let limit = format!(
        "the cache after `{}` delivers {}/s, and each cached row takes {}",
        point.name,
        format_bytes(cache.read_bytes_per_s),
        format_bytes(point.bytes_out)
    );
    let rows_per_s = cache.read_bytes_per_s / point.bytes_out;
    Some(resource_bound(BottleneckKind::Store, Some(point), rows_per_s, &limit))
}

/// The bound is the bandwidth of the workers' network, divided by the bytes per row in the busier direction.
fn network_bound(model: &JobModel, resources: &JobResources) -> Option<ResourceBound> {
    let (from_dataset, from_cache_store) = match &resources.cache {
        None => (model.store_bytes_per_row, 0.0),
        Some(cache) if cache.is_in_store => (0.0, model.operators.get(cache.operator_index)?.bytes_out),
        Some(_) => (0.0, 0.0),
    };
    let locality = &resources.locality;
    let per_row = locality.network_bytes(from_dataset, from_cache_store, model.delivered_bytes_per_row);
    let is_known = resources.workers.iter().all(|share| share.nic_bytes_per_s > 0.0);
    if !is_known || per_row <= 0.0 {
        return None;
    }
    let bandwidth = resources.sum_over_workers(|share| share.nic_bytes_per_s);
    let limit = format!(
        "the workers' network transfers {}/s, and each row requires {}",
        format_bytes(bandwidth),
        format_bytes(per_row)
    );
    Some(resource_bound(BottleneckKind::Network, None, bandwidth / per_row, &limit))
}

/// Little's law: the bound is the memory divided by the byte-seconds that one row occupies. Memory bounds a job only
/// while it is full. Otherwise, other bounds determine the number of rows in flight.
fn memory_bound(model: &JobModel, resources: &JobResources) -> Option<ResourceBound> {
    let is_full = model.memory_wait_share > 0.1;
    if !is_full || resources.memory_bytes <= 0.0 || model.held_bytes <= 0.0 {
        return None;
    }
    let rows_per_s = model.rows_per_s * resources.memory_bytes / model.held_bytes;
    let limit = format!(
        "the memory budget of {} was exhausted {} % of the time",
        format_bytes(resources.memory_bytes),
        format_number(100.0 * model.memory_wait_share)
    );
    Some(resource_bound(BottleneckKind::Memory, None, rows_per_s, &limit))
}

fn consumer_bound(model: &JobModel) -> Option<ResourceBound> {
    let rows_per_s = model.demand_rows_per_s?;
    let explanation = format!("the demand is {} rows/s", format_number(rows_per_s));
    Some(ResourceBound { kind: BottleneckKind::Consumer, operator: None, rows_per_s, explanation })
}
