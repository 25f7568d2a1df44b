//! Samples batches one node at a time, in the simplest form.

use std::collections::BTreeSet;

use feedline_data::graph::{Fanout, GraphLayout};
use feedline_data::random::RowRandom;

use super::super::sampling::ModeledSampling;
use super::random_graph::RandomGraph;

/// The measured contents of batches.
pub(super) struct MeasuredBatches {
    /// The number of batches that contain each node.
    pub(super) counts: Vec<f64>,
    /// The mean number of nodes of a batch.
    pub(super) nodes: f64,
    /// The mean number of edges of a batch.
    pub(super) edges: f64,
}

/// Samples batches of distinct seeds.
pub(super) fn measure(
    graph: &RandomGraph,
    seeds: &[u32],
    sampling: &ModeledSampling,
    batches: u32,
) -> MeasuredBatches {
    let mut random = RowRandom::new(9, 0, 0, 0);
    let mut measured =
        MeasuredBatches { counts: vec![0.0; graph.node_counts[0] as usize], nodes: 0.0, edges: 0.0 };
    for _ in 0..batches {
        let rows = pick_distinct(seeds.len() as u32, sampling.batch_rows, &mut random);
        let seeds: Vec<u32> = rows.into_iter().map(|row| seeds[row as usize]).collect();
        let samples: Vec<&[u32]> =
            if sampling.settings.disjoint { seeds.chunks(1).collect() } else { vec![seeds.as_slice()] };
        for seeds in samples {
            let (nodes, edges) = sample(graph, seeds, sampling, &mut random);
            nodes.iter().for_each(|node| measured.counts[*node as usize] += 1.0);
            measured.nodes += nodes.len() as f64 / f64::from(batches);
            measured.edges += edges as f64 / f64::from(batches);
        }
    }
    measured
}

/// Returns the nodes of a sample, and the number of its edges.
fn sample(
    graph: &RandomGraph,
    seeds: &[u32],
    sampling: &ModeledSampling,
    random: &mut RowRandom,
) -> (BTreeSet<u32>, usize) {
    let mut nodes: BTreeSet<u32> = seeds.iter().copied().collect();
    let (mut frontier, mut edges) = (nodes.clone(), 0);
    for fanouts in &sampling.settings.fanouts {
        let limit = match fanouts[0] {
            Fanout::All => u32::MAX,
            Fanout::Limit(limit) => limit,
        };
        let mut added = BTreeSet::new();
        for target in &frontier {
            let start = graph.offsets[*target as usize] as usize;
            let degree = graph.offsets[*target as usize + 1] as usize - start;
            let weights: Vec<u32> = (0..degree).map(|index| weight(graph, start, index)).collect();
            let drawn = draw(weights, limit, sampling.settings.replace, random);
            edges += drawn.len();
            added.extend(drawn.into_iter().map(|index| graph.sources[start + index]));
        }
        added.retain(|node| nodes.insert(*node));
        frontier = match sampling.settings.layout {
            GraphLayout::Subgraph => added,
            GraphLayout::Blocks => nodes.clone(),
        };
    }
    (nodes, edges)
}

fn weight(graph: &RandomGraph, start: usize, index: usize) -> u32 {
    let Some(sums) = &graph.weights else { return 1 };
    sums[start + index] - if index == 0 { 0 } else { sums[start + index - 1] }
}

/// Draws indexes one after another, each with a probability proportional to its weight.
fn draw(mut weights: Vec<u32>, limit: u32, replace: bool, random: &mut RowRandom) -> Vec<usize> {
    if !replace && limit as usize >= weights.len() {
        return (0..weights.len()).collect();
    }
    let mut drawn = Vec::new();
    let count = if weights.is_empty() { 0 } else { limit };
    for _ in 0..count {
        let mut point = random.below(weights.iter().sum());
        let is_after = |weight: &u32| {
            let is_after = point >= *weight;
            point = point.saturating_sub(*weight);
            is_after
        };
        let index = weights.iter().copied().take_while(is_after).count();
        drawn.push(index);
        if !replace {
            weights[index] = 0;
        }
    }
    drawn
}

/// Draws distinct numbers below `size`.
fn pick_distinct(size: u32, count: u32, random: &mut RowRandom) -> BTreeSet<u32> {
    let mut picked = BTreeSet::new();
    while picked.len() < count.min(size) as usize {
        picked.insert(random.below(size));
    }
    picked
}
