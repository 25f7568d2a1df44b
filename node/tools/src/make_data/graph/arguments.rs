//! The flags of generated graphs.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use super::feature_type::{FeatureDtype, FeatureFileFormat};

/// Default number of nodes.
const DEFAULT_NODES: u64 = 1_000_000;
/// Default number of edges per node.
const DEFAULT_EDGES_PER_NODE: u64 = 10;
/// Default number of communities, and of those that contain the seeds.
const DEFAULT_COMMUNITIES: u32 = 64;
const DEFAULT_SEEDS_IN: u32 = 6;
/// Default number of nodes per seed, in graphs without communities.
const DEFAULT_NODES_PER_SEED: u64 = 10;
/// Maximum number of nodes. Feedline stores ids of nodes in 32 bits.
const MAX_NODES: u64 = u32::MAX as u64;
/// Maximum number of edges.
const MAX_EDGES: u64 = 1_000_000_000_000;

/// The structure of a generated graph.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::make_data) enum GraphStructure {
    /// Communities with power-law degrees of exponent 2.2; nine of ten edges are inside a community.
    #[default]
    Communities,
    /// The R-MAT model with the parameters of Graph500.
    #[value(name = "rmat")]
    RMat,
    /// Edges between random nodes.
    Uniform,
}

/// The flags of graphs. All have defaults.
#[derive(Args, Debug, Clone, Default, PartialEq)]
#[command(next_help_heading = "Graphs")]
pub(in crate::make_data) struct GeneratedGraphArgs {
    /// Structure of the graph [default: communities]
    #[arg(long, value_name = "KIND")]
    topology: Option<GraphStructure>,
    /// Number of nodes, such as 1e6 [default: 1e6]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    nodes: Option<u64>,
    /// Number of edges, such as 1e7 [default: 10 per node]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    edges: Option<u64>,
    /// Number of communities [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    communities: Option<u32>,
    /// Number of communities that contain the seeds [default: 6]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seeds_in: Option<u32>,
    /// Number of seeds [default: all nodes of --seeds-in communities, or a tenth of the nodes of other graphs]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    seeds: Option<u64>,
    /// Number of features of each node [default: no features]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    features: Option<u32>,
    /// Number of features of each edge [default: no features]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    edge_features: Option<u32>,
    /// Type of features [default: float16]
    #[arg(long, value_name = "TYPE")]
    feature_type: Option<FeatureDtype>,
    /// Format of features [default: npy]
    #[arg(long, value_name = "FORMAT")]
    feature_format: Option<FeatureFileFormat>,
    /// Add a weight above 0 and up to 1 to each edge
    #[arg(long)]
    weights: bool,
    /// Add a time in seconds to each edge and each seed
    #[arg(long)]
    times: bool,
}

/// The checked flags of a graph.
#[derive(Debug, Clone)]
pub(super) struct GeneratedGraphSettings {
    pub(super) topology: GraphStructure,
    pub(super) nodes: u64,
    pub(super) edges: u64,
    pub(super) communities: u32,
    pub(super) seeds_in: u32,
    /// `None` for all nodes that can be seeds.
    pub(super) seeds: Option<u64>,
    pub(super) features: u32,
    pub(super) edge_features: u32,
    pub(super) feature_type: FeatureDtype,
    pub(super) feature_format: FeatureFileFormat,
    pub(super) has_weights: bool,
    pub(super) has_times: bool,
}

impl GeneratedGraphArgs {
    /// Checks the flags, and replaces missing ones by their defaults.
    pub(super) fn settings(&self) -> Result<GeneratedGraphSettings> {
        let topology = self.topology.unwrap_or_default();
        let has_communities = topology == GraphStructure::Communities;
        ensure!(
            has_communities || (self.communities.is_none() && self.seeds_in.is_none()),
            "--communities and --seeds-in apply to --topology communities only: remove them"
        );
        let nodes = self.nodes.unwrap_or(DEFAULT_NODES);
        ensure!(nodes <= MAX_NODES, "a graph has at most {MAX_NODES} nodes: lower --nodes");
        let edges = self.edges.unwrap_or(nodes * DEFAULT_EDGES_PER_NODE);
        ensure!(edges <= MAX_EDGES, "a graph has at most {MAX_EDGES} edges: lower --edges");
        let communities = self.communities.unwrap_or(DEFAULT_COMMUNITIES.min(nodes as u32));
        ensure!(
            u64::from(communities) <= nodes,
            "cannot divide {nodes} nodes into {communities} communities: lower --communities"
        );
        let seeds_in = self.seeds_in.unwrap_or(DEFAULT_SEEDS_IN.min(communities));
        ensure!(
            seeds_in <= communities,
            "--seeds-in is {seeds_in}, but there are {communities} communities: lower --seeds-in"
        );
        let has_features = self.features.is_some() || self.edge_features.is_some();
        ensure!(
            has_features || (self.feature_type.is_none() && self.feature_format.is_none()),
            "--feature-type and --feature-format need features: add --features or --edge-features"
        );
        let seeds = match self.seeds {
            None if !has_communities => Some((nodes / DEFAULT_NODES_PER_SEED).max(1)),
            seeds => seeds,
        };
        Ok(GeneratedGraphSettings {
            topology,
            nodes,
            edges,
            communities,
            seeds_in,
            seeds,
            features: self.features.unwrap_or(0),
            edge_features: self.edge_features.unwrap_or(0),
            feature_type: self.feature_type.unwrap_or_default(),
            feature_format: self.feature_format.unwrap_or_default(),
            has_weights: self.weights,
            has_times: self.times,
        })
    }
}

/// Parses a number such as `1000000` or `1e6`.
fn parse_count(text: &str) -> Result<u64, String> {
    let invalid = || format!("invalid number `{text}`: expected a positive integer, such as 1000000 or 1e6");
    if let Ok(number) = text.parse::<u64>() {
        return if number > 0 { Ok(number) } else { Err(invalid()) };
    }
    let number: f64 = text.parse().map_err(|_| invalid())?;
    let is_count = (1.0..=1e15).contains(&number) && number.fract() == 0.0;
    if is_count { Ok(number as u64) } else { Err(invalid()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_an_exponent_or_not() {
        assert_eq!(
            ["7", "1e7", "2.5e6", "3E2"].map(parse_count),
            [Ok(7), Ok(10_000_000), Ok(2_500_000), Ok(300)]
        );
        for text in ["0", "-1", "1.5", "1e-3", "1e30", "nan", "", "many"] {
            assert!(
                parse_count(text).unwrap_err().starts_with(&format!("invalid number `{text}`")),
                "{text}"
            );
        }
    }
}
