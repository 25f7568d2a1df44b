//! The report of `feedline bench decisions`, as text or as JSON.

use std::time::Duration;

use serde::Serialize;

/// The whole report. Field names are the keys of the JSON report.
#[derive(Debug, Serialize)]
pub(super) struct DecisionsReport {
    pub(super) coordinators: u32,
    pub(super) workers: u32,
    pub(super) jobs: u32,
    pub(super) consumers: u32,
    pub(super) streams: u32,
    /// Duration of the measurement.
    pub(super) seconds: f64,
    /// Splits leased to workers per second.
    pub(super) grants_per_s: f64,
    /// Answered reports from workers and consumers per second.
    pub(super) reports_per_s: f64,
    /// Time from a request to its answer under this load. A coordinator answers after a majority has written the
    /// decision.
    pub(super) commit_ms: LatencySpread,
    /// Mean number of cores that all coordinators use, including their side of the connections.
    pub(super) coordinator_cores: f64,
    /// CPU time of the coordinators per report, in microseconds.
    pub(super) coordinator_us_per_report: f64,
    /// Mean number of cores that the workers and consumers use. They run at a lower priority.
    pub(super) load_cores: f64,
    /// Number of splits leased since the start.
    pub(super) granted: u64,
    /// Size of the largest log at the end.
    pub(super) log_bytes: u64,
    /// Seconds from the restart of all coordinators until one answers.
    pub(super) restart_s: f64,
}

/// Percentiles of a latency in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct LatencySpread {
    median: f64,
    p99: f64,
    worst: f64,
    count: usize,
}

impl LatencySpread {
    /// Computes the percentiles. They are NaN if there are no measurements.
    pub(super) fn of(mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        let percentile = |fraction: f64| {
            let index = ((latencies.len() as f64 * fraction) as usize).min(latencies.len().saturating_sub(1));
            latencies.get(index).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e3)
        };
        Self {
            median: percentile(0.5),
            p99: percentile(0.99),
            worst: percentile(1.0),
            count: latencies.len(),
        }
    }
}

impl DecisionsReport {
    /// Formats the report as text.
    pub(super) fn to_text(&self) -> String {
        let Self { coordinators, workers, jobs, seconds, grants_per_s, reports_per_s, .. } = self;
        let Self { commit_ms, coordinator_cores, load_cores, granted, log_bytes, restart_s, .. } = self;
        let LatencySpread { median, p99, worst, count } = commit_ms;
        let commit = match count {
            0 => "not measured without jobs".to_owned(),
            _ => format!("median {median:.2} ms, 99 % {p99:.2} ms, worst {worst:.2} ms, of {count}"),
        };
        format!(
            "{coordinators} coordinators, {workers} workers, {jobs} jobs, {seconds:.1} s\n\
             grants   {grants_per_s:.0}/s\n\
             reports  {reports_per_s:.0}/s\n\
             commit   {commit}\n\
             CPU      {coordinator_cores:.2} cores for the coordinators, {load_cores:.2} for workers and consumers\n\
             restart  {restart_s:.2} s after {granted} splits, with a log of {log_bytes} bytes\n"
        )
    }
}
