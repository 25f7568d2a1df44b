//! Reads samples of a dataset without indexing it: lists groups of source URLs, indexes the beginning of a shard, and reads its
//! first rows.

use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::error::ArrowError;
use feedline_data::compression::Codec;
use feedline_data::manifest::{Block, ShardIndex, ShardRef};
use feedline_data::schema::Schema;

use super::{Dataset, DatasetPart};
use crate::columns::arrow_schema;
use crate::content;
use crate::error::SourceError;
use crate::object::Object;
use crate::reader::{BlockRead, BlockRows, RowFailure, SampleMethod, SampleTraits};
use crate::shard_values;

/// Number of bytes of a shard that a sample indexes at first.
const FIRST_BEGINNING_BYTES: u64 = 1 << 20;
/// The same for a compressed shard. If the shard can be compressed, the content shows access points or a long run.
const FIRST_COMPRESSED_BEGINNING_BYTES: u64 = 6 << 20;
/// Size of a beginning from which it no longer doubles although its content shows neither. The largest one has 24 MiB.
const MAX_RUN_SEARCH_BYTES: u64 = 16 << 20;
/// Factor by which the beginning grows while it contains no complete row.
const BEGINNING_GROWTH: u64 = 8;
/// Maximum size of a beginning without a complete row.
const MAX_BEGINNING_BYTES: u64 = 512 << 20;
/// Number of bytes at the end of a beginning that are searched for the end of a line.
const LINE_SEARCH_BYTES: u64 = 64 << 10;
/// Maximum number of blocks without any record, from which compaction has removed all records.
const MAX_EMPTY_BLOCKS: u32 = 8;

/// The index of a shard, or of its beginning.
#[derive(Debug, Clone)]
pub struct SampledShard {
    /// The rows and columns of the indexed bytes. Contains no defect that is caused by the end of a beginning.
    pub index: ShardIndex,
    /// Number of bytes of the shard that the index describes.
    pub indexed_bytes: u64,
    /// Number of bytes that were read from the store.
    pub store_bytes: u64,
    /// Number of requests to the store.
    pub store_requests: u32,
}

/// The first rows of a shard.
#[derive(Debug, Clone)]
pub struct SampledRows {
    /// The requested columns. Contains a placeholder for each failed row.
    pub batch: RecordBatch,
    /// The rows that could not be read.
    pub failures: Vec<RowFailure>,
    /// Number of bytes that were read from the store.
    pub store_bytes: u64,
    /// Number of requests to the store.
    pub store_requests: u32,
}

impl SampledShard {
    /// Estimates the number of rows of the whole shard from the size of the indexed rows.
    pub fn estimated_rows(&self, shard: &ShardRef) -> u64 {
        let rows = self.index.rows();
        if self.indexed_bytes >= shard.size_bytes {
            return rows;
        }
        let end = match &self.index.compression {
            Some(compression) => compression.readable_bytes,
            None => self.index.blocks.last().map_or(0, |block| block.offset + block.bytes),
        };
        (u128::from(rows) * u128::from(shard.size_bytes) / u128::from(end.max(1))) as u64
    }

    /// The codec of a shard whose sample consists of a long run: decompression can start only at its start.
    pub fn long_run(&self) -> Option<Codec> {
        let has_run = self.index.runs().any(|run| run.len() > 1);
        self.index.compression.as_ref().filter(|_| has_run).map(|compression| compression.codec)
    }

    /// Whether the index describes the whole shard.
    pub fn is_whole(&self, shard: &ShardRef) -> bool {
        self.indexed_bytes >= shard.size_bytes
    }
}

impl Dataset {
    /// Returns the URLs of all datasets, each with the index of its dataset in the mix. URLs that must be listed together, because
    /// the columns of one depend on the others, are in one group.
    pub fn url_groups(&self) -> Vec<(u32, &[String])> {
        let mut all = Vec::new();
        for (number, part) in (0..).zip(&self.parts) {
            let urls = part.source.url.as_slice();
            let size = if part.lists_each_url() { 1 } else { urls.len().max(1) };
            all.extend(urls.chunks(size).map(|group| (number, group)));
        }
        all
    }

    /// Lists the shards of a group of URLs, as a job does.
    ///
    /// # Errors
    /// Returns an error if a URL matches no objects, or the store fails.
    pub async fn list_group(&self, part: u32, urls: &[String]) -> Result<Vec<ShardRef>, SourceError> {
        let Some(dataset) = self.parts.get(part as usize) else { return Ok(Vec::new()) };
        let listed = dataset.list_urls(urls).await?;
        Ok(listed.into_iter().map(|shard| ShardRef { part, ..shard }).collect())
    }

    /// Indexes a shard as a job does, except that only the beginning is read of a shard whose index requires all rows.
    ///
    /// # Errors
    /// Returns an error if the shard cannot be read, or has another format.
    pub async fn sample_shard(&self, shard: &ShardRef) -> Result<SampledShard, SourceError> {
        let part = self.part_of(shard)?;
        if let Some(kafka) = &part.kafka {
            let index = kafka.index(shard).await?;
            return Ok(SampledShard { index, indexed_bytes: 0, store_bytes: 0, store_requests: 0 });
        }
        let whole = part.open(shard)?;
        let method = part.sample_traits(shard).method;
        let is_compressed = method != SampleMethod::Whole && content::is_compressed(&whole).await?;
        let mut visible = match method {
            SampleMethod::Whole => shard.size_bytes,
            _ if is_compressed => FIRST_COMPRESSED_BEGINNING_BYTES.min(shard.size_bytes),
            SampleMethod::FirstRows | SampleMethod::FirstLines => FIRST_BEGINNING_BYTES.min(shard.size_bytes),
        };
        loop {
            let mut growth = BEGINNING_GROWTH;
            let cut =
                if is_compressed { Some(visible) } else { part.cut_after_line(&whole, visible).await? };
            if let Some(cut) = cut {
                let object = Arc::new(part.open_beginning(shard, cut)?);
                let mut index =
                    shard_values::index(part.reader.as_ref(), &object, &part.selection, true).await?;
                whole.add_traffic_of(&object);
                let is_whole = cut >= shard.size_bytes;
                if is_compressed && visible < MAX_RUN_SEARCH_BYTES && content::may_begin_run(&index) {
                    growth = 2;
                }
                if is_whole || !index.blocks.is_empty() && growth == BEGINNING_GROWTH {
                    if !is_whole {
                        // The beginning ends within a row.
                        index.defects.clear();
                    }
                    let (store_bytes, store_requests, _) = whole.traffic();
                    return Ok(SampledShard { index, indexed_bytes: cut, store_bytes, store_requests });
                }
            }
            if visible > MAX_BEGINNING_BYTES {
                let reason = format!("no row ends in the first {visible} bytes: check `source.format`");
                return Err(SourceError::unsupported(shard, reason));
            }
            visible = visible.saturating_mul(growth).min(shard.size_bytes);
        }
    }

    /// Reads the first rows of a sampled shard, at most `rows`.
    ///
    /// # Errors
    /// Returns an error if the shard cannot be read, or lacks a column of `schema`.
    pub async fn first_rows(
        &self,
        shard: &ShardRef,
        index: &ShardIndex,
        schema: &Schema,
        rows: u32,
    ) -> Result<SampledRows, SourceError> {
        let part = self.part_of(shard)?;
        let mut batches = Vec::new();
        let mut sampled = SampledRows {
            batch: RecordBatch::new_empty(arrow_schema(schema)),
            failures: Vec::new(),
            store_bytes: 0,
            store_requests: 0,
        };
        let (mut found, mut empty_blocks) = (0, 0);
        for block in &index.blocks {
            if found == rows || empty_blocks == MAX_EMPTY_BLOCKS {
                break;
            }
            let wanted = block.rows.min(rows - found);
            let is_divisible = part.kafka.is_some() || part.sample_traits(shard).has_divisible_blocks;
            let narrowed = narrowed(is_divisible, block, wanted);
            let picked: Vec<u32> = (0..wanted).collect();
            let picked = (!narrowed.row_bytes.is_empty()).then_some(picked.as_slice());
            let read = BlockRead { shard, block: &narrowed, schema, rows: picked, index: Some(index) };
            let read = part.read_block(&read).await?;
            sampled.store_bytes += read.store_bytes;
            sampled.store_requests += read.store_requests;
            let (batch, failures) = present_rows(read, wanted)
                .map_err(|error| SourceError::unsupported(shard, error.to_string()))?;
            sampled
                .failures
                .extend(failures.into_iter().map(|one| RowFailure { row: one.row + found, ..one }));
            found += batch.num_rows() as u32;
            empty_blocks += u32::from(batch.num_rows() == 0);
            batches.push(batch);
        }
        if let [first, ..] = batches.as_slice() {
            sampled.batch = concat_batches(&first.schema(), &batches)
                .map_err(|error| SourceError::unsupported(shard, error.to_string()))?;
        }
        Ok(sampled)
    }
}

/// Returns the first rows of a block, at most `wanted`, without the offsets of a topic that have no record.
fn present_rows(read: BlockRows, wanted: u32) -> Result<(RecordBatch, Vec<RowFailure>), ArrowError> {
    let batch = read.batch.slice(0, wanted as usize);
    let failures = read.failures.into_iter().filter(|failure| failure.row < wanted);
    if read.absent.is_empty() {
        return Ok((batch, failures.collect()));
    }
    let is_present = |row: u32| read.absent.binary_search(&row).is_err();
    let present: BooleanArray = (0..wanted).map(|row| Some(is_present(row))).collect();
    let before = |row: u32| read.absent.partition_point(|&absent| absent < row) as u32;
    let failures = failures.map(|one| RowFailure { row: one.row - before(one.row), ..one });
    Ok((filter_record_batch(&batch, &present)?, failures.collect()))
}

impl DatasetPart {
    /// Whether each URL can be listed alone, with the same result.
    fn lists_each_url(&self) -> bool {
        self.kafka.is_none() && self.source.partitions.is_none() && self.reader.lists_each_url()
    }

    fn sample_traits(&self, shard: &ShardRef) -> SampleTraits {
        if self.kafka.is_some() { SampleTraits::default() } else { self.reader.sample_traits(shard) }
    }

    /// Returns the end of the last line in the first `visible` bytes of a line-based shard, or `None` if no line ends near
    /// them. Returns `visible` for other shards, and for a whole shard.
    async fn cut_after_line(&self, object: &Object, visible: u64) -> Result<Option<u64>, SourceError> {
        let shard = object.shard();
        let is_line_based = self.sample_traits(shard).method == SampleMethod::FirstLines;
        if !is_line_based || visible >= shard.size_bytes {
            return Ok(Some(visible));
        }
        let start = visible.saturating_sub(LINE_SEARCH_BYTES);
        let end = object.read(start..visible).await?;
        let newline = memchr::memrchr(b'\n', &end);
        Ok(newline.map(|newline| start + newline as u64 + 1))
    }
}

/// Returns the part of a block with its first rows, if the format can read a part of a block.
fn narrowed(is_divisible: bool, block: &Block, rows: u32) -> Block {
    if !is_divisible || rows >= block.rows {
        return block.clone();
    }
    let bytes = u128::from(block.bytes) * u128::from(rows) / u128::from(block.rows);
    Block { rows, bytes: bytes as u64, ..block.clone() }
}

#[cfg(test)]
mod tests;
