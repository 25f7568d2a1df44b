//! Metrics of the process, which every role exports.

use feedline_access::{Tls, now_s};
use feedline_command::process_cpu_time;
use feedline_common::metric_table::{self, MetricDescription};
use feedline_common::process;
use metrics::{Unit, gauge};

/// Every metric of the process.
pub(crate) const METRICS: &[MetricDescription] = &[
    metric_table::gauge(
        "feedline_build_info",
        Unit::Count,
        "Always 1; the label `version` contains the release",
    ),
    metric_table::gauge(
        "feedline_process_start_time_seconds",
        Unit::Seconds,
        "Unix time at which the process started",
    ),
    metric_table::gauge("feedline_process_resident_bytes", Unit::Bytes, "Resident memory of the process"),
    metric_table::gauge(
        "feedline_process_peak_resident_bytes",
        Unit::Bytes,
        "Peak resident memory of the process",
    ),
    metric_table::counter("feedline_process_cpu_seconds_total", Unit::Seconds, "CPU time of the process"),
    metric_table::gauge(
        "feedline_tls_certificate_expiry_timestamp_seconds",
        Unit::Seconds,
        "Unix time at which the certificate of --tls-cert expires, or the first intermediate certificate in its file",
    ),
];

/// Records the start of the process. Must be called once, before the role starts.
pub(crate) fn record_start() {
    gauge!("feedline_process_start_time_seconds").set(now_s() as f64);
}

/// Updates the metrics. `tls` contains the certificate of the process.
pub(crate) fn update(tls: Option<&Tls>) {
    if let Some(expiry_s) = tls.and_then(Tls::certificate_expiry_s) {
        gauge!("feedline_tls_certificate_expiry_timestamp_seconds").set(expiry_s as f64);
    }
    gauge!("feedline_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    gauge!("feedline_process_resident_bytes").set(process::rss_bytes() as f64);
    gauge!("feedline_process_peak_resident_bytes").set(process::peak_rss_bytes() as f64);
    // A counter with fractions is recorded as a gauge.
    gauge!("feedline_process_cpu_seconds_total").set(process_cpu_time().as_secs_f64());
}
