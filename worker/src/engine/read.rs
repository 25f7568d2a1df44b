//! Reads the rows of a group: whole blocks through the block cache if rows are small, and individual rows if they are
//! large.
//!
//! A group of a shuffled job needs a few rows from each of many blocks. The rows are copied out of a block as soon as
//! the block is read, so that the group does not keep whole blocks in memory. A group of a job in storage order refers to its
//! part of a block without a copy. The total size of the blocks that are read concurrently is limited.

mod resources;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array};
use arrow::compute::take_record_batch;
use feedline_data::order::RowRef;
use feedline_data::pipeline::OnError;
use feedline_data::schema::Schema;
use feedline_sources::{BlockRead, BlockRows, OpenBlock, RowFailure, SourceError};
use futures::{Stream, StreamExt};

pub(crate) use self::resources::ReadResources;
use self::resources::ReservedRead;
use super::blocks::BlockKey;
use super::job::{GroupBlocks, JobContext};
use super::outages::read_when_available;
use super::pool::Priority;
use super::progress::SplitProgress;
use super::trace::CpuTimed;

/// The rows that a group needs from one block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BlockRequest {
    key: BlockKey,
    /// A row of the block.
    first: RowRef,
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
    /// Indexes in the group of rows without a record in the source, ascending.
    pub(super) absent: Vec<usize>,
    /// The newest timestamp of the records of the block, in milliseconds since 1970.
    pub(super) newest_ms: Option<u64>,
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

/// A group keeps a block in memory, instead of copying its rows, if the block has at most this many times as many rows.
const MAX_KEPT_FACTOR: usize = 4;
/// The rows of a group are sorted by counting if they are in a range with at most this many times as many rows. A shuffle window is such
/// a range, and comparing took a tenth of the CPU time of shuffled text.
const MAX_COUNTED_FACTOR: usize = 8;

/// Returns one request for each block that contains any of these rows, in the order in which the group needs the
/// blocks.
pub(super) fn block_requests(
    job: &JobContext,
    blocks: &GroupBlocks,
    rows: &[RowRef],
    indexes: &[usize],
) -> Vec<BlockRequest> {
    let key = |index: usize| blocks.key(job.id(), &rows[index]);
    let mut by_block: BTreeMap<BlockKey, BlockRequest> = BTreeMap::new();
    // In storage order, adjacent rows are in one block.
    for adjacent in indexes.chunk_by(|a, b| key(*a) == key(*b)) {
        let (key, first) = (key(adjacent[0]), rows[adjacent[0]]);
        let request = by_block.entry(key).or_insert_with(|| BlockRequest { key, first, rows: Vec::new() });
        request.rows.extend(adjacent.iter().map(|&index| (rows[index].row, index)));
    }
    let mut requests: Vec<BlockRequest> = by_block.into_values().collect();
    // Before the rows of a block are sorted, their indexes in the group are ascending.
    requests.sort_by_key(|request| request.rows.first().map(|(_, index)| *index));
    if !job.compiled.details.dataset.runs.is_empty() {
        // The blocks of a run are decompressed in their order.
        requests.sort_by_key(|request| request.key);
    }
    requests.iter_mut().for_each(|request| sort_by_row(&mut request.rows));
    requests
}

/// Sorts pairs of a row and an index by the row. Pairs of the same row keep their order.
fn sort_by_row(rows: &mut Vec<(u32, usize)>) {
    let (Some(min), Some(max)) = (rows.iter().map(|pair| pair.0).min(), rows.iter().map(|pair| pair.0).max())
    else {
        return;
    };
    let range = (max - min) as usize + 1;
    if range > MAX_COUNTED_FACTOR * rows.len() || rows.is_sorted_by_key(|pair| pair.0) {
        rows.sort_by_key(|pair| pair.0);
        return;
    }
    // The number of pairs of each row, and then the place of the next one.
    let mut places = vec![0_u32; range];
    rows.iter().for_each(|(row, _)| places[(row - min) as usize] += 1);
    let mut next = 0;
    for place in &mut places {
        next += std::mem::replace(place, next);
    }
    let mut sorted = vec![(0, 0); rows.len()];
    for &pair in rows.iter() {
        let place = &mut places[(pair.0 - min) as usize];
        sorted[*place as usize] = pair;
        *place += 1;
    }
    *rows = sorted;
}

/// Reads blocks concurrently, and yields each block when it arrives.
pub(super) fn read_blocks(
    reader: BlockReader<'_>,
    requests: Vec<BlockRequest>,
) -> impl Stream<Item = Result<EncodedBlock, SourceError>> {
    let read = move |request: BlockRequest| async move {
        let (read, cpu) = CpuTimed::new(reader.job.is_traced(), reader.read(&request)).await;
        let is_skipped = reader.job.compiled.on_error() != OnError::Fail;
        let (rows, is_partial) = match read {
            Err(SourceError::Corrupt { offset, reason, .. }) if is_skipped => {
                reader.job.counters.source.add_rows(request.rows.len(), request.rows.len());
                reader.progress.increment();
                return Ok(failed_block(&reader.job.compiled.read_schema, &request, offset, &reason));
            }
            other => other?,
        };
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
    pub(super) blocks: &'a GroupBlocks,
    pub(super) resources: &'a ReadResources,
    pub(super) priority: Priority,
    pub(super) progress: &'a SplitProgress,
}

impl<'a> BlockReader<'a> {
    /// Reads the rows of a block. Also returns whether the result contains only the requested rows.
    async fn read(&self, request: &BlockRequest) -> Result<(BlockRows, bool), SourceError> {
        let compiled = &self.job.compiled;
        let (shard, block) = self.blocks.block(&request.first);
        let index = self.blocks.index(&request.first);
        if index.is_some_and(|index| index.compression.is_some()) {
            self.resources.check_compressed(shard, block)?;
        }
        let mut wanted: Vec<u32> = request.rows.iter().map(|(row, _)| *row).collect();
        wanted.dedup();
        let is_whole = wanted.len() == block.rows as usize;
        let has_large_rows = !block.row_bytes.is_empty();
        let read = BlockRead {
            shard,
            block,
            index,
            schema: &compiled.read_schema,
            rows: (has_large_rows && !is_whole).then_some(wanted.as_slice()),
        };
        // Large rows are read for this group alone, while blocks of small rows are shared with other groups.
        if has_large_rows {
            return Ok((self.read_from_store(request.key, &read, false).await?, !is_whole));
        }
        let whole = self.read_from_store(request.key, &read, true);
        if is_whole {
            let rows = whole.await?;
            rows.check_lost(shard, &wanted)?;
            return Ok((rows, false));
        }
        let used = (wanted.len() as u32, block.rows);
        let rows = self.resources.blocks.get_or_read(request.key, used, whole).await?;
        rows.check_lost(shard, &wanted)?;
        Ok((pick_rows(&rows, &wanted), true))
    }

    /// Reads rows from the store. Waits while brokers do not answer, in an unbounded job without a limit.
    async fn read_from_store(
        &self,
        key: BlockKey,
        read: &BlockRead<'_>,
        is_reserved: bool,
    ) -> Result<BlockRows, SourceError> {
        let dataset = &self.job.compiled.dataset;
        // The time in queues is not part of an outage.
        let began = OnceLock::new();
        let is_unbounded = self.job.compiled.details.layout.unbounded;
        let budget = dataset.outage_budget(read.shard);
        read_when_available(
            || self.read_with_permits(key, read, is_reserved, &began),
            || dataset.wait_for_source(read.shard),
            || is_unbounded || began.get().is_none_or(|began: &Instant| began.elapsed() < budget),
        )
        .await
    }

    /// Waits for a read permit, reads rows from the store, and counts the read. Reserves memory for the block if
    /// `is_reserved` is set. Sets `began` when the first read begins.
    async fn read_with_permits(
        &self,
        key: BlockKey,
        read: &BlockRead<'_>,
        is_reserved: bool,
        began: &OnceLock<Instant>,
    ) -> Result<BlockRows, SourceError> {
        let counters = &self.job.counters;
        let started = Instant::now();
        // A read that waits for another read of its run must not hold permits.
        let _turn = self.job.compiled.dataset.run_turn(read).await;
        let _permit = self.job.limits.read_permits.acquire(self.priority).await;
        let dataset = &self.job.compiled.dataset;
        let waited = started.elapsed();
        let failed = |_: &SourceError| {
            began.get_or_init(Instant::now);
        };
        let mut open = dataset.open_block(read).await.inspect_err(failed)?;
        let started = Instant::now();
        let memory = match is_reserved {
            true => Some(self.reserve(read, &open).await?),
            false => None,
        };
        counters.source.add_wait_input(waited + started.elapsed());
        began.get_or_init(Instant::now);
        let _memory = match memory {
            Some(memory) => Some(self.fetch(read, &mut open, memory).await?),
            None => None,
        };
        let rows = dataset.read_open_block(read, open).await?;
        counters.store.add(&rows, key.shard, read.shard.size_bytes);
        counters.source.add_bytes(rows.store_bytes, 0);
        Ok(rows)
    }

    /// Waits for the memory of a read.
    async fn reserve(&self, read: &BlockRead<'_>, open: &OpenBlock) -> Result<ReservedRead<'a>, SourceError> {
        let decoder_bytes = read.compression().map_or(0, |compression| compression.decoder_bytes);
        self.resources.check_block(read, open.peak_bytes())?;
        Ok(self.resources.reserve(open.peak_bytes(), decoder_bytes).await)
    }

    /// Reads the encoded bytes of a block, if only they say how much memory the read needs, and waits for this memory.
    async fn fetch(
        &self,
        read: &BlockRead<'_>,
        open: &mut OpenBlock,
        memory: ReservedRead<'a>,
    ) -> Result<ReservedRead<'a>, SourceError> {
        let reserved_bytes = open.peak_bytes();
        self.job.compiled.dataset.fetch_block(read, open).await?;
        if open.peak_bytes() <= reserved_bytes {
            return Ok(memory);
        }
        // Reads that keep their memory while they wait for more could wait for each other.
        drop(memory);
        let started = Instant::now();
        let memory = self.reserve(read, open).await?;
        self.job.counters.source.add_wait_input(started.elapsed());
        Ok(memory)
    }
}

/// Takes the requested rows out of a block. Copies them, unless they are a large part of the block.
fn pick_rows(rows: &BlockRows, wanted: &[u32]) -> BlockRows {
    let (batch, held_bytes) = match large_part(wanted, rows.batch.num_rows()) {
        Some(part) => {
            let held_bytes = rows.held_bytes * part.len() / rows.batch.num_rows();
            (rows.batch.slice(part.start, part.len()), held_bytes)
        }
        None => {
            let picked = take_record_batch(&rows.batch, &UInt32Array::from(wanted.to_vec()));
            let batch = compact(&picked.expect("the index says that the block contains these rows"));
            let held_bytes = batch.get_array_memory_size();
            (batch, held_bytes)
        }
    };
    let new_row = |row: u32| wanted.binary_search(&row).ok().map(|row| row as u32);
    let failures = rows
        .failures
        .iter()
        .filter_map(|failure| new_row(failure.row).map(|row| RowFailure { row, ..failure.clone() }));
    BlockRows {
        failures: failures.collect(),
        absent: rows.absent.iter().filter_map(|&row| new_row(row)).collect(),
        lost: Vec::new(),
        newest_ms: rows.newest_ms,
        held_bytes,
        batch,
        store_bytes: 0,
        store_requests: 0,
        store_wait: Duration::ZERO,
        blocking_bytes: 0,
    }
}

/// Returns the requested rows as a range if they are adjacent and not much fewer than the block has. The other rows belong to a few
/// other groups, which share the memory of the block.
fn large_part(wanted: &[u32], block_rows: usize) -> Option<Range<usize>> {
    let (first, last) = (*wanted.first()? as usize, *wanted.last()? as usize);
    let is_adjacent = last + 1 - first == wanted.len();
    (is_adjacent && last < block_rows && wanted.len() * MAX_KEPT_FACTOR >= block_rows)
        .then(|| first..last + 1)
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

/// A block in which all requested rows fail, because it cannot be read.
fn failed_block(schema: &Schema, request: &BlockRequest, offset: u64, reason: &str) -> EncodedBlock {
    let empty = feedline_sources::empty_batch(schema).schema();
    let columns = empty.fields().iter().map(|field| new_null_array(field.data_type(), 1)).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let batch = RecordBatch::try_new_with_options(empty.clone(), columns, &options)
        .expect("the columns have the types of the schema");
    let failure = |&(_, index): &(u32, usize)| ReadFailure { index, offset, reason: reason.to_owned() };
    EncodedBlock {
        bytes: batch.get_array_memory_size() as u64,
        batch,
        rows: request.rows.iter().map(|&(_, index)| (index, 0)).collect(),
        failures: request.rows.iter().map(failure).collect(),
        absent: Vec::new(),
        newest_ms: None,
        cpu: Duration::ZERO,
    }
}

/// Finds the requested rows in the batch that was read. If `is_partial` is set, the batch contains only the requested
/// rows.
fn locate_rows(request: BlockRequest, read: BlockRows, is_partial: bool, cpu: Duration) -> EncodedBlock {
    let mut located = Vec::with_capacity(request.rows.len());
    let mut failures = Vec::new();
    let mut absent = Vec::new();
    let (mut distinct, mut last) = (0, None);
    for (row, index) in request.rows {
        // A row that was requested several times is in the batch once.
        if is_partial && last.is_some_and(|last| last != row) {
            distinct += 1;
        }
        last = Some(row);
        let at = if is_partial { distinct } else { row as usize };
        located.push((index, at));
        if read.absent.binary_search(&(at as u32)).is_ok() {
            absent.push(index);
        }
        if let Some(failure) = read.failures.iter().find(|failure| failure.row as usize == at) {
            failures.push(ReadFailure { index, offset: failure.offset, reason: failure.reason.clone() });
        }
    }
    absent.sort_unstable();
    let (bytes, newest_ms) = (read.held_bytes as u64, read.newest_ms);
    EncodedBlock { batch: read.batch, rows: located, failures, absent, newest_ms, bytes, cpu }
}

#[cfg(test)]
mod tests {
    use arrow::array::StringViewArray;
    use feedline_data::ids::JobId;
    use proptest::prelude::*;

    use super::*;

    fn request(rows: &[(u32, usize)]) -> BlockRequest {
        let first = RowRef { row_id: 0, pass: 0, shard: 0, block: 0, row: 0 };
        BlockRequest { key: BlockKey { job: JobId(1), shard: 0, block: 0 }, first, rows: rows.to_vec() }
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
            absent: Vec::new(),
            lost: Vec::new(),
            newest_ms: Some(9),
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

    proptest! {
        #[test]
        fn rows_are_sorted_and_equal_rows_keep_their_order(
            first in 0_u32..u32::MAX - 5_000,
            rows in prop::collection::vec(0_u32..5_000, 0..900),
            is_dense: bool,
        ) {
            let row = |row: u32| first + if is_dense { row / 4 } else { row };
            let mut pairs: Vec<(u32, usize)> = rows.into_iter().map(row).zip(7..).collect();
            let mut expected = pairs.clone();
            expected.sort();
            sort_by_row(&mut pairs);
            prop_assert_eq!(pairs, expected);
        }
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

    #[test]
    fn an_adjacent_quarter_of_a_block_is_not_copied() {
        let whole = block(1000, &[300]);
        let wanted: Vec<u32> = (100..350).collect();
        let picked = pick_rows(&whole, &wanted);
        assert_eq!(values(&picked.batch), values(&whole.batch)[100..350]);
        assert_eq!(picked.failures.iter().map(|failure| failure.row).collect::<Vec<_>>(), [200]);
        assert_eq!(picked.held_bytes, whole.held_bytes / 4);
        let data = |rows: &BlockRows| rows.batch.column(0).as_string_view().data_buffers()[0].as_ptr();
        assert_eq!(data(&picked), data(&whole));
        assert_eq!(large_part(&wanted[1..], 1000), None, "the part is smaller");
        let gap: Vec<u32> = wanted.iter().map(|row| row * 2).collect();
        assert_eq!(large_part(&gap, 1000), None, "the rows are not adjacent");
    }

    #[test]
    fn rows_without_a_record_are_located_like_failed_rows() {
        let read = BlockRows { absent: vec![1, 4, 6], ..block(10, &[]) };
        let located = locate_rows(request(&[(1, 9), (4, 2), (5, 3)]), read.clone(), false, Duration::ZERO);
        assert_eq!(located.absent, [2, 9]);
        let picked = pick_rows(&read, &[0, 4, 6]);
        assert_eq!(picked.absent, [1, 2]);
        let located = locate_rows(request(&[(0, 0), (4, 5), (6, 1)]), picked, true, Duration::ZERO);
        assert_eq!(located.absent, [1, 5]);
    }
}
