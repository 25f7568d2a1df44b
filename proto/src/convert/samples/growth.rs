//! A sample of the growth of an unbounded job.

use feedline_data::growth::{Growth, GrowthPartition, GrowthPosition, GrowthUpdate, KnownGrowth};
use feedline_data::ids::JobId;
use feedline_data::manifest::{TopicRange, TopicRanges};
use feedline_data::messages::JobSegments;
use feedline_data::segments::{OffsetRange, Segment};

use super::{object, schema};

/// The segments in a worker's plan.
pub(super) fn segments() -> JobSegments {
    JobSegments {
        job: JobId(1),
        partitions: vec![(0, object(0)), (4, object(1))],
        segments: growth().segments.to_vec(),
    }
}

/// The growth in a consumer's plan.
pub(super) fn update() -> GrowthUpdate {
    GrowthUpdate { after: Some(KnownGrowth { rounds: 4, partitions: 1 }), growth: growth() }
}

/// The growth in a position.
pub(super) fn position() -> GrowthPosition {
    GrowthPosition { growth: growth(), columns: schema(), split_rows: 1024 }
}

/// The ranges in the position of a bounded job.
pub(super) fn ranges() -> TopicRanges {
    let range = TopicRange {
        url: "kafka://a:9092/events/3".to_owned(),
        range: "id@5-1000#7".to_owned(),
        part: 1,
        block_rows: 512,
        row_bytes: 2048,
    };
    TopicRanges { columns: schema(), partitions: vec![range] }
}

fn growth() -> Growth {
    let partition = |url: &str, schema_id| GrowthPartition {
        url: url.to_owned(),
        topic_id: "d0sEXWAWQ6uU1K8Fvz2l9g".to_owned(),
        schema_id,
        next: 20,
        row_bytes: 100,
    };
    let range = OffsetRange { partition: 1, from: 8, to: 20, row_bytes: 100 };
    Growth {
        partitions: vec![partition("kafka://a:1/t/0", None), partition("kafka://a:1/t/1", Some(3))],
        segments: vec![Segment {
            first_round: 4,
            rounds: 2,
            first_row_id: 40,
            epoch: 1,
            ranges: vec![range],
        }]
        .into(),
        rounds: 6,
        rows: 52,
        epoch: 1,
        epoch_first_row: 40,
        epoch_ms: 250,
    }
}
