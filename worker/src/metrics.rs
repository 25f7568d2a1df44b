//! Metrics of the worker. [`METRICS`] lists all of them; a test compares the list with the documentation.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use metrics::{counter, gauge};

/// Kind, name, unit and help text of each metric.
pub const METRICS: &[(&str, &str, &str, &str)] = &[
    (
        "gauge",
        "feedline_worker_memory_used_bytes",
        "bytes",
        "Memory in use for batches, encoded rows, decoded images between operators, block caches, shared memory of consumers and of Python functions",
    ),
    ("gauge", "feedline_worker_memory_budget_bytes", "bytes", "Memory budget, as set by --memory"),
    (
        "gauge",
        "feedline_worker_lent_bytes",
        "bytes",
        "Shared memory for consumers on this host, in use or idle",
    ),
    ("gauge", "feedline_worker_groups_in_flight", "groups", "Groups of rows that are being read or computed"),
    ("gauge", "feedline_worker_leases", "splits", "Splits for which the worker has a lease"),
    ("counter", "feedline_worker_sent_bytes_total", "bytes", "Bytes of batches sent to consumers"),
    ("counter", "feedline_worker_sent_rows_total", "rows", "Rows sent to consumers"),
    (
        "counter",
        "feedline_worker_skipped_rows_total",
        "rows",
        "Rows that were skipped or replaced after an error",
    ),
    ("counter", "feedline_worker_fetches_total", "fetches", "Fetches opened by consumers"),
    ("gauge", "feedline_worker_open_fetches", "fetches", "Open fetches"),
    (
        "counter",
        "feedline_worker_refused_fetches_total",
        "fetches",
        "Fetches rejected because of the limit of open fetches",
    ),
    (
        "counter",
        "feedline_worker_coordinator_errors_total",
        "errors",
        "Reports to the coordinator that failed",
    ),
    ("counter", "feedline_worker_cache_hits_total", "rows", "Rows found in a row cache, by `tier`"),
    ("counter", "feedline_worker_cache_misses_total", "rows", "Rows not found in a row cache, by `tier`"),
    ("gauge", "feedline_worker_cache_bytes", "bytes", "Bytes in row caches, by `tier`"),
    ("counter", "feedline_worker_tasks_total", "tasks", "Listing and indexing tasks finished"),
    ("counter", "feedline_worker_function_calls_total", "calls", "Calls of Python functions"),
    (
        "counter",
        "feedline_worker_function_deaths_total",
        "processes",
        "Processes of Python functions that crashed, or were killed because of their time or memory limit",
    ),
];

pub(crate) fn set_lent(lent_bytes: u64) {
    gauge!("feedline_worker_lent_bytes").set(lent_bytes as f64);
}

pub(crate) fn set_engine(used_bytes: u64, budget_bytes: u64, groups: usize, leases: usize) {
    gauge!("feedline_worker_memory_used_bytes").set(used_bytes as f64);
    gauge!("feedline_worker_memory_budget_bytes").set(budget_bytes as f64);
    gauge!("feedline_worker_groups_in_flight").set(groups as f64);
    gauge!("feedline_worker_leases").set(leases as f64);
}

/// Counts the function calls of one chunk, and the processes that died.
pub(crate) fn count_functions(calls: u64, deaths: u64) {
    counter!("feedline_worker_function_calls_total").increment(calls);
    counter!("feedline_worker_function_deaths_total").increment(deaths);
}

pub(crate) fn count_cache(tier: &'static str, hits: usize, misses: usize) {
    counter!("feedline_worker_cache_hits_total", "tier" => tier).increment(hits as u64);
    counter!("feedline_worker_cache_misses_total", "tier" => tier).increment(misses as u64);
}

pub(crate) fn set_cache(memory_bytes: u64, disk_bytes: u64) {
    gauge!("feedline_worker_cache_bytes", "tier" => "memory").set(memory_bytes as f64);
    gauge!("feedline_worker_cache_bytes", "tier" => "disk").set(disk_bytes as f64);
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

pub(crate) fn count_task() {
    counter!("feedline_worker_tasks_total").increment(1);
}

/// Time for which the peak is cached: reading it costs more than the rest of a worker's report.
const PEAK_RSS_AGE: Duration = Duration::from_millis(50);

/// Peak resident set of this process in bytes, at most [`PEAK_RSS_AGE`] old; 0 if the system does not report it.
pub fn peak_rss_bytes() -> u64 {
    static LAST: Mutex<Option<(Instant, u64)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_none_or(|(read_at, _)| read_at.elapsed() >= PEAK_RSS_AGE) {
        *last = Some((Instant::now(), read_peak_rss()));
    }
    last.map_or(0, |(_, bytes)| bytes)
}

fn read_peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0) * 1024
}
