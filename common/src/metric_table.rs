//! Metric tables: one row per metric with its name, unit and help text.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only grows.
    Counter,
    /// A value that can go up and down.
    Gauge,
    /// A distribution of measurements.
    Histogram,
}

/// One row of a metric table.
#[derive(Debug, Clone, Copy)]
pub struct MetricDescription {
    /// Full name.
    pub name: &'static str,
    /// Kind.
    pub kind: MetricKind,
    /// Unit.
    pub unit: Unit,
    /// Help text.
    pub help: &'static str,
}

/// The row of a counter.
pub const fn counter(name: &'static str, unit: Unit, help: &'static str) -> MetricDescription {
    MetricDescription { name, kind: MetricKind::Counter, unit, help }
}

/// The row of a gauge.
pub const fn gauge(name: &'static str, unit: Unit, help: &'static str) -> MetricDescription {
    MetricDescription { name, kind: MetricKind::Gauge, unit, help }
}

/// The row of a histogram.
pub const fn histogram(name: &'static str, unit: Unit, help: &'static str) -> MetricDescription {
    MetricDescription { name, kind: MetricKind::Histogram, unit, help }
}

/// Registers the unit and the help text of every metric of a table with the installed recorder.
pub fn describe_metrics(table: &[MetricDescription]) {
    for &MetricDescription { name, kind, unit, help } in table {
        match kind {
            MetricKind::Counter => describe_counter!(name, unit, help),
            MetricKind::Gauge => describe_gauge!(name, unit, help),
            MetricKind::Histogram => describe_histogram!(name, unit, help),
        }
    }
}
