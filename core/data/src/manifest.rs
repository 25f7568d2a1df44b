//! The manifest of a dataset: shards with their row counts and block boundaries. Workers index the shards once. The
//! coordinator saves and reuses the manifest.

mod changes;
mod columns;
mod content;
mod content_id;
mod list_pages;
mod merge;
mod named;
mod resuming;
mod shard_changes;
mod store_checksum;
mod summary;
mod topic_ranges;
mod values;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use self::changes::IndexReuse;
pub use self::columns::{ColumnKind, ColumnNotes, RoundedColumn, WidenedColumn};
pub use self::content::is_index_id;
pub use self::content_id::{ContentId, ShardDigest};
pub use self::list_pages::{ListPage, ListPages};
pub use self::merge::common_scalar;
pub use self::shard_changes::ShardChanges;
pub use self::store_checksum::{ChecksumAlgorithm, StoreChecksum};
pub use self::summary::DatasetSummary;
pub use self::topic_ranges::{TopicRange, TopicRanges};
pub use self::values::{ShardValue, ShardValues, SharedValues};
use crate::compression::ShardCompression;
use crate::graph::GraphSummary;
use crate::kafka_range::KafkaRange;
use crate::schema::Schema;
use crate::urls::without_commit;

/// An object in a store, as returned by a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardRef {
    /// Absolute URL, such as `file:///data/train-00000.tfrecord` or `s3://bucket/train-00000.tfrecord`.
    pub url: String,
    /// The size of the object in bytes.
    pub size_bytes: u64,
    /// The entity tag of the object, or the modification time if the store has no tags. Changes when the object is
    /// overwritten.
    pub version: String,
    /// The index of the object's dataset in a mix; 0 without a mix.
    #[serde(default)]
    pub part: u32,
    /// The columns whose value is the same in every row of the shard, such as the class of an ImageFolder and the columns of
    /// `key=value` directories.
    #[serde(default, skip_serializing_if = "<[ShardValue]>::is_empty")]
    pub values: ShardValues,
}

impl ShardRef {
    /// Whether the shard certainly has no rows: an empty object, or a range without offsets.
    pub fn is_empty(&self) -> bool {
        self.weight() == 0
    }

    /// A measure of the number of rows: the number of offsets of a range, and the size of an object.
    pub fn weight(&self) -> u64 {
        self.kafka_range().map_or(self.size_bytes, |range| range.to.saturating_sub(range.from))
    }

    /// Whether both describe the same version of the same object. The values of their columns, and the commits in which a file on the
    /// Hub of Hugging Face was listed, may differ.
    pub(crate) fn is_same_object(&self, other: &Self) -> bool {
        without_commit(&self.url) == without_commit(&other.url)
            && self.size_bytes == other.size_bytes
            && self.version == other.version
            && self.part == other.part
    }

    /// Whether the values belong to the same columns with the same types.
    pub(crate) fn has_columns_of(&self, other: &Self) -> bool {
        self.values.len() == other.values.len()
            && self.values.iter().zip(&other.values).all(|(a, b)| a.name == b.name && a.integer == b.integer)
    }

    /// The range of offsets of a shard of a Kafka source; `None` for objects.
    pub fn kafka_range(&self) -> Option<KafkaRange> {
        KafkaRange::of(&self.url, &self.version)
    }
}

/// A fixed row range of one shard: the smallest unit of reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The number of rows in the block; at least 1.
    pub rows: u32,
    /// The byte offset of the block in the shard, in the content of a compressed shard. For columnar formats, the index of the
    /// block's first row in its row group. For npz, and npy in Fortran order, the index of the block's first row.
    pub offset: u64,
    /// The encoded size of the block in bytes, used for reads, split sizes and admission.
    pub bytes: u64,
    /// The row group (Parquet), record batch (Arrow) or frame (LitData) that contains the block, the block's first item
    /// (LitData without frames), or its size in the file (ArrayRecord with several records per chunk, Arrow streams). 1 for a block
    /// of a long run of a compressed shard, and 2 for its last block; plus 4 in a JSON array. For a part of a divided sample in a tar
    /// file, also the position of another part, in the bits above these. 0 for other blocks.
    pub group: u32,
    /// The encoded size of each row in bytes, if rows are large enough to be read individually; empty otherwise. The rows
    /// are contiguous from `offset`.
    pub row_bytes: Vec<u32>,
}

/// A part of a shard that could not be read while indexing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defect {
    /// The byte offset in the shard.
    pub offset: u64,
    /// The cause, as part of a sentence.
    pub reason: String,
}

/// The index of one shard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardIndex {
    /// The blocks in storage order.
    pub blocks: Vec<Block>,
    /// The columns of the shard's rows; `None` for a shard without rows. The schemas of all shards must be compatible.
    pub schema: Option<Schema>,
    /// The defects of the shard, such as a truncated last record. Under `on_error: fail` any defect fails the job.
    pub defects: Vec<Defect>,
    /// Additional results about the columns.
    #[serde(default)]
    pub columns: ColumnNotes,
    /// The compression of the whole shard; `None` if it is not compressed. In a compressed shard, the offsets and sizes of
    /// blocks and defects are those in the decompressed content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<ShardCompression>,
    /// The pages of lists in row groups with several blocks, if the headers of the pages do not contain the number of rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub list_pages: Vec<ListPages>,
    /// The summary of a graph, for the shard with its description. Such a shard has no rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<Box<GraphSummary>>,
}

impl ShardIndex {
    /// The runs of the shard in storage order, as ranges of blocks. The blocks of a run share an access point of compressed
    /// data, so they are decompressed in order. In other shards, each block is a run.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let point = |block: &Block| self.compression.as_ref().map(|shard| shard.point_before(block.offset));
        let mut start = 0;
        std::iter::from_fn(move || {
            let first = self.blocks.get(start)?;
            let rest = &self.blocks[start + 1..];
            let same = |block: &&Block| point(first).is_some() && point(block) == point(first);
            let run = start..start + 1 + rest.iter().take_while(same).count();
            start = run.end;
            Some(run)
        })
    }

    /// The number of rows of the shard.
    pub fn rows(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.rows)).sum()
    }
}

/// One shard with its index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The object that contains the shard.
    pub object: ShardRef,
    /// The rows and blocks of the shard.
    pub index: ShardIndex,
    /// The digest of the shard's bytes; `None` in an index of an earlier release.
    #[serde(default)]
    pub digest: Option<ShardDigest>,
}

/// The result of indexing one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexedShard {
    /// The rows and blocks of the shard.
    pub index: ShardIndex,
    /// The digest of the bytes that were read; `None` if they were not hashed.
    pub digest: Option<ShardDigest>,
}

impl From<ShardIndex> for IndexedShard {
    fn from(index: ShardIndex) -> Self {
        Self { index, digest: None }
    }
}

impl Shard {
    /// Creates a shard without a digest.
    pub fn new(object: ShardRef, index: ShardIndex) -> Self {
        Self { object, index, digest: None }
    }

    /// Creates a shard of a simulation or a test, whose content is determined by its URL and version.
    pub fn simulated(object: ShardRef, index: ShardIndex) -> Self {
        let digest = Some(ShardDigest::of_bytes(format!("{} {}", object.url, object.version).as_bytes()));
        Self { object, index, digest }
    }

    /// Returns the result of indexing the shard.
    pub fn to_indexed(&self) -> IndexedShard {
        IndexedShard { index: self.index.clone(), digest: self.digest }
    }

    /// The number of bytes after the last readable row; 0 for a shard without defects. Indexing stops at the first defect.
    pub fn unreadable_bytes(&self) -> u64 {
        if self.index.defects.is_empty() {
            return 0;
        }
        if let Some(compression) = &self.index.compression {
            return self.object.size_bytes.saturating_sub(compression.readable_bytes);
        }
        let readable = self.index.blocks.last().map_or(0, |block| block.offset.saturating_add(block.bytes));
        self.object.size_bytes.saturating_sub(readable)
    }
}

/// The shards of a dataset in listing order. A row's id is its index in this order, from 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The columns of every row.
    pub schema: Schema,
    /// The shards in listing order.
    pub shards: Vec<Shard>,
}

impl Manifest {
    /// Returns a hash of the file names, sizes and row counts of all shards. A copy of the dataset has the same fingerprint.
    pub fn fingerprint(&self) -> String {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        for shard in &self.shards {
            let name = shard.object.url.rsplit('/').next().unwrap_or_default();
            hash.update(name.as_bytes());
            hash.update(&shard.object.size_bytes.to_le_bytes());
            hash.update(&shard.index.rows().to_le_bytes());
            // The name is only the number of the partition, while the version identifies the topic and the offsets.
            if shard.object.kafka_range().is_some() {
                hash.update(shard.object.version.as_bytes());
            }
        }
        format!("{:016x}", hash.digest())
    }

    /// The runs with several blocks, and their shards, in listing order. The rows of a run are mixed only within the shuffle
    /// window, and a resume within a run decompresses it from its start.
    pub fn long_runs(&self) -> impl Iterator<Item = (&Shard, Range<usize>)> {
        self.shards
            .iter()
            .flat_map(|shard| shard.index.runs().filter(|run| run.len() > 1).map(move |run| (shard, run)))
    }

    /// The defects with their shards, in listing order.
    pub fn defects(&self) -> impl Iterator<Item = (&Shard, &Defect)> {
        self.shards.iter().flat_map(|shard| shard.index.defects.iter().map(move |defect| (shard, defect)))
    }

    /// The graph that the last operator samples. Its description is the last one.
    pub fn graph(&self) -> Option<&GraphSummary> {
        self.shards.iter().rev().find_map(|shard| shard.index.graph.as_deref())
    }

    /// Whether any shard is compressed as a whole.
    pub fn is_compressed(&self) -> bool {
        self.shards.iter().any(|shard| shard.index.compression.is_some())
    }

    /// Whether any shard of a dataset of a mix is compressed as a whole.
    pub(crate) fn is_part_compressed(&self, part: u32) -> bool {
        self.shards.iter().any(|shard| shard.object.part == part && shard.index.compression.is_some())
    }
}

/// The error for a dataset without rows. Contains the first defect, which may be the cause.
fn no_rows_error(shards: &[Shard]) -> String {
    let mut defects =
        shards.iter().flat_map(|shard| shard.index.defects.iter().map(move |defect| (shard, defect)));
    match defects.next() {
        Some((shard, defect)) => format!(
            "the dataset has no rows: {} at byte {}: {}",
            shard.object.url, defect.offset, defect.reason
        ),
        None => format!(
            "the dataset has no rows: {} and {} other shards are empty; check `source.url`",
            shards[0].object.url,
            shards.len() - 1
        ),
    }
}

#[cfg(test)]
mod tests;
