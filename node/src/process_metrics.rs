//! Metrics of the process itself, which every role has. Every name is in [`METRICS`], from which the documentation is
//! checked.

use std::fs;
use std::time::Duration;

use metrics::{describe_gauge, gauge};

/// Name and meaning; all are gauges.
pub(crate) const METRICS: [(&str, &str); 4] = [
    ("feedline_build_info", "1, with the release as `version`"),
    ("feedline_process_resident_bytes", "Memory that the process holds"),
    ("feedline_process_peak_resident_bytes", "Most memory that the process has held"),
    ("feedline_process_cpu_seconds", "CPU time that the process has used"),
];

/// Tells the recorder what the names mean.
pub(crate) fn describe() {
    for (name, meaning) in METRICS {
        describe_gauge!(name, meaning);
    }
    for (kind, name, _, meaning) in feedline_worker::metrics::METRICS {
        match *kind {
            "counter" => metrics::describe_counter!(*name, *meaning),
            _ => describe_gauge!(*name, *meaning),
        }
    }
}

/// Measures the process.
pub(crate) fn update() {
    gauge!("feedline_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    gauge!("feedline_process_resident_bytes").set(resident_bytes() as f64);
    gauge!("feedline_process_peak_resident_bytes").set(feedline_worker::metrics::peak_rss_bytes() as f64);
    gauge!("feedline_process_cpu_seconds").set(cpu_seconds());
}

fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0) * 1024
}

fn cpu_seconds() -> f64 {
    cpu_time().as_secs_f64()
}

/// CPU time that all threads of this process have used.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
