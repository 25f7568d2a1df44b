//! The page `/metrics`: omits gauges without a value, exports each metric with the kind of its table, and adds the series
//! of running jobs.

use std::fmt::Write as _;

use feedline_common::metric_table::{MetricDescription, MetricKind};
use feedline_coordinator::JobSeries;
use metrics_exporter_prometheus::PrometheusHandle;
use metrics_exporter_prometheus::formatting::{write_help_line, write_type_line};

use crate::{disk_metrics, process_metrics};

/// The metric tables of all roles.
pub(super) fn tables() -> [&'static [MetricDescription]; 8] {
    [
        feedline_coordinator::METRICS,
        feedline_worker::metrics::METRICS,
        feedline_worker::STORE_METRICS,
        feedline_worker::COMPRESSION_METRICS,
        feedline_client::METRICS,
        feedline_kubernetes::METRICS,
        process_metrics::METRICS,
        disk_metrics::METRICS,
    ]
}

/// Renders the current values of all metrics. `jobs` are the series of running jobs, sorted by name.
pub(super) fn render(recorder: &PrometheusHandle, jobs: &[JobSeries]) -> String {
    let mut page: String = recorder.render().split_inclusive("\n\n").map(export_family).collect();
    for family in jobs.chunk_by(|one, other| one.name == other.name) {
        write_family(&mut page, family);
    }
    page
}

/// Writes the series of one gauge of jobs.
fn write_family(page: &mut String, family: &[JobSeries]) {
    let Some(JobSeries { name, .. }) = family.first() else { return };
    let described = feedline_coordinator::METRICS.iter().find(|metric| metric.name == *name);
    if let Some(MetricDescription { help, .. }) = described {
        write_help_line(page, name, None, None, help);
    }
    write_type_line(page, name, None, None, "gauge");
    for JobSeries { labels, value, .. } in family {
        page.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let separator = if index == 0 { '{' } else { ',' };
            // Writing to a string cannot fail.
            let _ = write!(page, "{separator}{label}=\"{}\"", escaped(text));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(page, "{end} {value}");
    }
    page.push('\n');
}

/// Escapes the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
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
