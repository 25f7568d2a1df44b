//! Properties of samples of random graphs.

use proptest::prelude::*;

use super::reference;
use super::test_graph::TestCase;
use crate::graph::{GraphLayout, SampledGraph};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_sample_is_that_of_the_reference(key: u64) {
        let case = TestCase::random(key);
        let sampled = case.graph.sample(&mut case.sampler(), &case.seeds.view());
        prop_assert_eq!(sampled, reference::sample(&case));
    }

    #[test]
    fn a_sample_is_a_part_of_the_graph(key: u64) {
        let case = TestCase::random(key);
        let sampled = case.graph.sample(&mut case.sampler(), &case.seeds.view());
        for (seed, local) in case.seeds.seeds.iter().zip(&sampled.seed_locals) {
            prop_assert_eq!(sampled.nodes[usize::from(seed.node_type)].ids[*local as usize], seed.node);
        }
        for (relation, edges) in case.graph.relations.iter().zip(&sampled.edges) {
            let (sources, targets) = (
                &sampled.nodes[usize::from(relation.source_type)],
                &sampled.nodes[usize::from(relation.target_type)],
            );
            let mut next_target = 0;
            for hop in edges.hops() {
                if case.settings.layout == GraphLayout::Subgraph {
                    prop_assert_eq!(hop.targets.start, next_target, "a target is expanded once");
                    next_target = hop.targets.end;
                }
                for (target, range) in hop.edges_by_target() {
                    let node = targets.ids[target as usize] as usize;
                    for edge in range {
                        let (source, position) = (edges.sources[edge as usize], edges.positions[edge as usize]);
                        prop_assert!((relation.offsets[node]..relation.offsets[node + 1]).contains(&position));
                        prop_assert_eq!(sources.ids[source as usize], relation.sources[position as usize]);
                        prop_assert_eq!(
                            sources.trees.get(source as usize),
                            targets.trees.get(target as usize),
                            "an edge connects nodes of one tree"
                        );
                    }
                }
            }
        }
        check_counts(&sampled)?;
    }
}

fn check_counts(sampled: &SampledGraph) -> Result<(), TestCaseError> {
    for nodes in &sampled.nodes {
        prop_assert_eq!(nodes.hop_counts.iter().sum::<u32>() as usize, nodes.ids.len());
    }
    for edges in &sampled.edges {
        prop_assert_eq!(edges.hop_counts.iter().sum::<u32>() as usize, edges.sources.len());
        prop_assert_eq!(edges.ends.last().copied().unwrap_or(0) as usize, edges.sources.len());
        prop_assert!(edges.ends.is_sorted());
    }
    Ok(())
}
