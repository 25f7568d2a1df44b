//! Metrics of the process, which every role exports. [`METRICS`] contains all names; a test compares it with the documentation.

use std::fs;

use feedline_command::process_cpu_time;
use metrics::{describe_gauge, gauge};

/// Name and description of each metric; all are gauges.
pub(crate) const METRICS: [(&str, &str); 4] = [
    ("feedline_build_info", "Always 1; the label `version` contains the release"),
    ("feedline_process_resident_bytes", "Resident memory of the process"),
    ("feedline_process_peak_resident_bytes", "Peak resident memory of the process"),
    ("feedline_process_cpu_seconds", "CPU time of the process"),
];

/// Registers the descriptions of all metrics.
pub(crate) fn describe() {
    for (name, description) in METRICS {
        describe_gauge!(name, description);
    }
    for (kind, name, _, description) in feedline_worker::metrics::METRICS {
        match *kind {
            "counter" => metrics::describe_counter!(*name, *description),
            _ => describe_gauge!(*name, *description),
        }
    }
}

/// Updates the metrics.
pub(crate) fn update() {
    gauge!("feedline_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    gauge!("feedline_process_resident_bytes").set(resident_bytes() as f64);
    gauge!("feedline_process_peak_resident_bytes").set(feedline_worker::metrics::peak_rss_bytes() as f64);
    gauge!("feedline_process_cpu_seconds").set(process_cpu_time().as_secs_f64());
}

fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0) * 1024
}
