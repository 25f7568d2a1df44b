//! A partition that a shard refers to.

use std::sync::Arc;

use feedline_data::kafka_range::KafkaRange;

/// A partition of a shard.
pub(super) struct Partition {
    pub(super) topic: Arc<str>,
    pub(super) number: i32,
    pub(super) range: KafkaRange,
}
