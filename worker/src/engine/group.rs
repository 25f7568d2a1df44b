//! One group of rows, from the store to a finished piece: read, run the operators chunk by chunk on the CPU pool,
//! put the columns into one buffer.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;
use bytes::Bytes;
use feedline_core::layout::SplitRef;
use feedline_core::order::RowRef;
use feedline_core::pipeline::OnError;
use feedline_operators::{Chunk, Column, Slots};
use feedline_proto::services::{PieceHeader, SkippedRow};
use futures::future::try_join_all;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::assemble::{Section, assemble, cut_slab};
use super::cpu::{Counters, thread_cpu};
use super::job::JobContext;
use super::pool::{Pool, Priority};
use super::read::{Reading, read_rows};
use super::slab::SlabPool;

/// A finished piece of a split.
#[derive(Debug)]
pub(crate) struct FinishedPiece {
    pub(crate) header: PieceHeader,
    pub(crate) data: Bytes,
}

/// What a group needs from its worker.
#[derive(Clone)]
pub(crate) struct Tools {
    pub(crate) pool: Arc<Pool>,
    pub(crate) slabs: Arc<SlabPool>,
    pub(crate) reading: Arc<Reading>,
    /// Bytes of buffers that groups in flight were admitted for and have not taken yet.
    pub(crate) planned_bytes: Arc<AtomicU64>,
}

/// A group's claim on a buffer that it has not taken yet.
pub(crate) struct Planned {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Planned {
    pub(crate) fn new(bytes: u64, all: &Arc<AtomicU64>) -> Self {
        all.fetch_add(bytes, Ordering::Relaxed);
        Self { bytes, all: Arc::clone(all) }
    }
}

impl Drop for Planned {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A chunk with what the engine keeps beside it.
pub(super) struct WorkChunk {
    pub(super) chunk: Chunk,
    pub(super) slots: Slots,
    /// Place of its first row in the group.
    pub(super) start: usize,
    /// Rows it entered with.
    pub(super) entered: usize,
    /// Failures that the engine has dealt with.
    pub(super) handled: usize,
    /// Parts of the final buffer that no operator may write to any more, since rows have moved.
    pub(super) reclaimed: Vec<(usize, bytes::BytesMut)>,
}

/// Computes the rows `offsets` of a split.
///
/// # Errors
/// One sentence: under `on_error: fail` the first row that failed, or what kept the whole group from being read.
pub(crate) async fn run_group(
    job: Arc<JobContext>,
    tools: Tools,
    priority: Priority,
    (split, offsets): (SplitRef, Range<u32>),
    planned: Planned,
) -> Result<FinishedPiece, String> {
    let start = job.details.layout.split_range(split).start;
    let places = start + u64::from(offsets.start)..start + u64::from(offsets.end);
    let rows: Arc<Vec<RowRef>> = Arc::new(job.rows(split.epoch, places));
    let encoded = read_rows(&job, &tools.reading, &rows).await.map_err(|error| error.to_string())?;
    let mut failed: BTreeMap<usize, (Option<u64>, String)> = BTreeMap::new();
    for (place, offset, reason) in encoded.failures {
        failed.insert(place, (Some(offset), reason));
    }
    check_failures(&job, &rows, &failed)?;
    let (mut sections, tail, counted) = cut_slab(&job, &tools.slabs, rows.len());
    drop(planned);
    let batches = Arc::new(encoded.batches);
    let places = Arc::new(encoded.places);
    let failed = Arc::new(failed);
    let mut chunks = Vec::new();
    for start in (0..rows.len()).step_by(job.chunk_rows) {
        let range = start..(start + job.chunk_rows).min(rows.len());
        let slots = cut_slots(&job, &mut sections, range.len());
        let input = ChunkInput {
            job: Arc::clone(&job),
            rows: Arc::clone(&rows),
            batches: Arc::clone(&batches),
            places: Arc::clone(&places),
            failed: Arc::clone(&failed),
            range,
        };
        chunks.push(run_chunk(Arc::clone(&job), tools.clone(), priority, input, slots));
    }
    drop((batches, places));
    let chunks = try_join_all(chunks).await?;
    let _permit = acquire(job.batch_limit.as_deref(), &job.batch_counters).await;
    let work = {
        let (job, rows) = (Arc::clone(&job), Arc::clone(&rows));
        move || assemble(&job, &rows, &failed, offsets, chunks, (sections, tail, counted))
    };
    tools.pool.run(priority, work).await.map_err(|panic| panic.to_string())?
}

/// What a chunk is made of.
struct ChunkInput {
    job: Arc<JobContext>,
    rows: Arc<Vec<RowRef>>,
    batches: Arc<Vec<RecordBatch>>,
    places: Arc<Vec<(usize, usize)>>,
    failed: Arc<BTreeMap<usize, (Option<u64>, String)>>,
    range: Range<usize>,
}

impl ChunkInput {
    /// Gathers the chunk's rows: views of the blocks' buffers, not copies.
    fn build(self, slots: Slots) -> Result<WorkChunk, String> {
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        let picked = &self.places[self.range.clone()];
        let batch = interleave_record_batch(&batches, picked).map_err(|error| {
            format!("blocks of a dataset differ in their columns: {error}; index it again")
        })?;
        let names = batch.schema().fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
        let columns = names.into_iter().zip(batch.columns().iter().cloned().map(Column::Arrow)).collect();
        let rows = &self.rows[self.range.clone()];
        let mut chunk = Chunk::new(
            columns,
            rows.iter().map(|row| row.row_id).collect(),
            rows.iter().map(|row| row.pass).collect(),
        );
        for (place, (_, reason)) in self.failed.range(self.range.clone()) {
            chunk.fail(place - self.range.start, reason.clone());
        }
        let mut work = WorkChunk {
            chunk,
            slots,
            start: self.range.start,
            entered: self.range.len(),
            handled: 0,
            reclaimed: Vec::new(),
        };
        work.settle_failures(&self.job);
        Ok(work)
    }
}

/// Gives a chunk its part of each column of the finished buffer.
fn cut_slots(job: &JobContext, sections: &mut [Section], rows: usize) -> Slots {
    let mut slots = Slots::new();
    for (tensor, section) in job.tensors.iter().zip(sections) {
        if let Some((operator, column)) = &tensor.writer {
            slots.put(*operator, column, section.rest.split_to(tensor.row_bytes * rows));
        }
    }
    slots
}

/// Runs a chunk through all stages.
async fn run_chunk(
    job: Arc<JobContext>,
    tools: Tools,
    priority: Priority,
    input: ChunkInput,
    slots: Slots,
) -> Result<WorkChunk, String> {
    let run = |work: Box<dyn FnOnce() -> Result<WorkChunk, String> + Send>| async {
        tools.pool.run(priority, work).await.map_err(|panic| panic.to_string())?
    };
    let mut input = Some((input, slots));
    let mut chunk: Option<WorkChunk> = None;
    for stage in &job.stages {
        let _permit = acquire(stage.limit.as_deref(), &job.operator_counters[stage.operators.start]).await;
        let operator = &job.operators[stage.operators.start];
        if let Some(wait) = operator.wait_per_row {
            if let Some((input, slots)) = input.take() {
                chunk = Some(run(Box::new(move || input.build(slots))).await?);
            }
            let rows = chunk.as_ref().map_or(0, |work| work.chunk.rows());
            let wait = wait * rows as u32;
            tokio::time::sleep(wait).await;
            let counters = &job.operator_counters[stage.operators.start];
            counters.add_wait(wait);
            counters.add_rows(rows, rows, 0);
            continue;
        }
        let (taken, present) = (input.take(), chunk.take());
        let (job, operators) = (Arc::clone(&job), stage.operators.clone());
        let work = move || {
            let mut work = match taken {
                Some((input, slots)) => input.build(slots)?,
                None => present.expect("the first stage built it"),
            };
            for place in operators {
                work.apply(&job, place)?;
            }
            Ok(work)
        };
        chunk = Some(run(Box::new(work)).await?);
    }
    match (chunk, input) {
        (Some(chunk), _) => Ok(chunk),
        (None, Some((input, slots))) => run(Box::new(move || input.build(slots))).await,
        (None, None) => unreachable!("the input is taken only to build the chunk"),
    }
}

/// Waits for a turn among an operator's concurrent executions.
async fn acquire<'a>(limit: Option<&'a Semaphore>, counters: &Counters) -> Option<SemaphorePermit<'a>> {
    let limit = limit?;
    let started = Instant::now();
    let permit = limit.acquire().await.expect("an operator's limit is never closed");
    counters.add_wait(started.elapsed());
    Some(permit)
}

impl WorkChunk {
    /// Runs one operator and counts what it did.
    fn apply(&mut self, job: &JobContext, place: usize) -> Result<(), String> {
        let operator = &job.operators[place];
        let rows_in = self.chunk.rows();
        let cpu = thread_cpu();
        let result = operator.operator.apply(&mut self.chunk, &mut self.slots);
        let counters = &job.operator_counters[place];
        counters.add_cpu(thread_cpu().saturating_sub(cpu));
        result.map_err(|error| format!("operator {} ({}): {error}", place + 1, operator.name))?;
        self.settle_failures(job);
        counters.add_rows(rows_in, self.chunk.rows(), chunk_bytes(&self.chunk));
        if self.chunk.rows() != self.entered {
            self.reclaim(job);
        }
        Ok(())
    }

    /// Under `on_error: skip` rows that failed leave at once.
    fn settle_failures(&mut self, job: &JobContext) {
        if self.chunk.failures.len() == self.handled {
            return;
        }
        self.handled = self.chunk.failures.len();
        if job.on_error() == OnError::Skip {
            let failed = self.chunk.failed_rows();
            let keep: Vec<bool> = (0..self.chunk.rows()).map(|row| !failed.contains(row)).collect();
            self.chunk.retain(&keep);
            if self.chunk.rows() != self.entered {
                self.reclaim(job);
            }
        }
    }

    /// Rows have moved: what is not written yet is written elsewhere and copied when the batch is put together.
    fn reclaim(&mut self, job: &JobContext) {
        for (number, tensor) in job.tensors.iter().enumerate() {
            if let Some((operator, column)) = &tensor.writer
                && let Some(storage) = self.slots.take(*operator, column)
            {
                self.reclaimed.push((number, storage));
            }
        }
    }
}

fn chunk_bytes(chunk: &Chunk) -> usize {
    let bytes = |column: &Column| match column {
        Column::Arrow(array) => array.get_buffer_memory_size().min(array.len() * 64),
        Column::Images(images) => images.iter().map(|image| image.data.len()).sum(),
        Column::Tensor(tensor) => tensor.rows * tensor.row_bytes(),
    };
    chunk.columns.iter().map(|(_, column)| bytes(column)).sum()
}

/// Under `on_error: fail` the first failed row is the group's error.
pub(super) fn check_failures(
    job: &JobContext,
    rows: &[RowRef],
    failed: &BTreeMap<usize, (Option<u64>, String)>,
) -> Result<(), String> {
    match failed.iter().next() {
        Some((place, (offset, reason))) if job.on_error() == OnError::Fail => {
            let row = describe_row(job, &rows[*place], *offset, reason);
            Err(format!(
                "{}, row {} at byte {}: {}; mend it, or set `on_error: skip` or `replace`",
                row.shard, row.row_id, row.offset, row.reason
            ))
        }
        _ => Ok(()),
    }
}

/// Names a row for people.
pub(super) fn describe_row(job: &JobContext, row: &RowRef, offset: Option<u64>, reason: &str) -> SkippedRow {
    let shard = &job.manifest.shards[row.shard as usize];
    let block = &shard.index.blocks[row.block as usize];
    let before: u64 = block.row_bytes.iter().take(row.row as usize).map(|&bytes| u64::from(bytes)).sum();
    SkippedRow {
        row_id: row.row_id,
        shard: shard.object.url.clone(),
        offset: offset.unwrap_or(block.offset + before),
        reason: reason.to_owned(),
    }
}
