//! Compares the model with sampled batches.

use feedline_data::graph::GraphLayout;

use super::super::hot_rows::{HotRowCurve, order_by_degree, order_by_probability};
use super::super::sampling::ModeledSampling;
use super::super::topology::reverse_relations;
use super::random_graph::RandomGraph;
use super::reference_sampler::{MeasuredBatches, measure};
use super::{model, sampling};

const BATCHES: u32 = 300;
/// Maximum relative error of the expected nodes and edges.
const MAX_SIZE_ERROR: f64 = 0.04;
/// Maximum error of a hit rate.
const MAX_HIT_RATE_ERROR: f64 = 0.02;

/// Compares nodes, edges and hit rates.
fn compare(name: &str, graph: &RandomGraph, seeds: &[u32], sampling: &ModeledSampling) -> MeasuredBatches {
    let inclusion = model(graph, seeds, sampling);
    let measured = measure(graph, seeds, sampling, BATCHES);
    let name = format!("{name}, {:?}", sampling.settings.layout);
    for (what, expected, measured) in [
        ("nodes", inclusion.expected.node_total(), measured.nodes),
        ("edges", inclusion.expected.edge_total(), measured.edges),
    ] {
        let error = expected / measured - 1.0;
        assert!(
            error.abs() < MAX_SIZE_ERROR,
            "{name}: {expected:.1} {what} expected, {measured:.1} measured"
        );
    }
    let order = order_by_probability(&inclusion.probabilities[0]);
    let curve = HotRowCurve::new(&inclusion.probabilities[0], order.iter().copied());
    for percent in [1, 5, 10, 20, 30] {
        let rows = order.len() * percent / 100;
        let expected = curve.hit_rate(rows as u64);
        let hit_rate = hit_rate(&measured, &order[..rows]);
        let error = (expected - hit_rate).abs();
        assert!(
            error < MAX_HIT_RATE_ERROR,
            "{name}, {percent} %: {expected:.3} expected, {hit_rate:.3} measured"
        );
    }
    measured
}

/// The measured share of the rows of batches that belong to some nodes.
fn hit_rate(measured: &MeasuredBatches, nodes: &[u32]) -> f64 {
    let hits: f64 = nodes.iter().map(|node| measured.counts[*node as usize]).sum();
    hits / measured.counts.iter().sum::<f64>()
}

const LAYOUTS: [GraphLayout; 2] = [GraphLayout::Subgraph, GraphLayout::Blocks];

#[test]
fn uniform_graphs() {
    let graph = RandomGraph::uniform(4_000, 32_000);
    let seeds: Vec<u32> = (0..4_000).step_by(4).collect();
    for layout in LAYOUTS {
        compare("three hops", &graph, &seeds, &sampling(16, &[4, 3, 2], layout));
        compare("large fanouts", &graph, &seeds, &sampling(4, &[20, 20], layout));
    }
}

#[test]
fn power_law_graphs_with_parallel_edges() {
    let graph = RandomGraph::rmat(12, 32_768);
    let seeds: Vec<u32> = (0..4_096).collect();
    for layout in LAYOUTS {
        compare("R-MAT", &graph, &seeds, &sampling(32, &[5, 4], layout));
    }
}

#[test]
fn seeds_in_few_communities() {
    let graph = RandomGraph::communities(16, 60_000);
    let seeds: Vec<u32> = (0..512).collect();
    let edges = [graph.edges()];
    let by_degree = order_by_degree(&graph.view(&edges), 0);
    for layout in LAYOUTS {
        let sampling = sampling(16, &[5, 4, 3], layout);
        let measured = compare("communities", &graph, &seeds, &sampling);
        let by_probability = order_by_probability(&model(&graph, &seeds, &sampling).probabilities[0]);
        let rows = by_degree.len() / 5;
        let lead = hit_rate(&measured, &by_probability[..rows]) - hit_rate(&measured, &by_degree[..rows]);
        assert!(lead > 0.12, "{lead}");
        let mut best = measured.counts.clone();
        best.sort_unstable_by(|a, b| b.total_cmp(a));
        let oracle = best[..rows].iter().sum::<f64>() / best.iter().sum::<f64>();
        let gap = oracle - hit_rate(&measured, &by_probability[..rows]);
        assert!(gap < 0.01, "{gap}");
    }
}

#[test]
fn undirected_graphs() {
    let uniform = RandomGraph::uniform(2_000, 8_000).undirected();
    let sparse = RandomGraph::uniform(3_000, 5_000).undirected();
    let power_law = RandomGraph::rmat(12, 32_768).undirected();
    let communities = RandomGraph::communities(16, 40_000).undirected();
    for graph in [&uniform, &sparse, &power_law, &communities] {
        assert_eq!(reverse_relations(&graph.view(&[graph.edges()])), Ok(vec![Some(0)]));
    }
    let first = |count: u32| (0..count).collect::<Vec<u32>>();
    for layout in LAYOUTS {
        compare("undirected", &uniform, &first(1_000), &sampling(8, &[5, 4, 3], layout));
        compare("undirected, few edges", &sparse, &first(1_000), &sampling(16, &[10, 5], layout));
        compare("undirected R-MAT", &power_law, &first(4_096), &sampling(32, &[5, 4], layout));
        compare("undirected communities", &communities, &first(512), &sampling(16, &[5, 4, 3], layout));
    }
}

#[test]
fn draws_with_replacement() {
    let graph = RandomGraph::uniform(3_000, 18_000);
    let seeds: Vec<u32> = (0..1_500).collect();
    for layout in LAYOUTS {
        let mut sampling = sampling(16, &[5, 4], layout);
        sampling.settings.replace = true;
        compare("with replacement", &graph, &seeds, &sampling);
    }
}

#[test]
fn weighted_draws() {
    let graph = RandomGraph::uniform(3_000, 30_000).with_weights();
    let seeds: Vec<u32> = (0..1_500).collect();
    for layout in LAYOUTS {
        for replace in [false, true] {
            let mut sampling = sampling(16, &[4, 3], layout);
            sampling.settings.replace = replace;
            compare("weights", &graph, &seeds, &sampling);
        }
    }
}

#[test]
fn rows_that_share_no_nodes() {
    let graph = RandomGraph::communities(8, 30_000);
    let seeds: Vec<u32> = (0..256).collect();
    for layout in LAYOUTS {
        let mut sampling = sampling(8, &[4, 3], layout);
        sampling.settings.disjoint = true;
        compare("disjoint", &graph, &seeds, &sampling);
    }
}
