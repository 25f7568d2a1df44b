//! The page `/metrics`: omits gauges without a value, and exports each metric with the kind of its table.

use feedline_common::metric_table::{MetricDescription, MetricKind};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::{disk_metrics, process_metrics};

/// The metric tables of all roles.
pub(super) fn tables() -> [&'static [MetricDescription]; 6] {
    [
        feedline_coordinator::METRICS,
        feedline_worker::metrics::METRICS,
        feedline_worker::STORE_METRICS,
        feedline_client::METRICS,
        process_metrics::METRICS,
        disk_metrics::METRICS,
    ]
}

/// Renders the current values of all metrics.
pub(super) fn render(recorder: &PrometheusHandle) -> String {
    recorder.render().split_inclusive("\n\n").map(export_family).collect()
}

/// Returns the lines of one metric. Returns an empty string if all its series are absent.
fn export_family(family: &str) -> String {
    let is_sample = |line: &&str| !line.starts_with('#') && !line.is_empty();
    let exported: Vec<&str> = family.lines().filter(|line| !(is_sample(line) && is_absent(line))).collect();
    if !exported.iter().any(is_sample) {
        return String::new();
    }
    exported.into_iter().map(|line| correct_kind(line) + "\n").collect()
}

/// Whether the value of a sample is [`feedline_common::metric_table::ABSENT`].
fn is_absent(sample: &str) -> bool {
    sample.ends_with(" NaN")
}

/// Returns the line with the kind of the metric's table. The recorder reports a counter with fractions as a gauge.
fn correct_kind(line: &str) -> String {
    let gauge = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" gauge"));
    match gauge {
        Some(name) if is_counter(name) => format!("# TYPE {name} counter"),
        _ => line.to_owned(),
    }
}

fn is_counter(name: &str) -> bool {
    let is_same = |metric: &MetricDescription| metric.name == name && metric.kind == MetricKind::Counter;
    tables().into_iter().flatten().any(is_same)
}

#[cfg(test)]
mod tests;
