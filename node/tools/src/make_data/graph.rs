//! Generates graphs: edges, and optionally weights, times and features, with labels and seeds.
//!
//! The files have the names and columns that `feedline graph build` reads: `edges.parquet` with the columns `src`, `dst`,
//! `weight` and `time`, or `edges.npy`, `weight.npy` and `time.npy`; the features `x` and `edge_x`; the labels `y.npy`; the
//! seeds `train.npy` and their times `train_time.npy`. Each edge and each node is a function of the seed and its index.

mod arguments;
mod communities;
mod edge_files;
mod feature_type;
mod features;
mod generated;
mod node_files;
mod npy_array;
mod parallel;
mod parquet_settings;
mod rmat;
mod shape;
#[cfg(test)]
mod tests;
mod uniform;

use anyhow::Result;

pub(super) use self::arguments::GeneratedGraphArgs;
pub(super) use self::generated::GeneratedGraph;
use super::format::FileFormat;
use super::output::Output;

/// The names of all files, which `--force` replaces.
pub(super) const FILE_NAMES: [&str; 11] = [
    "edges.parquet",
    "edges.npy",
    "weight.npy",
    "time.npy",
    "edge_x.npy",
    "edge_x.parquet",
    "x.npy",
    "x.parquet",
    "y.npy",
    "train.npy",
    "train_time.npy",
];

/// Writes all files of a graph. `format` is the format of the edges.
pub(super) fn write(graph: &GeneratedGraph, format: FileFormat, output: &mut Output) -> Result<()> {
    edge_files::write_edges(graph, format, output)?;
    edge_files::write_edge_features(graph, output)?;
    node_files::write_labels(graph, output)?;
    node_files::write_seeds(graph, output)?;
    node_files::write_node_features(graph, output)
}
