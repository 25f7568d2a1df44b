//! Metrics of the worker. A test compares [`METRICS`] with the documentation.

use std::time::Duration;

use feedline_common::metric_table::{self, MetricDescription};
use feedline_data::memory::{MemoryAccount, MemoryUsage};
use metrics::{Unit, counter, gauge};

/// The names of all cache tiers.
const TIERS: &[&str] = &["memory", "disk", "store"];
/// The names of the tiers that evict rows.
const EVICTING_TIERS: &[&str] = &["memory", "disk"];

/// Every metric of the worker, except those of its object stores.
pub const METRICS: &[MetricDescription] = &[
    metric_table::gauge(
        "feedline_worker_memory_used_bytes",
        Unit::Bytes,
        "Bytes of the memory budget in use, summed over all accounts",
    ),
    metric_table::gauge(
        "feedline_worker_memory_budget_bytes",
        Unit::Bytes,
        "Memory budget, as set by --memory",
    ),
    metric_table::gauge(
        "feedline_worker_memory_bytes",
        Unit::Bytes,
        "Bytes of the memory budget in use, by `account`",
    ),
    metric_table::gauge(
        "feedline_worker_lent_bytes",
        Unit::Bytes,
        "Shared memory for consumers on this host, in use or idle",
    ),
    // The operators of a pipeline are known when its job is loaded.
    metric_table::counter(
        "feedline_worker_operator_cpu_seconds_total",
        Unit::Seconds,
        "CPU time by `operator`",
    )
    .with_label("operator", &[]),
    metric_table::gauge(
        "feedline_worker_operator_queue_bytes",
        Unit::Bytes,
        "Bytes that wait for an `operator`",
    ),
    metric_table::counter("feedline_worker_store_bytes_total", Unit::Bytes, "Bytes read from stores"),
    metric_table::counter(
        "feedline_worker_lock_wait_seconds_total",
        Unit::Seconds,
        "Time that threads waited for the lock of the engine's state",
    ),
    metric_table::gauge("feedline_worker_draining", Unit::Count, "1 while the worker drains, otherwise 0"),
    metric_table::gauge(
        "feedline_worker_groups_in_flight",
        Unit::Count,
        "Groups of rows being read or computed",
    ),
    metric_table::gauge("feedline_worker_leases", Unit::Count, "Splits for which the worker has a lease"),
    metric_table::counter("feedline_worker_sent_bytes_total", Unit::Bytes, "Batch bytes sent to consumers"),
    metric_table::counter("feedline_worker_sent_rows_total", Unit::Count, "Rows sent to consumers"),
    metric_table::counter(
        "feedline_worker_skipped_rows_total",
        Unit::Count,
        "Rows that were skipped or replaced after an error",
    ),
    metric_table::counter("feedline_worker_fetches_total", Unit::Count, "Fetches opened by consumers"),
    metric_table::gauge("feedline_worker_open_fetches", Unit::Count, "Open fetches"),
    metric_table::counter(
        "feedline_worker_refused_fetches_total",
        Unit::Count,
        "Fetches rejected because of the limit on open fetches",
    ),
    metric_table::counter(
        "feedline_worker_coordinator_errors_total",
        Unit::Count,
        "Failed reports to the coordinator",
    ),
    metric_table::counter(
        "feedline_worker_cache_hits_total",
        Unit::Count,
        "Rows found in a row cache, by `tier`",
    )
    .with_label("tier", TIERS),
    metric_table::counter(
        "feedline_worker_cache_misses_total",
        Unit::Count,
        "Rows not found in a row cache, by `tier`",
    )
    .with_label("tier", TIERS),
    metric_table::counter(
        "feedline_worker_cache_stored_bytes_total",
        Unit::Bytes,
        "Bytes stored in row caches, by `tier`: memory or disk",
    )
    .with_label("tier", EVICTING_TIERS),
    metric_table::counter(
        "feedline_worker_cache_evicted_bytes_total",
        Unit::Bytes,
        "Bytes evicted from row caches to make room for other rows, by `tier`: memory or disk",
    )
    .with_label("tier", EVICTING_TIERS),
    metric_table::counter(
        "feedline_worker_cache_evicted_active_bytes_total",
        Unit::Bytes,
        "The part of the evicted bytes that a running job still used, by `tier`: memory or disk",
    )
    .with_label("tier", EVICTING_TIERS),
    metric_table::gauge("feedline_worker_cache_bytes", Unit::Bytes, "Bytes in row caches, by `tier`"),
    metric_table::gauge("feedline_worker_loaded_graphs", Unit::Count, "Graphs whose topology is in memory"),
    metric_table::counter(
        "feedline_worker_graph_load_seconds_total",
        Unit::Seconds,
        "Time to load the topologies and features of graphs, including failed loads",
    ),
    metric_table::counter(
        "feedline_worker_graph_rows_total",
        Unit::Count,
        "Rows of graph features in memory, or read from a disk or a store, by `tier`",
    )
    .with_label("tier", TIERS),
    metric_table::counter(
        "feedline_worker_gather_sent_bytes_total",
        Unit::Bytes,
        "Bytes of rows of partitioned features sent to other workers",
    ),
    metric_table::counter(
        "feedline_worker_gather_received_bytes_total",
        Unit::Bytes,
        "Bytes of rows of partitioned features received from other workers",
    ),
    metric_table::counter(
        "feedline_worker_gather_missed_rows_total",
        Unit::Count,
        "Rows of partitioned features read from the graph because their worker did not send them",
    ),
    metric_table::counter("feedline_worker_tasks_total", Unit::Count, "Completed listing and indexing tasks"),
    metric_table::counter(
        "feedline_worker_group_commits_total",
        Unit::Count,
        "Commits of delivered offsets to consumer groups of Kafka, by `outcome`: `ok` or `failed`",
    )
    .with_label("outcome", &["ok", "failed"]),
    metric_table::counter("feedline_worker_function_calls_total", Unit::Count, "Python function calls"),
    metric_table::counter(
        "feedline_worker_function_deaths_total",
        Unit::Count,
        "Python function processes that crashed or were killed for exceeding their time or memory limit",
    ),
];

pub(crate) fn set_memory(usage: &[MemoryUsage], budget_bytes: u64) {
    for MemoryUsage { account, used_bytes } in usage {
        gauge!("feedline_worker_memory_bytes", "account" => account.name()).set(*used_bytes as f64);
        if *account == MemoryAccount::SharedMemory {
            gauge!("feedline_worker_lent_bytes").set(*used_bytes as f64);
        }
    }
    let used_bytes: u64 = usage.iter().map(|usage| usage.used_bytes).sum();
    gauge!("feedline_worker_memory_used_bytes").set(used_bytes as f64);
    gauge!("feedline_worker_memory_budget_bytes").set(budget_bytes as f64);
}

/// Adds CPU time. A counter with fractions is recorded as a gauge.
pub(crate) fn add_operator_cpu(operator: &str, seconds: f64) {
    gauge!("feedline_worker_operator_cpu_seconds_total", "operator" => operator.to_owned())
        .increment(seconds);
}

pub(crate) fn set_operator_queue(operator: &str, bytes: u64) {
    gauge!("feedline_worker_operator_queue_bytes", "operator" => operator.to_owned()).set(bytes as f64);
}

pub(crate) fn count_store_bytes(bytes: u64) {
    counter!("feedline_worker_store_bytes_total").increment(bytes);
}

/// Sets a counter with fractions, which is recorded as a gauge.
pub(crate) fn set_lock_wait(wait: Duration) {
    gauge!("feedline_worker_lock_wait_seconds_total").set(wait.as_secs_f64());
}

pub(crate) fn set_draining(is_draining: bool) {
    gauge!("feedline_worker_draining").set(f64::from(u8::from(is_draining)));
}

pub(crate) fn set_engine(groups: usize, leases: usize) {
    gauge!("feedline_worker_groups_in_flight").set(groups as f64);
    gauge!("feedline_worker_leases").set(leases as f64);
}

/// Counts the function calls of one chunk, and the function processes that died.
pub(crate) fn count_functions(calls: u64, deaths: u64) {
    counter!("feedline_worker_function_calls_total").increment(calls);
    counter!("feedline_worker_function_deaths_total").increment(deaths);
}

pub(crate) fn count_cache(tier: &'static str, hits: usize, misses: usize) {
    counter!("feedline_worker_cache_hits_total", "tier" => tier).increment(hits as u64);
    counter!("feedline_worker_cache_misses_total", "tier" => tier).increment(misses as u64);
}

pub(crate) fn count_stored(tier: &'static str, bytes: u64) {
    counter!("feedline_worker_cache_stored_bytes_total", "tier" => tier).increment(bytes);
}

/// Counts evicted rows of one prefix. `is_active` states whether a running job uses the prefix.
pub(crate) fn count_evicted(tier: &'static str, bytes: u64, is_active: bool) {
    counter!("feedline_worker_cache_evicted_bytes_total", "tier" => tier).increment(bytes);
    if is_active {
        counter!("feedline_worker_cache_evicted_active_bytes_total", "tier" => tier).increment(bytes);
    }
}

pub(crate) fn set_cache(memory_bytes: u64, disk_bytes: u64) {
    gauge!("feedline_worker_cache_bytes", "tier" => "memory").set(memory_bytes as f64);
    gauge!("feedline_worker_cache_bytes", "tier" => "disk").set(disk_bytes as f64);
}

pub(crate) fn set_loaded_graphs(graphs: usize) {
    gauge!("feedline_worker_loaded_graphs").set(graphs as f64);
}

/// Adds the time of one load of a topology or feature. A counter with fractions is recorded as a gauge.
pub(crate) fn count_graph_load(took: Duration) {
    gauge!("feedline_worker_graph_load_seconds_total").increment(took.as_secs_f64());
}

/// Adds rows of features that batches needed.
pub(crate) fn count_graph_rows(tier: &'static str, rows: u64) {
    counter!("feedline_worker_graph_rows_total", "tier" => tier).increment(rows);
}

pub(crate) fn count_gather_sent(bytes: u64) {
    counter!("feedline_worker_gather_sent_bytes_total").increment(bytes);
}

pub(crate) fn count_gather_received(bytes: u64) {
    counter!("feedline_worker_gather_received_bytes_total").increment(bytes);
}

pub(crate) fn count_gather_missed(rows: u64) {
    counter!("feedline_worker_gather_missed_rows_total").increment(rows);
}

pub(crate) fn count_sent(rows: u32, bytes: u64, skipped: usize) {
    counter!("feedline_worker_sent_rows_total").increment(u64::from(rows));
    counter!("feedline_worker_sent_bytes_total").increment(bytes);
    counter!("feedline_worker_skipped_rows_total").increment(skipped as u64);
}

pub(crate) fn count_fetch() {
    counter!("feedline_worker_fetches_total").increment(1);
}

pub(crate) fn set_open_fetches(fetches: u32) {
    gauge!("feedline_worker_open_fetches").set(f64::from(fetches));
}

pub(crate) fn count_refused_fetch() {
    counter!("feedline_worker_refused_fetches_total").increment(1);
}

pub(crate) fn count_coordinator_error() {
    counter!("feedline_worker_coordinator_errors_total").increment(1);
}

/// Counts a commit of delivered offsets to a consumer group.
pub(crate) fn count_group_commit(is_ok: bool) {
    let outcome = if is_ok { "ok" } else { "failed" };
    counter!("feedline_worker_group_commits_total", "outcome" => outcome).increment(1);
}

pub(crate) fn count_task() {
    counter!("feedline_worker_tasks_total").increment(1);
}
