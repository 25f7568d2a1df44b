//! Metric tables: one row per metric with its name, unit and help text.
//!
//! Counters of the crate `metrics` are integers. A counter with fractions, such as a number of seconds, is recorded as a
//! gauge that only increases. `/metrics` exports each metric with the kind of its row.

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge};

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
    /// The label whose values are known in advance; `None` for a metric without labels or with other values.
    pub label: Option<FixedLabel>,
}

/// A label with a fixed set of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedLabel {
    /// The name.
    pub name: &'static str,
    /// All values.
    pub values: &'static [&'static str],
}

impl MetricDescription {
    /// Sets a label with a fixed set of values.
    pub const fn with_label(self, name: &'static str, values: &'static [&'static str]) -> Self {
        Self { label: Some(FixedLabel { name, values }), ..self }
    }

    /// Adds 0 to a counter, which creates its series.
    fn start(&self) {
        let name = self.name;
        let has_fractions = self.unit == Unit::Seconds;
        match self.label {
            // A counter with fractions is recorded as a gauge.
            None if has_fractions => gauge!(name).increment(0.0),
            None => counter!(name).increment(0),
            Some(FixedLabel { name: label, values }) => {
                for value in values {
                    counter!(name, label => *value).increment(0);
                }
            }
        }
    }
}

/// Returns the row of a counter.
pub const fn counter(name: &'static str, unit: Unit, help: &'static str) -> MetricDescription {
    MetricDescription { name, kind: MetricKind::Counter, unit, help, label: None }
}

/// Returns the row of a gauge.
pub const fn gauge(name: &'static str, unit: Unit, help: &'static str) -> MetricDescription {
    MetricDescription { name, kind: MetricKind::Gauge, unit, help, label: None }
}

/// Returns the row of a histogram.
pub const fn histogram(name: &'static str, unit: Unit, help: &'static str) -> MetricDescription {
    MetricDescription { name, kind: MetricKind::Histogram, unit, help, label: None }
}

/// Registers the unit and the help text of every metric of a table with the installed recorder.
pub fn describe_metrics(table: &[MetricDescription]) {
    for &MetricDescription { name, kind, unit, help, .. } in table {
        match kind {
            MetricKind::Counter => describe_counter!(name, unit, help),
            MetricKind::Gauge => describe_gauge!(name, unit, help),
            MetricKind::Histogram => describe_histogram!(name, unit, help),
        }
    }
}

/// Creates the counters of a table with the value 0. Otherwise, the first increase of a counter would be invisible to
/// `rate`, because the series would begin with it. Each role starts its own counters, after the recorder is installed.
pub fn start_counters(table: &[MetricDescription]) {
    table.iter().filter(|metric| metric.kind == MetricKind::Counter).for_each(MetricDescription::start);
}
