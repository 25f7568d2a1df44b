//! The client's metrics, with names, units and descriptions.

use feedline_common::metric_table::{self, MetricDescription};
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
pub(crate) const FEATURE_CACHE_BYTES: &str = "feedline_client_feature_cache_bytes";
pub(crate) const FEATURE_CACHE_SAVED_BYTES_TOTAL: &str = "feedline_client_feature_cache_saved_bytes_total";

/// Every metric of the client.
pub const METRICS: &[MetricDescription] = &[
    metric_table::counter(BATCHES_TOTAL, Unit::Count, "Batches delivered"),
    metric_table::counter(ROWS_TOTAL, Unit::Count, "Rows delivered"),
    metric_table::counter(BYTES_TOTAL, Unit::Bytes, "Bytes delivered"),
    // The three counters of seconds are recorded as gauges, because they have fractions.
    metric_table::counter(STALL_SECONDS_TOTAL, Unit::Seconds, "Time that consumers waited for a batch"),
    metric_table::counter(
        STEP_SECONDS_TOTAL,
        Unit::Seconds,
        "Step time of the training loop, measured from receiving a batch to requesting the next one",
    ),
    metric_table::counter(
        COPY_SECONDS_TOTAL,
        Unit::Seconds,
        "Time that the training loop spent copying batches, for example to an accelerator; included in the step time",
    ),
    metric_table::gauge(BUFFERED_BYTES, Unit::Bytes, "Bytes fetched but not yet delivered"),
    metric_table::counter(
        RECEIVED_BYTES_TOTAL,
        Unit::Bytes,
        "Batch bytes received from other processes, by `transport`: tcp, unix or memory",
    )
    .with_label("transport", &["tcp", "unix", "memory"]),
    metric_table::gauge(
        FEATURE_CACHE_BYTES,
        Unit::Bytes,
        "Rows of features that consumers of sampled graphs keep in memory",
    ),
    metric_table::counter(
        FEATURE_CACHE_SAVED_BYTES_TOTAL,
        Unit::Bytes,
        "Bytes that workers omitted from batches because the consumer has the rows",
    ),
    metric_table::counter(FETCHES_TOTAL, Unit::Count, "Fetches started, including hedged fetches of a split"),
    metric_table::counter(
        FETCH_FAILURES_TOTAL,
        Unit::Count,
        "Fetches that failed before the end of the split",
    ),
    metric_table::counter(
        RECONNECTS_TOTAL,
        Unit::Count,
        "Reconnections to the coordinator after a connection loss",
    ),
];

/// Counts received bytes of batches from other processes.
pub(crate) fn count_received(via: ReceivePath, bytes: u64) {
    metrics::counter!(RECEIVED_BYTES_TOTAL, "transport" => via.name()).increment(bytes);
}
