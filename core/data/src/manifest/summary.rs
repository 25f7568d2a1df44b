//! The summary of a dataset: the properties that the layout and the checks of a job depend on.

use serde::{Deserialize, Serialize};

use super::{ContentId, Manifest, RoundedColumn, ShardChanges, ShardIndex, TopicRanges, WidenedColumn};
use crate::graph::GraphSummary;
use crate::runs::{PartRuns, RunSummary};
use crate::schema::Schema;

/// The properties of a dataset that a job's layout and checks depend on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetSummary {
    /// A hash of shard names, sizes and row counts, for messages and for positions of earlier releases: see
    /// [`Manifest::fingerprint`].
    pub fingerprint: String,
    /// The number of rows.
    pub rows: u64,
    /// The encoded size of all rows in bytes.
    pub bytes: u64,
    /// The number of shards.
    pub shards: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The columns of every row.
    pub schema: Schema,
    /// The number of defects in all shards.
    pub defects: u64,
    /// The number of rows of each dataset of a mix; empty without a mix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub part_rows: Vec<u64>,
    /// Columns in which values of several types were converted without loss to a common type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub widened: Vec<WidenedColumn>,
    /// Columns whose values are rounded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounded: Vec<RoundedColumn>,
    /// Names of columns in the data that `source.features` does not contain, in alphabetical order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
    /// The id of the rows: see [`Manifest::content_id`]. Unknown for a dataset that an earlier release indexed.
    #[serde(default, skip_serializing_if = "ContentId::is_unknown")]
    pub content: ContentId,
    /// The id of the stored index: see [`Manifest::index_id`]. Empty for a dataset that an earlier release indexed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub index: String,
    /// The shards that changed since the source was last indexed, and were indexed again for this job.
    #[serde(default, skip_serializing_if = "ShardChanges::is_empty")]
    pub changes: ShardChanges,
    /// Whether any shard is compressed as a whole. Reading a part of its block then decompresses the block.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_compressed: bool,
    /// The long runs of compressed shards.
    #[serde(default, skip_serializing_if = "RunSummary::is_empty")]
    pub runs: RunSummary,
    /// The runs of each dataset of a mix, if any shard is compressed; empty without a mix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub part_runs: Vec<PartRuns>,
    /// The ranges of offsets, if all rows are records of topics: see [`TopicRanges::of`]. `None` in the status and the details of
    /// a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranges: Option<Box<TopicRanges>>,
    /// The expected size of an indivisible batch in bytes, which determines the length of splits. The coordinator computes it once,
    /// when the job starts. `None` for divisible batches, and if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_bytes: Option<u64>,
    /// The graph that the pipeline samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<Box<GraphSummary>>,
}

impl DatasetSummary {
    /// Returns the reference to the stored index: its id, or the fingerprint if an earlier release indexed the dataset.
    pub fn index_reference(&self) -> &str {
        if self.index.is_empty() { &self.fingerprint } else { &self.index }
    }

    /// Returns the summary for workers and users, which do not need the ranges of offsets: the index and the position of the job
    /// contain them.
    #[must_use]
    pub fn without_ranges(&self) -> Self {
        Self { ranges: None, ..self.clone() }
    }
}

impl Manifest {
    /// Returns the properties that a job's layout and checks depend on.
    pub fn summary(&self) -> DatasetSummary {
        let blocks = || self.shards.iter().flat_map(|shard| &shard.index.blocks);
        let content = self.content_id();
        DatasetSummary {
            fingerprint: self.fingerprint(),
            rows: blocks().map(|block| u64::from(block.rows)).sum(),
            bytes: blocks().map(|block| block.bytes).fold(0, u64::saturating_add),
            shards: self.shards.len() as u64,
            blocks: blocks().count() as u64,
            schema: self.schema.clone(),
            defects: self.defects().count() as u64,
            part_rows: self.part_rows(),
            widened: self.widened_columns(),
            rounded: self.rounded_columns(),
            ignored: self.ignored_columns(),
            index: self.index_id(),
            changes: ShardChanges::default(),
            is_compressed: self.is_compressed(),
            runs: self.run_summary(),
            part_runs: self.part_runs(),
            ranges: TopicRanges::of(self, &content).map(Box::new),
            content,
            batch_bytes: None,
            graph: self.graph().cloned().map(Box::new),
        }
    }

    fn run_summary(&self) -> RunSummary {
        let (mut runs, mut decoder_bytes, mut row) = (Vec::new(), 0, 0);
        for shard in &self.shards {
            for (rows, is_long) in shard.index.run_rows() {
                if is_long {
                    decoder_bytes = shard.index.decoder_bytes().max(decoder_bytes);
                    runs.push(row..row + rows);
                }
                row += rows;
            }
        }
        RunSummary::new(&runs, decoder_bytes)
    }

    fn part_runs(&self) -> Vec<PartRuns> {
        let parts = self.shards.iter().map(|shard| shard.object.part).max().unwrap_or(0);
        if parts == 0 || !self.is_compressed() {
            return Vec::new();
        }
        let part_runs = |part| {
            let shards =
                || self.shards.iter().filter(|shard| shard.object.part == part).map(|shard| &shard.index);
            let runs: Vec<(u64, bool)> = shards().flat_map(ShardIndex::run_rows).collect();
            let is_compressed = shards().any(|index| index.compression.is_some());
            let with_runs = shards().filter(|index| index.run_rows().any(|(_, is_long)| is_long));
            let decoder_bytes = with_runs.map(ShardIndex::decoder_bytes).max().unwrap_or(0);
            PartRuns::new(&runs, is_compressed, decoder_bytes)
        };
        (0..=parts).map(part_runs).collect()
    }

    /// The number of rows of each dataset of a mix; empty without a mix.
    fn part_rows(&self) -> Vec<u64> {
        let parts = self.shards.iter().map(|shard| shard.object.part).max().unwrap_or(0);
        if parts == 0 {
            return Vec::new();
        }
        let mut rows = vec![0; parts as usize + 1];
        for shard in &self.shards {
            rows[shard.object.part as usize] += shard.index.rows();
        }
        rows
    }
}

impl ShardIndex {
    /// The number of rows of each run, and whether the run is long: whether it has several blocks.
    fn run_rows(&self) -> impl Iterator<Item = (u64, bool)> + '_ {
        self.runs().map(|run| {
            let blocks = &self.blocks[run];
            (blocks.iter().map(|block| u64::from(block.rows)).sum(), blocks.len() > 1)
        })
    }

    /// The memory of a decoder of the shard in bytes.
    fn decoder_bytes(&self) -> u64 {
        self.compression.as_ref().map_or(0, |compression| compression.decoder_bytes)
    }
}
