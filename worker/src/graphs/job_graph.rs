//! The graph of one job: its topology, and the features that its batches contain.

use std::sync::Arc;

use feedline_data::graph::RelationView;
use feedline_data::graph::description::GraphHash;
use feedline_data::schema::ScalarType;
use feedline_graph::{LoadedTopology, StoredRows};
use futures::future::BoxFuture;

use super::job_features::{JobFeature, JobFeatures};
use super::part::{LoadedPart, PartData, PartSource};
use super::part_table::PartUse;
use super::partitioned_feature::PartitionedFeature;
use super::row_window::{RowMemory, RowWindows};
use crate::engine::{FeatureRef, FetchedRows, GatherableFeature, LoadedGraph, MissingRows};

/// The graph of one job. It keeps its parts in memory, even if another graph replaces this one at its URL.
#[derive(Debug)]
pub(super) struct JobGraph {
    // Fields are dropped in this order: the use ends after the parts are released.
    topology: Arc<PartData<LoadedTopology>>,
    /// The features, and the reads of their rows that are not in memory.
    rows: Arc<RowWindows>,
    _part_use: PartUse,
}

impl JobGraph {
    /// Combines the parts and the partitioned features of a job, each with its place in the summary of the graph.
    pub(super) fn new(
        parts: impl IntoIterator<Item = (PartSource, LoadedPart)>,
        partitioned: Vec<(PartSource, Arc<PartitionedFeature>)>,
        part_use: PartUse,
        memory: RowMemory,
        window_batches: usize,
    ) -> Result<Self, String> {
        let (mut topology, mut features) = (None, JobFeatures::new());
        for (place, part) in parts {
            match (place, part) {
                (PartSource::Topology, LoadedPart::Topology(data)) => topology = Some(data),
                (PartSource::NodeFeature { node_type, feature }, LoadedPart::Feature(data)) => {
                    features.insert(FeatureRef::Node { node_type, feature }, JobFeature::Held(data));
                }
                (PartSource::EdgeFeature { relation, feature }, LoadedPart::Feature(data)) => {
                    features.insert(FeatureRef::Edge { relation, feature }, JobFeature::Held(data));
                }
                _ => return Err("a part of the graph has the wrong kind; please report this".to_owned()),
            }
        }
        for (place, data) in partitioned {
            if let PartSource::NodeFeature { node_type, feature } = place {
                features.insert(FeatureRef::Node { node_type, feature }, JobFeature::Partitioned(data));
            }
        }
        let topology = topology.ok_or("the graph has no topology; please report this")?;
        let rows = RowWindows::new(features, memory, window_batches);
        Ok(Self { topology, rows, _part_use: part_use })
    }

    fn missing_rows<I: Copy + Into<u64>>(&self, feature: FeatureRef, indexes: &[I]) -> Vec<u64> {
        // A feature that is not loaded is an error when its rows are copied.
        self.rows.feature(feature).map(|feature| feature.missing_rows(indexes)).unwrap_or_default()
    }

    fn copy_rows<I: Copy + Into<u64>>(
        &self,
        feature: FeatureRef,
        dtype: ScalarType,
        indexes: &[I],
        fetched: Option<&FetchedRows>,
        out: &mut [u8],
    ) -> Result<(), String> {
        let cold = fetched.and_then(|fetched| fetched.features.get(&feature));
        self.rows.feature(feature)?.loaded().copy_rows(dtype, indexes, cold, out)
    }
}

impl LoadedGraph for JobGraph {
    fn node_counts(&self) -> &[u32] {
        self.topology.content.node_counts()
    }

    fn relation_views(&self) -> Vec<RelationView<'_>> {
        self.topology.content.relation_views()
    }

    fn positions(&self, node_type: usize) -> Option<&[u32]> {
        self.topology.content.positions(node_type)
    }

    fn edge_ids(&self, relation: usize) -> Option<&[u64]> {
        self.topology.content.edge_ids(relation)
    }

    fn missing_node_rows(&self, node_type: usize, feature: usize, ids: &[u32]) -> Vec<u64> {
        self.missing_rows(FeatureRef::Node { node_type, feature }, ids)
    }

    fn missing_edge_rows(&self, relation: usize, feature: usize, positions: &[u64]) -> Vec<u64> {
        self.missing_rows(FeatureRef::Edge { relation, feature }, positions)
    }

    fn fetch(&self, missing: MissingRows) -> BoxFuture<'static, Result<Arc<FetchedRows>, String>> {
        self.rows.fetch(missing)
    }

    fn copy_node_rows(
        &self,
        node_type: usize,
        feature: usize,
        dtype: ScalarType,
        ids: &[u32],
        fetched: Option<&FetchedRows>,
        out: &mut [u8],
    ) -> Result<(), String> {
        self.copy_rows(FeatureRef::Node { node_type, feature }, dtype, ids, fetched, out)
    }

    fn stored_rows(&self, node_type: usize, feature: usize, rows: u32) -> Option<StoredRows> {
        let feature = self.rows.feature(FeatureRef::Node { node_type, feature }).ok()?;
        Some(feature.loaded().stored_rows(rows))
    }

    fn copy_edge_rows(
        &self,
        relation: usize,
        feature: usize,
        dtype: ScalarType,
        positions: &[u64],
        fetched: Option<&FetchedRows>,
        out: &mut [u8],
    ) -> Result<(), String> {
        self.copy_rows(FeatureRef::Edge { relation, feature }, dtype, positions, fetched, out)
    }

    fn gatherable(&self, content: GraphHash) -> Option<Arc<dyn GatherableFeature>> {
        self.rows.features().find_map(|feature| match feature {
            JobFeature::Partitioned(feature) if feature.content() == content => {
                Some(Arc::clone(feature) as Arc<dyn GatherableFeature>)
            }
            _ => None,
        })
    }
}
