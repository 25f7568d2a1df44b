//! Sampled graphs: samples the neighbors of the seeds of a group, and builds one record from the sampled graph and the rows of its
//! features.

mod encode;
mod gathered_seeds;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use feedline_data::graph::SampledGraph;
use feedline_data::pipeline::GraphBatchSize;
use feedline_operators::OutputBuffers;
use feedline_proto::services::PieceHeader;
use tokio::time::interval;

use self::encode::{EncodedGraph, GraphEncoder, encode_empty};
use self::gathered_seeds::GatheredSeeds;
use super::batches::{Assembly, AwaitingBatch, BatchAssembler, GroupRows};
use super::chunk::WorkChunk;
use super::failures::{GroupFailures, collect_failures};
use super::graph_job::counters::GraphStageTimes;
use super::graph_job::{GraphJob, SamplerBuffers};
use super::job::JobContext;
use super::loaded_graph::{FetchedRows, MissingRows};
use super::memory_budget::{MemoryBudget, MemoryReservation};
use super::piece::{FinishedPiece, StreamPieces};
use super::piece_features::PieceFeatures;
use super::progress::SplitProgress;
use super::slab::SlabPool;
use super::trace::QueuedRows;

/// Interval between progress reports while rows of features are read.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Builds the batch of a group. Its buffer is allocated only after sampling, when its size is known.
pub(super) struct GraphAssembler {
    /// Memory that admission reserved for the buffer.
    pub(super) buffer_reservation: MemoryReservation,
    pub(super) budget: Arc<MemoryBudget>,
}

impl BatchAssembler for GraphAssembler {
    fn chunk_buffers(&mut self, _job: &JobContext, _rows: usize) -> OutputBuffers {
        OutputBuffers::new()
    }

    fn assemble(self: Box<Self>, group: &GroupRows, chunks: Vec<WorkChunk>) -> Result<Assembly, String> {
        let compiled = &group.job.compiled;
        let Some(graph) = &compiled.graph else {
            return Err("the job samples no graph; please report this".to_owned());
        };
        let mut failed = collect_failures(&chunks, &group.read_failures);
        group.named().check(compiled.on_error(), &failed)?;
        let mut seeds = GatheredSeeds::gather(graph, &chunks)?;
        drop(chunks);
        seeds.remove_invalid(graph, &mut failed)?;
        group.named().check(compiled.on_error(), &failed)?;
        let Self { buffer_reservation, budget } = *self;
        let limit_bytes = budget.bytes_beside_graphs();
        let sampled = sample(group, graph, &seeds, &budget, limit_bytes)?;
        let mut batch = SampledBatch {
            graph: Arc::clone(graph),
            seeds,
            failed,
            missing: sampled.as_ref().map(|buffers| graph.missing_rows(&buffers.sampled)).unwrap_or_default(),
            sampled,
            limit_bytes,
            fetched: None,
            buffer_reservation,
            budget,
        };
        if batch.missing.is_empty() {
            return batch.encode(group).map(Assembly::Finished);
        }
        if let Some(buffers) = &mut batch.sampled {
            graph.release_sampler(buffers, &batch.budget);
        }
        Ok(Assembly::AwaitsRows(Box::new(batch)))
    }
}

/// A sampled graph that is not encoded yet.
struct SampledBatch {
    graph: Arc<GraphJob>,
    seeds: GatheredSeeds,
    failed: GroupFailures,
    /// `None` if no row remains.
    sampled: Option<SamplerBuffers>,
    /// Maximum size of the batch.
    limit_bytes: u64,
    /// The rows of features that are not in memory.
    missing: MissingRows,
    /// These rows, after they were read.
    fetched: Option<Arc<FetchedRows>>,
    buffer_reservation: MemoryReservation,
    budget: Arc<MemoryBudget>,
}

#[async_trait]
impl AwaitingBatch for SampledBatch {
    async fn fetch(&mut self, progress: &SplitProgress) -> Result<(), String> {
        let mut rows = self.graph.graph.fetch(std::mem::take(&mut self.missing));
        let mut ticks = interval(PROGRESS_INTERVAL);
        loop {
            tokio::select! {
                fetched = &mut rows => {
                    self.fetched = Some(fetched?);
                    return Ok(());
                }
                _ = ticks.tick() => progress.increment(),
            }
        }
    }

    fn finish(self: Box<Self>, group: &GroupRows) -> Result<Vec<StreamPieces>, String> {
        self.encode(group)
    }
}

impl SampledBatch {
    /// Encodes the batch.
    ///
    /// # Errors
    /// Returns a message if the batch is too large, or rows are missing.
    fn encode(self, group: &GroupRows) -> Result<Vec<StreamPieces>, String> {
        let (job, compiled) = (&group.job, &group.job.compiled);
        let encoded = match self.sampled {
            Some(buffers) => {
                let encoder = GraphEncoder {
                    graph: &self.graph,
                    sampled: &buffers.sampled,
                    seeds: &self.seeds,
                    fetched: self.fetched.as_deref(),
                    limit_bytes: self.limit_bytes,
                };
                let encoded = encode(&encoder, buffers.times, &group.slabs);
                self.graph.release(buffers, &self.budget);
                encoded?
            }
            None => encode_empty(&self.graph.schema, &group.slabs)?,
        };
        drop(self.fetched);
        let (seeds, failed) = (self.seeds, self.failed);
        let count = seeds.len();
        let EncodedGraph { batch, buffer, reservation, columns, .. } = encoded;
        job.record_batch_bytes(batch.total_bytes);
        job.counters.batch.add_rows(group.rows.len(), count);
        let kept = seeds.indexes.iter().map(|index| group.offsets.start + *index as u32);
        let header = PieceHeader {
            start: group.offsets.start,
            end: group.offsets.end,
            rows: count as u32,
            kept_offsets: job.layout().changes_rows.then(|| kept.collect()),
            row_ids: compiled.details.audit.then(|| group.row_ids()),
            skipped: group.named().describe_all(&failed),
            newest_ms: group.newest_ms,
            indivisible: true,
            omitted_rows: None,
            batch,
        };
        let bytes = header.batch.total_bytes as usize;
        let buffer = SlabPool::finish(buffer, reservation);
        let data = buffer.slice(..bytes);
        let features = PieceFeatures::new(buffer, columns, &group.slabs);
        drop(self.buffer_reservation);
        let queued = QueuedRows::begin(&job.counters.batch, None, data.len() as u64);
        let piece = Arc::new(FinishedPiece { header, data, features, _queued: queued });
        Ok(vec![StreamPieces { stream: group.split.stream, pieces: vec![piece] }])
    }
}

/// Samples the graph. Returns `None` if there are no seeds.
fn sample(
    group: &GroupRows,
    graph: &GraphJob,
    seeds: &GatheredSeeds,
    budget: &MemoryBudget,
    limit_bytes: u64,
) -> Result<Option<SamplerBuffers>, String> {
    if seeds.indexes.is_empty() {
        return Ok(None);
    }
    let first = group.job.layout().split_range(group.split).start + u64::from(group.offsets.start);
    let input = seeds.input(&graph.plan, group.split.epoch, first);
    graph.forecast.start(&graph.graph, &graph.plan, budget, || seeds.nodes());
    graph.sample(&input.as_seeds(), budget, limit_bytes).map(Some)
}

/// Encodes a sampled graph, and counts it. `times` are those of sampling.
fn encode(
    encoder: &GraphEncoder<'_>,
    times: GraphStageTimes,
    slabs: &Arc<SlabPool>,
) -> Result<EncodedGraph, String> {
    let started = Instant::now();
    let encoded = encoder.encode(slabs)?;
    let gather = encoded.gather;
    let encode = started.elapsed().saturating_sub(gather);
    let size = size_of_batch(encoder.seeds.len(), encoder.sampled, encoded.batch.total_bytes);
    encoder.graph.counters.add(size, GraphStageTimes { gather, encode, ..times });
    Ok(encoded)
}

fn size_of_batch(seeds: usize, sampled: &SampledGraph, bytes: u64) -> GraphBatchSize {
    GraphBatchSize {
        seeds: seeds as u64,
        nodes: sampled.nodes.iter().map(|nodes| nodes.ids.len() as u64).sum(),
        edges: sampled.edges.iter().map(|edges| edges.sources.len() as u64).sum(),
        bytes,
    }
}
