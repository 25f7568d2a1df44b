//! The ranges of offsets that a bounded job on topics reads, as a part of its positions. With them, the job resumes on any coordinators,
//! although the topics have more records by then.

use serde::{Deserialize, Serialize};

use super::{Block, ContentId, Manifest, Shard, ShardDigest, ShardIndex, ShardRef};
use crate::kafka_range::KafkaRange;
use crate::schema::Schema;

/// Maximum number of partitions in a position, which limits its size.
const MAX_PARTITIONS: usize = 4_096;
/// Maximum number of blocks of all partitions in a position, which limits the memory of the index that is built from it.
const MAX_BLOCKS: u64 = 1 << 22;
/// The error for a range that no coordinator has written.
const INVALID_RANGE: &str = "the position has an invalid range of offsets: use an unmodified checkpoint";

/// The partitions of a bounded job in listing order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicRanges {
    /// The columns of the source.
    pub columns: Schema,
    /// The ranges.
    pub partitions: Vec<TopicRange>,
}

/// A range of offsets of one partition, and its blocks, which have equal numbers of rows of equal size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicRange {
    /// The URL of the partition.
    pub url: String,
    /// The offsets and the id of the topic: see [`crate::kafka_range::KafkaRange`].
    pub range: String,
    /// The index of the topic's dataset in a mix; 0 without a mix.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub part: u32,
    /// The number of rows of each block but the last one; 0 for an empty range.
    pub block_rows: u32,
    /// The estimated size of a row in bytes.
    pub row_bytes: u64,
}

impl TopicRanges {
    /// Returns the ranges of a dataset with this content id. `None` if they do not determine its rows and blocks, such as in a mix
    /// with files, or if they exceed the limits of [`Self::check`].
    pub fn of(manifest: &Manifest, content: &ContentId) -> Option<Self> {
        if content.is_unknown() || manifest.shards.len() > MAX_PARTITIONS {
            return None;
        }
        let partitions = manifest.shards.iter().map(TopicRange::of).collect::<Option<_>>()?;
        let ranges = Self { columns: manifest.schema.clone(), partitions };
        (ranges.manifest().ok()?.content_id() == *content).then_some(ranges)
    }

    /// Checks the ranges of a position, from which any client may open a job.
    ///
    /// # Errors
    /// Returns a message if a range is invalid, or if there are too many partitions or blocks.
    pub fn check(&self) -> Result<(), String> {
        let partitions = self.partitions.len();
        if partitions > MAX_PARTITIONS {
            return Err(format!(
                "the position has {partitions} ranges of offsets, more than the limit of {MAX_PARTITIONS}: use an unmodified checkpoint"
            ));
        }
        let mut blocks = 0_u64;
        for range in &self.partitions {
            blocks = blocks.saturating_add(range.blocks().ok_or(INVALID_RANGE)?);
        }
        if blocks > MAX_BLOCKS {
            return Err(format!(
                "the ranges of offsets in the position have {blocks} blocks, more than the limit of {MAX_BLOCKS}: use an unmodified checkpoint"
            ));
        }
        Ok(())
    }

    /// Returns the index of the dataset.
    ///
    /// # Errors
    /// Returns the message of [`Self::check`].
    pub fn manifest(&self) -> Result<Manifest, String> {
        self.check()?;
        let shards = self.partitions.iter().map(|range| range.shard(&self.columns)).collect::<Option<_>>();
        Ok(Manifest { schema: self.columns.clone(), shards: shards.ok_or(INVALID_RANGE)? })
    }
}

impl TopicRange {
    fn of(shard: &Shard) -> Option<Self> {
        let ShardRef { url, version, part, .. } = &shard.object;
        shard.object.kafka_range()?;
        let first = shard.index.blocks.first();
        let block_rows = first.map_or(0, |block| block.rows);
        let row_bytes = first.map_or(0, |block| block.bytes / u64::from(block.rows.max(1)));
        Some(Self { url: url.clone(), range: version.clone(), part: *part, block_rows, row_bytes })
    }

    /// The number of blocks; `None` if the range is invalid.
    fn blocks(&self) -> Option<u64> {
        let range = KafkaRange::of(&self.url, &self.range)?;
        match (range.to - range.from, u64::from(self.block_rows)) {
            (0, _) => Some(0),
            (_, 0) => None,
            (rows, block_rows) => Some(rows.div_ceil(block_rows)),
        }
    }

    fn shard(&self, columns: &Schema) -> Option<Shard> {
        let object = ShardRef {
            url: self.url.clone(),
            version: self.range.clone(),
            part: self.part,
            ..ShardRef::default()
        };
        let range = object.kafka_range()?;
        let block = |offset: u64| {
            let rows = (range.to - offset).min(u64::from(self.block_rows)) as u32;
            let bytes = u64::from(rows).saturating_mul(self.row_bytes).max(1);
            Block { rows, offset, bytes, group: 0, row_bytes: Vec::new() }
        };
        let starts = (range.from..range.to).step_by(self.block_rows.max(1) as usize);
        let blocks: Vec<Block> = starts.map(block).collect();
        let schema = (!blocks.is_empty()).then(|| columns.clone());
        let digest = Some(ShardDigest::of_version(&self.range));
        Some(Shard { object, index: ShardIndex { blocks, schema, ..ShardIndex::default() }, digest })
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(url: &str, range: &str, block_rows: u32) -> TopicRange {
        TopicRange { url: url.to_owned(), range: range.to_owned(), part: 0, block_rows, row_bytes: 10 }
    }

    fn ranges() -> TopicRanges {
        let partitions = vec![
            range("kafka://a:1/t/0", "id@5-30#7", 10),
            TopicRange { row_bytes: 0, ..range("kafka://a:1/t/1", "id@3-3", 0) },
        ];
        TopicRanges { columns: Schema::default(), partitions }
    }

    fn ranges_of(manifest: &Manifest) -> Option<TopicRanges> {
        TopicRanges::of(manifest, &manifest.content_id())
    }

    #[test]
    fn ranges_determine_the_rows_and_blocks_of_a_dataset() {
        let manifest = ranges().manifest().unwrap();
        let blocks = &manifest.shards[0].index.blocks;
        let found: Vec<(u64, u32, u64)> =
            blocks.iter().map(|block| (block.offset, block.rows, block.bytes)).collect();
        assert_eq!(found, [(5, 10, 100), (15, 10, 100), (25, 5, 50)]);
        assert!(manifest.shards[1].index.blocks.is_empty());
        assert_eq!(ranges_of(&manifest), Some(ranges()));
        let text = serde_json::to_string(&ranges()).unwrap();
        assert_eq!(serde_json::from_str::<TopicRanges>(&text).unwrap(), ranges());
    }

    #[test]
    fn other_datasets_have_no_ranges() {
        let mut manifest = ranges().manifest().unwrap();
        manifest.shards[0].index.blocks[1].rows = 9;
        assert_eq!(ranges_of(&manifest), None, "the blocks differ");
        let mut manifest = ranges().manifest().unwrap();
        manifest.shards[1].object.url = "s3://b/1".to_owned();
        assert_eq!(ranges_of(&manifest), None, "a mix with files");
        let mut manifest = ranges().manifest().unwrap();
        manifest.shards[0].digest = None;
        assert_eq!(ranges_of(&manifest), None, "an index of an earlier release");
    }

    #[test]
    fn an_invalid_range_is_an_error() {
        let partition = |offsets, block_rows| range("kafka://a:1/t/0", offsets, block_rows);
        let endless = partition("id@0-9223372036854775807", 1);
        let invalid = [
            vec![partition("id@9", 1)],
            vec![partition("id@0-9", 0)],
            vec![range("s3://b/0", "id@0-9", 1)],
            vec![endless.clone()],
            vec![endless; 3],
            vec![partition("id@0-1", 1); MAX_PARTITIONS + 1],
        ];
        for partitions in invalid {
            let ranges = TopicRanges { columns: Schema::default(), partitions };
            let message = ranges.manifest().unwrap_err();
            assert!(message.ends_with(": use an unmodified checkpoint"), "{message}");
        }
    }

    #[test]
    fn the_blocks_of_all_ranges_are_limited() {
        let check = |last: u64| {
            let half = format!("id@100-{}", 100 + 10 * MAX_BLOCKS / 2);
            let partitions = [half, format!("id@0-{last}")];
            let partitions = partitions.iter().map(|offsets| range("kafka://a:1/t/0", offsets, 10)).collect();
            TopicRanges { columns: Schema::default(), partitions }.check()
        };
        assert_eq!(check(10 * MAX_BLOCKS / 2), Ok(()));
        assert!(check(10 * MAX_BLOCKS / 2 + 1).unwrap_err().contains("4194305 blocks"));
    }
}
