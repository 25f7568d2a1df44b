//! Metric tables: one row per metric with its name, unit and help text.
//!
//! Counters of the crate `metrics` are integers. A counter with fractions, such as a number of seconds, is recorded as a
//! gauge that only increases. `/metrics` exports each metric with the kind of its row.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Value of a gauge that is not exported, because the crate `metrics` cannot remove a gauge.
pub const ABSENT: f64 = f64::NAN;

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only increases.
    Counter,
    /// A value that can increase and decrease.
    Gauge,
    /// A distribution of measurements.
    Histogram,
}

/// One row of a metric table.
#[derive(Debug, Clone, Copy)]
pub struct MetricDescription {
    /// The full name.
    pub name: &'static str,
    /// The kind.
    pub kind: MetricKind,
    /// The unit.
    pub unit: Unit,
    /// The help text.
    pub help: &'static str,
}

/// Returns the row of a counter.
pub const fn counter(name: &'static str, unit: Unit, help: &'static str) -> MetricDescription {
    MetricDescription { name, kind: MetricKind::Counter, unit, help }
}

/// Returns the row of a gauge.
pub const fn gauge(name: &'static str, unit: Unit, help: &'static str) -> MetricDescription {
    MetricDescription { name, kind: MetricKind::Gauge, unit, help }
}

/// Returns the row of a histogram.
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
