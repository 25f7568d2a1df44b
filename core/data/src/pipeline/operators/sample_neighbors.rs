//! `sample_neighbors`: samples the neighbors of a batch of seeds in a graph. A batch is one record: a sampled graph with the
//! features of its nodes and edges.

mod batch_plan;
mod columns;
mod expected_size;
mod fanouts;
mod features;
mod graph_column;
mod link_columns;
mod negatives;
mod row_columns;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use self::batch_plan::{ExcludedRelations, GraphBatchPlan};
pub use self::expected_size::{GraphBatchCounts, GraphBatchSize};
pub use self::fanouts::FanoutList;
pub use self::features::FeatureList;
pub use self::graph_column::{GraphColumn, GraphColumnContent};
pub use self::link_columns::labels_with_negatives;
pub use self::negatives::NegativeSampling;
use self::row_columns::{check_row_columns, lists_of_rows, seed_columns};
use super::{OperatorDefinition, OperatorKind, OperatorRole, Remainder};
use crate::graph::{GraphLayout, Resample, TemporalStrategy};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::limits::check_url;
use crate::pipeline::parameter_checks::{
    MAX_BATCH_ROWS, check_column, check_column_name_length, check_count, check_given, check_range,
    first_duplicate,
};
use crate::schema::{MAX_COLUMNS, Schema};

/// Parameters of `sample_neighbors`. The input has a row for each seed: the id of a node in the column `node`, or of two nodes in
/// the columns `source` and `target`. The other columns become lists with one value per seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleNeighbors {
    /// The number of seeds in a batch.
    pub size: u32,
    /// The number of neighbors that are sampled for each node: one number per hop, or a mapping from relations, such as
    /// `author__writes__paper`, to such lists. -1 samples all neighbors. Relations that are not in the mapping are not sampled.
    pub fanouts: FanoutList,
    /// The features of the nodes in a batch: a list of names, or a mapping from names to types. `TYPE.NAME` selects the feature of
    /// one node type.
    #[serde(default, skip_serializing_if = "FeatureList::is_empty")]
    pub features: FeatureList,
    /// The features of the edges in a batch. `RELATION.NAME` selects the feature of one relation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edge_features: Vec<String>,
    /// The nodes that each hop expands: the nodes that the previous hop added, as in PyG, or all nodes, as in DGL.
    #[serde(default)]
    pub layout: GraphLayout,
    /// Which edges between the nodes of a batch it contains: the sampled edges, or also their reverse, without duplicates.
    #[serde(default)]
    pub subgraph: SubgraphEdges,
    /// What happens to the seeds of an epoch that do not fill a batch.
    #[serde(default)]
    pub remainder: Remainder,
    /// Path or URL of the folder of the graph. By default the folder of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<String>,
    /// The node type of the seeds, or the relation of the links. By default that of the seed set, or the only one of the graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed_type: Option<String>,
    /// Whether a neighbor may be sampled several times for a node.
    #[serde(default)]
    pub replace: bool,
    /// Whether each seed has its own tree, which shares no nodes with other trees.
    #[serde(default)]
    pub disjoint: bool,
    /// Whether the probability of a neighbor is proportional to the weight of its edge.
    #[serde(default)]
    pub weighted: bool,
    /// Samples only edges that are not later than the seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<SeedTime>,
    /// When the neighbors of a node are drawn again.
    #[serde(default)]
    pub resample: Resample,
    /// Which edges between the nodes of a link are left out of the sample.
    #[serde(default)]
    pub exclude_seed_edges: ExcludedSeedEdges,
    /// The pairs of nodes that are drawn for each link, which a model is trained to distinguish from links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negatives: Option<NegativeSampling>,
    /// Whether a batch contains the position of each edge in the user's edge list.
    #[serde(default)]
    pub edge_ids: bool,
    /// Where the features of nodes are in memory: all of them on each worker of the job, or a part of them on each worker.
    #[serde(default, skip_serializing_if = "PlacementMode::is_default")]
    pub placement: PlacementMode,
}

/// Where the features of nodes are in memory. It does not affect the batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlacementMode {
    /// Each worker holds all features of the job.
    #[default]
    Replicate,
    /// Each worker holds some rows of each feature, and requests other rows from other workers.
    Partition,
}

impl PlacementMode {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The time of a seed, and the edges that temporal sampling selects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedTime {
    /// The column with the time of each seed, an integer with the unit of the edge times.
    pub column: String,
    /// The edges that are selected from those that are not later than the seed.
    #[serde(default)]
    pub strategy: TemporalStrategy,
    /// The length of the time window that ends at the time of the seed, in the unit of the edge times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
}

/// Which edges between the nodes of a batch it contains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubgraphEdges {
    /// The sampled edges.
    #[default]
    Sampled,
    /// Also the reverse of each sampled edge. Duplicates are merged.
    Bidirectional,
}

/// Which edges between the nodes of a link are left out of the sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExcludedSeedEdges {
    /// No edges.
    #[default]
    None,
    /// The edges from the source to the target of each link of the batch.
    Seeds,
    /// Also the edges from the target to the source.
    Both,
}

impl OperatorDefinition for SampleNeighbors {
    fn check(&self) -> Result<(), String> {
        check_range("size", self.size, 1, MAX_BATCH_ROWS)?;
        self.fanouts.check()?;
        self.features.check()?;
        check_count("edge_features", self.edge_features.len(), MAX_COLUMNS, "remove some")?;
        for name in &self.edge_features {
            check_column("edge_features", name)?;
        }
        if let Some(twice) = first_duplicate(&self.edge_features) {
            return Err(format!("edge_features lists `{twice}` twice; remove one entry"));
        }
        if let Some(graph) = &self.graph {
            check_url(graph).map_err(|sentence| format!("graph: {sentence}"))?;
            check_given("graph", graph, "the path or URL of a graph's folder")?;
        }
        if let Some(name) = &self.seed_type {
            check_given("seed_type", name, "the name of a node type or relation")?;
            check_column_name_length("seed_type", name)?;
        }
        if self.remainder == Remainder::Carry {
            return Err(
                "remainder is carry, but a sampled graph cannot be divided between epochs; use emit or drop"
                    .to_owned(),
            );
        }
        if self.is_bidirectional() && self.layout == GraphLayout::Blocks {
            return Err(
                "subgraph is bidirectional, but the edges of blocks lead only to the targets of a hop; use `layout: subgraph`, or remove subgraph"
                    .to_owned(),
            );
        }
        if let Some(negatives) = &self.negatives {
            negatives.check(self.size)?;
        }
        if self.placement == PlacementMode::Partition && self.features.is_empty() {
            return Err(
                "placement is partition, but the batches contain no features of nodes; add features, or remove placement"
                    .to_owned(),
            );
        }
        let Some(time) = &self.time else { return Ok(()) };
        check_column("time.column", &time.column)?;
        if time.window == Some(0) {
            return Err(
                "time.window is 0, which contains no edges; write its length, or remove window".to_owned()
            );
        }
        if !self.disjoint {
            return Err(
                "time requires disjoint trees, because each seed has its own time; set `disjoint: true`"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Infers the columns that do not depend on the graph: the columns of the rows, as lists. [`GraphBatchPlan`] has all columns.
    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        check_row_columns(input, self.link_parameter(), self.time_column())?;
        lists_of_rows(input)
    }

    fn summary(&self) -> String {
        let mut parts = vec![format!("{} seeds, fanouts {}", self.size, self.fanouts)];
        if !self.features.is_empty() {
            parts.push(format!("features {}", self.features));
        }
        if !self.edge_features.is_empty() {
            parts.push(format!("edge features {}", self.edge_features.join(", ")));
        }
        if self.layout == GraphLayout::Blocks {
            parts.push("blocks".to_owned());
        }
        if self.is_bidirectional() {
            parts.push("bidirectional".to_owned());
        }
        let flags = [
            (self.replace, "with replacement"),
            (self.disjoint, "disjoint"),
            (self.weighted, "weighted"),
            (self.edge_ids, "edge ids"),
            (self.placement == PlacementMode::Partition, "partitioned features"),
        ];
        parts.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, text)| (*text).to_owned()));
        if let Some(SeedTime { column, strategy, window }) = &self.time {
            let strategy = match strategy {
                TemporalStrategy::Uniform => "",
                TemporalStrategy::Last => ", latest edges",
            };
            let window = window.map(|window| format!(" in a window of {window}")).unwrap_or_default();
            parts.push(format!("edges until {column}{window}{strategy}"));
        }
        match self.resample {
            Resample::Batch => {}
            Resample::Epoch => parts.push("drawn once per epoch".to_owned()),
            Resample::Never => parts.push("drawn once".to_owned()),
        }
        match self.exclude_seed_edges {
            ExcludedSeedEdges::None => {}
            ExcludedSeedEdges::Seeds => parts.push("without seed edges".to_owned()),
            ExcludedSeedEdges::Both => parts.push("without seed edges and their reverse".to_owned()),
        }
        parts.extend(self.negatives.as_ref().map(ToString::to_string));
        if self.remainder == Remainder::Drop {
            parts.push("remainder drop".to_owned());
        }
        if let Some(graph) = &self.graph {
            parts.push(format!("graph {graph}"));
        }
        parts.join(", ")
    }

    fn require_inputs(&self, input: &Schema, required: &mut BTreeSet<String>) {
        required.extend(seed_columns(input).iter().map(|name| (*name).to_owned()));
        required.extend(self.time.iter().map(|time| time.column.clone()));
    }

    fn role(&self) -> OperatorRole {
        OperatorRole::IndivisibleBatch
    }

    fn is_random(&self) -> bool {
        true
    }

    fn graph(&self) -> Option<&str> {
        self.graph.as_deref()
    }
}

impl SampleNeighbors {
    /// Whether the reverse of each sampled edge is added.
    fn is_bidirectional(&self) -> bool {
        self.subgraph == SubgraphEdges::Bidirectional
    }

    /// The name of a parameter that applies only to links.
    fn link_parameter(&self) -> Option<&'static str> {
        match (self.exclude_seed_edges, &self.negatives) {
            (ExcludedSeedEdges::None, None) => None,
            (ExcludedSeedEdges::None, Some(_)) => Some("negatives"),
            _ => Some("exclude_seed_edges"),
        }
    }

    /// The column with the times of the seeds.
    fn time_column(&self) -> Option<&str> {
        self.time.as_ref().map(|time| time.column.as_str())
    }

    /// Parameters with the defaults of pipeline files.
    pub fn new(size: u32, fanouts: &[i64]) -> Self {
        Self {
            size,
            fanouts: FanoutList::AllRelations(fanouts.to_vec()),
            features: FeatureList::default(),
            edge_features: Vec::new(),
            layout: GraphLayout::default(),
            subgraph: SubgraphEdges::default(),
            remainder: Remainder::default(),
            graph: None,
            seed_type: None,
            replace: false,
            disjoint: false,
            weighted: false,
            time: None,
            resample: Resample::default(),
            exclude_seed_edges: ExcludedSeedEdges::default(),
            negatives: None,
            edge_ids: false,
            placement: PlacementMode::default(),
        }
    }
}

impl PipelineBuilder {
    /// Samples the neighbors of batches of seeds; the last operator. `fanouts` has a number of neighbors for each hop.
    pub fn sample_neighbors(self, size: u32, fanouts: &[i64], features: &[&str]) -> Self {
        let features = features.iter().map(|&name| name.to_owned()).collect();
        self.operator(OperatorKind::SampleNeighbors(SampleNeighbors {
            features: FeatureList::Names(features),
            ..SampleNeighbors::new(size, fanouts)
        }))
    }
}
