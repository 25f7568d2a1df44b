//! The expected size of the batches of a job. A thread computes it once, from the loaded graph and the seeds of the first batch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use feedline_data::graph::GraphView;
use feedline_data::memory::MemoryAccount;
use feedline_data::pipeline::{GraphBatchPlan, GraphBatchSize};
use feedline_planner::graph::forecast::{expected_batch, forecast_memory_bytes};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::engine::loaded_graph::{LoadedGraph, sampled_relations};
use crate::engine::memory_budget::MemoryBudget;

/// The forecast of a job.
#[derive(Debug)]
pub(in crate::engine) struct BatchForecast {
    runtime: Handle,
    is_started: AtomicBool,
    expected: Arc<OnceLock<GraphBatchSize>>,
    /// Ends the computation when the job is unloaded.
    stop: CancellationToken,
}

impl BatchForecast {
    /// Creates a forecast that is computed on a thread for blocking calls of the current runtime.
    pub(in crate::engine) fn new() -> Self {
        Self {
            runtime: Handle::current(),
            is_started: AtomicBool::new(false),
            expected: Arc::default(),
            stop: CancellationToken::new(),
        }
    }

    /// Starts the computation, unless it has been started or needs more memory than the samplers of the worker may keep. The
    /// expected size of the batches of such a graph follows from the fanouts. `seeds` returns the nodes of each seed column.
    pub(in crate::engine) fn start(
        &self,
        graph: &Arc<dyn LoadedGraph>,
        plan: &GraphBatchPlan,
        budget: &MemoryBudget,
        seeds: impl FnOnce() -> Vec<Vec<u32>>,
    ) {
        let memory_bytes = forecast_memory_bytes(graph.node_counts(), plan);
        let is_too_large = memory_bytes > budget.limits().sampler_bytes();
        if is_too_large || self.is_started.swap(true, Ordering::Relaxed) {
            return;
        }
        let reservation = budget.reserve(MemoryAccount::Samplers, memory_bytes);
        let (graph, plan, seeds) = (Arc::clone(graph), plan.clone(), seeds());
        let (expected, stop) = (Arc::clone(&self.expected), self.stop.clone());
        self.runtime.spawn_blocking(move || {
            match compute(graph.as_ref(), &plan, &seeds, &stop) {
                Ok(Some(size)) => {
                    expected.get_or_init(|| size);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!("cannot compute the expected size of a batch: {error}"),
            }
            drop(reservation);
        });
    }

    /// The expected size of a batch, if it is computed.
    pub(in crate::engine) fn expected(&self) -> Option<GraphBatchSize> {
        self.expected.get().copied()
    }
}

impl Drop for BatchForecast {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn compute(
    graph: &dyn LoadedGraph,
    plan: &GraphBatchPlan,
    seeds: &[Vec<u32>],
    stop: &CancellationToken,
) -> Result<Option<GraphBatchSize>, String> {
    let relations = sampled_relations(graph, plan);
    let view = GraphView { node_counts: graph.node_counts(), relations: &relations };
    expected_batch(&view, plan, seeds, &|| stop.is_cancelled())
}
