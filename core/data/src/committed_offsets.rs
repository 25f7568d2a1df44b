//! The offsets of Kafka partitions that a job has delivered: all records of the job before such an offset are delivered.

use crate::growth::Growth;
use crate::kafka_range::KafkaRange;
use crate::layout::{DeliveredPrefix, Layout};
use crate::manifest::Manifest;
use crate::pipeline::Pipeline;
use crate::sequence::Sequence;

/// The first offset of a partition that a job may not have delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionOffset {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset. All records of the job before it are delivered.
    pub offset: u64,
}

impl PartitionOffset {
    /// Returns the offset of a partition with a URL such as `kafka://broker:9092/events/3`; `None` for other URLs.
    fn of_url(url: &str, offset: u64) -> Option<Self> {
        let (path, partition) = url.rsplit_once('/')?;
        let topic = path.rsplit('/').next()?.to_owned();
        Some(Self { topic, partition: partition.parse().ok()?, offset })
    }
}

/// Returns the offsets of all partitions of an unbounded job that has delivered all rows before a round. An offset advances when a
/// segment is delivered to all streams. Takes O(partitions + ranges of undelivered segments) time.
pub fn offsets_of_growth(growth: &Growth, round: u64) -> Vec<PartitionOffset> {
    let mut offsets: Vec<u64> = growth.partitions.iter().map(|partition| partition.next).collect();
    let undelivered = growth.segments.iter().filter(|segment| segment.end_round() > round);
    for range in undelivered.rev().flat_map(|segment| &segment.ranges) {
        if let Some(offset) = offsets.get_mut(range.partition as usize) {
            *offset = range.from;
        }
    }
    let partitions = growth.partitions.iter().zip(offsets);
    partitions.filter_map(|(partition, offset)| PartitionOffset::of_url(&partition.url, offset)).collect()
}

/// Returns the offsets of all partitions of a job that has delivered a prefix of its rows. Empty for a mix. With a shuffle, an offset
/// advances block by block. Takes O(blocks) time.
pub fn committed_offsets(
    pipeline: &Pipeline,
    layout: &Layout,
    manifest: &Manifest,
    delivered: DeliveredPrefix,
) -> Vec<PartitionOffset> {
    let is_whole = delivered.epoch > 0 || delivered.rows >= layout.dataset_rows;
    let rows = if is_whole { None } else { leading_rows(pipeline, layout, manifest, delivered.rows) };
    if rows.is_none() && !is_whole {
        return Vec::new();
    }
    let shards = manifest.shards.iter().enumerate().filter_map(|(number, shard)| {
        let range = KafkaRange::of(&shard.object.url, &shard.object.version)?;
        let offset = match &rows {
            Some(rows) => range.from + rows[number],
            None => range.to,
        };
        PartitionOffset::of_url(&shard.object.url, offset)
    });
    shards.collect()
}

/// The leading rows of each shard, by its number in the manifest.
fn leading_rows(pipeline: &Pipeline, layout: &Layout, manifest: &Manifest, count: u64) -> Option<Vec<u64>> {
    let sequence = Sequence::new(pipeline, manifest, layout);
    let found = sequence.leading_rows(&sequence.pass(0), count)?;
    // Shards without rows have no blocks.
    let mut rows = vec![0; manifest.shards.len()];
    for (shard, leading) in found {
        rows[shard as usize] = leading;
    }
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth::GrowthPartition;
    use crate::manifest::{Block, Shard, ShardIndex, ShardRef};
    use crate::pipeline::{KafkaOptions, Source};
    use crate::schema::Schema;
    use crate::segments::{OffsetRange, Segment};

    /// Three partitions with 0, 10 and 20 offsets, in blocks of 5.
    fn manifest() -> Manifest {
        let shard = |(partition, rows): (u64, u64)| {
            let from = 100 * partition;
            let object = ShardRef {
                url: format!("kafka://a:1/events/{partition}"),
                version: format!("id@{from}-{}", from + rows),
                ..ShardRef::default()
            };
            let block = |offset| Block { rows: 5, offset, bytes: 1, group: 0, row_bytes: Vec::new() };
            let blocks = (from..from + rows).step_by(5).map(block).collect();
            Shard { object, index: ShardIndex { blocks, ..ShardIndex::default() }, digest: None }
        };
        Manifest { schema: Schema::default(), shards: [(0, 0), (1, 10), (2, 20)].map(shard).into() }
    }

    fn offsets(window: u64, epoch: u32, rows: u64) -> Vec<u64> {
        let source = Source::kafka("kafka://a:1").with_kafka(KafkaOptions::topic("events"));
        let pipeline = Pipeline::builder("p").source(source).shuffle(window).batch(1).build().unwrap();
        let manifest = manifest();
        let layout = Layout::new(&pipeline, &manifest.summary(), 2, 1);
        let found = committed_offsets(&pipeline, &layout, &manifest, DeliveredPrefix { epoch, rows });
        assert!((0..).zip(&found).all(|(number, one)| one.topic == "events" && one.partition == number));
        found.into_iter().map(|one| one.offset).collect()
    }

    #[test]
    fn offsets_of_an_unbounded_job_are_those_of_its_first_undelivered_segment() {
        let partition = |(number, next)| GrowthPartition {
            url: format!("kafka://a:1/events/{number}"),
            topic_id: "id".to_owned(),
            schema_id: None,
            next,
            row_bytes: 1,
        };
        let segment = |first_round, ranges: &[(u32, u64, u64)]| Segment {
            first_round,
            rounds: 1,
            first_row_id: 0,
            epoch: 0,
            ranges: ranges
                .iter()
                .map(|&(partition, from, to)| OffsetRange { partition, from, to, row_bytes: 1 })
                .collect(),
        };
        let growth = Growth {
            partitions: [(0, 30), (1, 9), (2, 7)].map(partition).into(),
            segments: vec![segment(0, &[(0, 10, 20)]), segment(1, &[(0, 20, 30), (2, 0, 7)])].into(),
            ..Growth::default()
        };
        let offsets =
            |round| offsets_of_growth(&growth, round).into_iter().map(|one| one.offset).collect::<Vec<_>>();
        assert_eq!(offsets(0), [10, 9, 0]);
        assert_eq!(offsets(1), [20, 9, 0]);
        assert_eq!(offsets(2), [30, 9, 7]);
        let second = PartitionOffset { topic: "events".to_owned(), partition: 1, offset: 9 };
        assert_eq!(offsets_of_growth(&growth, 0)[1], second);
    }

    #[test]
    fn offsets_follow_the_delivered_rows() {
        assert_eq!(offsets(0, 0, 0), [0, 100, 200]);
        assert_eq!(offsets(0, 0, 7), [0, 107, 200]);
        assert_eq!(offsets(0, 0, 13), [0, 110, 203]);
        assert_eq!(offsets(0, 0, 30), [0, 110, 220]);
        assert_eq!(offsets(0, 1, 3), [0, 110, 220], "a later epoch repeats delivered records");
    }

    #[test]
    fn offsets_of_a_shuffled_job_advance_by_blocks() {
        let steps: Vec<Vec<u64>> = (0..=30).map(|rows| offsets(8, 0, rows)).collect();
        for pair in steps.windows(2) {
            assert!(pair[0].iter().zip(&pair[1]).all(|(before, after)| before <= after));
        }
        assert!(steps.iter().flatten().all(|offset| offset % 5 == 0));
        assert_eq!((steps[0].clone(), steps[30].clone()), (vec![0, 100, 200], vec![0, 110, 220]));
    }
}
