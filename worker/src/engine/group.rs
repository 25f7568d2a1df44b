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
use super::job::{JobContext, Stage};
use super::pool::{Pool, Priority};
use super::read::{Reading, read_rows};
use super::slab::SlabPool;
use crate::cache::Caches;

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
    pub(crate) caches: Arc<Caches>,
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
    /// Rows it entered with: of its range, or, before a `cache`, those that are not kept.
    pub(super) entered: usize,
    /// Rows that were read for it.
    pub(super) made: usize,
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
    let found = match &job.cut {
        Some(cut) => cut.find(&tools.caches, &rows).await,
        None => Vec::new(),
    };
    let is_read = |place: &usize| found.get(*place).is_none_or(Option::is_none);
    let read: Vec<usize> = (0..rows.len()).filter(is_read).collect();
    let wanted: Vec<RowRef> = read.iter().map(|&place| rows[place]).collect();
    let encoded = read_rows(&job, &tools.reading, &wanted).await.map_err(|error| error.to_string())?;
    let mut failed: BTreeMap<usize, (Option<u64>, String)> = BTreeMap::new();
    for (number, offset, reason) in encoded.failures {
        failed.insert(read[number], (Some(offset), reason));
    }
    check_failures(&job, &rows, &failed)?;
    let (mut sections, tail, counted) = cut_slab(&job, &tools.slabs, rows.len());
    drop(planned);
    let batches = Arc::new(encoded.batches);
    let places = Arc::new(read.into_iter().zip(encoded.places).collect::<Vec<_>>());
    let found = Arc::new(found);
    let failed = Arc::new(failed);
    let mut chunks = Vec::new();
    for start in (0..rows.len()).step_by(job.chunk_rows) {
        let range = start..(start + job.chunk_rows).min(rows.len());
        let slots = cut_slots(&job, &mut sections, range.len());
        let input = ChunkInput {
            rows: Arc::clone(&rows),
            batches: Arc::clone(&batches),
            places: Arc::clone(&places),
            found: Arc::clone(&found),
            failed: Arc::clone(&failed),
            range,
        };
        chunks.push(run_chunk(Arc::clone(&job), tools.clone(), priority, input, slots));
    }
    drop((batches, places, found));
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
    rows: Arc<Vec<RowRef>>,
    batches: Arc<Vec<RecordBatch>>,
    /// Where in the batches the rows are that were read.
    places: Arc<Vec<(usize, (usize, usize))>>,
    /// The rows that a cache has; empty where the pipeline has none.
    found: Arc<Vec<Option<Bytes>>>,
    failed: Arc<BTreeMap<usize, (Option<u64>, String)>>,
    range: Range<usize>,
}

impl ChunkInput {
    /// Places of its rows that were read, with where they are in the batches.
    fn read(&self) -> &[(usize, (usize, usize))] {
        let at = |place: usize| self.places.partition_point(|(read, _)| *read < place);
        &self.places[at(self.range.start)..at(self.range.end)]
    }

    fn is_read(&self) -> bool {
        !self.read().is_empty()
    }

    /// Gathers the chunk's rows that were read: views of the blocks' buffers, not copies.
    fn build(&self, job: &JobContext, slots: Slots) -> Result<WorkChunk, String> {
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        let (places, picked): (Vec<usize>, Vec<(usize, usize)>) = self.read().iter().copied().unzip();
        let rows = || places.iter().map(|&place| &self.rows[place]);
        let mut columns = Vec::new();
        if !picked.is_empty() {
            let batch = interleave_record_batch(&batches, &picked).map_err(|error| {
                format!("blocks of a dataset differ in their columns: {error}; index it again")
            })?;
            let names = batch.schema().fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
            columns.extend(names.into_iter().zip(batch.columns().iter().cloned().map(Column::Arrow)));
        }
        let mut chunk =
            Chunk::new(columns, rows().map(|row| row.row_id).collect(), rows().map(|row| row.pass).collect());
        chunk.origins = places.iter().map(|place| (place - self.range.start) as u32).collect();
        for (row, place) in places.iter().enumerate() {
            if let Some((_, reason)) = self.failed.get(place) {
                chunk.fail(row, reason.clone());
            }
        }
        let mut work = WorkChunk {
            chunk,
            slots,
            start: self.range.start,
            entered: picked.len(),
            made: picked.len(),
            handled: 0,
            reclaimed: Vec::new(),
        };
        work.settle_failures(job);
        Ok(work)
    }

    /// Keeps the rows that were made up to the cut, and adds those that were kept.
    fn join(&self, job: &JobContext, caches: &Caches, work: &mut WorkChunk) -> Result<(), String> {
        let Some(cut) = &job.cut else { return Ok(()) };
        let cpu = thread_cpu();
        cut.join(work, caches, &self.found[self.range.clone()], &self.rows[self.range.clone()])?;
        cut.counters.add_cpu(thread_cpu().saturating_sub(cpu));
        work.entered = self.range.len();
        if work.chunk.rows() != work.entered {
            work.reclaim(job);
        }
        Ok(())
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

/// Runs a chunk through all stages, from the cache on where all its rows are kept.
async fn run_chunk(
    job: Arc<JobContext>,
    tools: Tools,
    priority: Priority,
    input: ChunkInput,
    slots: Slots,
) -> Result<WorkChunk, String> {
    let cut = job.cut_stage();
    let first = cut.filter(|_| !input.is_read()).unwrap_or(0);
    let mut input = Some(Arc::new(input));
    let mut slots = Some(slots);
    let mut chunk: Option<WorkChunk> = None;
    for number in first..=job.stages.len() {
        let (stage, joins) = (job.stages.get(number), cut == Some(number));
        let counters = |stage: &Stage| &job.operator_counters[stage.operators.start];
        let _permit = match stage {
            Some(stage) => acquire(stage.limit.as_deref(), counters(stage)).await,
            None => None,
        };
        let wait = stage.and_then(|stage| job.operators[stage.operators.start].wait_per_row);
        let operators = stage.filter(|_| wait.is_none()).map_or(0..0, |stage| stage.operators.clone());
        if chunk.is_none() || joins || !operators.is_empty() {
            // The work must not hold the pool that runs it: the last to let go of that waits for its threads.
            let (job, caches) = (Arc::clone(&job), Arc::clone(&tools.caches));
            // What was read goes as soon as it is used: before the last stages, which take the longest.
            let is_used = cut.is_none_or(|cut| number >= cut);
            let input = if is_used { input.take() } else { input.clone() };
            let (present, slots) = (chunk.take(), slots.take().unwrap_or_default());
            let work = move || {
                let mut work = match (present, &input) {
                    (Some(work), _) => work,
                    (None, Some(input)) => input.build(&job, slots)?,
                    (None, None) => unreachable!("the input is taken when the chunk is there"),
                };
                if let (true, Some(input)) = (joins, &input) {
                    input.join(&job, &caches, &mut work)?;
                }
                drop(input);
                operators.into_iter().try_for_each(|place| work.apply(&job, place))?;
                Ok::<_, String>(work)
            };
            chunk = Some(tools.pool.run(priority, work).await.map_err(|panic| panic.to_string())??);
        }
        if let (Some(wait), Some(stage)) = (wait, stage) {
            let rows = chunk.as_ref().map_or(0, |work| work.chunk.rows());
            let wait = wait * rows as u32;
            tokio::time::sleep(wait).await;
            counters(stage).add_wait(wait);
            counters(stage).add_rows(rows, rows, 0);
        }
    }
    chunk.ok_or_else(|| "no stage built the chunk; please report this".to_owned())
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
