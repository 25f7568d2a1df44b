//! Reads the rows of a group: whole blocks through the block cache if rows are small, and individual rows if they are
//! large.
//!
//! A group of a shuffled job needs a few rows from each of many blocks. The rows are copied out of a block as soon as
//! the block is read, so that the group does not keep whole blocks in memory. The total size of the blocks that are
//! read concurrently is limited.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::take_record_batch;
use feedline_data::manifest::Block;
use feedline_data::order::RowRef;
use feedline_sources::{BlockRead, BlockRows, RowFailure, SourceError};
use futures::{Stream, StreamExt};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::blocks::{BlockCache, BlockKey};
use super::job::JobContext;
use super::pool::Priority;
use super::progress::SplitProgress;
use super::trace::CpuTimed;

/// The rows that a group needs from one block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BlockRequest {
    key: BlockKey,
    /// Pairs of the row in the block and its index in the group, in ascending order.
    rows: Vec<(u32, usize)>,
}

/// The rows that were read from one block.
pub(super) struct EncodedBlock {
    pub(super) batch: RecordBatch,
    /// Pairs of a row's index in the group and its row in the batch.
    pub(super) rows: Vec<(usize, usize)>,
    /// Rows that could not be read.
    pub(super) failures: Vec<ReadFailure>,
    /// Bytes of the batch.
    pub(super) bytes: u64,
    /// CPU time of the read on this thread.
    pub(super) cpu: Duration,
}

/// A row that could not be read.
pub(super) struct ReadFailure {
    /// Index in the group.
    pub(super) index: usize,
    /// Byte offset in the shard.
    pub(super) offset: u64,
    pub(super) reason: String,
}

/// The block cache of a worker, and the memory limit for concurrent reads.
pub(crate) struct ReadResources {
    pub(crate) blocks: BlockCache,
    limit: Semaphore,
    limit_bytes: u64,
}

/// Number of bytes per permit of [`ReadResources::limit`].
const PERMIT_BYTES: u64 = 1 << 10;

impl ReadResources {
    /// Creates a block cache of `cache_bytes`, and limits concurrent reads to `limit_bytes`. A block that is larger
    /// than the limit is read alone.
    pub(crate) fn new(cache_bytes: u64, limit_bytes: u64) -> Self {
        let limit_bytes = limit_bytes.clamp(PERMIT_BYTES, u64::from(u32::MAX) * PERMIT_BYTES);
        let limit = Semaphore::new((limit_bytes / PERMIT_BYTES) as usize);
        Self { blocks: BlockCache::new(cache_bytes), limit, limit_bytes }
    }

    /// Bytes of the cached blocks and of the blocks that are being read.
    pub(crate) fn held_bytes(&self) -> u64 {
        let free = self.limit.available_permits() as u64 * PERMIT_BYTES;
        self.blocks.held_bytes() + self.limit_bytes.saturating_sub(free)
    }

    /// Waits until the read limit has room for a block in encoded and decoded form.
    async fn reserve(&self, block: &Block) -> SemaphorePermit<'_> {
        let permits = (2 * block.bytes).div_ceil(PERMIT_BYTES).clamp(1, self.limit_bytes / PERMIT_BYTES);
        self.limit.acquire_many(permits as u32).await.expect("the limit is never closed")
    }
}

/// Returns one request for each block that contains any of these rows, in the order in which the group needs the
/// blocks.
pub(super) fn block_requests(job: &JobContext, rows: &[RowRef], indexes: &[usize]) -> Vec<BlockRequest> {
    let mut by_block: BTreeMap<BlockKey, Vec<(u32, usize)>> = BTreeMap::new();
    for &index in indexes {
        let row = &rows[index];
        let key = BlockKey { job: job.id(), shard: row.shard, block: row.block };
        by_block.entry(key).or_default().push((row.row, index));
    }
    let mut requests: Vec<BlockRequest> =
        by_block.into_iter().map(|(key, rows)| BlockRequest { key, rows }).collect();
    // Before the rows of a block are sorted, their indexes in the group are ascending.
    requests.sort_by_key(|request| request.rows.first().map(|(_, index)| *index));
    requests.iter_mut().for_each(|request| request.rows.sort_unstable());
    requests
}

/// Reads blocks concurrently, and yields each block when it arrives.
pub(super) fn read_blocks(
    reader: BlockReader<'_>,
    requests: Vec<BlockRequest>,
) -> impl Stream<Item = Result<EncodedBlock, SourceError>> {
    let read = move |request: BlockRequest| async move {
        let (read, cpu) = CpuTimed::new(reader.job.is_traced(), reader.read(&request)).await;
        let (rows, is_partial) = read?;
        // Rows are counted when they arrive, like bytes, because the reads of one group may take seconds.
        reader.job.counters.source.add_rows(request.rows.len(), request.rows.len());
        reader.progress.increment();
        Ok(locate_rows(request, rows, is_partial, cpu))
    };
    futures::stream::iter(requests).map(read).buffer_unordered(reader.job.limits.reads_of_group())
}

/// Reads blocks of one job for one group.
#[derive(Clone, Copy)]
pub(super) struct BlockReader<'a> {
    pub(super) job: &'a JobContext,
    pub(super) resources: &'a ReadResources,
    pub(super) priority: Priority,
    pub(super) progress: &'a SplitProgress,
}

impl BlockReader<'_> {
    /// Reads the rows of a block. Also returns whether the result contains only the requested rows.
    async fn read(&self, request: &BlockRequest) -> Result<(BlockRows, bool), SourceError> {
        let compiled = &self.job.compiled;
        let shard = &compiled.manifest.shards[request.key.shard as usize];
        let block = &shard.index.blocks[request.key.block as usize];
        let mut wanted: Vec<u32> = request.rows.iter().map(|(row, _)| *row).collect();
        wanted.dedup();
        let is_whole = wanted.len() == block.rows as usize;
        let has_large_rows = !block.row_bytes.is_empty();
        let read = BlockRead {
            shard: &shard.object,
            block,
            schema: &compiled.read_schema,
            rows: (has_large_rows && !is_whole).then_some(wanted.as_slice()),
        };
        // Large rows are read for this group alone, while blocks of small rows are shared with other groups.
        if has_large_rows {
            return Ok((self.read_from_store(request.key, &read, None).await?, !is_whole));
        }
        let whole = self.read_from_store(request.key, &read, Some(block));
        if is_whole {
            return Ok((whole.await?, false));
        }
        let rows = self.resources.blocks.get_or_read(request.key, whole).await?;
        Ok((pick_rows(&rows, &wanted), true))
    }

    /// Waits for a read permit, reads rows from the store, and counts the read. Reserves memory for `reserved` if it is
    /// set.
    async fn read_from_store(
        &self,
        key: BlockKey,
        read: &BlockRead<'_>,
        reserved: Option<&Block>,
    ) -> Result<BlockRows, SourceError> {
        let counters = &self.job.counters;
        let started = Instant::now();
        let _permit = self.job.limits.read_permits.acquire(self.priority).await;
        let _memory = match reserved {
            Some(block) => Some(self.resources.reserve(block).await),
            None => None,
        };
        counters.source.add_wait_input(started.elapsed());
        let rows = self.job.compiled.dataset.read_block(read).await?;
        counters.store.add(&rows, key.shard, read.shard.size_bytes);
        counters.source.add_bytes(rows.store_bytes, 0);
        Ok(rows)
    }
}

/// Copies the requested rows out of a block.
fn pick_rows(rows: &BlockRows, wanted: &[u32]) -> BlockRows {
    let picked = take_record_batch(&rows.batch, &UInt32Array::from(wanted.to_vec()));
    let batch = compact(&picked.expect("the index says that the block contains these rows"));
    let new_row = |row: u32| wanted.binary_search(&row).ok().map(|row| row as u32);
    let failures = rows
        .failures
        .iter()
        .filter_map(|failure| new_row(failure.row).map(|row| RowFailure { row, ..failure.clone() }));
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

/// Copies the values of view columns, so that the batch does not keep the buffers of the whole block alive.
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

/// Finds the requested rows in the batch that was read. If `is_partial` is set, the batch contains only the requested
/// rows.
fn locate_rows(request: BlockRequest, read: BlockRows, is_partial: bool, cpu: Duration) -> EncodedBlock {
    let mut located = Vec::with_capacity(request.rows.len());
    let mut failures = Vec::new();
    let (mut distinct, mut last) = (0, None);
    for (row, index) in request.rows {
        // A row that was requested several times is in the batch once.
        if is_partial && last.is_some_and(|last| last != row) {
            distinct += 1;
        }
        last = Some(row);
        let at = if is_partial { distinct } else { row as usize };
        located.push((index, at));
        if let Some(failure) = read.failures.iter().find(|failure| failure.row as usize == at) {
            failures.push(ReadFailure { index, offset: failure.offset, reason: failure.reason.clone() });
        }
    }
    EncodedBlock { batch: read.batch, rows: located, failures, bytes: read.held_bytes as u64, cpu }
}

#[cfg(test)]
mod tests {
    use arrow::array::StringViewArray;
    use feedline_data::ids::JobId;

    use super::*;

    fn request(rows: &[(u32, usize)]) -> BlockRequest {
        BlockRequest { key: BlockKey { job: JobId(1), shard: 0, block: 0 }, rows: rows.to_vec() }
    }

    /// A block whose rows are their numbers. The rows in `failed` could not be decoded.
    fn block(rows: u32, failed: &[u32]) -> BlockRows {
        let values =
            StringViewArray::from_iter_values((0..rows).map(|row| format!("a row with number {row}")));
        let batch = RecordBatch::try_from_iter([("row", Arc::new(values) as ArrayRef)]).expect("one column");
        let failure = |row: &u32| RowFailure {
            row: *row,
            offset: u64::from(100 * row),
            reason: format!("row {row} is bad"),
        };
        BlockRows {
            failures: failed.iter().map(failure).collect(),
            held_bytes: batch.get_array_memory_size(),
            batch,
            store_bytes: 9,
            store_requests: 1,
            store_wait: Duration::ZERO,
            blocking_bytes: 0,
        }
    }

    fn values(batch: &RecordBatch) -> Vec<String> {
        batch.column(0).as_string_view().iter().map(|value| value.expect("not null").to_owned()).collect()
    }

    #[test]
    fn rows_of_a_whole_block_keep_their_numbers() {
        let located = locate_rows(request(&[(0, 5), (2, 3), (2, 4)]), block(3, &[2]), false, Duration::ZERO);
        assert_eq!(located.rows, [(5, 0), (3, 2), (4, 2)]);
        let failures: Vec<(usize, u64)> =
            located.failures.iter().map(|failure| (failure.index, failure.offset)).collect();
        assert_eq!(failures, [(3, 200), (4, 200)]);
        assert!(located.bytes > 0);
    }

    #[test]
    fn picked_rows_are_numbered_again_and_repeated_rows_are_there_once() {
        let picked = pick_rows(&block(1000, &[4, 6, 9]), &[2, 6, 7]);
        assert_eq!(
            values(&picked.batch),
            ["a row with number 2", "a row with number 6", "a row with number 7"]
        );
        assert!(picked.held_bytes < block(1000, &[]).held_bytes / 10, "the block is not held");
        assert_eq!(picked.failures.iter().map(|failure| failure.row).collect::<Vec<_>>(), [1]);
        assert_eq!((picked.store_bytes, picked.store_requests), (0, 0), "the read is counted once");
        let located = locate_rows(request(&[(2, 8), (6, 1), (6, 2), (7, 0)]), picked, true, Duration::ZERO);
        assert_eq!(located.rows, [(8, 0), (1, 1), (2, 1), (0, 2)]);
        let failures: Vec<usize> = located.failures.iter().map(|failure| failure.index).collect();
        assert_eq!(failures, [1, 2]);
    }

    #[tokio::test]
    async fn blocks_that_are_read_at_a_time_are_bounded_in_bytes() {
        let resources = ReadResources::new(0, 4 * PERMIT_BYTES);
        let block = |bytes| Block { rows: 1, offset: 0, bytes, group: 0, row_bytes: Vec::new() };
        let (small, huge) = (block(PERMIT_BYTES), block(100 * PERMIT_BYTES));
        let first = resources.reserve(&small).await;
        assert_eq!(resources.held_bytes(), 2 * PERMIT_BYTES, "a block is held encoded and decoded");
        let second = resources.reserve(&small).await;
        assert_eq!(resources.held_bytes(), 4 * PERMIT_BYTES);
        assert!(futures::FutureExt::now_or_never(resources.reserve(&block(1))).is_none());
        drop(first);
        assert!(futures::FutureExt::now_or_never(resources.reserve(&huge)).is_none());
        drop(second);
        let _alone = resources.reserve(&huge).await;
        assert_eq!(resources.held_bytes(), 4 * PERMIT_BYTES, "a larger block is read alone");
    }
}
