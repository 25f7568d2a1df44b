//! The sampling of a job: the plan of its batches, its graph, and samplers that are reused from batch to batch.

pub(super) mod counters;
mod forecast;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use feedline_data::graph::description::GraphHash;
use feedline_data::graph::{
    BatchSeeds, GraphSummary, GraphView, NeighborSampler, RelationView, SampleError, SampledGraph,
    SamplingSettings,
};
use feedline_data::memory::MemoryAccount;
use feedline_data::messages::{GraphStats, JobDetails};
use feedline_data::pipeline::{GraphBatchPlan, GraphColumnContent, Pipeline};
use feedline_graph::StoredRows;
use feedline_proto::batch::graph_schema;
use feedline_sources::Stores;

use self::counters::{GraphCounters, GraphStageTimes, SamplingClock};
use self::forecast::BatchForecast;
use super::loaded_graph::{FeatureRef, LoadedGraph, MissingRows, sampled_relations};
use super::memory_budget::{MemoryBudget, MemoryReservation};
use super::settings::EngineSettings;

/// Memory of an edge while a batch is built: four bytes in the batch, and up to twice as many in the sampled graph, whose arrays
/// double their size when they grow.
const EDGE_BYTES: u64 = 12;
/// Memory of the position of an edge while a batch is built.
const EDGE_POSITION_BYTES: u64 = 24;

/// The sampling of a job on one worker.
pub(crate) struct GraphJob {
    pub(super) plan: GraphBatchPlan,
    pub(super) graph: Arc<dyn LoadedGraph>,
    /// The columns of batches.
    pub(super) schema: SchemaRef,
    /// The expected size of a batch in bytes.
    pub(super) expected_bytes: u64,
    pub(super) forecast: BatchForecast,
    pub(super) counters: GraphCounters,
    /// The size of the graph and of the features in batches.
    graph_bytes: u64,
    /// How long it took to load the graph.
    load_time: Duration,
    /// Samplers that no thread uses. There are at most as many as threads, because a batch that waits for rows has released its
    /// sampler.
    idle: Mutex<Vec<SamplerBuffers>>,
}

/// A sampler with the memory of its last sampled graph.
pub(super) struct SamplerBuffers {
    /// `None` if the sampler was released before the sampled graph.
    sampler: Option<NeighborSampler>,
    pub(super) sampled: SampledGraph,
    /// The times of the stages of the last sampled graph.
    pub(super) times: GraphStageTimes,
    reservation: MemoryReservation,
}

impl GraphJob {
    /// Loads the graph of a job. Returns `None` if the pipeline samples no graph. Keeps the graph of the `previous` compilation.
    ///
    /// # Errors
    /// Returns a message if the worker does not sample graphs, the graph cannot be loaded, or it differs from its summary.
    pub(super) async fn load(
        pipeline: &Pipeline,
        details: &JobDetails,
        settings: &EngineSettings,
        stores: &Arc<Stores>,
        previous: Option<&Arc<Self>>,
    ) -> Result<Option<Arc<Self>>, String> {
        let (Some(plan), Some(summary)) = (pipeline.graph_batches(&details.dataset)?, &details.dataset.graph)
        else {
            return Ok(None);
        };
        if let Some(previous) = previous.filter(|previous| previous.plan == plan) {
            return Ok(Some(Arc::clone(previous)));
        }
        let Some(loader) = &settings.graphs else {
            return Err("this worker holds no graphs; please report this".to_owned());
        };
        let started = Instant::now();
        let graph = loader.load(details, &plan, stores).await?;
        let load_time = started.elapsed();
        check_graph(graph.as_ref(), summary)?;
        check_edge_ids(graph.as_ref(), &plan, summary)?;
        Ok(Some(Arc::new(Self {
            schema: graph_schema(&plan),
            expected_bytes: plan.expected_bytes(pipeline.batch_size(), summary),
            forecast: BatchForecast::new(),
            counters: GraphCounters::default(),
            graph_bytes: plan.loaded_bytes(summary),
            load_time,
            plan,
            graph,
            idle: Mutex::default(),
        })))
    }

    /// Samples the neighbors of seeds. Everything that the batch needs fits in `limit_bytes`, without features. The caller returns
    /// the buffers with [`release`](Self::release).
    ///
    /// # Errors
    /// Returns a message if a seed or the graph is invalid, or the batch would be too large.
    pub(super) fn sample(
        &self,
        seeds: &BatchSeeds<'_>,
        budget: &MemoryBudget,
        limit_bytes: u64,
    ) -> Result<SamplerBuffers, String> {
        let max_edges = max_edges(&self.plan.settings, limit_bytes);
        let idle = self.lock().pop();
        let has_limit = |buffers: &SamplerBuffers| {
            buffers.sampler.as_ref().is_some_and(|sampler| sampler.settings().max_edges == max_edges)
        };
        let mut buffers = match idle {
            // The limit changes when graphs are loaded or evicted.
            Some(buffers) if has_limit(&buffers) => buffers,
            _ => SamplerBuffers::new(&self.plan.settings, budget, max_edges)?,
        };
        let Some(sampler) = &mut buffers.sampler else {
            return Err("a sampler is missing; please report this".to_owned());
        };
        let relations = sampled_relations(self.graph.as_ref(), &self.plan);
        let view = GraphView { node_counts: self.graph.node_counts(), relations: &relations };
        let mut clock = SamplingClock::start();
        let sampled = sampler.sample_measured(&view, seeds, &mut buffers.sampled, &mut clock);
        buffers.times = clock.finish();
        buffers.update_reservation();
        match sampled {
            Ok(()) => Ok(buffers),
            Err(SampleError::EdgeLimit { limit, .. }) if limit < self.plan.settings.max_edges => {
                // The buffers may be as large as the limit, so they are not kept.
                let needed = format!("more than {} MiB", limit_bytes >> 20);
                Err(too_large_batch(seeds.rows.len(), &needed, limit_bytes))
            }
            Err(error) => {
                self.release(buffers, budget);
                Err(error.to_string())
            }
        }
    }

    /// Returns the rows of features that a sampled graph needs, and that are not in memory.
    pub(super) fn missing_rows(&self, sampled: &SampledGraph) -> MissingRows {
        let missing = self.plan.columns.iter().filter_map(|column| match column.content {
            GraphColumnContent::NodeFeature { node_type, feature } => {
                let ids = &sampled.nodes.get(node_type)?.ids;
                let rows = self.graph.missing_node_rows(node_type, feature, ids);
                Some((FeatureRef::Node { node_type, feature }, rows))
            }
            GraphColumnContent::EdgeFeature { relation, feature } => {
                let positions = &sampled.edges.get(relation)?.positions;
                let rows = self.graph.missing_edge_rows(relation, feature, positions);
                Some((FeatureRef::Edge { relation, feature }, rows))
            }
            _ => None,
        });
        missing.filter(|(_, rows)| !rows.is_empty()).collect()
    }

    /// Returns the statistics for the coordinator.
    pub(super) fn stats(&self) -> GraphStats {
        GraphStats {
            graph_bytes: self.graph_bytes,
            load_ns: self.load_time.as_nanos() as u64,
            expected: self.forecast.expected(),
            ..self.counters.snapshot()
        }
    }

    /// Returns the first rows of the node feature with this hash as they are stored, or those of them that are in memory. `None` if
    /// batches do not contain the feature.
    pub(crate) fn stored_rows(
        &self,
        summary: &GraphSummary,
        content: GraphHash,
        rows: u32,
    ) -> Option<StoredRows> {
        let mut features = self.plan.columns.iter().filter_map(|column| match column.content {
            GraphColumnContent::NodeFeature { node_type, feature } => Some((node_type, feature)),
            _ => None,
        });
        let (node_type, feature) = features.find(|(node_type, feature)| {
            let features = summary.nodes.get(*node_type).map(|nodes| nodes.features.as_slice());
            features.and_then(|features| features.get(*feature)).is_some_and(|found| found.content == content)
        })?;
        self.graph.stored_rows(node_type, feature, rows)
    }

    /// Releases a sampler, but not the graph that it sampled.
    pub(super) fn release_sampler(&self, buffers: &mut SamplerBuffers, budget: &MemoryBudget) {
        let mut released = SamplerBuffers {
            sampler: buffers.sampler.take(),
            sampled: SampledGraph::default(),
            times: GraphStageTimes::default(),
            reservation: budget.reserve(MemoryAccount::Samplers, 0),
        };
        released.update_reservation();
        buffers.update_reservation();
        self.release(released, budget);
    }

    /// Stores buffers for the next batch, unless all samplers of the worker together use too much memory.
    pub(super) fn release(&self, buffers: SamplerBuffers, budget: &MemoryBudget) {
        if buffers.sampler.is_none() {
            return;
        }
        if budget.used_bytes(MemoryAccount::Samplers) <= budget.limits().sampler_bytes() {
            self.lock().push(buffers);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SamplerBuffers>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SamplerBuffers {
    fn new(settings: &SamplingSettings, budget: &MemoryBudget, max_edges: u32) -> Result<Self, String> {
        let sampler = NeighborSampler::new(SamplingSettings { max_edges, ..settings.clone() })?;
        let reservation = budget.reserve(MemoryAccount::Samplers, 0);
        let (sampled, times) = (SampledGraph::default(), GraphStageTimes::default());
        Ok(Self { sampler: Some(sampler), sampled, times, reservation })
    }

    fn update_reservation(&mut self) {
        let sampler_bytes = self.sampler.as_ref().map_or(0, NeighborSampler::memory_bytes);
        let bytes = sampler_bytes + self.sampled.memory_bytes();
        self.reservation.resize(bytes as u64);
    }
}

/// The number of edges of a relation that fit in a number of bytes while a batch is built.
fn max_edges(settings: &SamplingSettings, limit_bytes: u64) -> u32 {
    let position_bytes = if settings.edge_positions { EDGE_POSITION_BYTES } else { 0 };
    let most_edges = u32::try_from(limit_bytes / (EDGE_BYTES + position_bytes)).unwrap_or(u32::MAX);
    settings.max_edges.min(most_edges)
}

/// Returns the message for a batch that does not fit in the memory of the worker. `needed` is its size, such as `90 MiB`.
pub(super) fn too_large_batch(seeds: usize, needed: &str, limit_bytes: u64) -> String {
    format!(
        "a batch of {seeds} seeds needs {needed}, but this worker has only {} MiB for batches; set smaller fanouts or a smaller size of \
         sample_neighbors, or raise the workers' --memory",
        limit_bytes >> 20
    )
}

/// Checks that a graph has the node types and relations of its summary.
fn check_graph(graph: &dyn LoadedGraph, summary: &GraphSummary) -> Result<(), String> {
    let counts = summary.nodes.iter().map(|node_type| node_type.count);
    let views = graph.relation_views();
    let is_same = |(index, view): (usize, &RelationView<'_>)| {
        let types = (usize::from(view.source_type), usize::from(view.target_type));
        let edges = summary.relations[index].edges;
        summary.node_types_of(index) == Some(types) && view.sources.len() as u64 == edges
    };
    if counts.eq(graph.node_counts().iter().copied())
        && views.len() == summary.relations.len()
        && views.iter().enumerate().all(is_same)
    {
        return Ok(());
    }
    Err("the graph changed after the dataset was indexed; start the job again, which indexes the graph again"
        .to_owned())
}

/// Checks that the graph has the positions in the user's edge list that batches contain.
fn check_edge_ids(
    graph: &dyn LoadedGraph,
    plan: &GraphBatchPlan,
    summary: &GraphSummary,
) -> Result<(), String> {
    let relations = plan.columns.iter().filter_map(|column| match column.content {
        GraphColumnContent::EdgeIds { relation } => Some(relation),
        _ => None,
    });
    for relation in relations {
        if graph.edge_ids(relation).is_none() {
            let key = summary.relations.get(relation).map(|relation| relation.key()).unwrap_or_default();
            return Err(format!(
                "the graph does not contain the positions of the edges of `{key}` in the user's edge list; build it with edge ids, or \
                 remove `edge_ids: true` of sample_neighbors"
            ));
        }
    }
    Ok(())
}
