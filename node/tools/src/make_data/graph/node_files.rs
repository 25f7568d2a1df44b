//! Writes the labels, seeds and features of nodes.

use std::ops::Range;

use anyhow::Result;
use feedline_data::random::mix64;

use super::super::output::Output;
use super::features::{GeneratedFeatures, noise};
use super::generated::{GeneratedGraph, RandomPurpose};
use super::npy_array::NpyArrayWriter;
use super::parallel::for_each_block;

/// Nodes of a block, which one thread computes.
const BLOCK_NODES: u64 = 1 << 14;
/// Blocks in memory at a time.
const CHUNK_BLOCKS: usize = 64;

/// Writes the label of each node: its community, or a random class.
pub(super) fn write_labels(graph: &GeneratedGraph, output: &mut Output) -> Result<()> {
    let mut file = NpyArrayWriter::create(output, "y.npy", "<i8", &[graph.nodes()])?;
    let labels = |nodes: Range<u64>| -> Vec<u8> {
        nodes.flat_map(|node| (graph.label(node) as i64).to_le_bytes()).collect()
    };
    for_each_block(graph.nodes(), BLOCK_NODES, CHUNK_BLOCKS, labels, |bytes| file.append(&bytes))
}

/// Writes the ids of the seeds in ascending order, and their times.
pub(super) fn write_seeds(graph: &GeneratedGraph, output: &mut Output) -> Result<()> {
    let shape = [graph.seeds()];
    let mut ids = NpyArrayWriter::create(output, "train.npy", "<i8", &shape)?;
    let has_times = graph.settings.has_times;
    let mut times =
        has_times.then(|| NpyArrayWriter::create(output, "train_time.npy", "<i8", &shape)).transpose()?;
    let seeds = |nodes: Range<u64>| -> Vec<u64> { nodes.filter(|node| graph.is_seed(*node)).collect() };
    for_each_block(graph.nodes(), BLOCK_NODES, CHUNK_BLOCKS, seeds, |seeds| {
        let bytes: Vec<u8> = seeds.iter().flat_map(|node| (*node as i64).to_le_bytes()).collect();
        ids.append(&bytes)?;
        if let Some(times) = &mut times {
            let bytes: Vec<u8> = seeds.iter().flat_map(|node| graph.seed_time(*node).to_le_bytes()).collect();
            times.append(&bytes)?;
        }
        Ok(())
    })
}

/// Writes the features of the nodes. Nodes of one label have similar features.
pub(super) fn write_node_features(graph: &GeneratedGraph, output: &mut Output) -> Result<()> {
    let settings = &graph.settings;
    if settings.features == 0 {
        return Ok(());
    }
    let table = GeneratedFeatures {
        name: "x",
        rows: settings.nodes,
        columns: settings.features,
        feature_type: settings.feature_type,
        format: settings.feature_format,
    };
    let columns = u64::from(settings.features);
    let key = mix64(RandomPurpose::Centroids as u64);
    table.write(output, |node, values| {
        let first = graph.label(node) * columns;
        let mut random = graph.random(RandomPurpose::NodeFeatures, node);
        values.extend((0..columns).map(|column| {
            let centroid = (mix64(key ^ (first + column)) >> 40) as f32 / (1 << 23) as f32 - 1.0;
            0.5 * centroid + noise(&mut random)
        }));
    })
}
