//! Reads the rows of a group: whole blocks through the cache where rows are small, single rows where they are large.
//!
//! A group of a shuffled job needs a few rows of each of many blocks. They are copied out of a block as soon as it is
//! read, so that a group keeps its rows alive and not the blocks, and blocks that are read at a time are bounded in bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::take_record_batch;
use feedline_data::manifest::Block;
use feedline_data::order::RowRef;
use feedline_sources::{BlockRead, BlockRows, RowFailure, SourceError};
use futures::{StreamExt, TryStreamExt};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::blocks::{BlockCache, BlockKey};
use super::group::TaskContext;
use super::job::JobContext;
use super::trace::CpuTimed;

/// A group's encoded rows.
pub(crate) struct EncodedRows {
    /// The batches that hold the rows.
    pub(crate) batches: Vec<RecordBatch>,
    /// For each row of the group, its batch and its place in it.
    pub(crate) places: Vec<(usize, usize)>,
    /// Rows that could not be read: place in the group, byte offset in the shard, reason.
    pub(crate) failures: Vec<(usize, u64, String)>,
    /// Bytes that the batches hold.
    pub(crate) bytes: u64,
}

/// Rows of one block that a group needs.
struct Need {
    key: BlockKey,
    /// (row in the block, place in the group), ascending.
    rows: Vec<(u32, usize)>,
}

/// What reading needs of its worker.
pub(crate) struct ReadResources {
    /// Blocks that are kept.
    pub(crate) blocks: BlockCache,
    limit: Semaphore,
    limit_bytes: u64,
}

/// What a permit of [`ReadResources::limit`] stands for.
const PERMIT_BYTES: u64 = 1 << 10;

impl ReadResources {
    /// Keeps up to `cache_bytes` of blocks and reads up to `limit_bytes` of them at a time, or one that is larger.
    pub(crate) fn new(cache_bytes: u64, limit_bytes: u64) -> Self {
        let limit_bytes = limit_bytes.clamp(PERMIT_BYTES, u64::from(u32::MAX) * PERMIT_BYTES);
        let limit = Semaphore::new((limit_bytes / PERMIT_BYTES) as usize);
        Self { blocks: BlockCache::new(cache_bytes), limit, limit_bytes }
    }

    /// Bytes of the blocks that are kept and of those being read.
    pub(crate) fn held_bytes(&self) -> u64 {
        let free = self.limit.available_permits() as u64 * PERMIT_BYTES;
        self.blocks.held_bytes() + self.limit_bytes.saturating_sub(free)
    }

    /// Waits for room to read a block: its bytes as stored and as rows.
    async fn room(&self, block: &Block) -> SemaphorePermit<'_> {
        let permits = (2 * block.bytes).div_ceil(PERMIT_BYTES).clamp(1, self.limit_bytes / PERMIT_BYTES);
        self.limit.acquire_many(permits as u32).await.expect("the limit is never closed")
    }
}

pub(crate) async fn read_rows(
    job: &JobContext,
    reading: &ReadResources,
    course: &TaskContext,
    rows: &[RowRef],
) -> Result<EncodedRows, SourceError> {
    let mut by_block: BTreeMap<BlockKey, Vec<(u32, usize)>> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate() {
        let key = BlockKey { job: job.details.job, shard: row.shard, block: row.block };
        by_block.entry(key).or_default().push((row.row, place));
    }
    let needs = by_block.into_iter().map(|(key, mut rows)| {
        rows.sort_unstable();
        Need { key, rows }
    });
    // Counted as they come, as bytes are: a group's blocks may take seconds, and its first ones would be bytes without rows.
    let read = async |need: Need| {
        let found = read_need(job, reading, course, need).await?;
        job.source_counters.add_rows(found.0.rows.len(), found.0.rows.len());
        course.steps.step();
        Ok(found)
    };
    let started = Instant::now();
    let reads = futures::stream::iter(needs.map(read));
    let timed = reads.buffered(job.limits.reads_of_group()).try_collect::<Vec<_>>();
    let (found, cpu) = CpuTimed::new(job.is_traced(), timed).await;
    job.source_counters.add_latency(started.elapsed(), cpu);
    let found = found?;
    Ok(place_rows(rows.len(), found))
}

async fn read_need(
    job: &JobContext,
    reading: &ReadResources,
    course: &TaskContext,
    need: Need,
) -> Result<(Need, BlockRows, bool), SourceError> {
    let shard = &job.manifest.shards[need.key.shard as usize];
    let block = &shard.index.blocks[need.key.block as usize];
    let mut wanted: Vec<u32> = need.rows.iter().map(|(row, _)| *row).collect();
    wanted.dedup();
    let single = !block.row_bytes.is_empty();
    let read = BlockRead {
        shard: &shard.object,
        block,
        schema: &job.read_schema,
        rows: (single && wanted.len() < block.rows as usize).then_some(wanted.as_slice()),
    };
    // Large rows are read for this group alone, blocks of small rows serve their neighbours as well.
    if single {
        let partial = read.rows.is_some();
        let begun = Instant::now();
        let _turn = job.limits.reads.acquire(course.priority).await;
        job.source_counters.add_wait_input(begun.elapsed());
        let rows = read_block(job, need.key, &read).await?;
        return Ok((need, rows, partial));
    }
    let whole = async {
        let begun = Instant::now();
        let _turn = job.limits.reads.acquire(course.priority).await;
        let _room = reading.room(block).await;
        job.source_counters.add_wait_input(begun.elapsed());
        read_block(job, need.key, &read).await
    };
    if wanted.len() == block.rows as usize {
        let rows = whole.await?;
        return Ok((need, rows, false));
    }
    let rows = reading.blocks.get_or_read(need.key, whole).await?;
    Ok((need, pick_rows(&rows, &wanted), true))
}

/// Reads from the store, counting it.
async fn read_block(job: &JobContext, key: BlockKey, read: &BlockRead<'_>) -> Result<BlockRows, SourceError> {
    let rows = job.dataset.read_block(read).await?;
    job.store_counters.add(&rows, key.shard, read.shard.size_bytes);
    job.source_counters.add_bytes(rows.store_bytes, 0);
    Ok(rows)
}

/// Copies rows out of a block.
fn pick_rows(rows: &BlockRows, wanted: &[u32]) -> BlockRows {
    let picked = take_record_batch(&rows.batch, &UInt32Array::from(wanted.to_vec()));
    let batch = compact(&picked.expect("the index says that the block has these rows"));
    let place_of = |row: u32| wanted.binary_search(&row).ok().map(|place| place as u32);
    let failures = rows
        .failures
        .iter()
        .filter_map(|failure| place_of(failure.row).map(|row| RowFailure { row, ..failure.clone() }));
    BlockRows {
        failures: failures.collect(),
        held_bytes: batch.get_array_memory_size(),
        batch,
        store_bytes: 0,
        store_requests: 0,
        store_wait: Duration::ZERO,
        blocking_bytes: 0,
    }
}

/// The same rows without what their buffers hold beside them.
fn compact(batch: &RecordBatch) -> RecordBatch {
    let columns = batch.columns().iter().map(|column| {
        if let Some(views) = column.as_string_view_opt() {
            Arc::new(views.gc()) as ArrayRef
        } else if let Some(views) = column.as_binary_view_opt() {
            Arc::new(views.gc()) as ArrayRef
        } else {
            Arc::clone(column)
        }
    });
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns.collect(), &options)
        .expect("types and lengths are those of the batch")
}

fn place_rows(count: usize, found: Vec<(Need, BlockRows, bool)>) -> EncodedRows {
    let mut places = vec![(0, 0); count];
    let mut failures = Vec::new();
    let mut batches = Vec::with_capacity(found.len());
    let mut bytes = 0;
    for (number, (need, rows, partial)) in found.into_iter().enumerate() {
        let mut index = 0;
        let mut last = None;
        for (row, place) in need.rows {
            if partial && last.is_some_and(|last| last != row) {
                index += 1;
            }
            last = Some(row);
            let at = if partial { index } else { row as usize };
            places[place] = (number, at);
            if let Some(failure) = rows.failures.iter().find(|failure| failure.row as usize == at) {
                failures.push((place, failure.offset, failure.reason.clone()));
            }
        }
        bytes += rows.held_bytes as u64;
        batches.push(rows.batch);
    }
    EncodedRows { batches, places, failures, bytes }
}
