//! Properties of the model.

use feedline_data::graph::{Fanout, GraphLayout, GraphView, RelationView, SamplingSettings};
use proptest::prelude::*;

use super::super::sampling::{ModeledSampling, SeedColumn, SeedTable};
use super::super::topology::ModeledGraph;
use super::super::vip::{BatchInclusion, InclusionModel};
use super::random_graph::RandomGraph;
use super::{model, sampling};

/// Maximum error of probabilities that are stored as 32-bit numbers.
const ROUNDING: f32 = 1e-6;

/// The number of nodes, the edges and the seeds.
type GraphInput = (u32, Vec<(u32, u32)>, Vec<u32>);

fn graphs() -> impl Strategy<Value = GraphInput> {
    (2u32..30).prop_flat_map(|nodes| {
        let edges = prop::collection::vec((0..nodes, 0..nodes), 0..150);
        (Just(nodes), edges, prop::collection::vec(0..nodes, 1..20))
    })
}

fn layouts() -> impl Strategy<Value = GraphLayout> {
    prop_oneof![Just(GraphLayout::Subgraph), Just(GraphLayout::Blocks)]
}

/// Fanouts in descending order. With ascending fanouts and the layout `subgraph`, a node that enters in an earlier hop may have fewer
/// neighbors.
fn descending(mut fanouts: Vec<u32>) -> Vec<u32> {
    fanouts.sort_unstable_by(|a, b| b.cmp(a));
    fanouts
}

proptest! {
    #[test]
    fn probabilities_are_probabilities(
        (nodes, edges, seeds) in graphs(), fanouts in prop::collection::vec(0u32..8, 0..5), batch in 1u32..12,
        layout in layouts(), replace: bool, weighted: bool, has_reverse: bool,
    ) {
        let graph = RandomGraph { reverse: [has_reverse.then_some(0)], ..RandomGraph::new(nodes, edges) };
        let graph = if weighted { graph.with_weights() } else { graph };
        let mut sampling = sampling(batch, &fanouts, layout);
        sampling.settings.replace = replace;
        let inclusion = model(&graph, &seeds, &sampling);
        let probabilities = &inclusion.probabilities[0];
        prop_assert!(probabilities.iter().all(|probability| (0.0..=1.0).contains(probability)), "{probabilities:?}");
        let total: f64 = probabilities.iter().map(|probability| f64::from(*probability)).sum();
        prop_assert!((inclusion.expected.node_total() - total).abs() < 1e-4);
        prop_assert_eq!(inclusion.expected.edges[0].len(), fanouts.len());
    }

    #[test]
    fn larger_fanouts_do_not_decrease_probabilities(
        (nodes, edges, seeds) in graphs(), fanouts in prop::collection::vec(0u32..8, 1..4), extra in 1u32..4,
        longer in 1usize..4, batch in 1u32..12, layout in layouts(), replace: bool,
    ) {
        let graph = RandomGraph::new(nodes, edges);
        let fanouts = descending(fanouts);
        let mut larger = fanouts.clone();
        larger.iter_mut().take(longer).for_each(|fanout| *fanout += extra);
        let modeled = |fanouts: &[u32]| {
            let mut sampling = sampling(batch, fanouts, layout);
            sampling.settings.replace = replace;
            model(&graph, &seeds, &sampling).probabilities.remove(0)
        };
        for (small, large) in modeled(&fanouts).into_iter().zip(modeled(&larger)) {
            prop_assert!(large >= small - ROUNDING, "{small} {large}");
        }
    }

    #[test]
    fn the_order_of_the_nodes_does_not_matter(
        (nodes, edges, seeds) in graphs(), fanouts in prop::collection::vec(0u32..8, 1..4), key: u64,
        batch in 1u32..12, layout in layouts(),
    ) {
        let renamed = feedline_data::permutation::Permutation::new(u64::from(nodes), key);
        let rename = |node: u32| renamed.apply(u64::from(node)) as u32;
        let sampling = sampling(batch, &fanouts, layout);
        let other_edges = edges.iter().map(|(source, target)| (rename(*source), rename(*target))).collect();
        let other_seeds: Vec<u32> = seeds.iter().map(|node| rename(*node)).collect();
        let inclusion = model(&RandomGraph::new(nodes, edges), &seeds, &sampling);
        let other = model(&RandomGraph::new(nodes, other_edges), &other_seeds, &sampling);
        for node in 0..nodes {
            let probability = inclusion.probabilities[0][node as usize];
            let other = other.probabilities[0][rename(node) as usize];
            prop_assert!((probability - other).abs() < ROUNDING, "{node}: {probability} {other}");
        }
    }

    #[test]
    fn the_number_of_parts_does_not_matter(
        (nodes, edges, seeds) in graphs(), fanouts in prop::collection::vec(0u32..8, 1..4), parts in 2usize..40,
        layout in layouts(), has_times: bool, weighted: bool, has_reverse: bool,
    ) {
        let graph = RandomGraph { reverse: [has_reverse.then_some(0)], ..RandomGraph::new(nodes, edges) };
        let graph = if weighted { graph.with_weights() } else { graph };
        let times = vec![0_i64; graph.sources.len()];
        let relations = [RelationView { times: has_times.then_some(times.as_slice()), ..graph.edges() }];
        let columns = [SeedColumn::Nodes { node_type: 0, nodes: &seeds }];
        let seeds = SeedTable { count: seeds.len() as u64, columns: &columns };
        let sampling = sampling(4, &fanouts, layout);
        let run = |parts: usize| {
            let mut model = InclusionModel::new(graph.modeled(&relations), &seeds, &sampling).unwrap();
            while let Some(parts) = model.next_hop(parts) {
                // Parts are independent of each other, so their order does not matter either.
                parts.into_iter().rev().for_each(|part| part.run());
            }
            model.finish()
        };
        prop_assert_eq!(run(1), run(parts));
    }
}

/// A target with four neighbors, of which each draw selects two.
#[test]
fn probabilities_of_a_small_tree() {
    let graph = RandomGraph::new(7, vec![(1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1)]);
    let probabilities = |layout| model(&graph, &[0], &sampling(1, &[2, 1], layout)).probabilities.remove(0);
    assert_eq!(probabilities(GraphLayout::Subgraph), [1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]);
    // The second hop draws one of the four again.
    assert_eq!(probabilities(GraphLayout::Blocks), [1.0, 0.625, 0.625, 0.625, 0.625, 0.25, 0.25]);
}

#[test]
fn seeds_of_several_columns_are_combined() {
    let graph = RandomGraph::new(4, Vec::new());
    let edges = [graph.edges()];
    let columns = [
        SeedColumn::Nodes { node_type: 0, nodes: &[0, 0, 1, 2] },
        SeedColumn::Nodes { node_type: 0, nodes: &[1, 1, 1, 1] },
        SeedColumn::Random { node_type: 0, per_row: 1.0 },
    ];
    let seeds = SeedTable { count: 4, columns: &columns };
    let sampling = sampling(2, &[], GraphLayout::Subgraph);
    let inclusion = InclusionModel::run(graph.modeled(&edges), &seeds, &sampling).unwrap();
    // Two of four rows, and each of two random nodes is a node with the probability 1/4.
    let present = |rows: i32| 1.0 - 0.5_f32.powi(rows) * 0.75_f32.powi(2);
    for (node, rows) in [(0, 2), (1, 5), (2, 1), (3, 0)] {
        assert!((inclusion.probabilities[0][node] - present(rows)).abs() < ROUNDING, "{node}");
    }
    assert_eq!(inclusion.expected.hop_count(), 0);
}

/// Nodes of type 1 are reached through one relation, and return to type 0 through the other.
#[test]
fn relations_connect_types() {
    let (forward, back) = ([1, 0], [1, 1]);
    let relation = |source_type, target_type, offsets: &'static [u64], sources| RelationView {
        source_type,
        target_type,
        offsets,
        sources,
        weights: None,
        times: None,
    };
    let relations = [relation(1, 0, &[0, 1, 2], &forward), relation(0, 1, &[0, 0, 2], &back)];
    let view = GraphView { node_counts: &[2, 2], relations: &relations };
    let graph = ModeledGraph { view, reverse: &[None, None] };
    let columns = [SeedColumn::Nodes { node_type: 0, nodes: &[0] }];
    let one = Fanout::Limit(1);
    let fanouts = vec![vec![one, one], vec![Fanout::All, one]];
    let settings = SamplingSettings { fanouts, ..SamplingSettings::default() };
    let sampling = ModeledSampling { batch_rows: 1, settings };
    let BatchInclusion { probabilities, expected } =
        InclusionModel::run(graph, &SeedTable { count: 1, columns: &columns }, &sampling).unwrap();
    // Node 1 of type 1 draws one of two parallel edges to node 1 of type 0.
    assert_eq!(probabilities, [[1.0, 1.0], [0.0, 1.0]]);
    assert_eq!(expected.edges, [[1.0, 0.0], [0.0, 1.0]]);
    assert_eq!(expected.targets, [[1.0, 0.0], [0.0, 1.0]]);
    assert_eq!(expected.nodes, [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]);
}

#[test]
fn invalid_settings_are_named() {
    let graph = RandomGraph::new(2, vec![(0, 1)]);
    let edges = [graph.edges()];
    let error = |columns: &[SeedColumn<'_>], count: u64, fanouts: Vec<Vec<Fanout>>| {
        let mut sampling = sampling(1, &[], GraphLayout::Subgraph);
        sampling.settings.fanouts = fanouts;
        InclusionModel::run(graph.modeled(&edges), &SeedTable { count, columns }, &sampling).unwrap_err()
    };
    assert_eq!(error(&[], 0, Vec::new()), "a batch without seeds cannot be modeled");
    assert_eq!(error(&[], 1, vec![Vec::new()]), "hop 1 has 0 fanouts, but the graph has 1 relations");
    let nodes = |node_type, nodes| [SeedColumn::Nodes { node_type, nodes }];
    assert_eq!(error(&nodes(1, &[]), 1, Vec::new()), "the node type 1 of the seeds does not exist");
    assert_eq!(error(&nodes(0, &[1, 2]), 2, Vec::new()), "seed 2 does not exist: its type has 2 nodes");
    assert_eq!(
        error(&[SeedColumn::Random { node_type: 0, per_row: f64::NAN }], 1, Vec::new()),
        "invalid number of random nodes per row: NaN"
    );
}
