//! Samples do not depend on how the rows of an epoch are divided among batches, samplers and threads.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::test_graph::{TestCase, TestGraph, TestRandom, TestRelation, TestSeeds};
use crate::graph::{
    Fanout, GraphLayout, NeighborSampler, Resample, SampledGraph, SamplingSettings, TemporalRule,
};

/// An edge of a tree: hop, target, source and position.
type TreeEdge = (usize, u32, u32, u64);

/// A graph with one node type, and one relation whose rows are longer than a chunk.
fn graph(timed: bool) -> TestGraph {
    let node_counts = vec![90];
    let random = &mut TestRandom::new(11);
    let relation = TestRelation::random(random, &node_counts, (0, 0), 70, (false, timed));
    TestGraph { node_counts, relations: vec![relation] }
}

fn sampler(settings: SamplingSettings) -> NeighborSampler {
    let fanouts = vec![vec![Fanout::Limit(6)], vec![Fanout::Limit(4)]];
    let settings = SamplingSettings { edge_positions: true, seed: 5, operator: 1, fanouts, ..settings };
    NeighborSampler::new(settings).expect("the settings are valid")
}

/// Returns the edges of each tree, by the index of its seed.
fn tree_edges(sampled: &SampledGraph) -> BTreeMap<u32, Vec<TreeEdge>> {
    let (nodes, edges) = (&sampled.nodes[0], &sampled.edges[0]);
    let mut trees: BTreeMap<u32, Vec<TreeEdge>> = BTreeMap::new();
    for (number, hop) in edges.hops().enumerate() {
        for (target, range) in hop.edges_by_target() {
            let tree = nodes.trees.get(target as usize).copied().unwrap_or(0);
            for edge in range {
                let source = nodes.ids[edges.sources[edge as usize] as usize];
                let position = edges.positions[edge as usize];
                trees.entry(tree).or_default().push((number, nodes.ids[target as usize], source, position));
            }
        }
    }
    trees
}

/// Returns the sources that were sampled for each target.
fn neighbors(sampled: &SampledGraph) -> BTreeMap<u32, BTreeSet<Vec<u64>>> {
    let (nodes, edges) = (&sampled.nodes[0], &sampled.edges[0]);
    let mut neighbors: BTreeMap<u32, BTreeSet<Vec<u64>>> = BTreeMap::new();
    for hop in edges.hops() {
        for (target, range) in hop.edges_by_target() {
            let positions = edges.positions[range.start as usize..range.end as usize].to_vec();
            neighbors.entry(nodes.ids[target as usize]).or_default().insert(positions);
        }
    }
    neighbors
}

proptest! {
    #[test]
    fn a_sampler_does_not_remember_earlier_batches(keys in prop::collection::vec(any::<u64>(), 1..5), again: u64) {
        let case = TestCase::random(again);
        let mut sampler = case.sampler();
        let mut output = SampledGraph::default();
        let seeds = case.seeds.view();
        case.graph.sample_into(&mut sampler, &seeds, &mut output);
        let first = output.clone();
        for key in keys {
            // Graphs with other numbers of relations are rejected, but their arrays may have other lengths.
            let other = TestCase::random(key);
            if other.graph.relations.len() == case.graph.relations.len() {
                other.graph.sample_into(&mut sampler, &other.seeds.view(), &mut output);
            }
        }
        case.graph.sample_into(&mut sampler, &seeds, &mut output);
        prop_assert_eq!(output, first);
    }

    #[test]
    fn disjoint_trees_do_not_depend_on_the_size_of_batches(
        nodes in prop::collection::vec(0u32..90, 1..40), size in 1usize..20, blocks: bool, timed: bool,
    ) {
        let graph = graph(timed);
        let layout = if blocks { GraphLayout::Blocks } else { GraphLayout::Subgraph };
        let temporal = timed.then(TemporalRule::default);
        let mut sampler = sampler(SamplingSettings { disjoint: true, layout, temporal, ..SamplingSettings::default() });
        let whole = tree_edges(&graph.sample(&mut sampler, &TestSeeds::of_nodes(&nodes, 2, 100).view()));
        let mut divided = BTreeMap::new();
        for (number, part) in nodes.chunks(size).enumerate() {
            let first = number * size;
            let seeds = TestSeeds::of_nodes(part, 2, 100 + first as u64);
            let trees = tree_edges(&graph.sample(&mut sampler, &seeds.view()));
            divided.extend(trees.into_iter().map(|(tree, edges)| (tree + first as u32, edges)));
        }
        prop_assert_eq!(divided, whole);
    }

    #[test]
    fn a_node_keeps_its_neighbors_if_it_is_not_sampled_again(
        batches in prop::collection::vec(prop::collection::vec(0u32..90, 1..10), 2..6), blocks: bool, never: bool,
    ) {
        let graph = graph(false);
        let layout = if blocks { GraphLayout::Blocks } else { GraphLayout::Subgraph };
        let resample = if never { Resample::Never } else { Resample::Epoch };
        // Equal fanouts in both hops.
        let fanouts = vec![vec![Fanout::Limit(5)]; 2];
        let settings =
            SamplingSettings { layout, resample, fanouts, edge_positions: true, ..SamplingSettings::default() };
        let mut sampler = NeighborSampler::new(settings).expect("the settings are valid");
        let mut all: BTreeMap<u32, BTreeSet<Vec<u64>>> = BTreeMap::new();
        for (number, nodes) in batches.iter().enumerate() {
            let epoch = if never { number as u32 } else { 3 };
            let seeds = TestSeeds::of_nodes(nodes, epoch, 1_000 * number as u64);
            for (node, lists) in neighbors(&graph.sample(&mut sampler, &seeds.view())) {
                all.entry(node).or_default().extend(lists);
            }
        }
        prop_assert!(all.values().all(|lists| lists.len() == 1));
    }
}

/// Each part of the key changes the sample.
#[test]
fn batches_epochs_operators_and_seeds_have_different_draws() {
    let graph = graph(false);
    let sample = |settings: SamplingSettings, epoch: u32, position: u64| {
        let fanouts = vec![vec![Fanout::Limit(6)]];
        let settings = SamplingSettings { fanouts, edge_positions: true, ..settings };
        let mut sampler = NeighborSampler::new(settings).expect("the settings are valid");
        let seeds = TestSeeds::of_nodes(&(0..90).collect::<Vec<_>>(), epoch, position);
        graph.sample(&mut sampler, &seeds.view()).edges.remove(0).positions
    };
    let settings = SamplingSettings::default();
    let of_resample = |resample: Resample| SamplingSettings { resample, ..SamplingSettings::default() };
    let different = [
        sample(settings.clone(), 0, 0),
        sample(settings.clone(), 0, 1),
        sample(settings.clone(), 1, 0),
        sample(SamplingSettings { seed: 1, ..settings.clone() }, 0, 0),
        sample(SamplingSettings { operator: 1, ..settings.clone() }, 0, 0),
        sample(SamplingSettings { disjoint: true, ..settings.clone() }, 0, 0),
        sample(of_resample(Resample::Epoch), 0, 0),
        sample(of_resample(Resample::Epoch), 1, 0),
        sample(of_resample(Resample::Never), 0, 0),
    ];
    let distinct: BTreeSet<&Vec<u64>> = different.iter().collect();
    assert_eq!(distinct.len(), different.len());
    assert_eq!(sample(settings, 0, 0), different[0]);
    assert_eq!(sample(of_resample(Resample::Epoch), 0, 9), different[6]);
    assert_eq!(sample(of_resample(Resample::Never), 4, 9), different[8]);
}

/// A type with many nodes has a hash table instead of an array.
#[test]
fn the_map_of_the_nodes_does_not_affect_the_sample() {
    let random = &mut TestRandom::new(3);
    let relation = TestRelation::random(random, &[50, 200], (0, 1), 40, (true, false));
    let mut graph = TestGraph { node_counts: vec![50, 200], relations: vec![relation] };
    let seeds = TestSeeds::of_nodes(&(0..200).collect::<Vec<_>>(), 0, 0);
    let mut seeds_of_targets = seeds.seeds.clone();
    seeds_of_targets.iter_mut().for_each(|seed| seed.node_type = 1);
    let seeds = TestSeeds { seeds: seeds_of_targets, ..seeds };
    let mut sampler = sampler(SamplingSettings::default());
    let small = graph.sample(&mut sampler, &seeds.view());
    graph.node_counts[0] = 5_000_000;
    assert_eq!(graph.sample(&mut sampler, &seeds.view()), small);
}
