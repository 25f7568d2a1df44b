//! Counts decompressed bytes.

use feedline_common::metric_table::{self, MetricDescription};
use metrics::{Unit, counter};

const DECOMPRESSED_BYTES_TOTAL: &str = "feedline_worker_decompressed_bytes_total";
const PURPOSES: &[&str] = &["index", "read"];

/// The metrics of compressed shards.
pub const METRICS: &[MetricDescription] = &[metric_table::counter(
    DECOMPRESSED_BYTES_TOTAL,
    Unit::Bytes,
    "Bytes of content that were decompressed, by `purpose`: index or read. Includes bytes that were decompressed only to \
     reach others. A bzip2 block that a read needs in part counts up to its maximum size, or up to the next access point",
)
.with_label("purpose", PURPOSES)];

/// Counts bytes that an indexing pass decompressed.
pub(super) fn count_indexed(bytes: u64) {
    counter!(DECOMPRESSED_BYTES_TOTAL, "purpose" => "index").increment(bytes);
}

/// Counts bytes that a read decompressed.
pub(super) fn count_read(bytes: u64) {
    counter!(DECOMPRESSED_BYTES_TOTAL, "purpose" => "read").increment(bytes);
}
