//! Computes one group of rows: reads blocks, runs the operator stages on each chunk as soon as its rows have arrived,
//! and assembles the chunks into pieces.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use feedline_data::layout::SplitRef;
use feedline_data::pipeline::OnError;
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::assemble::PieceAssembler;
use super::batches::{Assembly, BatchAssembler, GroupRows};
use super::chunk::{ChunkInput, ChunkRows, WorkChunk};
use super::encoded::{ChunkSchedule, EncodedRows, ReadyChunk};
use super::failures::NamedRows;
use super::given_up::{GIVEN_UP_REASON, given_up_message, unread_row};
use super::graph_batches::GraphAssembler;
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
    /// Whether the rows are reported as failed, without being computed.
    pub(super) is_given_up: bool,
}

/// Computes a group.
///
/// # Errors
/// Returns a message if the group cannot be read, or if a row fails under `on_error: fail`.
pub(super) async fn run_group(task: GroupTask) -> Result<Vec<StreamPieces>, String> {
    let GroupTask { job, resources, context, split, offsets, buffer_reservation, is_given_up } = task;
    // A round is always computed as a whole, because each step depends on all rows of the round.
    let layout = job.layout();
    let offsets = if layout.coordinated { 0..layout.split_len(split) } else { offsets };
    let (rows, blocks) = job.rows(split, offsets.clone())?;
    if is_given_up && job.compiled.on_error() == OnError::Fail {
        return Err(given_up_message(&NamedRows { blocks: &blocks, rows: &rows }));
    }
    let rows = Arc::new(rows);
    let cached = match &job.compiled.cache_point {
        Some(cache_point) if !is_given_up => cache_point.look_up(&resources.caches, &rows).await,
        _ => Vec::new(),
    };
    let assembler: Box<dyn BatchAssembler> = if job.compiled.coordination.is_some() {
        Box::new(RoundAssembler { buffer_reservation })
    } else if job.compiled.graph.is_some() {
        Box::new(GraphAssembler { buffer_reservation, budget: Arc::clone(&resources.budget) })
    } else {
        let assembler = PieceAssembler::new(&job, &resources.slabs, rows.len());
        drop(buffer_reservation);
        Box::new(assembler)
    };
    let slabs = Arc::clone(&resources.slabs);
    let mut encoded = EncodedRows::new(rows.len(), &cached);
    if is_given_up {
        encoded.fail_all(unread_row(&job.compiled.read_schema), GIVEN_UP_REASON);
    }
    let mut run = GroupRun {
        group: GroupRows {
            job,
            slabs,
            split,
            offsets,
            rows,
            read_failures: encoded.failures.clone(),
            blocks,
            newest_ms: None,
        },
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
        let blocks = self.group.blocks.clone();
        let reader = BlockReader {
            job: &job,
            blocks: &blocks,
            resources: &reading,
            priority: context.priority,
            progress: &context.progress,
        };
        let requests = block_requests(&job, &blocks, &rows, &encoded.awaited());
        let (started, mut reads_left, mut read_cpu) = (Instant::now(), requests.len(), Duration::ZERO);
        let reads = read_blocks(reader, requests);
        tokio::pin!(reads);
        let mut schedule = ChunkSchedule::new(rows.len());
        let mut running = FuturesUnordered::new();
        let mut finished: Vec<WorkChunk> = Vec::new();
        if rows.is_empty() {
            // A group of padding has one chunk without rows, which has the columns of the output.
            let buffers = self.assembler.chunk_buffers(&job, 0);
            let encoded = ChunkRows::without_rows(&job.compiled.read_schema);
            running.push(self.start_chunk(ReadyChunk { range: 0..0, encoded, buffers }));
        }
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
        self.group.newest_ms = encoded.newest_ms;
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
        let permit = job.limits.batch_permits.acquire(context.priority).await;
        let work = move || {
            let counters = &group.job.counters.batch;
            let mut lap = LapTimer::start(group.job.is_traced());
            for work in &mut chunks {
                work.queued = None;
                work.convert_source_tensors(&group.job)?;
            }
            let bytes = chunks.iter().map(|work| work.bytes).sum();
            let assembly = assembler.assemble(&group, chunks);
            let size = assembly.as_ref().map_or(0, |assembly| match assembly {
                Assembly::Finished(streams) => data_bytes(streams),
                Assembly::AwaitsRows(_) => 0,
            });
            counters.add_bytes(bytes, size);
            lap.record(counters);
            assembly.map(|assembly| (group, assembly))
        };
        let ran = resources.pool.run(job.id(), context.priority, work).await;
        let (group, mut batch) = match ran.map_err(|panic| panic.to_string())?? {
            (_, Assembly::Finished(streams)) => return Ok(streams),
            (group, Assembly::AwaitsRows(batch)) => (group, batch),
        };
        // Other batches are sampled in the meantime.
        drop(permit);
        batch.fetch(&context.progress).await?;
        let _permit = job.limits.batch_permits.acquire(context.priority).await;
        let work = move || {
            let counters = &group.job.counters.batch;
            let mut lap = LapTimer::start(group.job.is_traced());
            let streams = batch.finish(&group);
            counters.add_bytes(0, streams.as_deref().map_or(0, data_bytes));
            lap.record(counters);
            streams
        };
        resources.pool.run(job.id(), context.priority, work).await.map_err(|panic| panic.to_string())?
    }
}

/// The size of the data of all pieces.
fn data_bytes(streams: &[StreamPieces]) -> u64 {
    streams.iter().flat_map(|stream| &stream.pieces).map(|piece| piece.data.len() as u64).sum()
}
