//! The rate that each resource allows a job on given workers. The job runs at the smallest of them: that is the bound,
//! and what gives it is the bottleneck (asymptotic bounds of operational analysis; Plumber, section 4.2).

use std::collections::BTreeMap;

use feedline_data::view::{Bottleneck, BottleneckKind, ResourceBound};
use serde::{Deserialize, Serialize};

use super::job::{JobModel, OperatorModel};
use super::text::{bytes, count, number, seconds};

#[cfg(test)]
pub(super) mod tests;

/// What a job works with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobResources {
    /// Workers of each kind.
    pub workers: Vec<WorkerTypeShare>,
    /// Limits of concurrent executions on each worker that the engine holds operators to, by name. What the user wrote
    /// binds as well.
    pub limits: BTreeMap<String, u32>,
    /// Requests to the store in flight at most, over all workers; 0 where there is no limit.
    pub read_concurrency: f64,
    /// Memory for rows in flight, over all workers, in bytes; 0 where it is not known.
    pub memory_bytes: f64,
    /// A cache that holds all rows it is asked for.
    pub cache: Option<CacheUse>,
    /// What does not cross the workers' network.
    pub locality: Locality,
}

/// What of a job's bytes stays on a worker's own host. By default nothing is known to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Locality {
    /// Whether workers read the dataset from their own disks.
    pub store_is_local: bool,
    /// Share of the bytes for consumers, from 0 to 1, that are taken on the worker's own host.
    pub consumers_share: f64,
}

impl Locality {
    /// Bytes per row that fill the fuller direction of a worker's network: what it reads, or what it sends of
    /// `delivered_bytes`. Caches in the object store are read over the network wherever the dataset lies.
    pub fn network_bytes(&self, from_dataset: f64, from_cache_store: f64, delivered_bytes: f64) -> f64 {
        let from_dataset = if self.store_is_local { 0.0 } else { from_dataset };
        let sent = delivered_bytes * (1.0 - self.consumers_share.clamp(0.0, 1.0));
        sent.max(from_dataset + from_cache_store)
    }
}

/// Workers of one type, or a part of each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerTypeShare {
    /// Their type.
    pub worker_type: String,
    /// How many.
    pub count: u32,
    /// Cores of each that the job may use.
    pub cores: f64,
    /// Network of each that the job may use, in bytes per second and direction; 0 where it is not known.
    pub nic_bytes_per_s: f64,
}

/// A cut that rows are read from instead of being made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheUse {
    /// Place of the operator whose output is kept.
    pub after: usize,
    /// Bytes per second that the tier gives, over all workers; infinite where it is not known.
    pub read_bytes_per_s: f64,
    /// CPU seconds that reading a byte takes.
    pub read_cpu_s_per_byte: f64,
    /// Whether rows still come from the store, as bytes of the cut.
    pub is_in_store: bool,
}

/// The smallest bound: what the job's rate should be. `None` where nothing is known to bound it.
pub fn bottleneck(model: &JobModel, allocation: &JobResources) -> Option<Bottleneck> {
    bounds(model, allocation).into_iter().next()
}

/// All bounds, the smallest first.
pub fn bounds(model: &JobModel, allocation: &JobResources) -> Vec<ResourceBound> {
    let mut bounds = Vec::new();
    bounds.extend(cpu(model, allocation));
    bounds.extend(limits(model, allocation));
    bounds.extend(under_way(model, allocation));
    bounds.extend(store(model, allocation));
    bounds.extend(tier(model, allocation));
    bounds.extend(network(model, allocation));
    bounds.extend(memory(model, allocation));
    bounds.extend(consumer(model));
    bounds.retain(|bound| bound.rows_per_s.is_finite());
    // Of equal bounds the consumer comes first: nothing else would help.
    bounds.sort_by(|a, b| {
        let consumers_first = |bound: &ResourceBound| bound.kind != BottleneckKind::Consumer;
        a.rows_per_s.total_cmp(&b.rows_per_s).then(consumers_first(a).cmp(&consumers_first(b)))
    });
    bounds
}

/// The first operator that still runs.
fn first(allocation: &JobResources) -> usize {
    allocation.cache.as_ref().map_or(0, |cache| cache.after + 1)
}

/// CPU seconds per row on a type, with what reading a cache takes.
pub(super) fn cpu_s(model: &JobModel, allocation: &JobResources, worker_type: &str) -> f64 {
    let reading = allocation.cache.as_ref().map_or(0.0, |cache| {
        cache.read_cpu_s_per_byte * model.operators.get(cache.after).map_or(0.0, |cut| cut.bytes_out)
    });
    reading + model.cpu_s_from(first(allocation), worker_type)
}

/// Cores over CPU seconds per row, summed over types: the utilisation law.
fn cpu(model: &JobModel, allocation: &JobResources) -> Option<ResourceBound> {
    let cores: f64 = allocation.workers.iter().map(|share| f64::from(share.count) * share.cores).sum();
    let rate = |share: &WorkerTypeShare| {
        f64::from(share.count) * share.cores / cpu_s(model, allocation, &share.worker_type)
    };
    let rows_per_s: f64 = allocation.workers.iter().map(rate).sum();
    let running = model.operators.iter().skip(first(allocation));
    let costliest = running.max_by(|a, b| a.cpu_share.total_cmp(&b.cpu_share))?;
    let mean_ms = cores / rows_per_s;
    let why = format!(
        "{} give {} rows/s at {} of CPU per row, of which `{}` takes the most",
        count(cores, "core"),
        number(rows_per_s),
        seconds(mean_ms),
        costliest.name
    );
    Some(ResourceBound { kind: BottleneckKind::Cpu, operator: Some(costliest.name.clone()), rows_per_s, why })
}

/// Executions at once over the seconds that one row keeps one busy, summed over workers: Little's law. An operator never
/// runs more at once than there are cores, but for the part of its time that needs none.
fn limits(model: &JobModel, allocation: &JobResources) -> Vec<ResourceBound> {
    let limited = |operator: &OperatorModel| -> Option<ResourceBound> {
        let held = allocation.limits.get(&operator.name).copied();
        let limit = operator.limit().into_iter().chain(held).min()?;
        let rate = |share: &WorkerTypeShare| {
            f64::from(share.count) * f64::from(limit) / operator.service_s_on(&share.worker_type)
        };
        let rows_per_s: f64 = allocation.workers.iter().map(rate).sum();
        let workers: u32 = allocation.workers.iter().map(|share| share.count).sum();
        let service_s = f64::from(workers) * f64::from(limit) / rows_per_s;
        let waits = operator.latency_s > 0.5 * service_s;
        let kind = if waits { BottleneckKind::Latency } else { BottleneckKind::Sequential };
        let pins = operator.parallelism.is_some_and(|pinned| pinned == limit);
        let why = format!(
            "`{}` runs {limit} at a time on {}{} and each row {} {}, which gives {} rows/s",
            operator.name,
            if workers == 1 { "one worker".to_owned() } else { format!("each of {workers} workers") },
            if pins { ", since the file pins it with `parallelism`," } else { "" },
            if waits { "waits" } else { "takes" },
            seconds(service_s),
            number(rows_per_s)
        );
        Some(ResourceBound { kind, operator: Some(operator.name.clone()), rows_per_s, why })
    };
    model.operators.iter().skip(first(allocation)).filter_map(limited).collect()
}

/// Executions that the engine has under way over the seconds that each row takes: Little's law, where these are known to
/// be all there are.
fn under_way(model: &JobModel, allocation: &JobResources) -> Vec<ResourceBound> {
    let workers: u32 = allocation.workers.iter().map(|share| share.count).sum();
    let bound = |operator: &OperatorModel| -> Option<ResourceBound> {
        // What the user limits has its bound by that.
        let each = operator.under_way.filter(|_| operator.parallelism.is_none())?;
        let rate = |share: &WorkerTypeShare| {
            f64::from(share.count) * each / operator.service_s_on(&share.worker_type)
        };
        let rows_per_s: f64 = allocation.workers.iter().map(rate).sum();
        let executions = f64::from(workers) * each;
        let why = format!(
            "{} of `{}` are under way at a time and each row takes {}, which gives {} rows/s",
            count(executions, "execution"),
            operator.name,
            seconds(executions / rows_per_s),
            number(rows_per_s)
        );
        let operator = Some(operator.name.clone());
        Some(ResourceBound { kind: BottleneckKind::Latency, operator, rows_per_s, why })
    };
    model.operators.iter().skip(first(allocation)).filter_map(bound).collect()
}

/// The store's bandwidth at the requests that may be in flight, over bytes per row.
fn store(model: &JobModel, allocation: &JobResources) -> Option<ResourceBound> {
    let bytes_per_row = match &allocation.cache {
        None => model.store_bytes,
        Some(cache) if cache.is_in_store => model.operators.get(cache.after)?.bytes_out,
        Some(_) => return None,
    };
    let limit = allocation.read_concurrency;
    let bandwidth = if limit > 0.0 { model.bandwidth.at(limit) } else { model.bandwidth.cap()? };
    if bytes_per_row <= 0.0 {
        return None;
    }
    let rows_per_s = bandwidth / bytes_per_row;
    let is_full = limit <= 0.0 || model.bandwidth.is_saturated(limit);
    let kind = if is_full { BottleneckKind::Store } else { BottleneckKind::Latency };
    let why = if is_full {
        format!(
            "the store gives at most {}/s and a row takes {} of it, which gives {} rows/s",
            bytes(bandwidth),
            bytes(bytes_per_row),
            number(rows_per_s)
        )
    } else {
        format!(
            "{} in flight bring {}/s of {} per row, which gives {} rows/s",
            count(limit, "request"),
            bytes(bandwidth),
            bytes(bytes_per_row),
            number(rows_per_s)
        )
    };
    let operator = model.operators.first().map(|source| source.name.clone());
    Some(ResourceBound { kind, operator, rows_per_s, why })
}

/// The bandwidth of a cache's tier over bytes per row at the cut.
fn tier(model: &JobModel, allocation: &JobResources) -> Option<ResourceBound> {
    let cache = allocation.cache.as_ref().filter(|cache| cache.read_bytes_per_s > 0.0)?;
    let cut = model.operators.get(cache.after)?;
    let rows_per_s = cache.read_bytes_per_s / cut.bytes_out;
    let why = format!(
        "the cache after `{}` gives {}/s and a row there has {}, which gives {} rows/s",
        cut.name,
        bytes(cache.read_bytes_per_s),
        bytes(cut.bytes_out),
        number(rows_per_s)
    );
    Some(ResourceBound { kind: BottleneckKind::Store, operator: Some(cut.name.clone()), rows_per_s, why })
}

/// The workers' network over the larger of what comes in and what goes out per row.
fn network(model: &JobModel, allocation: &JobResources) -> Option<ResourceBound> {
    let (from_dataset, from_cache_store) = match &allocation.cache {
        None => (model.store_bytes, 0.0),
        Some(cache) if cache.is_in_store => (0.0, model.operators.get(cache.after)?.bytes_out),
        Some(_) => (0.0, 0.0),
    };
    let locality = &allocation.locality;
    let per_row = locality.network_bytes(from_dataset, from_cache_store, model.delivered_bytes);
    let known = allocation.workers.iter().all(|share| share.nic_bytes_per_s > 0.0);
    if !known || per_row <= 0.0 {
        return None;
    }
    let shares = allocation.workers.iter();
    let bandwidth: f64 = shares.map(|share| f64::from(share.count) * share.nic_bytes_per_s).sum();
    let rows_per_s = bandwidth / per_row;
    let why = format!(
        "the workers' network carries {}/s and a row takes {} of it, which gives {} rows/s",
        bytes(bandwidth),
        bytes(per_row),
        number(rows_per_s)
    );
    Some(ResourceBound { kind: BottleneckKind::Network, operator: None, rows_per_s, why })
}

/// Memory over the byte-seconds that a row holds, by Little's law; only where memory was seen to be full, since otherwise
/// rows in flight are as many as there is use for.
fn memory(model: &JobModel, allocation: &JobResources) -> Option<ResourceBound> {
    let is_full = model.memory_wait_share > 0.1;
    if !is_full || allocation.memory_bytes <= 0.0 || model.held_bytes <= 0.0 {
        return None;
    }
    let rows_per_s = model.rows_per_s * allocation.memory_bytes / model.held_bytes;
    let why = format!(
        "{} of memory were full for {} % of the time, which gives {} rows/s",
        bytes(allocation.memory_bytes),
        number(100.0 * model.memory_wait_share),
        number(rows_per_s)
    );
    Some(ResourceBound { kind: BottleneckKind::Memory, operator: None, rows_per_s, why })
}

fn consumer(model: &JobModel) -> Option<ResourceBound> {
    let rows_per_s = model.demand_rows_per_s?;
    let why = format!("the consumers take {} rows/s and no more", number(rows_per_s));
    Some(ResourceBound { kind: BottleneckKind::Consumer, operator: None, rows_per_s, why })
}
