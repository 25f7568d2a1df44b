//! The table of the client's metrics: names, units and descriptions.

use feedline_proto::local::ReceivePath;
use metrics::Unit;

pub(crate) const BATCHES_TOTAL: &str = "feedline_client_batches_total";
pub(crate) const ROWS_TOTAL: &str = "feedline_client_rows_total";
pub(crate) const BYTES_TOTAL: &str = "feedline_client_bytes_total";
pub(crate) const STALL_SECONDS_TOTAL: &str = "feedline_client_stall_seconds_total";
pub(crate) const STEP_SECONDS_TOTAL: &str = "feedline_client_step_seconds_total";
pub(crate) const COPY_SECONDS_TOTAL: &str = "feedline_client_copy_seconds_total";
pub(crate) const BUFFERED_BYTES: &str = "feedline_client_buffered_bytes";
pub(crate) const FETCHES_TOTAL: &str = "feedline_client_fetches_total";
pub(crate) const FETCH_FAILURES_TOTAL: &str = "feedline_client_fetch_failures_total";
pub(crate) const RECEIVED_BYTES_TOTAL: &str = "feedline_client_received_bytes_total";
pub(crate) const RECONNECTS_TOTAL: &str = "feedline_client_reconnects_total";

/// Kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only increases.
    Counter,
    /// A value that increases and decreases.
    Gauge,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct MetricDescription {
    /// Full name.
    pub name: &'static str,
    /// Kind.
    pub kind: MetricKind,
    /// Unit.
    pub unit: Unit,
    /// Description.
    pub text: &'static str,
}

const fn metric(name: &'static str, kind: MetricKind, unit: Unit, text: &'static str) -> MetricDescription {
    MetricDescription { name, kind, unit, text }
}

/// Every metric of the client.
pub const METRICS: &[MetricDescription] = &[
    metric(BATCHES_TOTAL, MetricKind::Counter, Unit::Count, "Batches delivered"),
    metric(ROWS_TOTAL, MetricKind::Counter, Unit::Count, "Rows delivered"),
    metric(BYTES_TOTAL, MetricKind::Counter, Unit::Bytes, "Bytes delivered"),
    // A gauge that only increases, because counters are integers.
    metric(STALL_SECONDS_TOTAL, MetricKind::Gauge, Unit::Seconds, "Time that consumers waited for a batch"),
    metric(
        STEP_SECONDS_TOTAL,
        MetricKind::Gauge,
        Unit::Seconds,
        "Time from receiving a batch to requesting the next one, which is the step time of a training loop",
    ),
    metric(
        COPY_SECONDS_TOTAL,
        MetricKind::Gauge,
        Unit::Seconds,
        "Part of the step time spent on copying batches, such as to an accelerator",
    ),
    metric(BUFFERED_BYTES, MetricKind::Gauge, Unit::Bytes, "Bytes fetched but not yet delivered"),
    metric(
        RECEIVED_BYTES_TOTAL,
        MetricKind::Counter,
        Unit::Bytes,
        "Batch bytes received from other processes, by `transport`: tcp, unix or memory",
    ),
    metric(
        FETCHES_TOTAL,
        MetricKind::Counter,
        Unit::Count,
        "Fetches started, including second fetches of a split",
    ),
    metric(FETCH_FAILURES_TOTAL, MetricKind::Counter, Unit::Count, "Fetches that ended early with an error"),
    metric(
        RECONNECTS_TOTAL,
        MetricKind::Counter,
        Unit::Count,
        "Reconnections to the coordinator after a connection loss",
    ),
];

/// Counts bytes of batches that arrived from another process.
pub(crate) fn count_received(via: ReceivePath, bytes: u64) {
    metrics::counter!(RECEIVED_BYTES_TOTAL, "transport" => via.name()).increment(bytes);
}

/// Registers the unit and description of every metric with the installed recorder.
pub fn describe_metrics() {
    for &MetricDescription { name, kind, unit, text } in METRICS {
        match kind {
            MetricKind::Counter => metrics::describe_counter!(name, unit, text),
            MetricKind::Gauge => metrics::describe_gauge!(name, unit, text),
        }
    }
}
