//! Bidirectional graphs, compared with a simple reference.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::reference;
use super::test_graph::{TestCase, TestRandom, TestRelation};
use crate::graph::{
    BatchSeeds, Fanout, GraphLayout, GraphView, NeighborSampler, SampleError, SampledEdges, SampledGraph,
    SamplingSettings,
};

/// Creates a case whose relations have random reverse relations between the same node types.
fn bidirectional_case(key: u64) -> TestCase {
    let mut case = TestCase::random(key);
    let random = &mut TestRandom::new(!key);
    let types: Vec<(u16, u16)> =
        case.graph.relations.iter().map(|relation| (relation.source_type, relation.target_type)).collect();
    let mut reverse = |types_of: &(u16, u16)| {
        let (source, target) = *types_of;
        let others: Vec<u16> = (0..)
            .zip(&types)
            .filter(|(_, other)| **other == (target, source))
            .map(|(index, _)| index)
            .collect();
        (!others.is_empty() && random.below(8) > 0).then(|| random.one_of(&others))
    };
    let reverses: Vec<Option<u16>> = types.iter().map(&mut reverse).collect();
    case.settings.edge_positions =
        (0..).zip(&reverses).all(|(relation, reverse)| reverse.is_none_or(|reverse| reverse == relation));
    case.settings.layout = GraphLayout::Subgraph;
    case.settings.reverses = reverses;
    case
}

/// The edges of a relation with their positions, by target and source, in the order in which they were sampled.
fn sampled_edges(edges: &SampledEdges) -> Vec<((u32, u32), Option<u64>)> {
    let mut all = Vec::new();
    for hop in edges.hops() {
        for (target, range) in hop.edges_by_target() {
            for edge in range {
                let edge = edge as usize;
                all.push(((target, edges.sources[edge]), edges.positions.get(edge).copied()));
            }
        }
    }
    all
}

/// Adds the reverse edges in the simplest way.
fn with_reverse_edges(case: &TestCase, sampled: &SampledGraph) -> SampledGraph {
    let mut result = sampled.clone();
    for (relation, reverse) in case.settings.reverses.iter().enumerate() {
        let Some(reverse) = *reverse else { continue };
        let mut edges = BTreeMap::new();
        for (edge, position) in sampled_edges(&sampled.edges[relation]) {
            edges.entry(edge).or_insert(position);
        }
        for ((target, source), position) in sampled_edges(&sampled.edges[usize::from(reverse)]) {
            edges.entry((source, target)).or_insert(position);
        }
        let nodes = &sampled.nodes[usize::from(case.graph.relations[relation].target_type)];
        let targets = 0..nodes.ids.len() as u32;
        let end = |target: u32| edges.keys().filter(|(other, _)| *other <= target).count() as u32;
        result.edges[relation] = SampledEdges {
            sources: edges.keys().map(|(_, source)| *source).collect(),
            ends: targets.clone().map(end).collect(),
            positions: edges.values().filter_map(|position| *position).collect(),
            hop_counts: vec![edges.len() as u32],
            hop_targets: vec![targets],
        };
    }
    result
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_bidirectional_graph_is_that_of_the_reference(key: u64) {
        let case = bidirectional_case(key);
        let mut expected = reference::sample(&case);
        if !case.settings.edge_positions {
            expected.edges.iter_mut().for_each(|edges| edges.positions.clear());
        }
        let mut sampler = case.sampler();
        let first = case.graph.sample(&mut sampler, &case.seeds.view());
        prop_assert_eq!(&first, &with_reverse_edges(&case, &expected));
        prop_assert_eq!(case.graph.sample(&mut sampler, &case.seeds.view()), first, "the memory is reused");
    }

    #[test]
    fn each_edge_of_a_relation_that_is_its_own_reverse_has_a_reverse_edge(key: u64) {
        let case = bidirectional_case(key);
        let sampled = case.graph.sample(&mut case.sampler(), &case.seeds.view());
        for (relation, reverse) in case.settings.reverses.iter().enumerate() {
            if *reverse != Some(relation as u16) {
                continue;
            }
            let edges: Vec<(u32, u32)> =
                sampled_edges(&sampled.edges[relation]).into_iter().map(|(edge, _)| edge).collect();
            prop_assert!(edges.is_sorted_by(|first, second| first < second), "there are no duplicates");
            for (target, source) in &edges {
                prop_assert!(edges.binary_search(&(*source, *target)).is_ok());
            }
        }
    }
}

#[test]
fn the_reverse_relation_connects_the_same_node_types() {
    let relation = TestRelation::star(4);
    let relations = [relation.view()];
    let graph = GraphView { node_counts: &[4, 1], relations: &relations };
    let settings = SamplingSettings {
        reverses: vec![Some(0)],
        fanouts: vec![vec![Fanout::All]],
        ..SamplingSettings::default()
    };
    let mut sampler = NeighborSampler::new(settings).expect("the settings are valid");
    let result = sampler.sample(&graph, &BatchSeeds::default(), &mut SampledGraph::default());
    assert_eq!(result, Err(SampleError::ReverseRelation { relation: 0, reverse: 0 }));
}
