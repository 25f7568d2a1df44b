//! Counts the requests to object stores, and those that a store throttles.
//!
//! The client of a store retries throttled requests, so that its callers do not see them.

use feedline_common::metric_table::{self, MetricDescription};
use metrics::{Unit, counter};

const REQUESTS_TOTAL: &str = "feedline_worker_store_requests_total";
const THROTTLED_TOTAL: &str = "feedline_worker_store_throttled_requests_total";
/// The names of all kinds.
const KINDS: &[&str] = &["s3", "gs", "az", "http"];

/// Every metric of the object stores.
pub const METRICS: &[MetricDescription] = &[
    metric_table::counter(
        REQUESTS_TOTAL,
        Unit::Count,
        "Requests to object stores and web servers, including retries, by `store`: s3, gs, az or http",
    )
    .with_label("store", KINDS),
    metric_table::counter(
        THROTTLED_TOTAL,
        Unit::Count,
        "Requests that a store rejected because of its load, with status 429 or 503, by `store`",
    )
    .with_label("store", KINDS),
];

/// The kind of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreKind {
    S3,
    Google,
    Azure,
    Web,
}

impl StoreKind {
    /// The name in metrics, which is also the usual URL scheme.
    fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
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

/// Whether a store rejected a request because of its load. S3 and Azure respond with 503 (`SlowDown`, `ServerBusy`), and
/// Google Cloud Storage with 429.
fn is_throttled(status: u16) -> bool {
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
        assert_eq!([Kind::S3, Kind::Google, Kind::Azure, Kind::Web].map(Kind::name), KINDS);
    }
}
