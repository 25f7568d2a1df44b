//! Stored graphs: builds the folder of a graph, checks it, and loads its topology and features.
//!
//! `docs/graph-folder.md` defines the folder. The crate reads no flags and no environment. A build reads and writes local
//! files; a graph is loaded from any store.

mod block_hasher;
mod build;
mod check;
mod cold_file;
mod cold_rows;
mod copied_blocks;
mod error;
mod features;
mod folder;
mod hashed_file;
mod import;
mod npy;
mod stored_feature;
mod topology;

pub use self::build::{
    BuildSettings, ColumnName, ColumnRef, DEFAULT_NODE_TYPE, DEFAULT_RELATION, FeatureSpec, FilterValue,
    GraphSpec, LinkSeedSpec, NodeRank, NodeRanking, NodeSpec, OneOrMore, OrderSpec, RankedBatches,
    RelationSpec, SeedNodeColumn, SeedSpec, VipSpec, build_graph,
};
pub use self::check::{CheckedGraph, check_graph};
pub use self::cold_rows::ColdRows;
pub use self::copied_blocks::CopiedBlocks;
pub use self::error::GraphError;
pub use self::features::{LoadedFeature, RowCounts, StoredRows};
pub use self::folder::{GraphAccess, GraphFolder, LOAD_BUFFER_BYTES};
pub use self::import::{GraphBoltMetadata, METADATA_FILE, graphbolt_spec, ogb_spec};
pub use self::stored_feature::StoredFeature;
pub use self::topology::{LoadedTopology, topology_bytes};
pub use feedline_sources::Stores;
