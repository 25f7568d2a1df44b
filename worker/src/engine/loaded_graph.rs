//! The interfaces through which the engine obtains a graph and reads it: the topology as slices, and rows of features.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::graph::RelationView;
use feedline_data::graph::description::GraphHash;
use feedline_data::messages::{HeldGraph, JobDetails, ServiceError};
use feedline_data::pipeline::GraphBatchPlan;
use feedline_data::schema::ScalarType;
use feedline_graph::{ColdRows, StoredRows};
use feedline_sources::Stores;
use futures::future::{BoxFuture, FutureExt, ready};
use tokio::sync::OwnedSemaphorePermit;

use super::memory_budget::MemoryReservation;

/// A feature of a graph, by its indexes in the graph's summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FeatureRef {
    Node { node_type: usize, feature: usize },
    Edge { relation: usize, feature: usize },
}

/// The rows of features that batches need and that are not in memory. The indexes of each feature ascend without duplicates.
pub(crate) type MissingRows = BTreeMap<FeatureRef, Vec<u64>>;

/// Rows of features that were read for one or more batches. The last batch releases them.
#[derive(Debug)]
pub(crate) struct FetchedRows {
    pub(crate) features: BTreeMap<FeatureRef, ColdRows>,
    /// The memory of the rows in the budget.
    pub(crate) _reservation: MemoryReservation,
    /// The memory of the rows in the limit of all such rows.
    pub(crate) _permit: OwnedSemaphorePermit,
}

/// A graph that a worker holds. Node types, relations and features have the indexes of the graph's summary.
pub(crate) trait LoadedGraph: Debug + Send + Sync {
    /// The number of nodes of each type.
    fn node_counts(&self) -> &[u32];

    /// Returns the relations as slices.
    fn relation_views(&self) -> Vec<RelationView<'_>>;

    /// The position of each node of a type in the user's order. `None` if nodes are stored in the user's order.
    fn positions(&self, node_type: usize) -> Option<&[u32]>;

    /// The position of each edge of a relation in the user's edge list. `None` if the graph does not contain them.
    fn edge_ids(&self, relation: usize) -> Option<&[u64]>;

    /// Returns the rows of a feature of a node type that are not in memory, ascending and without duplicates.
    fn missing_node_rows(&self, _node_type: usize, _feature: usize, _ids: &[u32]) -> Vec<u64> {
        Vec::new()
    }

    /// Returns the rows of a feature of a relation that are not in memory, ascending and without duplicates.
    fn missing_edge_rows(&self, _relation: usize, _feature: usize, _positions: &[u64]) -> Vec<u64> {
        Vec::new()
    }

    /// Reads rows that are not in memory, together with those of other batches.
    fn fetch(&self, _missing: MissingRows) -> BoxFuture<'static, Result<Arc<FetchedRows>, String>> {
        ready(Err("all features are in memory; please report this".to_owned())).boxed()
    }

    /// Copies the rows of a feature of a node type to `out`, in the order of `ids`, and converts the numbers to `dtype`. `out` has exactly
    /// the size of these rows. `fetched` has the rows that are not in memory.
    ///
    /// # Errors
    /// Returns a message if the rows cannot be read.
    fn copy_node_rows(
        &self,
        node_type: usize,
        feature: usize,
        dtype: ScalarType,
        ids: &[u32],
        fetched: Option<&FetchedRows>,
        out: &mut [u8],
    ) -> Result<(), String>;

    /// Returns the first rows of a feature of a node type as they are stored, or those of them that are in memory. `None` if the graph
    /// does not have the feature.
    fn stored_rows(&self, _node_type: usize, _feature: usize, _rows: u32) -> Option<StoredRows> {
        None
    }

    /// Copies the rows of a feature of a relation to `out`, in the order of `positions`, as
    /// [`copy_node_rows`](Self::copy_node_rows) does.
    ///
    /// # Errors
    /// Returns a message if the rows cannot be read.
    fn copy_edge_rows(
        &self,
        relation: usize,
        feature: usize,
        dtype: ScalarType,
        positions: &[u64],
        fetched: Option<&FetchedRows>,
        out: &mut [u8],
    ) -> Result<(), String>;

    /// Returns the feature with this content hash if other workers may request its rows.
    fn gatherable(&self, _content: GraphHash) -> Option<Arc<dyn GatherableFeature>> {
        None
    }
}

/// A feature of which this worker holds some rows, which other workers request.
#[async_trait]
pub(crate) trait GatherableFeature: Debug + Send + Sync {
    /// The size of a stored row in bytes.
    fn row_bytes(&self) -> u32;

    /// Returns stored rows in the order of `rows`, without padding between them.
    ///
    /// # Errors
    /// Returns an error if a row does not exist or another worker holds it, or if it cannot be read.
    async fn held_rows(&self, rows: Vec<u32>) -> Result<Vec<u8>, ServiceError>;
}

/// Returns the relations that a plan samples: without weights if the plan does not use them.
pub(super) fn sampled_relations<'a>(
    graph: &'a dyn LoadedGraph,
    plan: &GraphBatchPlan,
) -> Vec<RelationView<'a>> {
    let mut relations = graph.relation_views();
    if !plan.weighted {
        relations.iter_mut().for_each(|relation| relation.weights = None);
    }
    relations
}

/// Provides the graphs that jobs sample.
#[async_trait]
pub(crate) trait GraphLoader: Debug + Send + Sync {
    /// Returns the graph of a job with the features of the plan. Loads it if the worker does not hold it.
    ///
    /// # Errors
    /// Returns a message if the graph cannot be loaded.
    async fn load(
        &self,
        details: &JobDetails,
        plan: &GraphBatchPlan,
        stores: &Arc<Stores>,
    ) -> Result<Arc<dyn LoadedGraph>, String>;

    /// Requests that memory of graphs that no job uses is released. Returns without waiting for the release.
    fn release_unused(&self);

    /// The graphs in memory.
    fn held(&self) -> Vec<HeldGraph>;
}
