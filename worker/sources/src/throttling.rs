//! Counts the requests to object stores, and those that a store throttles.
//!
//! Throttled requests are sent again, so that jobs do not see them.

use std::time::Duration;

use feedline_common::metric_table::{self, MetricDescription};
use metrics::{Unit, counter, gauge};

const REQUESTS_TOTAL: &str = "feedline_worker_store_requests_total";
const THROTTLED_TOTAL: &str = "feedline_worker_store_throttled_requests_total";
const HEDGED_TOTAL: &str = "feedline_worker_store_hedged_requests_total";
const HEDGES_WON_TOTAL: &str = "feedline_worker_store_hedged_requests_won_total";
const QUEUE_SECONDS_TOTAL: &str = "feedline_worker_store_queue_seconds_total";
/// The names of all kinds.
const KINDS: &[&str] = &["s3", "gs", "az", "hf", "http"];

/// Every metric of the object stores.
pub const METRICS: &[MetricDescription] = &[
    metric_table::counter(
        REQUESTS_TOTAL,
        Unit::Count,
        "Requests to object stores and web servers, including retries, by `store`: s3, gs, az, hf or http",
    )
    .with_label("store", KINDS),
    metric_table::counter(
        THROTTLED_TOTAL,
        Unit::Count,
        "Requests that a store rejected because of its load, with status 429 or 503, by `store`",
    )
    .with_label("store", KINDS),
    metric_table::counter(
        HEDGED_TOTAL,
        Unit::Count,
        "Reads that were sent a second time because they were slow, by `store`",
    )
    .with_label("store", KINDS),
    metric_table::counter(
        HEDGES_WON_TOTAL,
        Unit::Count,
        "Reads whose second request returned the data first, by `store`",
    )
    .with_label("store", KINDS),
    metric_table::counter(
        QUEUE_SECONDS_TOTAL,
        Unit::Seconds,
        "Time that requests waited for the worker's part of a throttled store's budget, by `store`",
    )
    .with_label("store", KINDS),
];

/// The kind of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreKind {
    S3,
    Google,
    Azure,
    /// The Hugging Face Hub.
    Hub,
    Web,
}

impl StoreKind {
    /// The kind of a scheme; `None` for local files.
    pub(crate) fn of_scheme(scheme: &str) -> Option<Self> {
        match scheme {
            "s3" | "s3a" => Some(Self::S3),
            "gs" => Some(Self::Google),
            "az" | "adl" | "azure" | "abfs" | "abfss" => Some(Self::Azure),
            "hf" => Some(Self::Hub),
            "http" | "https" => Some(Self::Web),
            _ => None,
        }
    }

    /// The name in metrics, which is also the usual URL scheme.
    fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
            Self::Hub => "hf",
            Self::Web => "http",
        }
    }
}

/// Counts a request with the status of its response; `None` if the store sent no response.
pub(crate) fn count_request(store: StoreKind, status: Option<u16>) {
    counter!(REQUESTS_TOTAL, "store" => store.name()).increment(1);
    if status.is_some_and(is_throttled) {
        counter!(THROTTLED_TOTAL, "store" => store.name()).increment(1);
    }
}

/// Counts a read that is sent a second time.
pub(crate) fn count_hedged(store: StoreKind) {
    counter!(HEDGED_TOTAL, "store" => store.name()).increment(1);
}

/// Counts a read whose second request returned the data first.
pub(crate) fn count_hedge_won(store: StoreKind) {
    counter!(HEDGES_WON_TOTAL, "store" => store.name()).increment(1);
}

/// Adds the time of one request in the queue. A counter with fractions is recorded as a gauge.
pub(crate) fn count_queued(store: StoreKind, time: Duration) {
    gauge!(QUEUE_SECONDS_TOTAL, "store" => store.name()).increment(time.as_secs_f64());
}

/// Whether a store rejected a request because of its load. S3 and Azure respond with 503 (`SlowDown`, `ServerBusy`), and
/// Google Cloud Storage and the Hugging Face Hub with 429.
pub(crate) fn is_throttled(status: u16) -> bool {
    matches!(status, 429 | 503)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rejections_because_of_load_are_throttled_requests() {
        let throttled = [200, 206, 304, 403, 404, 412, 429, 500, 502, 503, 504].into_iter();
        assert_eq!(throttled.filter(|status| is_throttled(*status)).collect::<Vec<_>>(), [429, 503]);
    }

    #[test]
    fn every_kind_of_store_has_counters() {
        use StoreKind as Kind;
        assert_eq!([Kind::S3, Kind::Google, Kind::Azure, Kind::Hub, Kind::Web].map(Kind::name), KINDS);
    }
}
