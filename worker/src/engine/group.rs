//! One group of rows, from the store to a finished piece: read, run the operators chunk by chunk on the CPU pool,
//! put the columns into one buffer.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use feedline_data::layout::SplitRef;
use feedline_data::order::RowRef;
use feedline_data::pipeline::OnError;
use feedline_operators::OutputBuffers;
use feedline_proto::services::{PieceHeader, SkippedRow};
use futures::future::try_join_all;

use super::assemble::{TensorSection, assemble, cut_slab};
use super::chunk::ChunkInput;
use super::job::JobContext;
use super::pool::{Pool, Priority};
use super::read::{ReadResources, read_rows};
use super::round::{RoundOutput, finish_round};
use super::slab::SlabPool;
use super::stages::run_chunk;
use super::trace::{Lap, QueuedRows};
use crate::cache::Caches;

/// A finished piece of a split.
#[derive(Debug)]
pub(crate) struct FinishedPiece {
    pub(crate) header: PieceHeader,
    pub(crate) data: Bytes,
    /// From when it was finished until it is handed to its consumer.
    pub(super) _waiting: Option<QueuedRows>,
}

/// What became of a group.
pub(crate) enum GroupOutput {
    /// A piece of the split.
    Piece(FinishedPiece),
    /// The whole round that the split is a part of: what each stream gets.
    Round(RoundOutput),
}

/// What a group needs from its worker.
#[derive(Clone)]
pub(crate) struct WorkerResources {
    pub(crate) pool: Arc<Pool>,
    pub(crate) slabs: Arc<SlabPool>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) reading: Arc<ReadResources>,
    /// Bytes of buffers that groups in flight were admitted for and have not taken yet.
    pub(crate) planned_bytes: Arc<AtomicU64>,
    /// Bytes of decoded images that chunks hold from operator to operator.
    pub(crate) image_bytes: Arc<AtomicU64>,
    /// Bytes of memory that processes of functions share with the worker.
    pub(crate) function_bytes: Arc<AtomicU64>,
}

/// A group's way among others.
#[derive(Debug, Clone)]
pub(crate) struct TaskContext {
    pub(crate) priority: Priority,
    pub(crate) steps: SplitProgress,
}

/// Counts how far the groups of a split have come: reads, and operators on chunks.
#[derive(Debug, Clone, Default)]
pub(crate) struct SplitProgress(Arc<AtomicU64>);

impl SplitProgress {
    pub(crate) fn step(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bytes that count among all of their kind, until it is dropped.
pub(crate) struct MemoryReservation {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl MemoryReservation {
    pub(crate) fn new(bytes: u64, all: &Arc<AtomicU64>) -> Self {
        all.fetch_add(bytes, Ordering::Relaxed);
        Self { bytes, all: Arc::clone(all) }
    }

    /// It is for so many bytes from now on.
    pub(crate) fn set(&mut self, bytes: u64) {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        self.all.fetch_sub(std::mem::replace(&mut self.bytes, bytes), Ordering::Relaxed);
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Computes the rows `offsets` of a split. `planned` is its claim on a buffer that it has not taken yet.
///
/// # Errors
/// One sentence: under `on_error: fail` the first row that failed, or what kept the whole group from being read.
pub(crate) async fn run_group(
    job: Arc<JobContext>,
    tools: WorkerResources,
    course: TaskContext,
    (split, offsets): (SplitRef, Range<u32>),
    planned: MemoryReservation,
) -> Result<GroupOutput, String> {
    let layout = &job.details.layout;
    // Where it is to begin does not change what is in a round's steps.
    let offsets = if layout.coordinated { 0..layout.split_len(split) } else { offsets };
    let start = layout.split_range(split).start;
    let places = start + u64::from(offsets.start)..start + u64::from(offsets.end);
    let rows: Arc<Vec<RowRef>> = Arc::new(job.rows(split.epoch, places));
    let found = match &job.cut {
        Some(cut) => cut.find(&tools.caches, &rows).await,
        None => Vec::new(),
    };
    let is_read = |place: &usize| found.get(*place).is_none_or(Option::is_none);
    let read: Vec<usize> = (0..rows.len()).filter(is_read).collect();
    let wanted: Vec<RowRef> = read.iter().map(|&place| rows[place]).collect();
    let encoded =
        read_rows(&job, &tools.reading, &course, &wanted).await.map_err(|error| error.to_string())?;
    let mut failed: BTreeMap<usize, (Option<u64>, String)> = BTreeMap::new();
    for (number, offset, reason) in encoded.failures {
        failed.insert(read[number], (Some(offset), reason));
    }
    check_failures(&job, &rows, &failed)?;
    // A round's buffers are made when it is known what is in its steps.
    let mut parts = job.coordination.is_none().then(|| cut_slab(&job, &tools.slabs, rows.len()));
    let planned = parts.is_none().then_some(planned);
    let batches = Arc::new(encoded.batches);
    let places = Arc::new(read.into_iter().zip(encoded.places).collect::<Vec<_>>());
    let found = Arc::new(found);
    let failed = Arc::new(failed);
    let mut chunks = Vec::new();
    for start in (0..rows.len()).step_by(job.chunk_rows) {
        let range = start..(start + job.chunk_rows).min(rows.len());
        let slots = match &mut parts {
            Some((sections, ..)) => cut_slots(&job, sections, range.len()),
            None => OutputBuffers::new(),
        };
        let share = encoded.bytes * (range.len() as u64) / (rows.len() as u64).max(1);
        let input = ChunkInput {
            bytes: share,
            rows: Arc::clone(&rows),
            batches: Arc::clone(&batches),
            places: Arc::clone(&places),
            found: Arc::clone(&found),
            failed: Arc::clone(&failed),
            range,
        };
        chunks.push(run_chunk(Arc::clone(&job), tools.clone(), course.clone(), input, slots));
    }
    drop((batches, places, found));
    let mut chunks = try_join_all(chunks).await?;
    job.pace.note(rows.len(), chunks.iter().map(|work| work.took).sum());
    let _turn = job.limits.batch.acquire(course.priority).await;
    let id = job.details.job;
    let work = {
        let (job, rows, slabs) = (Arc::clone(&job), Arc::clone(&rows), Arc::clone(&tools.slabs));
        move || {
            let mut lap = Lap::begin(job.is_traced());
            chunks.iter_mut().for_each(|work| work.waiting = None);
            let bytes = chunks.iter().map(|work| work.bytes).sum();
            let result = match parts {
                Some(parts) => assemble(&job, &rows, &failed, offsets, chunks, parts).map(GroupOutput::Piece),
                None => finish_round(&job, &slabs, &rows, &failed, chunks).map(GroupOutput::Round),
            };
            drop(planned);
            job.batch_counters.add_bytes(bytes, result.as_ref().map_or(0, GroupOutput::bytes));
            lap.to(&job.batch_counters);
            result
        }
    };
    tools.pool.run(id, course.priority, work).await.map_err(|panic| panic.to_string())?
}

impl GroupOutput {
    /// Bytes of its buffers.
    fn bytes(&self) -> u64 {
        match self {
            Self::Piece(piece) => piece.data.len() as u64,
            Self::Round(streams) => streams.iter().flatten().map(|piece| piece.data.len() as u64).sum(),
        }
    }
}

/// Gives a chunk its part of each column of the finished buffer.
fn cut_slots(job: &JobContext, sections: &mut [TensorSection], rows: usize) -> OutputBuffers {
    let mut slots = OutputBuffers::new();
    for (tensor, section) in job.tensors.iter().zip(sections) {
        if let Some((operator, column)) = &tensor.writer {
            slots.put(*operator, column, section.rest.split_to(tensor.row_bytes * rows));
        }
    }
    slots
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
