//! Computes one group of rows: reads blocks, runs the operator stages on each chunk as soon as its rows have arrived,
//! and assembles the chunks into pieces.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use feedline_data::layout::SplitRef;
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::assemble::PieceAssembler;
use super::batches::{BatchAssembler, GroupRows};
use super::chunk::{ChunkInput, WorkChunk};
use super::encoded::{ChunkSchedule, EncodedRows, ReadyChunk};
use super::job::JobContext;
use super::memory_budget::MemoryReservation;
use super::piece::StreamPieces;
use super::read::{BlockReader, block_requests, read_blocks};
use super::round::RoundAssembler;
use super::stages::{ChunkTask, run_chunk};
use super::task::{TaskContext, WorkerResources};
use super::trace::LapTimer;

/// A group to compute, with the resources that it uses.
pub(super) struct GroupTask {
    pub(super) job: Arc<JobContext>,
    pub(super) resources: WorkerResources,
    pub(super) context: TaskContext,
    pub(super) split: SplitRef,
    /// Offsets in the split.
    pub(super) offsets: Range<u32>,
    /// Reserves the memory of the group's buffer until the buffer is allocated.
    pub(super) buffer_reservation: MemoryReservation,
}

/// Computes a group.
///
/// # Errors
/// Returns a message if the group cannot be read, or if a row fails under `on_error: fail`.
pub(super) async fn run_group(task: GroupTask) -> Result<Vec<StreamPieces>, String> {
    let GroupTask { job, resources, context, split, offsets, buffer_reservation } = task;
    // A round is always computed as a whole, because each step depends on all rows of the round.
    let layout = job.layout();
    let offsets = if layout.coordinated { 0..layout.split_len(split) } else { offsets };
    let start = layout.split_range(split).start;
    let indexes = start + u64::from(offsets.start)..start + u64::from(offsets.end);
    let rows = Arc::new(job.rows(split.epoch, indexes));
    let cached = match &job.compiled.cache_point {
        Some(cache_point) => cache_point.look_up(&resources.caches, &rows).await,
        None => Vec::new(),
    };
    let assembler: Box<dyn BatchAssembler> = if job.compiled.coordination.is_some() {
        Box::new(RoundAssembler { buffer_reservation })
    } else {
        let assembler = PieceAssembler::new(&job, &resources.slabs, rows.len());
        drop(buffer_reservation);
        Box::new(assembler)
    };
    let slabs = Arc::clone(&resources.slabs);
    let encoded = EncodedRows::new(rows.len(), &cached);
    let mut run = GroupRun {
        group: GroupRows { job, slabs, split, offsets, rows, read_failures: encoded.failures.clone() },
        resources,
        context,
        cached: Arc::new(cached),
        assembler,
    };
    let chunks = run.compute(encoded).await?;
    run.assemble(chunks).await
}

/// A group that is being computed.
struct GroupRun {
    group: GroupRows,
    resources: WorkerResources,
    context: TaskContext,
    /// The cached form of each row of the group. Empty if the job has no cache point.
    cached: Arc<Vec<Option<Bytes>>>,
    assembler: Box<dyn BatchAssembler>,
}

impl GroupRun {
    /// Reads the rows that are not cached, and runs all chunks. Returns the chunks in order.
    async fn compute(&mut self, mut encoded: EncodedRows) -> Result<Vec<WorkChunk>, String> {
        let job = Arc::clone(&self.group.job);
        let rows = Arc::clone(&self.group.rows);
        let reading = Arc::clone(&self.resources.reading);
        let context = self.context.clone();
        let reader = BlockReader {
            job: &job,
            resources: &reading,
            priority: context.priority,
            progress: &context.progress,
        };
        let requests = block_requests(&job, &rows, &encoded.awaited());
        let (started, mut reads_left, mut read_cpu) = (Instant::now(), requests.len(), Duration::ZERO);
        let reads = read_blocks(reader, requests);
        tokio::pin!(reads);
        let mut schedule = ChunkSchedule::new(rows.len());
        let mut running = FuturesUnordered::new();
        let mut finished: Vec<WorkChunk> = Vec::new();
        loop {
            schedule.plan(&job.pace, |rows| self.assembler.chunk_buffers(&job, rows));
            running.extend(schedule.take_ready(&encoded).into_iter().map(|chunk| self.start_chunk(chunk)));
            if schedule.is_complete() {
                encoded.release();
            }
            tokio::select! {
                biased;
                Some(block) = reads.next(), if reads_left > 0 => {
                    let block = block.map_err(|error| error.to_string())?;
                    reads_left -= 1;
                    read_cpu += block.cpu;
                    encoded.add(block);
                    if reads_left == 0 {
                        job.counters.source.add_latency(started.elapsed(), read_cpu);
                        self.group.named().check(job.compiled.on_error(), &encoded.failures)?;
                    }
                }
                Some(chunk) = running.next() => finished.push(chunk?),
                else => break,
            }
        }
        finished.sort_by_key(|work| work.start);
        self.group.read_failures = encoded.failures;
        Ok(finished)
    }

    /// Runs a chunk, and records how long it took.
    fn start_chunk(&self, chunk: ReadyChunk) -> impl Future<Output = Result<WorkChunk, String>> + use<> {
        let (rows, job) = (chunk.range.len(), Arc::clone(&self.group.job));
        let task = ChunkTask {
            job: Arc::clone(&job),
            resources: self.resources.clone(),
            context: self.context.clone(),
            buffers: chunk.buffers,
            input: ChunkInput {
                rows: Arc::clone(&self.group.rows),
                cached: Arc::clone(&self.cached),
                range: chunk.range,
                encoded: chunk.encoded,
            },
        };
        async move {
            let work = run_chunk(task).await?;
            job.pace.record_chunk(rows, work.took);
            Ok(work)
        }
    }

    async fn assemble(self, mut chunks: Vec<WorkChunk>) -> Result<Vec<StreamPieces>, String> {
        let Self { group, resources, context, assembler, .. } = self;
        let job = Arc::clone(&group.job);
        let _permit = job.limits.batch_permits.acquire(context.priority).await;
        let work = move || {
            let counters = &group.job.counters.batch;
            let mut lap = LapTimer::start(group.job.is_traced());
            chunks.iter_mut().for_each(|work| work.queued = None);
            let bytes = chunks.iter().map(|work| work.bytes).sum();
            let streams = assembler.assemble(&group, chunks);
            let pieces = streams.iter().flatten().flat_map(|stream| &stream.pieces);
            counters.add_bytes(bytes, pieces.map(|piece| piece.data.len() as u64).sum());
            lap.record(counters);
            streams
        };
        resources.pool.run(job.id(), context.priority, work).await.map_err(|panic| panic.to_string())?
    }
}
