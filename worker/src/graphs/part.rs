//! The parts of a graph that are loaded and evicted separately: the topology and each feature.

use std::sync::Arc;

use feedline_data::graph::description::{ExpectedHitRate, GraphFeature, GraphHash};
use feedline_graph::{
    GraphError, GraphFolder, LOAD_BUFFER_BYTES, LoadedFeature, LoadedTopology, RowCounts, topology_bytes,
};

use super::block_disk::OpenDisk;
use super::hot_rows::FeatureSize;
use crate::engine::MemoryReservation;

/// Identifies the contents of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PartKey {
    Topology(GraphHash),
    Feature(GraphHash),
}

/// A part that a job needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartRequest {
    pub(super) key: PartKey,
    /// The size in memory.
    pub(super) bytes: u64,
    pub(super) source: PartSource,
    /// The rows of a feature. `None` for a topology.
    pub(super) rows: Option<RequestedRows>,
}

/// The rows of a feature that a job needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestedRows {
    pub(super) size: FeatureSize,
    /// The number of rows in memory, from the first.
    pub(super) hot: u64,
    /// The size of the file.
    pub(super) file_bytes: u64,
    /// Whether rows that are not in memory can be read.
    pub(super) can_be_cold: bool,
}

/// Where a part is in the description of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartSource {
    Topology,
    NodeFeature { node_type: usize, feature: usize },
    EdgeFeature { relation: usize, feature: usize },
}

/// A part in memory.
#[derive(Debug, Clone)]
pub(super) enum LoadedPart {
    Topology(Arc<PartData<LoadedTopology>>),
    Feature(Arc<PartData<LoadedFeature>>),
}

/// The contents of a part, and their memory in the budget of the worker.
#[derive(Debug)]
pub(super) struct PartData<T> {
    pub(super) content: T,
    _reservation: MemoryReservation,
}

impl PartRequest {
    pub(super) fn topology(folder: &GraphFolder, fingerprint: GraphHash) -> Self {
        let key = PartKey::Topology(fingerprint);
        Self { key, bytes: topology_bytes(folder), source: PartSource::Topology, rows: None }
    }

    /// Requests a feature with `rows` rows, all in memory. `curve` is the expected hit rate of its first rows.
    pub(super) fn feature(
        feature: &GraphFeature,
        source: PartSource,
        (rows, curve): (u64, &[ExpectedHitRate]),
        can_be_cold: bool,
    ) -> Self {
        let elements = feature.shape.iter().map(|&extent| u64::from(extent)).fold(1, u64::saturating_mul);
        let row_bytes = elements.saturating_mul(feature.dtype.width_bytes() as u64);
        let size = FeatureSize { rows, row_bytes, curve: curve.to_vec() };
        let bytes = feature.file.bytes;
        let rows = RequestedRows { size, hot: rows, file_bytes: bytes, can_be_cold };
        Self { key: PartKey::Feature(feature.content_hash()), bytes, source, rows: Some(rows) }
    }

    /// Whether the part is a feature whose rows need not all be in memory.
    pub(super) fn can_be_cold(&self) -> bool {
        self.rows.as_ref().is_some_and(|rows| rows.can_be_cold)
    }

    /// Whether the part is a feature whose rows are not all in memory.
    pub(super) fn is_partial(&self) -> bool {
        self.rows.as_ref().is_some_and(|rows| rows.hot < rows.size.rows)
    }

    /// Whether the part is a topology that is mapped from a disk. It counts as no memory.
    pub(super) fn is_mapped(&self) -> bool {
        self.rows.is_none() && self.bytes == 0
    }

    /// Gives the part the size of an equal part in memory.
    pub(super) fn adopt(&mut self, bytes: u64, hot_rows: u64) {
        match self.rows {
            Some(_) => self.set_hot_rows(hot_rows),
            None => self.bytes = bytes,
        }
    }

    /// The memory that the part needs while it is being loaded.
    pub(super) fn loading_bytes(&self) -> u64 {
        let file_bytes = match &self.rows {
            Some(rows) => rows.file_bytes,
            None if self.is_mapped() => LOAD_BUFFER_BYTES,
            None => self.bytes,
        };
        self.bytes.saturating_add(file_bytes.min(LOAD_BUFFER_BYTES))
    }

    /// Holds only the first rows of the feature in memory.
    pub(super) fn set_hot_rows(&mut self, hot: u64) {
        if let Some(rows) = self.rows.as_mut().filter(|rows| hot < rows.size.rows) {
            rows.hot = hot;
            self.bytes = rows.size.bytes_of(hot);
        }
    }

    /// Loads the part. `reservation` becomes part of the result.
    pub(super) async fn load(
        &self,
        folder: &GraphFolder,
        disk: Option<&OpenDisk>,
        mut reservation: MemoryReservation,
    ) -> Result<LoadedPart, GraphError> {
        let part = match &self.rows {
            None => {
                let content = match disk {
                    Some(disk) if self.is_mapped() => {
                        LoadedTopology::load_mapped(folder, &disk.folder).await?
                    }
                    _ => LoadedTopology::load(folder, self.bytes).await?,
                };
                reservation.resize(self.bytes);
                LoadedPart::Topology(Arc::new(PartData { content, _reservation: reservation }))
            }
            Some(rows) => {
                let feature = self.source.feature(folder).ok_or_else(|| {
                    GraphError::Setting("the graph has no such feature; please report this".to_owned())
                })?;
                let rows = RowCounts { all: rows.size.rows, hot: rows.hot };
                let blocks = disk.map(|disk| &disk.blocks);
                let content = LoadedFeature::load(folder, feature, rows, blocks).await?;
                reservation.resize(self.bytes);
                LoadedPart::Feature(Arc::new(PartData { content, _reservation: reservation }))
            }
        };
        Ok(part)
    }
}

impl PartSource {
    /// Returns the description of a feature.
    fn feature(self, folder: &GraphFolder) -> Option<&GraphFeature> {
        let description = folder.description();
        match self {
            Self::Topology => None,
            Self::NodeFeature { node_type, feature } => {
                description.nodes.get(node_type)?.features.get(feature)
            }
            Self::EdgeFeature { relation, feature } => {
                description.relations.get(relation)?.features.get(feature)
            }
        }
    }
}

impl LoadedPart {
    /// Whether rows of the part could not be read.
    pub(super) fn has_failed(&self) -> bool {
        match self {
            Self::Topology(_) => false,
            Self::Feature(data) => data.content.has_failed(),
        }
    }

    /// Whether only this value refers to the part.
    pub(super) fn is_unshared(&self) -> bool {
        match self {
            Self::Topology(data) => Arc::strong_count(data) == 1,
            Self::Feature(data) => Arc::strong_count(data) == 1,
        }
    }
}
