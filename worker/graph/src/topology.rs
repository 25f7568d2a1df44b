//! The topology of a graph in memory, or mapped from a disk: it is read completely, and its hashes and its order are checked.

use std::path::Path;

use arrow::buffer::{Buffer, ScalarBuffer};
use feedline_data::graph::RelationView;
use feedline_data::graph::description::{ArrayLayout, DescribedFile, GraphRelation, StoredFile};
use feedline_data::schema::ScalarType;

use crate::error::GraphError;
use crate::folder::GraphFolder;

/// The topology of a graph in memory. All arrays are valid: a sampler finds no errors.
#[derive(Debug, Clone)]
pub struct LoadedTopology {
    node_counts: Vec<u32>,
    relations: Vec<LoadedRelation>,
    positions: Vec<Option<ScalarBuffer<u32>>>,
}

/// The edges of a relation in memory.
#[derive(Debug, Clone)]
struct LoadedRelation {
    source_type: u16,
    target_type: u16,
    offsets: ScalarBuffer<u64>,
    sources: ScalarBuffer<u32>,
    weights: Option<ScalarBuffer<u32>>,
    times: Option<ScalarBuffer<i64>>,
    edge_ids: Option<ScalarBuffer<u64>>,
}

impl LoadedTopology {
    /// Reads the topology of a graph. `limit_bytes` is the memory that it may use.
    ///
    /// # Errors
    /// Returns an error if the topology is larger than the limit, a file is damaged, or the store fails.
    pub async fn load(folder: &GraphFolder, limit_bytes: u64) -> Result<Self, GraphError> {
        let needed = topology_bytes(folder);
        if needed > limit_bytes {
            let reason = format!(
                "the topology needs {needed} bytes of memory, but only {limit_bytes} bytes are allowed: allow more memory"
            );
            return Err(GraphError::file(folder.url(), reason));
        }
        Self::load_arrays(folder, None).await
    }

    /// Copies the topology of a graph to the disk of a directory, and maps the copy to memory, for topologies that are larger than the
    /// memory. The copy has no name, and its space is free again when the topology is dropped.
    ///
    /// # Errors
    /// Returns an error if a file is damaged, the disk is full, or the store fails.
    pub async fn load_mapped(folder: &GraphFolder, directory: &Path) -> Result<Self, GraphError> {
        Self::load_arrays(folder, Some(directory)).await
    }

    /// Reads all arrays to memory, or maps copies of them in a directory.
    async fn load_arrays(folder: &GraphFolder, mapped: Option<&Path>) -> Result<Self, GraphError> {
        let description = folder.description();
        let mut loaded = Self {
            node_counts: description.nodes.iter().map(|node_type| node_type.count).collect(),
            relations: Vec::new(),
            positions: Vec::new(),
        };
        for node_type in &description.nodes {
            let layout = ArrayLayout::flat(ScalarType::UInt32, u64::from(node_type.count));
            let positions = load_optional(folder, node_type.positions.as_ref(), &layout, mapped).await?;
            loaded.positions.push(positions.map(ScalarBuffer::from));
        }
        for relation in &description.relations {
            let relation = loaded.load_relation(folder, relation, mapped).await?;
            loaded.relations.push(relation);
        }
        Ok(loaded)
    }

    async fn load_relation(
        &self,
        folder: &GraphFolder,
        relation: &GraphRelation,
        mapped: Option<&Path>,
    ) -> Result<LoadedRelation, GraphError> {
        let description = folder.description();
        let index = |name: &str| description.node_type(name).map_or(0, |(index, _)| index);
        let (source, target) = (index(&relation.source), index(&relation.target));
        let layout = |dtype: ScalarType| ArrayLayout::flat(dtype, relation.edges);
        let offsets = ArrayLayout::flat(ScalarType::UInt64, u64::from(self.node_counts[target]) + 1);
        let weights =
            load_optional(folder, relation.weights.as_ref(), &layout(ScalarType::UInt32), mapped).await?;
        let times =
            load_optional(folder, relation.times.as_ref(), &layout(ScalarType::Int64), mapped).await?;
        let edge_ids =
            load_optional(folder, relation.edge_ids.as_ref(), &layout(ScalarType::UInt64), mapped).await?;
        let loaded = LoadedRelation {
            // The check of the description limits the number of node types.
            source_type: source as u16,
            target_type: target as u16,
            offsets: load_array(folder, &relation.offsets, &offsets, mapped).await?.into(),
            sources: load_array(folder, &relation.sources, &layout(ScalarType::UInt32), mapped).await?.into(),
            weights: weights.map(ScalarBuffer::from),
            times: times.map(ScalarBuffer::from),
            edge_ids: edge_ids.map(ScalarBuffer::from),
        };
        self.check(loaded).await.map_err(|message| {
            let reason =
                format!("the relation `{}` is invalid: {message}; build the graph again", relation.key());
            GraphError::file(folder.url(), reason)
        })
    }

    /// Checks all edges of a relation on a thread for blocking calls, because this takes seconds for a billion edges.
    async fn check(&self, loaded: LoadedRelation) -> Result<LoadedRelation, String> {
        let node_counts = self.node_counts.clone();
        let check = move || {
            loaded.view().check(&node_counts)?;
            Ok(loaded)
        };
        tokio::task::spawn_blocking(check).await.map_err(|error| error.to_string())?
    }

    /// The number of nodes of each type.
    pub fn node_counts(&self) -> &[u32] {
        &self.node_counts
    }

    /// Returns the relations as slices, in the order of the description.
    pub fn relation_views(&self) -> Vec<RelationView<'_>> {
        self.relations.iter().map(LoadedRelation::view).collect()
    }

    /// Returns the position of each node of a type in the user's order. `None` if nodes are stored in the user's order.
    pub fn positions(&self, node_type: usize) -> Option<&[u32]> {
        self.positions.get(node_type)?.as_deref()
    }

    /// Returns the position of each edge of a relation in the user's edge list. `None` if the graph does not contain them.
    pub fn edge_ids(&self, relation: usize) -> Option<&[u64]> {
        self.relations.get(relation)?.edge_ids.as_deref()
    }
}

impl LoadedRelation {
    fn view(&self) -> RelationView<'_> {
        RelationView {
            source_type: self.source_type,
            target_type: self.target_type,
            offsets: &self.offsets,
            sources: &self.sources,
            weights: self.weights.as_deref(),
            times: self.times.as_deref(),
        }
    }
}

/// Returns the memory that the topology of a graph needs.
pub fn topology_bytes(folder: &GraphFolder) -> u64 {
    let description = folder.description();
    let positions = description.nodes.iter().filter_map(|node_type| node_type.positions.as_ref());
    let relations = description.relations.iter().flat_map(|relation| {
        let optional = [&relation.weights, &relation.times, &relation.edge_ids];
        [&relation.offsets, &relation.sources].into_iter().chain(optional.into_iter().flatten())
    });
    positions.chain(relations).map(|file| file.bytes).fold(0, u64::saturating_add)
}

async fn load_array(
    folder: &GraphFolder,
    file: &StoredFile,
    layout: &ArrayLayout,
    mapped: Option<&Path>,
) -> Result<Buffer, GraphError> {
    let described = DescribedFile { file, array: Some(layout.clone()) };
    let file = folder.open_file(&described).await?;
    match mapped {
        Some(directory) => file.load_mapped(directory).await,
        None => file.load().await,
    }
}

async fn load_optional(
    folder: &GraphFolder,
    file: Option<&StoredFile>,
    layout: &ArrayLayout,
    mapped: Option<&Path>,
) -> Result<Option<Buffer>, GraphError> {
    match file {
        Some(file) => load_array(folder, file, layout, mapped).await.map(Some),
        None => Ok(None),
    }
}
